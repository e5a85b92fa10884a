//! What a limit does to its callers: whether it works, whom it refuses, and which limit would be better.
//!
//! A counter of refusals cannot tell an attack from a limit that is too low. [`LimitInsight`] counts the requests of one
//! limit, and watches a sample of its callers. Its [`Report`] ends with a [`Verdict`] in plain words.
//!
//! ```
//! use std::time::Duration;
//! use spillgate::insight::{LimitInsight, Options, Take, Verdict};
//! use spillgate::{Clock, Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time};
//!
//! const API: Quota = Quota::per_second(10).constant();
//! let clock = ManualClock::at(Time::from_nanos(1_800_000_000_000_000_000));
//! let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
//! let insight = LimitInsight::new(&API, Options::default(), clock.now());
//! for _ in 0..600 {
//!     for user in 0..20_u64 {
//!         let decision = limiter.take_now(&API, user, 1);
//!         insight.count(clock.now(), limiter.hit(&API, user, 1).key, &Take::of(1, &decision));
//!     }
//!     clock.advance(Duration::from_millis(500));
//! }
//! let report = insight.read(clock.now()).report();
//! assert_eq!(report.verdict, Verdict::NeverBinding);
//! ```
//!
//! Counting allocates no memory: [`LimitInsight::new`] has allocated all of it. A report without enough requests says so.

mod caller;
mod counts;
mod demand;
mod model;
mod places;
mod reading;
mod report;
mod sample;
mod suggest;
mod tally;
mod top;
mod verdict;
mod waits;
#[cfg(feature = "rules")]
mod yaml;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use spillgate_core::{Decision, MAX_UNITS, Quota, Reason, Time, Wait};

use counts::Slots;
use model::Model;
use sample::SharedSample;
use tally::Tally;

pub use reading::{CallerId, CallerName, Counts, Reading, Sampled, SampledCaller, Span, TopCaller, TopCallers};
pub use report::{Callers, Estimate, Percentiles, Range, Report, SpanReport, WaitPercentiles};
pub use suggest::Suggestion;
pub use verdict::Verdict;
pub use waits::Waits;

/// The spans of a reading, in nanoseconds: a minute, ten minutes, and an hour.
pub const SPANS_NS: [u64; 3] = [60_000_000_000, 600_000_000_000, 3_600_000_000_000];
const LONGEST_SPAN_NS: u64 = SPANS_NS[SPANS_NS.len() - 1];
const MINUTE_NS: u64 = 60_000_000_000;

/// A take that is late by more than this is not late: the clock was set back, and the counting begins again. A take that is
/// late by less counts as one of the newest time, because a store may have answered late.
const STEP_NS: u64 = 5_000_000_000;

/// A sample is divided into parts of at least this many callers, so that threads seldom wait for each other.
const PART_CALLERS: usize = 256;
const MAX_PARTS: usize = 16;

/// How much memory insight uses for a limit, and what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of callers in the sample, at most 65,536. A caller takes about 600 bytes.
    pub callers: usize,
    /// Whether the names of the callers with the most units are kept. They can be personal data.
    pub names: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { callers: 4096, names: false }
    }
}

/// Counts what one limit does to its callers. Threads can share it.
#[derive(Debug)]
pub struct LimitInsight {
    model: Model,
    since_ns: AtomicU64,
    /// The lowest bits of a caller's hash choose its sample.
    samples: Box<[SharedSample]>,
    /// The number of a thread chooses its tally.
    tallies: Box<[Mutex<Tally>]>,
    slots: Mutex<Slots>,
}

/// One take, as a limit decided it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Take {
    units: u64,
    /// Whether this limit refused.
    refused: bool,
    /// Whether the caller was refused, by this limit or by another one. The caller may then ask again.
    may_return: bool,
    limit: u64,
    remaining: u64,
    reason: Reason,
    wait: Wait,
}

impl Take {
    /// Makes a take of `units` units that `decision` decided. If it was refused, the caller knows that, and may ask again.
    #[must_use]
    pub fn of(units: u64, decision: &Decision) -> Take {
        let Decision { limit, remaining, reason, retry_after, .. } = *decision;
        let refused = !decision.allowed;
        // Floats hold all whole numbers up to this one.
        let units = units.min(MAX_UNITS);
        Take { units, refused, may_return: refused, limit, remaining, reason, wait: retry_after }
    }

    /// Returns the same take, of a request that passed or not. A caller whose request was refused may ask again, even if
    /// this limit did not refuse. In shadow mode a request passes although limits refuse.
    #[must_use]
    pub const fn of_request(self, passed: bool) -> Take {
        Take { may_return: !passed, ..self }
    }

