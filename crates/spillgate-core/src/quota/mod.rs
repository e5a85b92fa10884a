//! A quota: how many units are allowed in how much time, and by which algorithm.
//!
//! The kernel relies on the bounds of a quota, which `builder.rs` checks once.

mod algorithm;
mod bucket;
mod builder;
mod error;
mod identity;
mod policy;
mod regions;
mod share;
mod with_limit;

use crate::op::OpKind;

pub use algorithm::{Algorithm, Anchor};
pub(crate) use bucket::MAX_DEBT_BITS;
pub use bucket::MAX_LATE_NS;
pub use builder::QuotaBuilder;
pub use error::QuotaError;
pub use policy::{Denied, OnStoreFailure};
pub use regions::{AcrossRegions, Regions, Span};

/// The maximum number of units in a quota or a counter: 2^53 - 1.
///
/// The numbers of a Redis script are doubles, and doubles are exact for all integers up to 2^53. In every store, a
/// counter that has reached `MAX_UNITS` does not grow any more.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The longest window, lease or penalty: 2^62 ns (146 years). The depth of a bucket is its hard capacity times the time
/// between two units. Twice this depth must not be longer than 2^62 ns either.
pub(crate) const MAX_SPAN_NS: u64 = 1 << 62;

/// The largest hard capacity of a log or of a concurrency limit. A log can need an entry for each unit, and a
/// concurrency limit can need a lease for each permit.
pub(crate) const MAX_RECORDS: u64 = 65_536;

/// A limit: how many units are allowed in how much time, and by which algorithm.
///
/// A [`QuotaBuilder`] makes a quota and checks it once. The letters `L`, `W`, `T` and `w` are explained on
/// [`Algorithm`].
///
/// ```
/// use spillgate_core::Quota;
/// let quota = Quota::per_second(60).burst(10).build()?; // 60 each second, 10 at once
/// assert_eq!(quota.capacity(), 10);
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    algorithm: Algorithm,
    limit: u64,
    window_ns: u64,
    capacity: u64,
    hard_capacity: u64,
    soft_ppm: u32,
    /// `T` (the time between two units) of a bucket or a queue, `w` (the length of a segment) of a counter, or `W` (the
    /// window) of a fixed window or a log. 0 for concurrency, and for a bucket with a limit of 0.
    interval_ns: u64,
    lease_ns: u64,
    penalty_ns: u64,
    denied: Denied,
    on_store_failure: OnStoreFailure,
    identity: u128,
    /// The window of the whole quota. It differs from `window_ns` only in some [shares](Quota::share).
    named_window_ns: u64,
    across: AcrossRegions,
    /// The greatest debt that this quota can cause, in nanoseconds. The debt of a bucket is the time that it needs to
    /// refill.
    max_debt_ns: u64,
    /// No debt under this quota is above 2 to this power, in nanoseconds.
    debt_bits: u8,
    /// The time between two units and the bound of the debt, packed into one number: the `first` of a packed bucket
    /// that this quota charged last.
    bucket_word: u64,
}

impl Quota {
    /// Returns the algorithm, with its anchor or its number of segments.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the limit `L`: the units in each window, or the permits of a concurrency limit.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the window `W` in nanoseconds, or 0 for concurrency.
    #[must_use]
    pub const fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Returns the capacity in units: the burst of a token bucket, the queue length plus 1 of a leaky bucket, or else
    /// the limit.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the hard capacity: floor(capacity * (1 + soft share)). A take that would use more than the hard capacity
    /// is refused. [`QuotaBuilder::soft_ppm`] sets the soft share.
    #[must_use]
    pub const fn hard_capacity(&self) -> u64 {
        self.hard_capacity
    }

    /// Returns a time in nanoseconds, which depends on the algorithm:
    ///
    /// * bucket or queue: `T`, the time between two units
    /// * sliding window counter: `w`, the length of a segment
    /// * fixed window or log: `W`, the window
    /// * concurrency, or a bucket with a limit of 0: 0
    #[must_use]
    pub const fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Returns the nanoseconds after which a permit expires without a renewal (`concurrency`), or else 0.
    #[must_use]
    pub const fn lease_ns(&self) -> u64 {
        self.lease_ns
    }

    /// Returns how long a refused key stays refused, in nanoseconds. 0 means no penalty.
    #[must_use]
    pub const fn penalty_ns(&self) -> u64 {
        self.penalty_ns
    }

    /// Returns what a refused take costs.
    #[must_use]
    pub const fn denied(&self) -> Denied {
        self.denied
    }

