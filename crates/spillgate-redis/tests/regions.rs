//! Three regions, each with a Redis server of its own, that share limits: what all of them admit together, what each of
//! them gets, and what faults change.
//!
//! `make test` runs one bucket for ten seconds and one cut, because runs with real delays take minutes. `REGIONS=all` runs
//! everything, as the targets `make show-regions-...` do. `REGIONS_SECONDS` sets how long a run lasts (default 10).

mod attack;
mod bound;
mod cost;
mod fair;
mod faults;
mod fleet;
mod line;
mod requests;

use std::time::Duration;

use spillgate::{Clock, SystemClock};

/// How long a run lasts.
fn run_time() -> Duration {
    let seconds = std::env::var("REGIONS_SECONDS").map(|text| text.parse().expect("REGIONS_SECONDS is a number"));
    Duration::from_secs_f64(seconds.unwrap_or(10.0))
}

/// Whether the runs are wanted that take minutes.
fn runs_all() -> bool {
    std::env::var("REGIONS").is_ok_and(|text| text == "all")
}

/// Returns the time of this machine, which is that of each Redis too.
fn now_ns() -> u64 {
    SystemClock::start().now().as_nanos()
}
