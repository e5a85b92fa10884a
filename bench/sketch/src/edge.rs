//! Compares what three limiters admit around the end of a window.
//!
//! One limiter has a well-known design: a Bloom filter and a Count-Min sketch for each window. When a window ends, this
//! limiter begins with an empty filter and an empty sketch. So it forgets all requests at this instant, and admits each
//! key's whole limit again.

use std::fmt::Write;
use std::time::Duration;

use spillgate::sketch::{BloomFilter, CountMin, Sketch, SketchError};
use spillgate::{Binding, Hit, MemoryOptions, MemoryStore, Op, Quota, Time};

const SECOND: u64 = 1_000_000_000;
const LIMIT: u64 = 100;
const KEYS: u32 = 1_000;

/// A limiter that decides at virtual times. `now` is in nanoseconds.
trait Limiter {
    fn allows(&mut self, key: u32, now: u64) -> bool;
}

/// The well-known design: both structures are replaced by empty ones when a window ends.
struct Forgetful {
    window: u64,
    seen: BloomFilter,
    counts: CountMin,
}

impl Forgetful {
    fn empty(window: u64) -> Result<Forgetful, SketchError> {
        let (seen, counts) = (BloomFilter::for_keys(u64::from(KEYS), 0.001)?, CountMin::with_bytes(1 << 20)?);
        Ok(Forgetful { window, seen, counts })
    }
}

impl Limiter for Forgetful {
    fn allows(&mut self, key: u32, now: u64) -> bool {
        if now / SECOND != self.window {
            let Ok(empty) = Forgetful::empty(now / SECOND) else { return false };
            *self = empty;
        }
        let key = u128::from(key);
        if !self.seen.contains(key) {
            self.seen.insert(key);
            return true;
        }
        // The filter counts the first unit of a key, and the sketch counts the others.
        let allowed = 1 + self.counts.estimate(key) < LIMIT;
        if allowed {
            self.counts.add(key, 1);
        }
        allowed
    }
}

struct Sketched(Sketch, Quota);

impl Limiter for Sketched {
    fn allows(&mut self, key: u32, now: u64) -> bool {
        self.0.take_now(Time::from_nanos(now), &self.1, key.into(), 1).allowed
    }
}

struct Stored(MemoryStore, Quota);

impl Limiter for Stored {
    fn allows(&mut self, key: u32, now: u64) -> bool {
        let hit = Hit::new(key.into(), &self.1, Op::take(1), Binding::Enforce);
        self.0.hit_now(Time::from_nanos(now), &hit).allowed
    }
}

/// Each key asks 200 times in the last 10 ms of a window, and 200 times in the first 10 ms of the next one. Returns the
/// average number of admitted units for each key, before and after the end of the window.
fn around_the_edge(limiter: &mut dyn Limiter) -> (f64, f64) {
    let mut admitted = |from: u64| {
        let requests = (0..200).flat_map(|i| (0..KEYS).map(move |key| (key, from + i * 50_000)));
        requests.filter(|(key, now)| limiter.allows(*key, *now)).count() as f64 / f64::from(KEYS)
    };
    (admitted(1_000 * SECOND - 10_000_000), admitted(1_000 * SECOND))
}

pub(crate) fn run() -> Result<String, String> {
    let quota =
        Quota::sliding_window_counter(LIMIT, Duration::from_secs(1)).build().map_err(|error| error.to_string())?;
    let sketch = Sketch::new(&quota, 4 << 20).map_err(|error| error.to_string())?;
    let forgetful = Forgetful::empty(0).map_err(|error| error.to_string())?;
    let store = MemoryStore::new(MemoryOptions::default());
    let limiters: [(&str, Box<dyn Limiter>); 3] = [
        ("filter and sketch that begin empty in each window", Box::new(forgetful)),
        ("spillgate sketch, sliding_window_counter, 4 MiB", Box::new(Sketched(sketch, quota.clone()))),
        ("spillgate memory store, sliding_window_counter", Box::new(Stored(store, quota))),
    ];
    // In any time `s`, a sliding window counter with the limit `L` and the window `W` admits at most `L + L * s / W`.
    // Here `s` is 20 ms, and `W` is a second.
    let bound = LIMIT as f64 * 1.02;
    let mut report = format!(
        "The limit is {LIMIT} units a second. Each of {KEYS} keys asks 200 times in the last 10 ms of a window, and 200 times in the \
         first 10 ms of the next one. The bound of a sliding window counter for these 20 ms is {bound:.0} units.\n\n\
         | limiter | admitted before the edge, units for each key | after the edge | in 20 ms |\n|---|---|---|---|\n"
    );
    let mut sums = Vec::new();
    for (name, mut limiter) in limiters {
        let (before, after) = around_the_edge(limiter.as_mut());
        let _ = writeln!(report, "| {name} | {before:.1} | {after:.1} | {:.1} |", before + after);
        sums.push(before + after);
    }
    if sums[1] <= bound && sums[0] > 1.9 * LIMIT as f64 {
        Ok(report)
    } else {
        Err(format!("{report}\nnot as expected"))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_the_forgetful_design_admits_everything_again() {
        super::run().expect("the sketch keeps its bound at the edge");
    }
}
