//! The answer to one hit, and the receipt with which a refund gives back the units of one take.
//!
//! Every store fills in the same fields, so a caller never needs to know which store decided.

use core::cmp::Ordering;

use crate::Time;

/// How long a refused caller has to wait, counted from the time of the decision.
///
/// Waits are ordered from good to bad: a known wait comes first, then an unknown wait, then "never". There will never
/// be a fourth case, so a `match` can list all three.
///
/// ```
/// use spillgate_core::Wait;
///
/// assert_eq!(Wait::After(1_200_000).millis_ceil(), Some(2));
/// assert!(Wait::After(u64::MAX) < Wait::Unknown && Wait::Unknown < Wait::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// The same hit is allowed after this many nanoseconds, if no other caller takes units meanwhile. The number is 0
    /// only if the hit is allowed now.
    After(u64),
    /// The wait is not known, for example because it depends on when another caller releases its permit
    /// (`concurrency`), or because the store failed.
    Unknown,
    /// No wait helps, for example because the cost is above the capacity.
    Never,
}

impl Wait {
    /// No wait. Every allowed decision has this value.
    pub const NONE: Wait = Wait::After(0);

    /// Returns the wait in nanoseconds, or `None` for [`Wait::Unknown`] and [`Wait::Never`].
    ///
    /// ```
    /// use spillgate_core::Wait;
    /// assert_eq!(Wait::After(7).nanos(), Some(7));
    /// assert_eq!(Wait::Never.nanos(), None);
    /// ```
    #[must_use]
    pub const fn nanos(self) -> Option<u64> {
        match self {
            Wait::After(ns) => Some(ns),
            Wait::Unknown | Wait::Never => None,
        }
    }

    /// Returns the wait in whole milliseconds, rounded up so that a refusal never shows 0. Returns `None` for
    /// [`Wait::Unknown`] and [`Wait::Never`].
    #[must_use]
    pub const fn millis_ceil(self) -> Option<u64> {
        match self.nanos() {
            Some(ns) => Some(ns.div_ceil(1_000_000)),
            None => None,
        }
    }

    /// Returns the wait in whole seconds, rounded up so that a refusal never shows 0. Returns `None` for
    /// [`Wait::Unknown`] and [`Wait::Never`].
    #[must_use]
    pub const fn secs_ceil(self) -> Option<u64> {
        match self.nanos() {
            Some(ns) => Some(ns.div_ceil(1_000_000_000)),
            None => None,
        }
    }
}

/// Why a hit was allowed or refused; [`Decision`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Reason {
    /// The cost fits, or the operation needs no capacity.
    #[default]
    Fits,
    /// The cost does not fit now. It can fit later, because units become free with time, or when they are given back.
    Exceeded,
    /// The cost is above the hard capacity, so it can never fit.
    CostAboveCapacity,
    /// The key was refused before, and the penalty for that refusal has not ended.
    Penalty,
    /// The take fits in the queue, but its turn comes later than the caller accepts.
    WaitTooLong,
    /// The lease to renew is unknown or has expired.
    LeaseExpired,
    /// The store has no space for a new key. The settings of the store say whether such a hit is refused, or allowed
    /// without being counted.
    StoreFull,
    /// The algorithm does not support this operation.
    Unsupported,
    /// The store failed. The [policy](crate::OnStoreFailure) of the limit gave the answer, or the take costs more than
    /// this server's [share](crate::Quota::share) of the limit.
    StoreFailed,
    /// The store was not asked about this hit, because another limit certainly refuses the request, or because the
    /// request failed as [`NewKeys`](crate::StoreErrorKind::NewKeys). The other fields of the decision have no meaning.
    NotAsked,
}

impl Reason {
    /// Returns the name of the reason in answers and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Fits => "fits",
            Reason::Exceeded => "exceeded",
            Reason::CostAboveCapacity => "cost_above_capacity",
            Reason::Penalty => "penalty",
            Reason::WaitTooLong => "wait_too_long",
            Reason::LeaseExpired => "lease_expired",
            Reason::StoreFull => "store_full",
            Reason::Unsupported => "unsupported",
            Reason::StoreFailed => "store_failed",
            Reason::NotAsked => "not_asked",
        }
    }
}

