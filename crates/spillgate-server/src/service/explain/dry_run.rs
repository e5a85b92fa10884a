//! Finds out what a store would decide, without taking units from it.
//!
//! With this code, an operator can ask a live store about a real client without changing that client's counts.

use std::time::Duration;

use spillgate::rules::Plan;
use spillgate::sketch::Sketch;
use spillgate::{
    Algorithm, Anchor, Binding, Clock, Decision, Denied, Hit, Op, OpKind, Quota, Reason, Store as _, Timing, Wait,
};

use super::{After, decided, sketches};
use crate::service::{Service, ServiceError};

/// Returns the decision on each hit of the plan (the part of a request that is about one limit), as if the request had
/// only this hit. `before` has, for each hit, the decision on a peek (a hit that takes nothing) at the same limit.
pub(super) async fn decisions<C: Clock>(
    service: &Service<C>,
    plan: &Plan<'_>,
    before: &[Decision],
) -> Result<Vec<Decision>, ServiceError> {
    let mut decisions = Vec::with_capacity(plan.hits.len());
    for ((hit, sketch), peek) in plan.hits.iter().zip(sketches(plan)).zip(before) {
        // Without scripts, a shared store charges each take even if it refuses the request. Only a store with scripts
        // supports `Force`, so this support shows whether the store uses scripts.
        let store = service.limiter().store();
        let is_atomic = sketch.is_some() || !store.is_shared() || store.supports(hit.quota, OpKind::Force);
        let asks = hit.op.kind() == OpKind::Take && hit.quota.refusal_is_free() && is_atomic;
        let decision = if asks { refused(service, hit, sketch).await? } else { None };
        let decision = decision.unwrap_or_else(|| by_peek(hit, peek));
        // A refused request has no delay, so the delay of a leaky bucket (a queue) is computed here. The delay is the time
        // until the queue is empty.
        let queues = asks && decision.allowed && hit.quota.algorithm() == Algorithm::LeakyBucket;
        decisions.push(decision.with_delay_ns(if queues { peek.reset_after_ns } else { 0 }));
    }
    Ok(decisions)
}

/// Returns the decision on a take, from a request that is always refused. Returns `None` if this request cannot show it.
///
/// The request has the take and a second take at a limit of 0, which is always refused. A request is charged as a whole
/// or not at all, so nothing is charged. The store still decides the first take. If a refused take would be charged, do
/// not call this function.
async fn refused<C: Clock>(
    service: &Service<C>,
    hit: &Hit<'_>,
    sketch: Option<&Sketch>,
) -> Result<Option<Decision>, ServiceError> {
    // Limits with the same algorithm and window share a state, which would then get both takes. So the algorithm differs.
    let is_first_hit = hit.quota.algorithm() == Algorithm::FixedWindow(Anchor::FirstHit);
    let anchor = if is_first_hit { Anchor::Epoch } else { Anchor::FirstHit };
    let nothing = Quota::fixed_window(0, Duration::from_secs(1)).anchor(anchor);
    let charged = nothing.denied(Denied::Charged).build().expect("invariant: a limit of 0 is valid");
    let nothing = nothing.build().expect("invariant: a limit of 0 is valid");
    let refuses = Hit::new(hit.key, &nothing, Op::take(1), Binding::Enforce);
    let limiter = service.limiter();
    let mut found = [Decision::default(); 3];
    let verdict = match sketch {
        Some(sketch) => {
            let (now, store) = (limiter.now(), limiter.store().memory());
            let sketches = [Some(sketch), None];
            Sketch::decide_beside(&sketches, store, Timing::at(now), now, &[*hit, refuses], &mut found[..2]).await?
        }
        None => {
            // The deny cache answers only requests whose refusal changes nothing, and it may not know the state of the
            // first take. A refused hit on this limit could be charged, so the cache does not answer. A peek never is.
            let passes_cache = Hit::new(hit.key, &charged, Op::Peek, Binding::Shadow);
            limiter.decide(&[*hit, refuses, passes_cache], &mut found).await?
        }
    };
    decided(verdict.source)?;
    // If the memory store is full, it has no space for the second take either. It then only peeks at the limit of the first
    // take, unless it has no space for this take.
    let only_peeked = found[1].reason == Reason::StoreFull && found[0].reason != Reason::StoreFull;
    Ok((!only_peeked && found[0].reason != Reason::NotAsked).then_some(found[0]))
}

/// Returns the decision on a hit, as far as a peek at its limit shows it.
fn by_peek(hit: &Hit<'_>, peek: &Decision) -> Decision {
    let cost = match hit.op {
        Op::Take { cost, .. } => cost,
        // A forced charge cannot be refused.
        Op::Force { .. } => return with_outcome(peek, true, Reason::Fits, Wait::NONE),
        _ => return *peek,
    };
    if !peek.allowed || cost <= peek.remaining {
        return *peek;
    }
    let (reason, retry_after) = match cost > hit.quota.hard_capacity() {
        true => (Reason::CostAboveCapacity, Wait::Never),
        false => (Reason::Exceeded, Wait::Unknown),
    };
    with_outcome(peek, false, reason, retry_after)
}

/// Returns the decision of a peek, but with this outcome.
fn with_outcome(peek: &Decision, allowed: bool, reason: Reason, retry_after: Wait) -> Decision {
    let mut decision = *peek;
    (decision.allowed, decision.reason, decision.retry_after) = (allowed, reason, retry_after);
    decision
}

/// Returns the states of the limits after the decisions.
pub(super) fn after(hits: &[Hit<'_>], decisions: &[Decision], before: &[Decision], allowed: bool) -> Vec<After> {
    let left = |((hit, decision), before): ((&Hit<'_>, &Decision), &Decision)| {
        let cost = match hit.op {
            Op::Take { cost, .. } if allowed && decision.allowed => cost,
            // A limit can charge what it refuses. With a penalty, nothing is left after a refusal.
            Op::Take { .. } if !decision.allowed && hit.quota.penalty_ns() > 0 => before.remaining,
            Op::Take { cost, .. } if !decision.allowed && hit.quota.denied() == Denied::Charged => cost,
            Op::Force { cost } => cost,
            _ => 0,
        };
        match cost {
            0 => After::from(before),
            _ => After { remaining: before.remaining.saturating_sub(cost), reset_after_ns: None },
        }
    };
    hits.iter().zip(decisions).zip(before).map(left).collect()
}
