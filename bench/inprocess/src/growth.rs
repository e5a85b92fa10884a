//! Measures the CPU time of each batch of decisions, while a store grows and while all its keys expire.
//!
//! A store that grows all at once can have good averages and still make one request very slow. The slowest batch shows
//! this.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use kit::quantile;
use spillgate::{Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time};

use crate::allocator::live_bytes;
use crate::cases::{Case, Spillgate, Subject, Width, governor};
use crate::keys::Keys;
use kit::thread_cpu_ns;

/// The time after which the state of a key expires.
const LIFE: Duration = Duration::from_secs(3600);
/// The clock advances by [`LIFE`] during this many batches. A key without a request during this time has then expired.
const LIFE_BATCHES: u32 = 50;
/// The number of keys that have requests all the time.
const HOT_KEYS: u32 = 10_000;

#[derive(Args)]
pub(crate) struct Options {
    /// Number of keys at the end of the first phase, in which the store grows
    #[arg(long, default_value_t = 20_000_000)]
    keys: u32,
    /// Decisions in one batch
    #[arg(long, default_value_t = 10_000)]
    batch: u32,
    /// The maximum number of batches while the old keys expire
    #[arg(long, default_value_t = 6000)]
    expiry_batches: u32,
    #[arg(long, value_enum, num_args = 1.., default_values_t = [Case::TokenBucket, Case::FixedWindow, Case::Governor])]
    cases: Vec<Case>,
}

/// The measured times of one phase.
struct Phase {
    name: &'static str,
    /// The CPU time of each batch, in order.
    batch_ns: Vec<f64>,
    /// The number of keys and the allocated bytes at the end of the phase.
    note: String,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    let mut report = kit::machine();
    let _ = writeln!(
        report,
        "\n### The slowest batch while keys come and expire\n\nThe times are the CPU time of one batch of {} decisions. \
         In the first phase, every decision is on a new key, until there are {} keys. \
         Then the clock advances until all keys have expired. In the second phase, half of the decisions are on new keys, a \
         quarter on old keys and a quarter on {HOT_KEYS} hot keys. This phase ends when the store is small again.\n",
        options.batch, options.keys
    );
    report.push_str(
        "| limiter, phase | batches | median batch, us | p99.9 of the batches, us | second slowest batch, us ",
    );
    report.push_str(
        "| slowest batch, us (its index) | slowest / median | keys and memory at the end \
         |\n|---|---|---|---|---|---|---|---|\n",
    );
    for &case in &options.cases {
        let phases = match case {
            Case::Governor => vec![grow_governor(options)?],
            Case::TokenBucket | Case::FixedWindow | Case::SlidingWindowCounter => Store::new(case, options)?.run(),
            Case::TokenBucketTicking | Case::GovernorUpkeep => {
                return Err(format!("{} cannot be measured here, because the phases set the time", case.name()));
            }
            Case::Sketch | Case::SketchWindows | Case::PingoraRate => {
                return Err(format!("{} cannot be measured here, because it has no keys", case.name()));
            }
            Case::PlainMap | Case::BareTable | Case::BareTableSameInputs => {
                return Err(format!("{} cannot be measured here, because it never removes a key", case.name()));
            }
        };
        for phase in phases {
            let _ = writeln!(report, "| {}, {} |", case.name(), phase.columns());
        }
    }
    Ok(report)
}

impl Phase {
    fn columns(&self) -> String {
        let us: Vec<f64> = self.batch_ns.iter().map(|ns| ns / 1000.0).collect();
        let mut sorted = us.clone();
        sorted.sort_by(f64::total_cmp);
        let (median, slowest) = (quantile(&sorted, 0.5), quantile(&sorted, 1.0));
        let second = sorted.iter().rev().nth(1).copied().unwrap_or(f64::NAN);
        let at = us.iter().position(|&batch| batch == slowest).unwrap_or_default();
        format!(
            "{} | {} | {median:.0} | {:.0} | {second:.0} | {slowest:.0} ({at}) | **{:.2}** | {}",
            self.name,
            us.len(),
            quantile(&sorted, 0.999),
            slowest / median,
            self.note
        )
    }
}

/// Returns the CPU time of one batch. The time in which `keys` was filled is not included.
fn timed(subject: &impl Subject, keys: &Keys) -> f64 {
    let start = thread_cpu_ns();
    subject.count_allowed(keys);
    (thread_cpu_ns() - start) as f64
}

