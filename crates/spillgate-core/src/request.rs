//! One request: several hits, decided all or nothing.

use crate::quota::MAX_LATE_NS;
use crate::verdict::is_allowed;
use crate::{Decision, Denied, Quota, Reason, Receipt, State, Time, Verdict, Wait};

/// The most hits one request can have.
pub const MAX_HITS: usize = 256;

/// What a hit asks of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Take `cost` units if they fit. A cost of 0 is the question before work that is [forced](Op::Force) afterwards:
    /// it takes nothing and is refused like a look, but its refusal starts the quota's penalty.
    Take {
        /// Units.
        cost: u64,
        /// The longest delay the caller can wait for its turn (`leaky_bucket`), in nanoseconds.
        max_wait_ns: u64,
    },
    /// See what is left; refused only while more than the capacity is used. Changes nothing.
    Peek,
    /// Charge units that were used already; cannot be refused.
    Force {
        /// Units.
        cost: u64,
    },
    /// Give units back: exactly where they were taken with a receipt, else the current
    /// window, or the oldest entries. Releasing a lease is a refund with its receipt.
    Refund {
        /// Units.
        cost: u64,
        /// Of the take that is given back.
        receipt: Option<Receipt>,
    },
    /// Let a lease live its full life again (`concurrency`).
    Renew {
        /// Of the take that got the lease.
        receipt: Receipt,
    },
    /// Forget all that was used, and any penalty.
    Reset,
}

impl Op {
    /// A take that cannot wait: the usual question.
    #[must_use]
    pub const fn take(cost: u64) -> Op {
        Op::Take { cost, max_wait_ns: 0 }
    }

    /// The kind of operation, without its operands; a take of nothing looks.
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

    const fn cost(&self) -> u64 {
        match *self {
            Op::Take { cost, .. } | Op::Force { cost } | Op::Refund { cost, .. } => cost,
            Op::Peek | Op::Renew { .. } | Op::Reset => 0,
        }
    }

    /// The two operations as one, where they ask the same: costs added, saturating.
    fn merged(self, other: Op) -> Option<Op> {
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

/// The kind of an [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum OpKind {
    Take,
    Peek,
    Force,
    Refund,
    Renew,
    Reset,
}

/// How a hit's refusal counts in the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Binding {
    /// A refusal refuses the request.
    #[default]
    Enforce,
    /// Judged and charged, but never refuses.
    Shadow,
    /// Refuses only if every hit of this kind refuses.
    Quota,
}

/// One question to one limit.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'q> {
    /// Who is counted: 128 bits of a secretly keyed hash.
    pub key: u128,
    /// How much in how long.
    pub quota: &'q Quota,
    /// What is asked.
    pub op: Op,
    /// How its refusal counts.
    pub binding: Binding,
}

impl<'q> Hit<'q> {
    /// The bits of a key from this one on pick the slot of a Redis Cluster, whatever the quota: a whole number of digits
    /// of six bits.
    pub const SLOT_SHIFT: u32 = 98;

