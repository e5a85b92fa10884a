//! How much in how long, and by which algorithm.
//!
//! A quota is checked once, when it is built. The kernel relies on its bounds and needs no checks of its own.

mod algorithm;
mod bucket;
mod builder;
mod error;
mod identity;
mod policy;
mod share;

use crate::op::OpKind;

pub use algorithm::{Algorithm, Anchor};
pub(crate) use bucket::MAX_DEBT_BITS;
pub use bucket::MAX_LATE_NS;
pub use builder::QuotaBuilder;
pub use error::QuotaError;
pub use policy::{Denied, OnStoreFailure};

/// The most units that a quota or a counter can hold: 2^53 - 1.
///
/// The numbers of a Redis script are doubles, and this is the largest integer that they count exactly. Counters
/// saturate here in every store.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The longest window, lease or penalty, and the most that twice the depth of a bucket can be: 2^62 ns (146 years).
pub(crate) const MAX_SPAN_NS: u64 = 1 << 62;

/// The most units of a log and permits of a concurrency limit. Both keep a record for each.
pub(crate) const MAX_RECORDS: u64 = 65_536;

/// A limit: how much in how long, and by which algorithm.
///
/// A [`QuotaBuilder`] makes it and checks it once. The letters L, W, T, B, Q and N are explained on [`Algorithm`].
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
    /// T of a bucket or a queue, w of a counter, W of the other windows. 0 for concurrency, and for a bucket with L =
    /// 0.
    interval_ns: u64,
    lease_ns: u64,
    penalty_ns: u64,
    denied: Denied,
    on_store_failure: OnStoreFailure,
    identity: u128,
    /// The W that is part of the identity. A share keeps the W of the whole quota here.
    named_window_ns: u64,
    /// This quota cannot cause a debt above 2 to this power, in nanoseconds (buckets).
    debt_bits: u8,
    /// What a store packs of a bucket that this quota charged.
    bucket_word: u64,
}

impl Quota {
    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// L: units in each window, or the permits of a concurrency limit.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// W in nanoseconds; 0 for concurrency.
    #[must_use]
    pub const fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// The capacity in units: B of a token bucket, Q + 1 of a leaky bucket, else L.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The capacity that is enforced: floor(capacity * (1 + soft share)).
    #[must_use]
    pub const fn hard_capacity(&self) -> u64 {
        self.hard_capacity
    }

    /// T of a bucket or a queue, w of a counter, W of the other windows, in nanoseconds.
    #[must_use]
    pub const fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// How long a permit is held without a renewal, in nanoseconds (`concurrency`), else 0.
    #[must_use]
    pub const fn lease_ns(&self) -> u64 {
        self.lease_ns
    }

    /// How long a refused key stays refused, in nanoseconds; 0 = no penalty.
    #[must_use]
    pub const fn penalty_ns(&self) -> u64 {
        self.penalty_ns
    }

    /// What a refused take costs.
    #[must_use]
    pub const fn denied(&self) -> Denied {
        self.denied
    }

    /// Whether a refused take changes nothing: it costs no units and starts no penalty.
    ///
    /// A caller may then answer a repeated take from a refusal that it remembers.
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

    /// What to answer while the shared store fails.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// The same quota with another answer for the time while the shared store fails.
    #[must_use]
    pub const fn with_on_store_failure(mut self, on_store_failure: OnStoreFailure) -> Quota {
        self.on_store_failure = on_store_failure;
        self
    }

    /// Whether the algorithm supports the operation: a concurrency limit has no force, and only it has renewals.
    #[must_use]
    pub const fn supports(&self, op: OpKind) -> bool {
        let concurrency = matches!(self.algorithm, Algorithm::Concurrency);
        match op {
            OpKind::Force => !concurrency,
            OpKind::Renew => concurrency,
            OpKind::Take | OpKind::Peek | OpKind::Refund | OpKind::Reset => true,
        }
    }

    /// 128 well mixed bits that are equal for quotas that count in the same state of a key.
    ///
    /// They depend on the algorithm with its anchor and segments, and on W. For a queue they depend on T too, because
    /// callers already wait for turns that were computed with the old T. They never depend on the limit or the burst,
    /// so a changed limit continues with what was used before.
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

/// floor(capacity * (1 + soft share)).
fn hard_capacity(capacity: u64, soft_ppm: u32) -> u64 {
    let hard = u128::from(capacity) + u128::from(capacity) * u128::from(soft_ppm) / 1_000_000;
    u64::try_from(hard).unwrap_or(u64::MAX)
}
