//! What a limit does to its callers: whether it works, whom it refuses, and which limit would be better.
//!
//! A counter of refusals cannot tell an attack from a limit that is too low. [`LimitInsight`] counts the requests of
//! one limit, and watches a sample of its callers. Its [`Report`] ends with a [`Verdict`] in plain words.
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
//! for _ in 0..7200 {
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
//! Counting allocates no memory, because [`LimitInsight::new`] allocates all of it. If there were too few requests for
//! a verdict, the report says so.

#![warn(missing_docs)]

mod caller;
mod counts;
mod demand;
mod fillers;
mod judge;
mod kinds;
mod model;
mod name;
mod other_limit;
mod positions;
mod reading;
mod refused;
mod report;
mod sample;
mod suggest;
mod tally;
mod top;
mod verdict;
mod waits;
mod words;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use spillgate_core::{Decision, MAX_UNITS, Quota, Reason, Time, Wait};

use counts::{Slot, Slots};
use model::Model;
use sample::SharedSample;
use tally::Tally;

pub use fillers::Fillers;
pub use name::CallerName;
pub use other_limit::OtherLimit;
pub use reading::{CallerId, Counts, Reading, Sampled, SampledCaller, Span, TopCaller, TopCallers};
pub use report::{Callers, Estimate, Percentiles, Range, Report, SpanReport, WaitPercentiles};
pub use suggest::{SuggestedRule, Suggestion};
pub use verdict::{Urgency, Verdict, Who};
pub use waits::Waits;

/// The spans of a reading, in nanoseconds: a minute, ten minutes, and an hour.
pub const SPANS_NS: [u64; 3] = [60_000_000_000, 600_000_000_000, 3_600_000_000_000];
const LONGEST_SPAN_NS: u64 = SPANS_NS[SPANS_NS.len() - 1];
const MINUTE_NS: u64 = 60_000_000_000;

/// If a take is older than the newest one by more than this time, the clock was set back, and the counting begins
/// again. A smaller difference is only a late answer of a store: the deadline of a server's store is at most a minute.
const STEP_NS: u64 = 120_000_000_000;

/// A sample is divided into parts with a lock each, so that threads seldom wait for each other. A part has about this
/// many callers or more.
const PART_CALLERS: usize = 256;
const MAX_PARTS: usize = 16;

/// How many callers of a limit insight watches, and what it keeps about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of callers in the sample, at most 65,536. A caller takes about 600 bytes.
    pub callers: usize,
    /// Whether the names of the callers with the most units are kept. Names can be personal data.
    pub names: bool,
    /// A secret number that is mixed with the key of each caller. It is needed if callers know the secret with which
    /// keys are hashed, because they could then choose who is in the sample. With 0, keys are not mixed. Readings can
    /// be merged only if they have the same number.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { callers: 4096, names: false, seed: 0 }
    }
}

/// Counts what one limit does to its callers. Threads can share it.
#[derive(Debug)]
pub struct LimitInsight {
    model: Model,
    seed: u64,
    since_ns: AtomicU64,
    /// The lowest bits of a caller's hash choose its part of the sample.
    samples: Box<[SharedSample]>,
    /// The number of a thread chooses its tally.
    tallies: Box<[Mutex<Tally>]>,
    slots: Mutex<Slots>,
}

/// A take and the decision of a limit on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Take {
    units: u64,
    /// Whether this limit refused.
    refused: bool,
    /// Whether a refusal by this limit refuses the request.
    enforced: bool,
    /// Whether the request was refused, by this limit or by another one. The caller may then ask again.
    may_return: bool,
    limit: u64,
    remaining: u64,
    reason: Reason,
    wait: Wait,
    /// The time of the store's own clock, by which the windows begin. 0 if the store uses the clock of the program.
    store_ns: u64,
}