    /// A hit on `key`.
    #[must_use]
    pub const fn new(key: u128, quota: &'q Quota, op: Op, binding: Binding) -> Hit<'q> {
        Hit { key, quota, op, binding }
    }

    /// Names the state this hit counts in: the key and the quota's
    /// [identity](Quota::identity), so that a changed limit finds what was used.
    #[must_use]
    pub const fn state_key(&self) -> u128 {
        self.key ^ self.quota.identity()
    }

    /// This hit and `other` as one, where they ask the same of the same limit.
    ///
    /// Hits are merged before a store sees them: one check, one charge, one decision for both.
    #[must_use]
    pub fn merged(&self, other: &Hit<'q>) -> Option<Hit<'q>> {
        let same = self.key == other.key && self.binding == other.binding && self.quota == other.quota;
        let op = if same { self.op.merged(other.op)? } else { return None };
        Some(Hit { op, ..*self })
    }
}

/// Decides all `hits` of one request at `now`: all are checked before any is charged.
///
/// `states` holds each state once; `state_of[i]` is the index of the state that `hits[i]` counts
/// in. `decisions[i]` becomes the answer to `hits[i]`. This function *is* the meaning: a store
/// only has to make it atomic.
///
/// What is charged: an allowed request charges its takes that fit; a take whose own limit
/// refuses charges nothing, or min(cost, capacity) where that limit's refusals are
/// [charged](Denied::Charged), and starts the limit's penalty, whatever the verdict; so does a take of nothing. Forces and
/// refunds always take effect, refunds last, so that they make no room in their own request;
/// renewals only in an allowed request. No hit under one quota lowers what was counted under another, except by a
/// refund or a reset.
/// Takes that share a state are each checked with the sum of all takes on it, and have one turn
/// in a queue; looks see the state before. A refused hit is told the wait that the state asks
/// for after the whole request.
///
/// # Panics
/// If the three slices of hits differ in length, or `state_of` points outside `states`.
#[inline]
pub fn decide(
    states: &mut [State],
    state_of: &[usize],
    hits: &[Hit<'_>],
    now: Time,
    decisions: &mut [Decision],
) -> Verdict {
    decide_late(states, state_of, hits, now, now, decisions)
}

/// Decides as [`decide`], for a store whose requests may be late: `newest` is the newest time that it has decided at,
/// as far as it knows, on the states of this request.
///
/// Each algorithm bears late requests by itself, with one exception: a charge that makes a bucket's debt drain faster
/// would forgive d * (1/T' - 1/T) units where its request is late by d, each time that two quotas take turns. A charge
/// that makes it drain slower would count twice what drains until `newest`. So a charge converts only the debt that is
/// left at `newest`, and the store has to remember that time for all states of the request. Everything else is decided as
/// of `now`. A `newest` more than a second ahead is ignored: then the clock was set back.
///
/// # Panics
/// As [`decide`].
#[inline]
pub fn decide_late(
    states: &mut [State],
    state_of: &[usize],
    hits: &[Hit<'_>],
    now: Time,
    newest: Time,
    decisions: &mut [Decision],
) -> Verdict {
    let late_ns = newest.as_nanos().saturating_sub(now.as_nanos());
    let late_ns = if late_ns > MAX_LATE_NS { 0 } else { late_ns };
    assert!(hits.len() == state_of.len() && hits.len() == decisions.len(), "one state and decision a hit");
    for (hit, &state) in hits.iter().zip(state_of) {
        states[state].adopt(hit.quota, now);
    }
    for (i, hit) in hits.iter().enumerate() {
        let cost = cost_on_state(i, state_of, hits);
        decisions[i] = judge(&states[state_of[i]], hit, cost, now);
    }
    let allowed = is_allowed(hits, decisions);
    for i in 0..hits.len() {
        take_or_punish(&mut states[state_of[i]], &hits[i], (now, late_ns), allowed, &mut decisions[i]);
    }
    for (hit, &state) in hits.iter().zip(state_of) {
        if let Op::Force { cost } = hit.op {
            states[state].force(hit.quota, cost, now, late_ns);
        }
    }
    for (i, hit) in hits.iter().enumerate() {
        let state = &mut states[state_of[i]];
        match hit.op {
            Op::Refund { cost, receipt } => state.refund(hit.quota, cost, receipt, now),
            Op::Renew { receipt } if allowed && decisions[i].allowed => state.renew(hit.quota, receipt, now),
            Op::Reset => *state = State::default(),
            _ => {}
        }
    }
    for (i, hit) in hits.iter().enumerate() {
        let state = &states[state_of[i]];
        if !decisions[i].allowed {
            let cost = cost_on_state(i, state_of, hits);
            retell(state, hit, cost, now, &mut decisions[i]);
        }
        // A look shows the state before, unless it was refused: that may have started a penalty.
        if hit.op.kind() != OpKind::Peek || !decisions[i].allowed {
            report(state, hit, now, &mut decisions[i]);
        }
    }
    Verdict::of(hits, decisions, now)
}

/// What the takes on hit `i`'s state cost together; its own cost if it shares the state with none.
fn cost_on_state(i: usize, state_of: &[usize], hits: &[Hit<'_>]) -> u64 {
    if hits.len() == 1 || hits[i].op.kind() != OpKind::Take {
        return hits[i].op.cost();
    }
    let same = hits.iter().zip(state_of).filter(|(hit, state)| **state == state_of[i] && hit.op.kind() == OpKind::Take);
    same.fold(0u64, |sum, (hit, _)| sum.saturating_add(hit.op.cost()))
}

#[inline]
fn judge(state: &State, hit: &Hit<'_>, cost: u64, now: Time) -> Decision {
    let mut decision = Decision { limit: hit.quota.capacity(), ..Decision::default() };
    if let Some((reason, wait)) = refusal(state, hit, cost, now) {
        decision.allowed = false;
        decision.reason = reason;
        decision.retry_after = wait;
    } else if hit.op.kind() == OpKind::Take {
        // Before any take is charged: all takes of a request on one queue have the same turn.
        decision.delay_ns = state.delay_ns(hit.quota, now);
    }
    if hit.op.kind() == OpKind::Peek {
        // The others are told what is left when the whole request has taken effect.
        report(state, hit, now, &mut decision);
    }
    decision
}

#[inline]
fn refusal(state: &State, hit: &Hit<'_>, cost: u64, now: Time) -> Option<(Reason, Wait)> {
    match hit.op {
        Op::Take { cost: 0, .. } | Op::Peek => state.refusal(hit.quota, 0, u64::MAX, now),
        Op::Take { max_wait_ns, .. } => state.refusal(hit.quota, cost, max_wait_ns, now),
        Op::Renew { receipt } => state.renewal_refusal(hit.quota, receipt, now),
        Op::Force { .. } if !hit.quota.supports(OpKind::Force) => Some((Reason::Unsupported, Wait::Never)),
        Op::Force { .. } | Op::Refund { .. } | Op::Reset => None,
    }
}

/// Charges a take that fits if the request is allowed; charges and punishes one that does not.
#[inline]
fn take_or_punish(
    state: &mut State,
    hit: &Hit<'_>,
    (now, late_ns): (Time, u64),
    request_allowed: bool,
    decision: &mut Decision,
) {
    let (Op::Take { cost, .. }, quota) = (hit.op, hit.quota) else { return };
    if decision.allowed && request_allowed {
        decision.receipt = (cost > 0).then(|| state.charge(quota, cost, now, late_ns));
    } else if decision.allowed {
        decision.delay_ns = 0;
    } else {
        let charged = quota.denied() == Denied::Charged;
        if charged {
            state.force(quota, cost.min(quota.capacity()), now, late_ns);
        }
        if charged || state.penalty_left_ns(quota, now) == 0 {
            state.punish(quota, now);
        }
    }
}

/// Tells the wait anew, now that the whole request has taken effect, so that it is exact.
fn retell(state: &State, hit: &Hit<'_>, cost_on_state: u64, now: Time, decision: &mut Decision) {
    if let Some((reason, wait)) = refusal(state, hit, cost_on_state, now) {
        // A penalty that this very refusal started tells how long to wait, not why.
        if decision.reason == Reason::Penalty || reason != Reason::Penalty {
            decision.reason = reason;
        }
        decision.retry_after = wait;
    }
}

/// Fills in what the state shows: what is left, when it is all back, and whether the soft limit is passed.
#[inline]
fn report(state: &State, hit: &Hit<'_>, now: Time, decision: &mut Decision) {
    let usage = state.usage(hit.quota, now);
    decision.remaining = usage.remaining;
    decision.reset_after_ns = usage.reset_after_ns;
    // Without a soft limit only what is forced goes over it.
    decision.soft_over = decision.allowed && usage.over && hit.quota.hard_capacity() > hit.quota.capacity();
}
