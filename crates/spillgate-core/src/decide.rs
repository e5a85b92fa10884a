//! The decision over all hits of one request: all of them or none are charged.
//!
//! This is the meaning of a request. A store only makes it atomic, so all stores give the same answers.

use crate::algorithm::Refusal;
use crate::quota::MAX_LATE_NS;
use crate::verdict::is_allowed;
use crate::{Decision, Denied, Hit, Op, OpKind, Reason, State, Time, Verdict, Wait};

/// Decides all `hits` of one request at `now`: every hit is checked before any is charged.
///
/// * `states` contains each state once. `state_of[i]` is the index of the state that `hits[i]` counts in.
/// * `decisions[i]` becomes the answer to `hits[i]`. The result is the answer to the whole request.
///
/// # What is charged
///
/// * A take is charged if its own limit and the whole request allow it.
/// * A refused take costs nothing. If its limit [charges](Denied::Charged) refusals, it costs min(cost, capacity).
/// * A refused take starts the penalty of its limit, whatever the verdict is. A take with a cost of 0 does so too.
/// * Forces and refunds always take effect. Refunds come last, so they free no capacity for their own request.
/// * Renewals take effect only if the request is allowed.
/// * A hit under one quota never lowers what was counted under another quota, unless it is a refund or a reset.
///
/// # Hits that share a state
///
/// Each take is checked against the sum of all takes on the state. In a queue they share one turn. A peek sees the
/// state from before the request. The wait of a refused hit is computed after the whole request has taken effect.
///
/// ```
/// use core::time::Duration;
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, State, Time, decide};
///
/// let user = Quota::fixed_window(5, Duration::from_secs(1)).build()?;
/// let total = Quota::fixed_window(100, Duration::from_secs(1)).build()?;
/// let hits = [(1, &user), (2, &total)].map(|(key, quota)| Hit::new(key, quota, Op::take(6), Binding::Enforce));
/// let (mut states, mut decisions) = ([State::default(), State::default()], [Decision::default(); 2]);
/// let verdict = decide(&mut states, &[0, 1], &hits, Time::EPOCH, &mut decisions);
/// assert!(!verdict.allowed && !decisions[0].allowed); // the user's limit refuses
/// assert_eq!(decisions[1].remaining, 100); // so the other limit is not charged
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
///
/// # Panics
/// If `hits`, `state_of` and `decisions` differ in length, or if `state_of` points outside `states`.
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

/// Decides as [`decide`] does, for a store whose requests may be late.
///
/// `newest` is the newest time, as far as the store knows, that it has decided at on the states of this request.
/// Everything is decided at `now`, except the conversion of a bucket's debt.
///
/// That conversion happens when a quota charges a bucket that a quota with another T has charged before. Assume that
/// the request is late by d, and that the two quotas charge in turns:
///
/// * If the new T is shorter, each charge would forgive d * (1/T' - 1/T) units.
/// * If it is longer, the units that drain until `newest` would be counted twice by each charge.
///
/// A charge therefore converts only the debt that is left at `newest`. For this, the store has to remember `newest` for
/// all states of the request.
///
/// A `newest` that is more than [`MAX_LATE_NS`](crate::MAX_LATE_NS) after `now` is ignored: the clock was set back.
///
/// ```
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, State, Time, decide_late};
///
/// let quota = Quota::per_second(10).build()?;
/// let hits = [Hit::new(7, &quota, Op::take(4), Binding::Enforce)];
/// let (mut states, mut decisions) = ([State::default()], [Decision::default()]);
/// let (now, newest) = (Time::from_nanos(1_000), Time::from_nanos(1_500)); // another request was decided at 1,500 ns
/// let verdict = decide_late(&mut states, &[0], &hits, now, newest, &mut decisions);
/// assert_eq!(verdict.now, now);
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
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
            update_wait(state, hit, cost, now, &mut decisions[i]);
        }
        // An allowed peek keeps its report from before the request. A refused one may have started a penalty.
        if hit.op.kind() != OpKind::Peek || !decisions[i].allowed {
            report(state, hit, now, &mut decisions[i]);
        }
    }
    Verdict::of(hits, decisions, now)
}

/// The sum of the costs of all takes on the state of hit `i`. If hit `i` is not a take, its own cost.
fn cost_on_state(i: usize, state_of: &[usize], hits: &[Hit<'_>]) -> u64 {
    if hits.len() == 1 || hits[i].op.kind() != OpKind::Take {
        return hits[i].op.cost();
    }
    let same = hits.iter().zip(state_of).filter(|(_, state)| **state == state_of[i]);
    Hit::cost_of_takes(same.map(|(hit, _)| hit))
}

#[inline]
fn judge(state: &State, hit: &Hit<'_>, cost: u64, now: Time) -> Decision {
    let mut decision = Decision { limit: hit.quota.capacity(), ..Decision::default() };
    if let Some((reason, wait)) = refusal(state, hit, cost, now) {
        decision.allowed = false;
        decision.reason = reason;
        decision.retry_after = wait;
    } else if hit.op.kind() == OpKind::Take {
        // Read before any take is charged, because all takes of a request on one queue share a turn.
        decision.delay_ns = state.delay_ns(hit.quota, now);
    }
    if hit.op.kind() == OpKind::Peek {
        // The other hits report what is left after the whole request has taken effect.
        report(state, hit, now, &mut decision);
    }
    decision
}

#[inline]
fn refusal(state: &State, hit: &Hit<'_>, cost: u64, now: Time) -> Option<Refusal> {
    match hit.op {
        Op::Take { cost: 0, .. } | Op::Peek => state.refusal(hit.quota, 0, u64::MAX, now),
        Op::Take { max_wait_ns, .. } => state.refusal(hit.quota, cost, max_wait_ns, now),
        Op::Renew { receipt } => state.renewal_refusal(hit.quota, receipt, now),
        Op::Force { .. } if !hit.quota.supports(OpKind::Force) => Some((Reason::Unsupported, Wait::Never)),
        Op::Force { .. } | Op::Refund { .. } | Op::Reset => None,
    }
}

/// Charges a take that fits if the request is allowed. A take that does not fit may be charged and start a penalty.
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

/// Computes the wait again after the whole request has taken effect, so that it is exact.
fn update_wait(state: &State, hit: &Hit<'_>, cost_on_state: u64, now: Time, decision: &mut Decision) {
    if let Some((reason, wait)) = refusal(state, hit, cost_on_state, now) {
        // If this refusal started the penalty, the penalty changes the wait but not the reason.
        if decision.reason == Reason::Penalty || reason != Reason::Penalty {
            decision.reason = reason;
        }
        decision.retry_after = wait;
    }
}

/// Fills in what the state shows: what is left, when nothing counts any more, and whether the soft limit is exceeded.
#[inline]
fn report(state: &State, hit: &Hit<'_>, now: Time, decision: &mut Decision) {
    let usage = state.usage(hit.quota, now);
    decision.remaining = usage.remaining;
    decision.reset_after_ns = usage.reset_after_ns;
    // Without a soft limit only forces can exceed the capacity, and that is not flagged.
    decision.soft_over = decision.allowed && usage.over && hit.quota.hard_capacity() > hit.quota.capacity();
}