impl Take {
    /// Makes a take of `units` units from its decision. If the decision is a refusal, the caller may ask again.
    #[must_use]
    #[inline]
    pub fn of(units: u64, decision: &Decision) -> Take {
        let Decision { limit, remaining, reason, retry_after, .. } = *decision;
        let refused = !decision.allowed;
        // A float can represent every whole number up to this one.
        let units = units.min(MAX_UNITS);
        let (may_return, enforced) = (refused, true);
        Take { units, refused, enforced, may_return, limit, remaining, reason, wait: retry_after, store_ns: 0 }
    }

    /// Returns the same take of a limit whose refusal refuses the request, or only would refuse it. In shadow mode it only
    /// would, and [`Counts::unenforced_requests`] counts it too. Without this function, a refusal refuses.
    #[must_use]
    pub const fn enforced(self, enforced: bool) -> Take {
        Take { enforced, ..self }
    }

    /// Returns the same take, as part of a request that passed or was refused. A caller whose request was refused may
    /// ask again, even if this limit did not refuse. In shadow mode, a request passes although limits refuse.
    #[must_use]
    pub const fn of_request(self, passed: bool) -> Take {
        Take { may_return: !passed, ..self }
    }

    /// Returns the same take, decided by a store that has a clock of its own. `time` is
    /// [`Verdict::now`](spillgate_core::Verdict), and the windows of the limit begin by this clock.
    #[must_use]
    pub const fn decided_at(self, time: Time) -> Take {
        Take { store_ns: time.as_nanos(), ..self }
    }

    /// Returns whether this limit allowed the request and another one refused it.
    const fn is_refused_elsewhere(&self) -> bool {
        self.may_return && !self.refused
    }

    /// Returns the units of the limit that are used after the request.
    const fn used(&self) -> u64 {
        self.limit.saturating_sub(self.remaining)
    }

    /// Returns how much of the limit is used after the request, in thousandths of the whole limit, rounded up. It is
    /// relative to the whole limit even if the server decided by its share.
    fn used_permille(&self, model: &Model) -> u16 {
        let permille = self.used() as f64 / self.limit.max(model.capacity).max(1) as f64 * 1000.0;
        let below = permille as u16;
        below.saturating_add(u16::from(permille > f64::from(below)))
    }

    /// Returns whether the request costs more than the limit allows at once, so that it can never pass.
    fn is_oversized(&self, model: &Model) -> bool {
        self.refused && self.reason == Reason::CostAboveCapacity && !self.is_of_share(model)
    }