/// What a take returns, so that a refund can give back exactly the units of this take.
///
/// ```
/// use core::time::Duration;
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, State, Time, decide};
///
/// let quota = Quota::sliding_window_log(10, Duration::from_secs(1)).build()?;
/// let (mut states, mut decisions) = ([State::default()], [Decision::default()]);
/// let take = Hit::new(7, &quota, Op::take(4), Binding::Enforce);
/// let _ = decide(&mut states, &[0], &[take], Time::EPOCH, &mut decisions);
///
/// let receipt = decisions[0].receipt; // to be kept until the work is done
/// let refund = take.with_op(Op::Refund { cost: 4, receipt });
/// let _ = decide(&mut states, &[0], &[refund], Time::EPOCH, &mut decisions);
/// assert_eq!(decisions[0].remaining, 10);
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Receipt {
    /// The time at which the take was counted. A refund finds the window, the segment or the log entry by this time.
    pub at: Time,
    /// For `token_bucket` and `leaky_bucket`: when the units of the take are free again, in nanoseconds since the
    /// epoch. A hit that brings the receipt has to have the quota of the take, which says how many units this time is.
    /// A mark of 0 lets a refund to a token bucket give back units of any age, as without a receipt. For
    /// `concurrency`: the id of the lease. For all other algorithms: 0.
    pub mark: u64,
}

impl Receipt {
    /// Builds a receipt from its two parts, for a store or a client that has kept them.
    ///
    /// ```
    /// use spillgate_core::{Receipt, Time};
    /// let receipt = Receipt::new(Time::from_nanos(5), 9);
    /// assert_eq!((receipt.at.as_nanos(), receipt.mark), (5, 9));
    /// ```
    #[must_use]
    pub const fn new(at: Time, mark: u64) -> Receipt {
        Receipt { at, mark }
    }

    /// Returns the same receipt with another mark. A store can keep a note of its own in unused bits of the mark.
    #[must_use]
    pub const fn with_mark(self, mark: u64) -> Receipt {
        Receipt { mark, ..self }
    }
}

/// The answer to one hit.
///
/// `remaining`, `reset_after_ns` and `soft_over` describe the state after the request. For an allowed peek, they
/// describe the state before the request.
///
/// ```
/// use core::time::Duration;
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, Reason, State, Time, Wait, decide};
///
/// let quota = Quota::fixed_window(5, Duration::from_secs(60)).build()?;
/// let (mut states, mut decisions) = ([State::default()], [Decision::default()]);
/// let mut take = |cost| {
///     let hits = [Hit::new(7, &quota, Op::take(cost), Binding::Enforce)];
///     let _ = decide(&mut states, &[0], &hits, Time::EPOCH, &mut decisions);
///     decisions[0]
/// };
/// let first = take(4);
/// assert_eq!((first.allowed, first.limit, first.remaining), (true, 5, 1));
/// let second = take(2);
/// assert_eq!((second.allowed, second.reason), (false, Reason::Exceeded));
/// assert_eq!(second.retry_after, Wait::After(60_000_000_000));
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the limit of this hit allows it. The [`Verdict`](crate::Verdict) says whether the whole request may
    /// pass.
    pub allowed: bool,
    /// Why the hit is allowed or refused. An allowed hit can have another reason than [`Reason::Fits`], for example
    /// [`Reason::StoreFailed`].
    pub reason: Reason,
    /// The capacity in units: the burst of a token bucket, the queue length plus 1 of a leaky bucket, or else the
    /// limit.
    pub limit: u64,
    /// The whole units that are left, rounded down. This number is never above `limit`.
    pub remaining: u64,
    /// How long to wait before the next attempt; [`Wait::NONE`] if the hit is allowed.
    pub retry_after: Wait,
    /// The nanoseconds until everything that was used so far has expired, and any penalty has ended.
    pub reset_after_ns: u64,
    /// How many nanoseconds an allowed caller has to wait for its turn (`leaky_bucket`), or else 0.
    pub delay_ns: u64,
    /// Whether the hit is allowed although more than the soft limit is used.
    pub soft_over: bool,
    /// The receipt of a take that was charged because the whole request is allowed. With this receipt, a refund gives
    /// back exactly the units of the take. `None` for all other hits, even for a refused take whose limit charges
    /// refusals.
    pub receipt: Option<Receipt>,
}

