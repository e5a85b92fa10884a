//! The answer to one hit, and the receipt that undoes a take.
//!
//! Every store fills in the same fields, so a caller never needs to know which store decided.

use core::cmp::Ordering;

use crate::Time;

/// How long a refused caller has to wait, counted from the time of the decision.
///
/// The order is from good to bad: a known wait, then an unknown one, then "never". The three cases are all that there
/// can be, so matches on them are exhaustive.
///
/// ```
/// use spillgate_core::Wait;
///
/// assert_eq!(Wait::After(1_200_000).millis_ceil(), Some(2));
/// assert!(Wait::After(u64::MAX) < Wait::Unknown && Wait::Unknown < Wait::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// If no other caller asks, the same take is allowed after this many nanoseconds. 0 only if it is allowed now.
    After(u64),
    /// The wait cannot be known: it depends on when another caller releases its permit (`concurrency`).
    Unknown,
    /// No wait helps: the cost is above the capacity.
    Never,
}

impl Wait {
    /// No wait: the value in an allowed decision.
    pub const NONE: Wait = Wait::After(0);

    /// The wait in nanoseconds, if it is known.
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

    /// The wait in whole milliseconds. It is rounded up, so that a refusal never shows 0.
    #[must_use]
    pub const fn millis_ceil(self) -> Option<u64> {
        match self.nanos() {
            Some(ns) => Some(ns.div_ceil(1_000_000)),
            None => None,
        }
    }

    /// The wait in whole seconds. It is rounded up, so that a refusal never shows 0.
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
    /// The quota is used up. Capacity returns with time.
    Exceeded,
    /// The cost is above the capacity and can never fit.
    CostAboveCapacity,
    /// The key was refused before, and the quota's penalty has not ended.
    Penalty,
    /// The take fits in the queue, but its turn comes later than the caller accepts.
    WaitTooLong,
    /// The lease to renew is unknown or has expired.
    LeaseExpired,
    /// The store is full, and its policy refuses new keys.
    StoreFull,
    /// The algorithm does not support this operation.
    Unsupported,
    /// The store failed, and the policy for that case answered.
    StoreFailed,
    /// The store was not asked about this hit, because another limit is known to refuse the request. The other fields
    /// of the decision have no meaning.
    NotAsked,
}

impl Reason {
    /// The name of the reason in answers and traces.
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

/// What a take returns, so that a refund can give back exactly what was taken.
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
    /// The time that the take was counted at. It names the window or the log entry.
    pub at: Time,
    /// When the debt of the take is paid, in nanoseconds since the epoch (`token_bucket`, `leaky_bucket`). The id of
    /// the lease (`concurrency`). Else 0.
    pub mark: u64,
}

impl Receipt {
    /// A receipt from its two parts, as a store or a client kept them.
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

    /// The same receipt with another mark, for a store that keeps a note in its unused bits.
    #[must_use]
    pub const fn with_mark(self, mark: u64) -> Receipt {
        Receipt { mark, ..self }
    }
}

/// The answer to one hit.
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
    /// Whether this hit's own limit allows it. Whether the request may pass is in the [`Verdict`](crate::Verdict).
    pub allowed: bool,
    /// Why.
    pub reason: Reason,
    /// The capacity in units: B of a token bucket, Q + 1 of a leaky bucket, else the limit.
    pub limit: u64,
    /// Whole units left below `limit` after this decision, rounded down. Never above `limit`.
    pub remaining: u64,
    /// How long to wait before the next attempt; [`Wait::NONE`] if the hit is allowed.
    pub retry_after: Wait,
    /// Nanoseconds until nothing that was used counts any more.
    pub reset_after_ns: u64,
    /// Nanoseconds that an allowed caller has to wait for its turn (`leaky_bucket`), else 0.
    pub delay_ns: u64,
    /// The hit is allowed, and more than the soft limit is used: after a take, or before a peek.
    pub soft_over: bool,
    /// How to give back what an allowed take was charged. `None` if nothing was charged.
    pub receipt: Option<Receipt>,
}

impl Decision {
    /// An allowed hit, with `remaining` of `limit` units left and nothing charged.
    ///
    /// The other fields can be set one by one.
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

    /// A refused hit on a limit of `limit` units, with nothing left.
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

    /// The same decision with another reason.
    #[must_use]
    pub const fn with_reason(self, reason: Reason) -> Decision {
        Decision { reason, ..self }
    }

    /// The same decision with another delay before the caller's turn.
    #[must_use]
    pub const fn with_delay_ns(self, delay_ns: u64) -> Decision {
        Decision { delay_ns, ..self }
    }

    /// The same decision with another number of units left.
    #[must_use]
    pub const fn with_remaining(self, remaining: u64) -> Decision {
        Decision { remaining, ..self }
    }

    /// The same decision with another time until nothing counts any more.
    #[must_use]
    pub const fn with_reset_after_ns(self, reset_after_ns: u64) -> Decision {
        Decision { reset_after_ns, ..self }
    }

    /// The same decision without a receipt, for a take that cannot be given back.
    #[must_use]
    pub const fn without_receipt(self) -> Decision {
        Decision { receipt: None, ..self }
    }

    /// Compares the shares of the limit that are left, remaining/limit, without a division.
    #[must_use]
    pub fn cmp_share_left(&self, other: &Decision) -> Ordering {
        let left = u128::from(self.remaining) * u128::from(other.limit.max(1));
        left.cmp(&(u128::from(other.remaining) * u128::from(self.limit.max(1))))
    }
}

impl Default for Decision {
    /// An allowed hit on a limit of 0 units: the value to fill a buffer with before a decision.
    fn default() -> Self {
        Decision::allow(0, 0)
    }
}