    /// Returns the part of the limit that is used after the request, in thousandths, rounded up.
    fn used_permille(&self) -> u16 {
        let used = self.limit.saturating_sub(self.remaining);
        let permille = used as f64 / self.limit.max(1) as f64 * 1000.0;
        let below = permille as u16;
        below.saturating_add(u16::from(permille > f64::from(below)))
    }

    /// Returns whether the request costs more than the limit allows at once, so that it can never pass.
    fn is_oversized(&self) -> bool {
        self.refused && self.reason == Reason::CostAboveCapacity
    }

    /// Returns whether the refusal proves that the whole limit was used. While a shared store fails, a server decides by its
    /// share of the limit, which proves less.
    fn is_exceeded(&self, model: &Model) -> bool {
        self.refused && self.reason == Reason::Exceeded && self.limit >= model.capacity
    }
}

impl LimitInsight {
    /// Makes an insight into a limit with this quota, which begins at `now`. All its memory is allocated here.
    #[must_use]
    pub fn new(quota: &Quota, options: Options, now: Time) -> LimitInsight {
        let callers = options.callers.clamp(1, 1 << 16);
        let parts = (callers / PART_CALLERS).clamp(1, MAX_PARTS).next_power_of_two();
        let sample = || SharedSample::new(callers.div_ceil(parts));
        let tally = || Mutex::new(Tally::new(options.names));
        LimitInsight {
            model: Model::of(quota),
            since_ns: AtomicU64::new(now.as_nanos()),
            samples: std::iter::repeat_with(sample).take(parts).collect(),
            tallies: std::iter::repeat_with(tally).take(parts.min(tally::threads())).collect(),
            slots: Mutex::new(Slots::new()),
        }
    }

    /// Counts a take of the caller with the key `key`, at the time of its decision. Allocates no memory.
    ///
    /// `key` is the hash with a secret that a store gets ([`KeyHasher`](crate::KeyHasher)).
    #[inline]
    pub fn count(&self, now: Time, key: u128, take: &Take) {
        self.count_named(now, key, take, || CallerName::of([]));
    }

    /// Does what [`count`](LimitInsight::count) does, and keeps the name of the caller if it is one of those with the most
    /// units.
    #[inline]
    pub fn count_named(&self, now: Time, key: u128, take: &Take, name: impl FnOnce() -> CallerName) {
        // The highest bits choose the slot of a Redis Cluster, so other callers can have the same ones.
        let (now_ns, hash) = (now.as_nanos(), key as u64);
        let tally = &self.tallies[tally::thread_number() % self.tallies.len()];
        let mut counting = tally.lock();
        if counting.is_ahead_of(now_ns) {
            drop(counting);
            self.begin_again(now_ns);
            counting = tally.lock();
        }
        let ended = counting.count(now_ns, hash, take, name);
        drop(counting);
        if let Some((began_ns, slot)) = ended {
            self.slots.lock().add(began_ns, &slot);
        }
        // The number of samples is a power of two.
        self.samples[hash as usize & (self.samples.len() - 1)].count(&self.model, now_ns, hash, take);
    }

    /// Forgets all that was counted, because the clock was set back: times before and after cannot be compared.
    #[cold]
    fn begin_again(&self, now_ns: u64) {
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.tallies.iter().for_each(|tally| tally.lock().clear());
        self.samples.iter().for_each(SharedSample::clear);
        self.slots.lock().clear();
    }

    /// Returns what was counted until `now`.
    #[must_use]
    pub fn read(&self, now: Time) -> Reading {
        let now_ns = now.as_nanos();
        if self.tallies.iter().any(|tally| tally.lock().is_ahead_of(now_ns)) {
            self.begin_again(now_ns);
        }
        let mut reading = Reading::new(self.model, self.since_ns.load(Ordering::Relaxed), now_ns);
        for sample in &self.samples {
            for (index, span) in reading.spans.iter_mut().enumerate() {
                sample.read(&self.model, now_ns, index, &mut span.sampled);
            }
        }
        for tally in &self.tallies {
            let mut tally = tally.lock();
            let tops = [&mut reading.top_allowed, &mut reading.top_refused];
            tally.read(now_ns, &mut self.slots.lock(), tops);
        }
        let slots = self.slots.lock();
        for (index, span) in reading.spans.iter_mut().enumerate() {
            let sum = slots.read(now_ns, index);
            (span.counts, span.waits) = (sum.counts, sum.waits);
        }
        reading
    }
}
