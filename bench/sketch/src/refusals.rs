//! Counts the wrong refusals of a sketch, and compares them with the formula.
//!
//! A refusal is wrong if the exact state of the key has enough units left. The formula predicts the number of wrong
//! refusals. In it, `B` is the burst of the limit, and `T` is the time in which one used unit becomes free again. The
//! debt of a key or a cell is the time until all its used units are free again.
//!
//! Let `h` be the share of cells whose debt is longer than `(B - 1) * T`. Such a cell has no unit left. A key has four
//! cells, and is refused if none of the four has a unit left. So a request of one unit by a key without a debt is
//! refused wrongly with the probability `h^4`. A key with the debt `d` has less left: for this key, `h` is the share of
//! cells whose debt is longer than `(B - 1) * T - d`.
//!
//! The shares change with time, so they are read again and again during the run. The expected number of wrong refusals
//! is the sum of `h^4` over all requests whose exact state would admit them.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use spillgate::sketch::Sketch;
use spillgate::{Quota, Time};

use crate::exact::Debt;

#[derive(Args)]
pub(crate) struct Options {
    /// Divide the number of requests of each case by this number
    #[arg(long, default_value_t = 1)]
    part: u64,
}

const SECOND: u64 = 1_000_000_000;

/// The keys of the requests.
#[derive(Clone, Copy, PartialEq)]
enum Mix {
    /// All keys are equally frequent.
    Uniform,
    /// Zipf(1.0).
    Zipf,
    /// Honest keys within their limits. For each of their requests, 100 other keys send their only request.
    Attack,
}

struct Case {
    mix: Mix,
    burst: u64,
    keys: u32,
    /// Requests in all.
    requests: u64,
    /// Requests in a virtual second.
    rate: u64,
    /// The size of the sketch.
    bytes: usize,
}

/// Each case has a sketch that is much too small, so that there are enough wrong refusals to count.
const CASES: [Case; 6] = [
    Case { mix: Mix::Uniform, burst: 1, keys: 1_000_000, requests: 40_000_000, rate: 1_000_000, bytes: 16 << 20 },
    Case { mix: Mix::Uniform, burst: 10, keys: 1_000_000, requests: 40_000_000, rate: 2_000_000, bytes: 2350 << 10 },
    Case { mix: Mix::Zipf, burst: 1, keys: 1_000_000, requests: 40_000_000, rate: 2_000_000, bytes: 8 << 20 },
    Case { mix: Mix::Zipf, burst: 10, keys: 1_000_000, requests: 40_000_000, rate: 4_000_000, bytes: 3 << 20 },
    Case { mix: Mix::Attack, burst: 1, keys: 1_000_000, requests: 101_000_000, rate: 1_000_000, bytes: 16 << 20 },
    Case { mix: Mix::Attack, burst: 10, keys: 1_000_000, requests: 101_000_000, rate: 1_000_000, bytes: 1360 << 10 },
];

/// What a run has counted.
#[derive(Default)]
struct Counted {
    /// Requests that the exact state of their key would admit.
    right: u64,
    /// How many of the requests in `right` the sketch has refused.
    wrong: u64,
    /// How many of the requests in `right` the formula expects to be refused.
    expected: f64,
    /// The wrong refusals of keys without a debt: how many there were, and how many the formula expects.
    of_fresh: (u64, f64),
    /// Requests that the sketch has admitted, although the exact state of their key has no unit left.
    above: u64,
    /// The largest share of cells whose debt is too long for a new key.
    highest: f64,
}