    /// Returns whether a refused take changes nothing: it costs no units, and it starts no penalty.
    ///
    /// If so, a caller can remember a refusal and answer a repeated take without asking the store.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::{Denied, Quota};
    ///
    /// let builder = Quota::per_second(10);
    /// assert!(builder.build()?.refusal_is_free());
    /// assert!(!builder.denied(Denied::Charged).build()?.refusal_is_free());
    /// assert!(!builder.penalty(Duration::from_secs(60)).build()?.refusal_is_free());
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    #[inline]
    pub const fn refusal_is_free(&self) -> bool {
        matches!(self.denied, Denied::Free) && self.penalty_ns == 0
    }

    /// Returns the same quota with refusals that change nothing: they cost no units, and they start no penalty.
    ///
    /// ```
    /// use spillgate_core::{Denied, Quota};
    ///
    /// let quota = Quota::per_second(10).denied(Denied::Charged).constant();
    /// assert!(quota.with_free_refusals().refusal_is_free());
    /// ```
    #[must_use]
    pub const fn with_free_refusals(mut self) -> Quota {
        (self.denied, self.penalty_ns) = (Denied::Free, 0);
        self
    }

    /// Returns the same bucket or queue with a longer time between two units, or `None` if it would take too long to
    /// refill. The identity stays the same, also that of a queue. Regions do not share the slower quota.
    ///
    /// ```
    /// use spillgate_core::Quota;
    ///
    /// let quota = Quota::per_second(10).constant(); // one unit every 100 ms
    /// let slower = quota.with_longer_interval(150_000_000).unwrap();
    /// assert_eq!((slower.interval_ns(), slower.capacity()), (150_000_000, 10));
    /// ```
    #[must_use]
    pub fn with_longer_interval(&self, interval_ns: u64) -> Option<Quota> {
        let fits = self.hard_capacity.checked_mul(interval_ns).is_some_and(|ns| ns <= MAX_SPAN_NS / 2);
        let is_bucket = matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        debug_assert!(
            !matches!(self.across, AcrossRegions::Shared(_)),
            "only stores in memory make an interval longer"
        );
        let longer = is_bucket && fits && interval_ns >= self.interval_ns;
        longer.then(|| Quota { interval_ns, across: AcrossRegions::Each, ..self.clone() }.with_bucket())
    }

    /// Returns what to answer while the shared store fails. The default is to decide in a local store.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// Returns the same quota with another choice of what to answer while the shared store fails.
    #[must_use]
    pub const fn with_on_store_failure(mut self, on_store_failure: OnStoreFailure) -> Quota {
        self.on_store_failure = on_store_failure;
        self
    }

    /// Returns whether the algorithm supports the operation. A concurrency limit does not support a force. No other
    /// algorithm supports a renewal.
    #[must_use]
    pub const fn supports(&self, op: OpKind) -> bool {
        let concurrency = matches!(self.algorithm, Algorithm::Concurrency);
        match op {
            OpKind::Force => !concurrency,
            OpKind::Renew => concurrency,
            OpKind::Take | OpKind::Peek | OpKind::Refund | OpKind::Settle | OpKind::Reset => true,
        }
    }

    /// Returns 128 well mixed bits that identify the state. Quotas with equal bits count in the same state of a key.
    ///
    /// The bits depend on the algorithm (with its anchor and its number of segments) and on the window. The bits of a
    /// queue also depend on the time between two units, because callers in the queue wait for turns that were computed
    /// with this time. So a queue whose limit was changed counts in another state. The bits of all other quotas depend
    /// neither on the limit nor on the burst. If the limit of such a quota is changed, the quota continues with the
    /// units that were used before.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::Quota;
    ///
    /// let minute = Duration::from_secs(60);
    /// let before = Quota::fixed_window(100, minute).build()?;
    /// assert_eq!(before.identity(), Quota::fixed_window(50, minute).build()?.identity());
    /// assert_ne!(before.identity(), Quota::fixed_window(100, minute * 2).build()?.identity());
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn identity(&self) -> u128 {
        self.identity
    }
}

/// Returns floor(capacity * (1 + soft share)). The soft share is given in millionths.
const fn hard_capacity(capacity: u64, soft_ppm: u32) -> u64 {
    let hard = capacity as u128 + capacity as u128 * soft_ppm as u128 / 1_000_000;
    if hard > u64::MAX as u128 { u64::MAX } else { hard as u64 }
}