/// Decides once for each key, and returns the time of each batch.
fn grow(subject: &impl Subject, options: &Options) -> Vec<f64> {
    let mut batch = Keys::with_capacity(options.batch as usize);
    let batches = (0..options.keys).step_by(options.batch as usize);
    let decide = |first: u32| {
        batch.fill(first..options.keys.min(first.saturating_add(options.batch)));
        timed(subject, &batch)
    };
    batches.map(decide).collect()
}

/// Measures only the growth. governor removes expired keys all at once, and only if its user calls a function for this.
fn grow_governor(options: &Options) -> Result<Phase, String> {
    let before = live_bytes();
    let limiter = governor(Width::Wide)?;
    let batch_ns = grow(&limiter, options);
    let note = format!("{} keys, {} MB", limiter.len(), live_bytes().saturating_sub(before) / 1_000_000);
    Ok(Phase { name: "growing", batch_ns, note })
}

/// A memory store of spillgate with a manual clock.
struct Store<'o> {
    subject: Spillgate<ManualClock>,
    options: &'o Options,
    before_bytes: usize,
}

impl Store<'_> {
    fn new(case: Case, options: &Options) -> Result<Store<'_>, String> {
        let before_bytes = live_bytes();
        // The store also has capacity for the new keys that come while the old keys expire.
        let max_keys = options.keys as usize * 2;
        let store = MemoryStore::new(MemoryOptions { max_keys, ..MemoryOptions::default() });
        // A fixed window starts at this time. So the states of the first phase live for a whole window.
        let clock = ManualClock::at(Time::EPOCH.after(LIFE * 1000));
        let quota = match case {
            Case::FixedWindow => Quota::fixed_window(1, LIFE),
            Case::SlidingWindowCounter => Quota::sliding_window_counter(1, LIFE),
            _ => Quota::token_bucket(1, LIFE),
        };
        let quota = quota.build().map_err(|error| error.to_string())?;
        Ok(Store { subject: Spillgate { limiter: Limiter::with_clock(store, clock), quota }, options, before_bytes })
    }

    fn run(self) -> Vec<Phase> {
        let batch_ns = grow(&self.subject, self.options);
        let growing = Phase { name: "growing", batch_ns, note: self.note() };
        // The state of a sliding window lives for two windows.
        self.subject.limiter.clock().advance(LIFE * 2);
        let batch_ns = self.expire();
        let expiring = Phase { name: "expiring", batch_ns, note: self.note() };
        vec![growing, expiring]
    }

    /// Continues to decide while time passes, until the store has only recent keys.
    fn expire(&self) -> Vec<f64> {
        let Options { keys: old, batch: size, .. } = *self.options;
        let mut batch = Keys::with_capacity(size as usize);
        let mut batch_ns = Vec::new();
        let old_keys = kit::draw(old, 0.0, 1, 1 << 20);
        let hot_keys = kit::draw(HOT_KEYS, 1.0, 2, 1 << 20);
        let small = (size * LIFE_BATCHES * 2) as usize;
        for number in 0..self.options.expiry_batches {
            let key = |turn: u32| {
                let decision = number.wrapping_mul(size).wrapping_add(turn);
                let drawn = decision as usize % old_keys.len();
                match turn % 4 {
                    0 => old_keys[drawn],
                    1 => old.saturating_sub(hot_keys[drawn] + 1),
                    _ => old.saturating_add(decision),
                }
            };
            batch.fill((0..size).map(key));
            batch_ns.push(timed(&self.subject, &batch));
            self.subject.limiter.clock().advance(LIFE / LIFE_BATCHES);
            if self.subject.limiter.store().len() < small {
                break;
            }
        }
        batch_ns
    }

    fn note(&self) -> String {
        let bytes = live_bytes().saturating_sub(self.before_bytes);
        format!("{} keys, {} MB", self.subject.limiter.store().len(), bytes / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_grows_and_gets_small_again() {
        let options = Options { keys: 20_000, batch: 100, expiry_batches: 6000, cases: Vec::new() };
        for case in [Case::TokenBucket, Case::FixedWindow] {
            let store = Store::new(case, &options).unwrap();
            let phases = store.run();
            assert_eq!(phases[0].batch_ns.len(), 200);
            assert!(phases[0].note.starts_with("20000 keys"), "{}", phases[0].note);
            assert!(phases[1].batch_ns.len() < 6000, "{}", phases[1].note);
        }
    }

    #[test]
    fn a_phase_reports_its_slowest_batch() {
        let batch_ns = vec![1000.0, 2000.0, 9000.0, 2000.0, 3000.0];
        let phase = Phase { name: "growing", batch_ns, note: String::from("-") };
        assert_eq!(phase.columns(), "growing | 5 | 2 | 9 | 3 | 9 (2) | **4.50** | -");
    }
}