impl Decision {
    /// Returns a decision that allows a hit and charges nothing. `remaining` units of `limit` are left.
    ///
    /// The `with_` methods set other fields.
    ///
    /// ```
    /// use spillgate_core::{Decision, Reason};
    /// let decision = Decision::allow(100, 42);
    /// assert_eq!((decision.allowed, decision.reason), (true, Reason::Fits));
    /// ```
    #[must_use]
    #[inline]
    pub const fn allow(limit: u64, remaining: u64) -> Decision {
        Decision {
            allowed: true,
            reason: Reason::Fits,
            limit,
            remaining,
            retry_after: Wait::NONE,
            reset_after_ns: 0,
            delay_ns: 0,
            soft_over: false,
            receipt: None,
        }
    }

    /// Returns a decision that refuses a hit on a limit of `limit` units, of which no unit is left.
    ///
    /// ```
    /// use spillgate_core::{Decision, Reason, Wait};
    /// let decision = Decision::refuse(100, Reason::Exceeded, Wait::After(7));
    /// assert_eq!((decision.allowed, decision.remaining), (false, 0));
    /// ```
    #[must_use]
    #[inline]
    pub const fn refuse(limit: u64, reason: Reason, retry_after: Wait) -> Decision {
        Decision { allowed: false, reason, retry_after, ..Decision::allow(limit, 0) }
    }

    /// Returns the same decision with another reason.
    #[must_use]
    pub const fn with_reason(self, reason: Reason) -> Decision {
        Decision { reason, ..self }
    }

    /// Returns the same decision with another delay before the caller's turn.
    #[must_use]
    pub const fn with_delay_ns(self, delay_ns: u64) -> Decision {
        Decision { delay_ns, ..self }
    }

    /// Returns the same decision with another number of units left.
    #[must_use]
    pub const fn with_remaining(self, remaining: u64) -> Decision {
        Decision { remaining, ..self }
    }

    /// Returns the same decision with another time until everything that was used has expired.
    #[must_use]
    pub const fn with_reset_after_ns(self, reset_after_ns: u64) -> Decision {
        Decision { reset_after_ns, ..self }
    }

    /// Returns the same decision without a receipt, for a take that cannot be given back.
    #[must_use]
    pub const fn without_receipt(self) -> Decision {
        Decision { receipt: None, ..self }
    }

    /// Compares two decisions by how many further requests fit, if each costs `cost` units under this decision, and
    /// `other_cost` under the other. A cost of 0 counts as 1. If as many fit, the smaller share of the limit that is left
    /// comes first.
    ///
    /// ```
    /// use spillgate_core::Decision;
    ///
    /// let (tokens, requests) = (Decision::allow(100_000, 900), Decision::allow(10, 5));
    /// assert!(tokens.cmp_left(300, &requests, 1).is_lt()); // three requests of 300 tokens, or five requests
    /// ```
    #[must_use]
    pub fn cmp_left(&self, cost: u64, other: &Decision, other_cost: u64) -> Ordering {
        if (self.remaining, cost) == (other.remaining, other_cost) {
            // The same numbers, often of two limits that nobody uses, need no division.
            return if self.remaining == 0 { Ordering::Equal } else { other.limit.max(1).cmp(&self.limit.max(1)) };
        }
        let fit = self.remaining / cost.max(1);
        fit.cmp(&(other.remaining / other_cost.max(1))).then_with(|| {
            let left = u128::from(self.remaining) * u128::from(other.limit.max(1));
            left.cmp(&(u128::from(other.remaining) * u128::from(self.limit.max(1))))
        })
    }
}

impl Default for Decision {
    /// Returns a filler for the buffer that [`decide`](crate::decide) overwrites: it allows a hit on a limit of 0
    /// units.
    fn default() -> Self {
        Decision::allow(0, 0)
    }
}