    /// Returns whether the server decided by its share of the limit, because a shared store failed. A refusal by a
    /// share says nothing about the limit.
    fn is_of_share(&self, model: &Model) -> bool {
        self.limit < model.capacity
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
            seed: options.seed,
            since_ns: AtomicU64::new(now.as_nanos()),
            samples: std::iter::repeat_with(sample).take(parts).collect(),
            tallies: std::iter::repeat_with(tally).take(parts.min(tally::threads())).collect(),
            slots: Mutex::new(Slots::new()),
        }
    }

    /// Counts a take of the caller with the key `key`. Allocates no memory.
    ///
    /// `now` is the time of the program's clock when the decision began. All takes and readings need the same clock,
    /// even if a store has [another one](Take::decided_at). If a take is older than the newest one by more than two
    /// minutes, the clock was set back, and the counting begins again.
    ///
    /// `key` is the secret hash that the store gets too, from a [`KeyHasher`](spillgate_limiter::KeyHasher).
    #[inline]
    pub fn count(&self, now: Time, key: u128, take: &Take) {
        self.count_named(now, key, take, || CallerName::of([]));
    }

    /// Does what [`count`](LimitInsight::count) does, and keeps the name of the caller if it is one of those with the
    /// most units.
    #[inline]
    pub fn count_named(&self, now: Time, key: u128, take: &Take, name: impl FnOnce() -> CallerName) {
        let (now_ns, hash) = (now.as_nanos(), mixed(key, self.seed));
        let tally = &self.tallies[tally::thread_number() % self.tallies.len()];
        let mut counting = tally.lock();
        if counting.newest_ns() > now_ns.saturating_add(STEP_NS) {
            drop(counting);
            self.begin_again(now_ns);
            counting = tally.lock();
        }
        let ended = counting.count(&self.model, now_ns, hash, take, name);
        drop(counting);
        if let Some((began_ns, slot)) = ended {
            self.end_slot(now_ns, began_ns, &slot);
        }
        // The number of samples is a power of two.
        self.samples[hash as usize & (self.samples.len() - 1)].count(&self.model, now_ns, hash, take);
    }

    /// Sets whether the names of the callers with the most units are kept, as [`Options::names`] says at the start. All
    /// counts stay. Callers that were counted before get their names when they are counted again. If names are not kept
    /// any more, they are forgotten.
    pub fn keep_names(&self, names: bool) {
        self.tallies.iter().for_each(|tally| tally.lock().keep_names(names));
    }

    /// Adds a slot of time that one tally has finished. If another tally has much later takes, the clock was set back.
    #[cold]
    fn end_slot(&self, now_ns: u64, began_ns: u64, slot: &Slot) {
        if self.newest_ns() > now_ns.saturating_add(STEP_NS) {
            self.begin_again(now_ns);
        }
        self.slots.lock().add(began_ns, slot);
    }

    fn newest_ns(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.lock().newest_ns()).max().unwrap_or(0)
    }

    /// Forgets all that was counted, because the clock was set back: times before and after cannot be compared.
    #[cold]
    fn begin_again(&self, now_ns: u64) {
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.tallies.iter().for_each(|tally| tally.lock().clear());
        self.samples.iter().for_each(SharedSample::clear);
        self.slots.lock().clear();
    }

    /// Returns what was counted until `now`, or until the newest take if that is later.
    #[must_use]
    pub fn read(&self, now: Time) -> Reading {
        let now_ns = now.as_nanos().max(self.newest_ns());
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
            (span.counts, span.waits, span.used) = (sum.counts, sum.waits, sum.used);
        }
        reading.shorten_windows();
        reading
    }

    /// Returns the waits of the callers that were refused in the minute before `now`, or before the newest take if that
    /// is later. The waits are a small part of a [reading](LimitInsight::read), so a program can read them more often.
    ///
    /// ```
    /// use spillgate::insight::{LimitInsight, Options, Take};
    /// use spillgate::{Decision, Quota, Reason, Time, Wait};
    ///
    /// const API: Quota = Quota::per_minute(10).constant();
    /// let now = Time::from_nanos(1_800_000_000_000_000_000);
    /// let insight = LimitInsight::new(&API, Options::default(), now);
    /// let refused = Decision::refuse(10, Reason::Exceeded, Wait::After(6_000_000_000));
    /// insight.count(now, 7, &Take::of(1, &refused));
    /// let wait_ns = insight.waits(now).quantile_ns(0.9).expect("a caller was refused");
    /// assert!((6_000_000_000..7_500_000_001).contains(&wait_ns));
    /// ```
    #[must_use]
    pub fn waits(&self, now: Time) -> Waits {
        let now_ns = now.as_nanos().max(self.newest_ns());
        self.tallies.iter().for_each(|tally| tally.lock().flush(&mut self.slots.lock()));
        self.slots.lock().read(now_ns, 0).waits
    }
}

/// Returns the hash of a caller: the lowest 64 bits of its key, mixed with a secret number. Many callers can have the
/// same highest bits, because these choose the slot of a Redis Cluster.
///
/// The halves of a product are folded together, so that the secret number changes all bits. With the number 0, the hash
/// is the lowest 64 bits of the key, unchanged.
#[inline]
fn mixed(key: u128, seed: u64) -> u64 {
    let product = u128::from(key as u64 ^ seed) * u128::from(seed.rotate_left(32) | 1);
    (product >> 64) as u64 ^ product as u64
}
