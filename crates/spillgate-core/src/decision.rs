//! What is answered: decisions, verdicts, and the receipts that undo a take.

use crate::Time;

/// How long a refused caller has to wait, counted from the time of the decision.
///
/// Ordered by how bad the news is: any time, then unknown, then never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// Asking again, alone, after this many nanoseconds is allowed. 0 only when allowed now.
    After(u64),
    /// Nobody can tell: a place is free when a holder releases it (concurrency).
    Unknown,
    /// No wait helps: the cost is above the capacity.
    Never,
}

impl Wait {
    /// No wait: what an allowed decision carries.
    pub const NONE: Wait = Wait::After(0);

    /// The wait in nanoseconds, where there is one to tell.
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

    /// The wait in whole milliseconds, rounded up, so that a refusal never says 0.
    #[must_use]
    pub const fn millis_ceil(self) -> Option<u64> {
        match self.nanos() {
            Some(ns) => Some(ns.div_ceil(1_000_000)),
            None => None,
        }
    }

    /// The wait in whole seconds, rounded up, so that a refusal never says 0.
    #[must_use]
    pub const fn secs_ceil(self) -> Option<u64> {
        match self.nanos() {
            Some(ns) => Some(ns.div_ceil(1_000_000_000)),
            None => None,
        }
    }
}

/// Why a decision says what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Reason {
    /// The quota has room (or the operation needs none).
    #[default]
    Fits,
    /// The quota is used up; time will make room.
    Exceeded,
    /// The cost is above the capacity and can never fit.
    CostAboveCapacity,
    /// The key was refused before and is shut out for the quota's penalty.
    Penalty,
    /// The queue has a place, but its turn comes later than the caller can wait.
    WaitTooLong,
    /// The lease to renew is unknown or has expired.
    LeaseExpired,
    /// The store is full and its policy refuses new keys.
    StoreFull,
    /// This algorithm has no such operation.
    Unsupported,
    /// The store failed, and the policy for that answered instead.
    StoreFailed,
    /// Another limit of the request is known to refuse it, so this one was not asked: the decision says nothing of it.
    NotAsked,
}

impl Reason {
    /// The word for it in answers and traces.
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

/// What a take returns so that it can be given back exactly.
///
/// `at` is the time the take was counted at (a window, a log entry); `mark` is the end of its
/// slot (`token_bucket`, `leaky_bucket`) or the id of its lease (`concurrency`), else 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// When the take was counted.
    pub at: Time,
    /// The end of the slot in nanoseconds, or the id of the lease.
    pub mark: u64,
}

/// The answer to one hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether this hit's own limit lets it pass. The request passes by the [`Verdict`].
    pub allowed: bool,
    /// Why.
    pub reason: Reason,
    /// The capacity in units: the burst of a bucket, places + 1 of a queue, else the limit.
    pub limit: u64,
    /// Whole units left below `limit` after this decision, rounded down; never above `limit`.
    pub remaining: u64,
    /// How long to wait before asking again; [`Wait::NONE`] when allowed.
    pub retry_after: Wait,
    /// Nanoseconds until nothing of what was used counts any more.
    pub reset_after_ns: u64,
    /// Nanoseconds that an allowed caller has to wait for its turn (`leaky_bucket`), else 0.
    pub delay_ns: u64,
    /// Allowed, and more than the soft limit is used: after this decision or, of a look, before it.
    pub soft_over: bool,
    /// For an allowed take that was charged: how to give it back.
    pub receipt: Option<Receipt>,
}

impl Default for Decision {
    /// What there is to say where no limit applies.
    fn default() -> Self {
        Decision {
            allowed: true,
            reason: Reason::Fits,
            limit: 0,
            remaining: 0,
            retry_after: Wait::NONE,
            reset_after_ns: 0,
            delay_ns: 0,
            soft_over: false,
            receipt: None,
        }
    }
}

/// Who made a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Source {
    /// The store decided.
    #[default]
    Store,
    /// The store was not asked: a state that it showed before refuses still.
    DenyCache,
    /// The store failed, and local state stood in for it.
    Local,
    /// The store failed, and the rule's policy answered.
    Policy,
}

impl Source {
    /// The word for it in answers and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Store => "store",
            Source::DenyCache => "deny_cache",
            Source::Local => "local",
            Source::Policy => "policy",
        }
    }
}

/// The answer to all hits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request may pass.
    pub allowed: bool,
    /// The index of the hit that binds: on refusal the one with the longest wait among those
    /// that refuse, when allowed the one with the least share left. `None` without hits.
    pub binding: Option<usize>,
    /// How long to wait before asking again; [`Wait::NONE`] when allowed.
    pub retry_after: Wait,
    /// Nanoseconds until the turn of an allowed request comes: the longest of its hits.
    pub delay_ns: u64,
    /// The time the decision was made at, by the clock that counts for this store.
    pub now: Time,
    /// Who decided.
    pub source: Source,
}
