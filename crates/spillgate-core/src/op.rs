//! The operations that a request can perform on a limit.
//!
//! They stand apart from the request, because a quota says which of them its algorithm supports.

use crate::Receipt;

/// What a hit does with its limit.
///
/// Exhaustive on purpose: a store must handle every operation, and the compiler shows each place that has to.
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
    /// A take with a cost of 0 is for a caller that learns its cost later and then uses [`Force`](Op::Force). It takes
    /// nothing and is refused like a [`Peek`](Op::Peek). Its refusal starts the quota's penalty, which a peek never
    /// does.
    Take {
        /// How many units to take.
        cost: u64,
        /// The longest delay in nanoseconds that the caller accepts before its turn (`leaky_bucket`).
        max_wait_ns: u64,
    },
    /// Reads what is left and changes nothing. It is refused only while more than the capacity is used.
    Peek,
    /// Counts units that were used already. It cannot be refused.
    Force {
        /// How many units to count.
        cost: u64,
    },
    /// Gives units back. A refund with the receipt of a permit releases that permit.
    ///
    /// With a receipt, the units return to the window or entry that they were taken from. Without one, they are
    /// subtracted from the current window, or from the oldest entries.
    Refund {
        /// How many units to give back.
        cost: u64,
        /// The receipt of the take that is undone.
        receipt: Option<Receipt>,
    },
    /// Restarts the lease of a permit (`concurrency`).
    Renew {
        /// The receipt of the take that was given the permit.
        receipt: Receipt,
    },
    /// Forgets all that was used, and any penalty.
    Reset,
}

impl Op {
    /// A take by a caller that cannot wait: the usual operation.
    #[must_use]
    pub const fn take(cost: u64) -> Op {
        Op::Take { cost, max_wait_ns: 0 }
    }

    /// The kind of operation, without its operands. A take with a cost of 0 counts as a peek.
    #[must_use]
    pub const fn kind(&self) -> OpKind {
        match self {
            Op::Take { cost: 0, .. } | Op::Peek => OpKind::Peek,
            Op::Take { .. } => OpKind::Take,
            Op::Force { .. } => OpKind::Force,
            Op::Refund { .. } => OpKind::Refund,
            Op::Renew { .. } => OpKind::Renew,
            Op::Reset => OpKind::Reset,
        }
    }

    /// The units that the operation names; 0 if it has no cost.
    pub(crate) const fn cost(&self) -> u64 {
        match *self {
            Op::Take { cost, .. } | Op::Force { cost } | Op::Refund { cost, .. } => cost,
            Op::Peek | Op::Renew { .. } | Op::Reset => 0,
        }
    }

    /// One operation that replaces both, if they differ in their cost only. Costs are added and saturate.
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

/// The kind of an [`Op`], without its operands; [`Op::kind`] has an example.
///
/// Exhaustive for the same reason as [`Op`].
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
    /// [`Op::Reset`].
    Reset,
}
