//! The operations that a request can perform on a limit.
//!
//! Quotas need these types as well as hits do, because `Quota::supports` says which operations an algorithm has.

use crate::Receipt;

/// What a hit does with its limit.
///
/// ```
/// use spillgate_core::{Op, OpKind};
///
/// // A caller that takes 3 units and can wait for up to 50 ms for its turn in a queue.
/// let take = Op::Take { cost: 3, max_wait_ns: 50_000_000 };
/// assert_eq!(take.kind(), OpKind::Take);
/// assert_eq!(Op::take(3), Op::Take { cost: 3, max_wait_ns: 0 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes `cost` units if they fit.
    ///
    /// A take with a cost of 0 is for a caller that learns its cost later and then uses [`Force`](Op::Force). Such a
    /// take counts nothing, and is refused whenever a [`Peek`](Op::Peek) is refused. But its refusal starts the penalty
    /// of the quota, which the refusal of a peek does not.
    Take {
        /// In units. A cost above the hard capacity never fits.
        cost: u64,
        /// The longest delay, in nanoseconds, that the caller accepts before its turn in a queue (`leaky_bucket`).
        max_wait_ns: u64,
    },
    /// Reads what is left, and counts nothing. A peek is refused only while more than the hard capacity is used, or
    /// while a penalty lasts.
    Peek,
    /// Counts units that were used already, even if they do not fit. A force is refused only by `concurrency`, which
    /// does not support this operation.
    Force {
        /// The units that were used. 0 changes nothing.
        cost: u64,
    },
    /// Gives units back. For `concurrency`, a refund releases permits.
    ///
    /// | algorithm | what a refund with a receipt gives back | what a refund without a receipt gives back |
    /// |---|---|---|
    /// | `token_bucket` | units of the take, without those that time has given back | units of any age |
    /// | `fixed_window` | units of the take's window, until this window ends | units of the current window |
    /// | `sliding_window_counter` | units of the take's segment, until it expires | units of the newest segment |
    /// | `sliding_window_log` | units of the take, until they expire | the oldest units that have not expired |
    /// | `leaky_bucket` | units of the take, if it has the last turn in the queue | nothing |
    /// | `concurrency` | the permits of the take | nothing |
    Refund {
        /// The most units that come back. 0 changes nothing.
        cost: u64,
        /// The receipt of the take. `None` if the caller has kept none.
        receipt: Option<Receipt>,
    },
    /// Restarts a lease, so that it lasts its full duration again (`concurrency`).
    Renew {
        /// The receipt of the take that got the lease.
        receipt: Receipt,
    },
    /// Corrects an estimate. A take has charged the estimate, and the settlement counts the difference to what was
    /// really used. A settlement takes effect only if the whole request is allowed.
    ///
    /// For `concurrency`, a settlement is refused if the lease has ended. This makes sure that an estimate is settled
    /// at most once. The caller takes a lease of one permit together with the estimate. Later, one request settles both
    /// the estimate and the lease, and the change -1 ends the lease. If the caller repeats this request, the settlement
    /// of the lease is refused, and so is the whole request.
    Settle {
        /// The units that were used, minus the units that were taken. If the change is negative, these units are given
        /// back, as by a [`Refund`](Op::Refund) with the receipt. If it is positive, they are counted even if they do
        /// not fit, as by a [`Force`](Op::Force).
        change: i64,
        /// The receipt of the take.
        receipt: Receipt,
    },
    /// Deletes everything that was counted in the state, and any penalty.
    Reset,
}

impl Op {
    /// Builds the usual operation: a take for a caller that does not wait for a turn in a queue.
    #[must_use]
    pub const fn take(cost: u64) -> Op {
        Op::Take { cost, max_wait_ns: 0 }
    }

    /// Builds the settlement of a take of `taken` units, after `used` units were used.
    ///
    /// ```
    /// use spillgate_core::{Op, Receipt, Time};
    ///
    /// let receipt = Receipt::new(Time::from_nanos(5), 9); // of a take of 100 units
    /// assert_eq!(Op::settle(100, 70, receipt), Op::Settle { change: -30, receipt });
    /// assert_eq!(Op::settle(100, 120, receipt), Op::Settle { change: 20, receipt });
    /// ```
    #[must_use]
    pub const fn settle(taken: u64, used: u64, receipt: Receipt) -> Op {
        let limit = i64::MAX as u64;
        let (taken, used) = (if taken < limit { taken } else { limit }, if used < limit { used } else { limit });
        Op::Settle { change: used as i64 - taken as i64, receipt }
    }

    /// Returns the kind of the operation, without its operands. A take with a cost of 0 has the kind of a peek.
    #[must_use]
    pub const fn kind(&self) -> OpKind {
        match self {
            Op::Take { cost: 0, .. } | Op::Peek => OpKind::Peek,
            Op::Take { .. } => OpKind::Take,
            Op::Force { .. } => OpKind::Force,
            Op::Refund { .. } => OpKind::Refund,
            Op::Renew { .. } => OpKind::Renew,
            Op::Settle { .. } => OpKind::Settle,
            Op::Reset => OpKind::Reset,
        }
    }

    /// Returns the units of the operation, or 0 if it has no cost.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        match *self {
            Op::Take { cost, .. } | Op::Force { cost } | Op::Refund { cost, .. } => cost,
            Op::Peek | Op::Renew { .. } | Op::Settle { .. } | Op::Reset => 0,
        }
    }

    /// Returns one operation that replaces both operations, or `None` if anything except their costs is different. The
    /// costs are added, and the sum saturates.
    pub(crate) fn merged(self, other: Op) -> Option<Op> {
        match (self, other) {
            (Op::Take { cost: a, max_wait_ns }, Op::Take { cost: b, max_wait_ns: other }) if max_wait_ns == other => {
                Some(Op::Take { cost: a.saturating_add(b), max_wait_ns })
            }
            (Op::Force { cost: a }, Op::Force { cost: b }) => Some(Op::Force { cost: a.saturating_add(b) }),
            (Op::Refund { cost: a, receipt }, Op::Refund { cost: b, receipt: other }) if receipt == other => {
                Some(Op::Refund { cost: a.saturating_add(b), receipt })
            }
            (a, b) if a == b => Some(a),
            _ => None,
        }
    }
}

/// The kind of an [`Op`], without its operands; [`Op`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// [`Op::Take`] with a cost of at least 1.
    Take,
    /// [`Op::Peek`], or [`Op::Take`] with a cost of 0.
    Peek,
    /// [`Op::Force`].
    Force,
    /// [`Op::Refund`].
    Refund,
    /// [`Op::Renew`].
    Renew,
    /// [`Op::Settle`].
    Settle,
    /// [`Op::Reset`].
    Reset,
}
