//! Three regions, each with a Redis server of its own, that share limits: what all of them admit together, and what each of
//! them gets.
//!
//! `REGIONS_SECONDS` sets how long a run lasts (default 3).

mod bound;
mod fair;
mod fleet;

use std::time::Duration;

/// How long a run lasts.
fn run_time() -> Duration {
    let seconds = std::env::var("REGIONS_SECONDS").map(|text| text.parse().expect("REGIONS_SECONDS is a number"));
    Duration::from_secs_f64(seconds.unwrap_or(3.0))
}
