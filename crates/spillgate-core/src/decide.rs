//! Decides all hits of one request together. Takes that fit are charged only if the whole request is allowed.
//!
//! [`decide`] defines the answer to a request. Every store has to give this answer, and to decide each request in one
//! atomic step. A Redis Cluster can do this only for states in one hash slot.

use crate::algorithm::Refusal;
use crate::quota::MAX_LATE_NS;
use crate::verdict::is_allowed;
use crate::{Decision, Denied, Hit, Op, OpKind, Reason, State, Time, Verdict, Wait};

/// Decides all `hits` of one request at the time `now`. Every hit is checked before any hit is charged.
///
/// * `states` contains each state in which a hit counts, once. `state_of[i]` is the index of the state of `hits[i]`.
/// * `decisions[i]` becomes the answer to `hits[i]`. The returned verdict is the answer to the whole request.
///
/// # What is charged
///
/// * A take is charged if its own limit allows it and the whole request is allowed.
/// * A refused take costs nothing, unless its limit [charges](Denied::Charged) refusals. Then the refused take costs
///   min(cost, capacity).
/// * A take that its own limit refuses starts the penalty of this limit, even if the request is allowed. A refused take
///   with a cost of 0 starts the penalty too.
/// * A force counts its units even if they do not fit. Only a concurrency limit and a limit of 0 count no force.
/// * Forces, refunds and resets take effect even if the request is refused. Refunds and resets come last, so that they
///   free no capacity for takes of the same request.
/// * Renewals and settlements take effect only if the request is allowed. A settlement counts its units together with
///   the forces, or gives them back together with the refunds.
/// * Several quotas can count in the same state. A hit under one quota never lowers what was counted under another,
///   unless the hit is a refund or a reset.
///
/// # Hits that share a state
///
/// If several hits count in the same state:
///
/// * A take fits only if the sum of all takes on the state fits.
/// * In a queue, all takes of the request share one turn.
/// * An allowed peek reports the state before the request. All other hits report the state after the request.
/// * The wait of a refused hit is computed again after the whole request has taken effect. If the hit would then be
///   allowed, for example because of a refund, the first wait stays.
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
/// If `hits`, `state_of` and `decisions` have different lengths, or if an index in `state_of` is outside of `states`.
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

/// Decides like [`decide`], for a store in which requests may be late.
///
/// A request is late if the store has already decided at a newer time. `newest` is the newest time at which the store
/// has decided on any state of this request, as far as the store knows. The whole request is decided at `now`. Only the
/// conversion of a bucket's debt uses `newest`.
///
/// The debt of a bucket is the time that the bucket needs to refill. If `n` units are used, the debt is `n * T`, where
/// `T` is the time between two units at the full rate. When a quota with another time, here called `T'`, charges the
/// bucket, the debt is converted: it is multiplied by `T'/T`, so that the number of used units stays the same.
///
/// The debt shrinks with time. So a request that is late by a time `d` sees a debt that is longer by `d` than the debt
/// at `newest`, if any debt is left at `newest`. If the longer debt were converted, the number of units that are used
/// at `newest` would change:
///
/// * If `T'` is shorter than `T`, each conversion would forget `d * (1/T' - 1/T)` used units.
/// * If `T'` is longer than `T`, each conversion would add `d * (1/T - 1/T')` units that no caller used.
///
/// So only the part of the debt that is left at `newest` is converted. After the decision, the store has to remember
/// the later one of `now` and `newest` for each state of the request.
///
/// If `newest` is more than [`MAX_LATE_NS`](crate::MAX_LATE_NS) after `now`, `newest` is ignored, because the clock was
/// set back.
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
/// See [`decide`].
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
    assert!(hits.len() == state_of.len() && hits.len() == decisions.len(), "one state and one decision for each hit");
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
        match hit.op {
            Op::Force { cost } => states[state].force(hit.quota, cost, now, late_ns),
            Op::Settle { change: more @ 1.., .. } if allowed => {
                states[state].force(hit.quota, more.unsigned_abs(), now, late_ns)
            }
            _ => {}
        }
    }
    for (i, hit) in hits.iter().enumerate() {
        let state = &mut states[state_of[i]];
        match hit.op {
            Op::Refund { cost, receipt } => state.refund(hit.quota, cost, receipt, now),
            Op::Settle { change: less @ ..0, receipt } if allowed => {
                state.refund(hit.quota, less.unsigned_abs(), Some(receipt), now);
            }
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
        // An allowed peek keeps the report that `judge` has written before the request took effect. All other hits get
        // their report now. Among them is a refused take with a cost of 0, which has the kind `Peek`. Its refusal can
        // start a penalty, and the report has to show this penalty.
        if hit.op.kind() != OpKind::Peek || !decisions[i].allowed {
            report(state, hit, now, &mut decisions[i]);
        }
    }
    Verdict::of(hits, decisions, now)
}

/// Returns the cost with which hit `i` is checked. For a take, this is the sum of all takes on the same state. For any
/// other operation, it is the cost of the hit.
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
        // All takes of a request on one queue share one turn. So the delay of each take is read before any take is
        // charged.
        decision.delay_ns = state.delay_ns(hit.quota, now);
    }
    if hit.op.kind() == OpKind::Peek {
        // An allowed peek reports what is left before the request takes effect. `decide_late` writes all other reports.
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
        Op::Settle { receipt, .. } if hit.quota.supports(OpKind::Renew) => {
            state.renewal_refusal(hit.quota, receipt, now)
        }
        Op::Force { .. } | Op::Refund { .. } | Op::Settle { .. } | Op::Reset => None,
    }
}

/// Charges a take that fits, if the whole request is allowed. If a take does not fit, its quota may charge the refusal
/// and start a penalty. Other operations change nothing here.
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

/// Computes the wait of a refused hit again, after the whole request has taken effect. If the hit would be allowed now,
/// the first wait stays.
fn update_wait(state: &State, hit: &Hit<'_>, cost_on_state: u64, now: Time, decision: &mut Decision) {
    if let Some((reason, wait)) = refusal(state, hit, cost_on_state, now) {
        // If this refusal has just started a penalty, the wait includes the penalty. But the reason of the refusal
        // stays, because the penalty is only its consequence.
        if decision.reason == Reason::Penalty || reason != Reason::Penalty {
            decision.reason = reason;
        }
        decision.retry_after = wait;
    }
}

/// Writes the report of the state into the decision: the units that are left, the time until the state equals an empty
/// state, and whether the soft limit is exceeded.
#[inline]
fn report(state: &State, hit: &Hit<'_>, now: Time, decision: &mut Decision) {
    let usage = state.usage(hit.quota, now);
    decision.remaining = usage.remaining;
    decision.reset_after_ns = usage.reset_after_ns;
    // Only a hit under a soft limit is flagged. Without a soft limit, more than the capacity can be used too: by a
    // force, by a charged refusal, or by takes under a larger limit.
    decision.soft_over = decision.allowed && usage.over && hit.quota.hard_capacity() > hit.quota.capacity();
}