impl Counted {
    /// Returns whether the formula holds: the wrong refusals are at most twice what it expects, plus three standard
    /// deviations. No request may be admitted above its limit.
    fn holds(&self) -> bool {
        self.above == 0 && self.wrong as f64 <= 2.0 * self.expected + 3.0 * self.expected.sqrt()
    }
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    let mut report = kit::machine();
    report.push_str(
        "\nThe limit is 10 units a second for each key. A row of the table is one run with a sketch that is too small on purpose.\n\n\
         | requests | burst | keys | sketch | cells that are too high, at most | requests within their limit | wrong refusals | \
         expected by the formula | wrong / expected, at most 2 and 3 sigma | the same for keys that owe nothing | verdict |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut failed = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let counted = measure(case, options.part.max(1), number as u64 + 1)?;
        let enough = counted.expected >= 100.0 || options.part > 1;
        let verdict = if counted.holds() && enough { "holds" } else { "**BROKEN**" };
        if verdict != "holds" {
            failed.push(number + 1);
        }
        let _ = writeln!(
            report,
            "| {} of {} | {} | {} | {:.1} MiB | {:.1} % | {} | {} | {:.0} | {:.2} | {} / {:.0} = {:.2} | {verdict} |",
            case.requests / options.part.max(1),
            case.mix.name(),
            case.burst,
            case.keys,
            case.bytes as f64 / f64::from(1 << 20),
            100.0 * counted.highest,
            counted.right,
            counted.wrong,
            counted.expected,
            counted.wrong as f64 / counted.expected,
            counted.of_fresh.0,
            counted.of_fresh.1,
            counted.of_fresh.0 as f64 / counted.of_fresh.1,
        );
        eprintln!("case {} of {}: {verdict}", number + 1, CASES.len());
    }
    if failed.is_empty() { Ok(report) } else { Err(format!("{report}\nbroken: the cases {failed:?}")) }
}

fn measure(case: &Case, part: u64, seed: u64) -> Result<Counted, String> {
    let quota = Quota::token_bucket(10, Duration::from_secs(1)).burst(case.burst).build();
    let quota = quota.map_err(|error| error.to_string())?;
    let sketch = Sketch::new(&quota, case.bytes).map_err(|error| error.to_string())?;
    let requests = case.requests / part;
    let mut rng = SmallRng::seed_from_u64(seed);
    let drawn = match case.mix {
        Mix::Zipf => kit::draw(case.keys, 1.0, seed, requests as usize),
        Mix::Uniform | Mix::Attack => Vec::new(),
    };
    let mut exact = vec![Debt::default(); case.keys as usize];
    let mut counted = Counted::default();
    // The expected share of wrong refusals for keys whose own debt is 0, `T / 8`, `2 * T / 8` and so on.
    let mut shares = vec![0.0; 8 * case.burst as usize];
    let eighth = quota.interval_ns() / 8;
    let between = (requests / 100).max(1);
    for request in 0..requests {
        let now = 1_000 * SECOND + request * SECOND / case.rate;
        let at = Time::from_nanos(now);
        if request % between == 0 {
            for (step, share) in shares.iter_mut().enumerate() {
                // A key with the debt `d` gets the answer that a key without a debt would have got at the time `now -
                // d`.
                *share = sketch.wrong_refusals(Time::from_nanos(now - step as u64 * eighth), &quota, 1);
            }
            counted.highest = counted.highest.max(shares[0].powf(0.25));
        }
        let key = match case.mix {
            Mix::Uniform => rng.random_range(0..case.keys),
            Mix::Zipf => drawn[request as usize],
            Mix::Attack if request % 101 == 0 => rng.random_range(0..case.keys),
            Mix::Attack => {
                let _ = sketch.take_now(at, &quota, u128::from(request) << 40 | 1 << 100, 1);
                continue;
            }
        };
        let allowed = sketch.take_now(at, &quota, u128::from(key), 1).allowed;
        let debt = &mut exact[key as usize];
        if debt.fits(&quota, now) {
            counted.right += 1;
            let step = (debt.left(now) + eighth / 2) / eighth;
            counted.expected += shares[(step as usize).min(shares.len() - 1)];
            counted.wrong += u64::from(!allowed);
            if debt.left(now) == 0 {
                counted.of_fresh.0 += u64::from(!allowed);
                counted.of_fresh.1 += shares[0];
            }
        } else {
            counted.above += u64::from(allowed);
        }
        if allowed {
            debt.charge(&quota, now);
        }
    }
    Ok(counted)
}

impl Mix {
    const fn name(self) -> &'static str {
        match self {
            Mix::Uniform => "equally frequent keys",
            Mix::Zipf => "Zipf(1.0) keys",
            Mix::Attack => "an attack: 100 new keys for each honest request",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_each_case_keeps_the_formula_and_every_bound() {
        for (number, case) in CASES.iter().enumerate() {
            let counted = measure(case, 6, number as u64 + 1).expect("the case is valid");
            assert!(counted.expected >= 100.0, "case {number}: only {} expected", counted.expected);
            assert!(counted.holds(), "case {number}: {} wrong, {} expected", counted.wrong, counted.expected);
        }
    }
}
