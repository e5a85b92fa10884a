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
mod shard;
mod top;
mod verdict;
mod waits;
#[cfg(feature = "rules")]
mod yaml;

use parking_lot::Mutex;
use spillgate_core::{Decision, Quota, Time, Wait};

use counts::Slots;
use model::Model;
use shard::Shard;

pub use reading::{CallerId, CallerName, Counts, Reading, Sampled, SampledCaller, Span, TopCaller, TopCallers};
pub use report::{Callers, Estimate, Percentiles, Range, Report, SpanReport, WaitPercentiles};
pub use verdict::{Suggestion, Verdict};
pub use waits::Waits;

/// The spans of a reading, in nanoseconds: a minute, ten minutes, and an hour.
pub const SPANS_NS: [u64; 3] = [60_000_000_000, 600_000_000_000, 3_600_000_000_000];
const LONGEST_SPAN_NS: u64 = SPANS_NS[SPANS_NS.len() - 1];

/// The sample of one shard has at least this many callers, if the sample has more than one shard.
const SHARD_CALLERS: usize = 256;
const MAX_SHARDS: usize = 16;

/// How much memory insight uses for a limit, and what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of callers in the sample, at most 65,536. A caller takes about 500 bytes.
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
    since_ns: u64,
    shards: Box<[Mutex<Shard>]>,
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
    wait: Wait,
}

impl Take {
    /// Makes a take of `units` units that `decision` decided. If it was refused, the caller knows that, and may ask again.
    #[must_use]
    pub fn of(units: u64, decision: &Decision) -> Take {
        let Decision { limit, remaining, retry_after, .. } = *decision;
        let refused = !decision.allowed;
        Take { units, refused, may_return: refused, limit, remaining, wait: retry_after }
    }

    /// Returns the same take, of a request that passed or not. A caller whose request was refused may ask again, even if
    /// this limit did not refuse. In shadow mode a request passes although limits refuse.
    #[must_use]
    pub const fn of_request(self, passed: bool) -> Take {
        Take { may_return: !passed, ..self }
    }

    /// Returns the part of the limit that is used after the request, in thousandths.
    fn used_permille(&self) -> u16 {
        let used = self.limit.saturating_sub(self.remaining);
        (used as f64 / self.limit.max(1) as f64 * 1000.0) as u16
    }
}

impl LimitInsight {
    /// Makes an insight into a limit with this quota, which begins at `now`. All its memory is allocated here.
    #[must_use]
    pub fn new(quota: &Quota, options: Options, now: Time) -> LimitInsight {
        let callers = options.callers.clamp(1, 1 << 16);
        let shards = (callers / SHARD_CALLERS).clamp(1, MAX_SHARDS).next_power_of_two();
        let shard = || Mutex::new(Shard::new(callers.div_ceil(shards), options.names));
        LimitInsight {
            model: Model::of(quota),
            since_ns: now.as_nanos(),
            shards: std::iter::repeat_with(shard).take(shards).collect(),
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
        // The number of shards is a power of two. The highest bits choose the slot of a Redis Cluster, so other callers can have the same ones.
        let hash = key as u64;
        let mut shard = self.shards[hash as usize & (self.shards.len() - 1)].lock();
        let ended = shard.count(&self.model, now.as_nanos(), hash, take, name);
        drop(shard);
        if let Some((began_ns, slot)) = ended {
            self.slots.lock().add(began_ns, &slot, now.as_nanos());
        }
    }

    /// Returns what was counted until `now`.
    #[must_use]
    pub fn read(&self, now: Time) -> Reading {
        let now_ns = now.as_nanos();
        let mut reading = Reading::new(self.model, self.since_ns, now_ns);
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.flush(&mut self.slots.lock(), now_ns);
            let tops = [&mut reading.top_allowed, &mut reading.top_refused];
            shard.read(&self.model, now_ns, &mut reading.spans, tops);
        }
        let slots = self.slots.lock();
        for (index, span) in reading.spans.iter_mut().enumerate() {
            let sum = slots.read(now_ns, index);
            (span.counts, span.waits) = (sum.counts, sum.waits);
        }
        reading.top_allowed.sort();
        reading.top_refused.sort();
        reading
    }
}
