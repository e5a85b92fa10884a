//! Sends very many different keys through one sketch.
//!
//! An attacker can use a new key for each request. The memory must not grow, and the sketch must not admit more than
//! the limit of any other key.

use std::fs;
use std::io::{IsTerminal, Write as _};

use clap::Args;
use spillgate::sketch::Sketch;
use spillgate::{Quota, Time};

use crate::exact::Debt;

const SECOND: u64 = 1_000_000_000;

#[derive(Args)]
pub(crate) struct Options {
    /// The number of different keys that come once
    #[arg(long, default_value_t = 1_000_000_000)]
    keys: u64,
    /// The bytes of the sketch
    #[arg(long, default_value_t = 64_000_000)]
    bytes: usize,
    /// New keys in a virtual second
    #[arg(long, default_value_t = 1_000_000)]
    rate: u64,
    /// Keys whose bounds are checked. Each of them asks five times as often as its limit allows
    #[arg(long, default_value_t = 2_000)]
    tracked: u32,
}

/// What a run has counted.
struct Counted {
    bytes: usize,
    /// New keys that were admitted.
    admitted: u64,
    /// The requests of tracked keys.
    asked: u64,
    /// The requests in `asked` that were admitted.
    allowed: u64,
    /// The requests in `asked` that were admitted although the exact state of their key has no unit left.
    above: u64,
    /// The highest share of new keys that are refused.
    refused_share: f64,
    /// The resident memory of the process after a hundredth of the run, and the highest after that, in bytes.
    resident: (usize, usize),
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    let began = std::time::Instant::now();
    let counted = measure(options, &mut |done| progress(done))?;
    eprintln!();
    let seconds = began.elapsed().as_secs_f64();
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let virtual_s = options.keys as f64 / options.rate as f64;
    let fair = 10.0 * virtual_s * f64::from(options.tracked);
    let report = format!(
        "{}\nThe limit is 10 units a second for each key, with a burst of 10. {} keys come once, {} in a virtual second. {} tracked \
         keys each ask 50 times a second.\n\n| | |\n|---|---|\n\
         | size of the sketch | {:.1} MiB |\n\
         | resident memory after a hundredth of the run | {:.1} MiB |\n\
         | highest resident memory after that | {:.1} MiB |\n\
         | new keys that were admitted | {} of {} |\n\
         | highest expected share of wrong refusals | {:.2e} |\n\
         | requests of the tracked keys | {} |\n\
         | admitted, and what the limit allows in this time | {} of {fair:.0} ({:.2} %) |\n\
         | admitted above the bound | {} |\n\
         | requests in a real second | {:.1} million |\n",
        kit::machine(),
        options.keys,
        options.rate,
        options.tracked,
        mib(counted.bytes),
        mib(counted.resident.0),
        mib(counted.resident.1),
        counted.admitted,
        options.keys,
        counted.refused_share,
        counted.asked,
        counted.allowed,
        100.0 * counted.allowed as f64 / fair,
        counted.above,
        (options.keys + counted.asked) as f64 / seconds / 1e6,
    );
    let grown = counted.resident.1 > counted.resident.0 + (1 << 20);
    match (counted.above, grown) {
        (0, false) => Ok(report),
        (0, true) => Err(format!("{report}\nthe memory has grown")),
        _ => Err(format!("{report}\na key was admitted above its bound")),
    }
}

fn measure(options: &Options, progress: &mut dyn FnMut(f64)) -> Result<Counted, String> {
    let quota = Quota::per_second(10).build().map_err(|error| error.to_string())?;
    let sketch = Sketch::new(&quota, options.bytes).map_err(|error| error.to_string())?;
    let mut tracked = vec![Debt::default(); options.tracked as usize];
    let mut counted = Counted {
        bytes: sketch.bytes(),
        admitted: 0,
        asked: 0,
        allowed: 0,
        above: 0,
        refused_share: 0.0,
        resident: (0, 0),
    };
    // The requests of tracked keys are spread evenly among those of the new keys.
    let asked_per_second = u64::from(options.tracked) * 50;
    let step = (options.keys / 100).max(1);
    for key in 0..options.keys {
        let now = 1_000 * SECOND
            + u64::try_from(u128::from(key) * u128::from(SECOND) / u128::from(options.rate)).unwrap_or(0);
        let at = Time::from_nanos(now);
        counted.admitted += u64::from(sketch.take_now(at, &quota, u128::from(key) << 32 | 1 << 120, 1).allowed);
        let due = u128::from(key + 1) * u128::from(asked_per_second) / u128::from(options.rate);
        while u128::from(counted.asked) < due {
            let number = (counted.asked % u64::from(options.tracked)) as usize;
            let debt = &mut tracked[number];
            counted.asked += 1;
            if sketch.take_now(at, &quota, number as u128, 1).allowed {
                counted.allowed += 1;
                counted.above += u64::from(!debt.fits(&quota, now));
                debt.charge(&quota, now);
            }
        }
        if (key + 1) % step == 0 {
            let resident = resident()?;
            let first = if counted.resident.0 == 0 { resident } else { counted.resident.0 };
            counted.resident = (first, counted.resident.1.max(resident));
            counted.refused_share = counted.refused_share.max(sketch.wrong_refusals(at, &quota, 1));
            progress((key + 1) as f64 / options.keys as f64);
        }
    }
    Ok(counted)
}

fn progress(done: f64) {
    let filled = (done * 50.0) as usize;
    let mut error = std::io::stderr();
    let end = if error.is_terminal() { "\r" } else { "\n" };
    // A terminal gets a bar that moves. A log file gets a line for each tenth of the run.
    if end == "\r" || ((done * 100.0).round() as u64).is_multiple_of(10) {
        let _ = write!(error, "[{}{}] {:.0} %{end}", "#".repeat(filled), " ".repeat(50 - filled.min(50)), 100.0 * done);
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> Result<usize, String> {
    let statm = fs::read_to_string("/proc/self/statm").map_err(|error| format!("/proc/self/statm: {error}"))?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    Ok(pages.ok_or("/proc/self/statm has no resident pages")? * rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_million_keys_break_no_bound_and_need_no_more_memory() {
        // The sketch is small for the rate, so that keys share many cells.
        let options = Options { keys: 10_000_000, bytes: 4_000_000, rate: 1_000_000, tracked: 200 };
        let counted = measure(&options, &mut |_| {}).expect("the options are valid");
        assert_eq!(counted.above, 0);
        assert!(counted.allowed > 10 * 200, "{} of the tracked requests were admitted", counted.allowed);
        // Other tests of this process can allocate meanwhile, but not as much as ten million keys would need.
        let (first, last) = counted.resident;
        assert!(last < first + (64 << 20), "the memory has grown from {first} to {last} bytes");
    }
}
