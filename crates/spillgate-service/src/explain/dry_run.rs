//! Finds out what a store would decide, without taking units from it.
//!
//! So an operator can ask a live store about a real client without changing that client's counts.

use std::time::Duration;

use spillgate::regions::{is_full, may_ask_share};
use spillgate::rules::Plan;
use spillgate::sketch::Sketch;
use spillgate::{
    Algorithm, Anchor, Binding, Clock, Decision, Denied, Hit, Op, OpKind, Quota, Reason, Store as _, Timing, Wait,
};

use super::{After, decided, sketches};
use crate::{Service, ServiceError};

/// Returns the decision on each hit of the plan, as if the request had no other hit. For each hit, `before` has the
/// decision on a peek at the same limit.
pub(super) async fn decisions<C: Clock>(
    service: &Service<C>,
    plan: &Plan<'_>,
    before: &[Decision],
) -> Result<Vec<Decision>, ServiceError> {
    let mut decisions = Vec::with_capacity(plan.hits.len());
    for ((hit, sketch), peek) in plan.hits.iter().zip(sketches(plan)).zip(before) {
        let is_free = hit.quota.refusal_is_free() && is_atomic(service, hit, sketch);
        let asks = hit.op.kind() == OpKind::Take && is_free;
        let decision = if asks { refused(service, hit, sketch).await? } else { None };
        let decision = decision.unwrap_or_else(|| by_peek(hit, peek));
        // The request that `refused` sends is refused, so its decisions have no delay. Therefore the delay of a leaky
        // bucket, which is a queue, is computed here: it is the time until the queue is empty.
        let queues = asks && decision.allowed && hit.quota.algorithm() == Algorithm::LeakyBucket;
        decisions.push(decision.with_delay_ns(if queues { peek.reset_after_ns } else { 0 }));
    }
    Ok(decisions)
}

/// Changes the decisions of full limits that the guaranteed share of this region would admit, as the store does it.
pub(super) async fn ask_shares<C: Clock>(
    service: &Service<C>,
    hits: &[Hit<'_>],
    decisions: &mut [Decision],
) -> Result<(), ServiceError> {
    if !may_ask_share(hits, decisions) {
        return Ok(());
    }
    let mut with_shares = decisions.to_vec();
    for (hit, decision) in hits.iter().zip(&mut with_shares).filter(|(hit, decision)| is_full(hit, decision)) {
        let Some(share) = hit.quota.guaranteed(hit.op.cost()) else { continue };
        let Some(answer) = refused(service, &hit.with_quota(&share), None).await? else { return Ok(()) };
        decision.retry_after = decision.retry_after.min(answer.retry_after);
        if answer.allowed {
            *decision = with_outcome(decision, true, Reason::Fits, Wait::NONE);
        }
    }
    // If one share refuses, no share admits.
    let is_admitted = with_shares.iter().zip(hits).all(|(decision, hit)| !is_full(hit, decision));
    for (decision, with_share) in decisions.iter_mut().zip(with_shares) {
        if is_admitted || !with_share.allowed {
            *decision = with_share;
        }
    }
    Ok(())
}

/// Returns whether a refused request leaves all its limits uncharged.
///
/// With the setting `store.scripts: off`, a shared store charges each take even if the request is refused. Such a store
/// does not support `Force`, and a store with scripts does. So the support of `Force` shows which case this is. A limit that
/// regions share takes no forces, but needs a store with scripts.
fn is_atomic<C: Clock>(service: &Service<C>, hit: &Hit<'_>, sketch: Option<&Sketch>) -> bool {
    let store = service.limiter().store();
    sketch.is_some() || !store.is_shared() || hit.quota.is_shared() || store.supports(hit.quota, OpKind::Force)
}

/// Asks the store for the decision on the take `hit`, without charging the take. Returns `None` if the answer does not
/// show this decision.
///
/// The take is sent together with a second take, at a limit of 0, which is always refused. A request is charged as a
/// whole or not at all, so nothing is charged. But the store decides the first take all the same. Do not call this
/// function if the limit or the store charges refused takes.
async fn refused<C: Clock>(
    service: &Service<C>,
    hit: &Hit<'_>,
    sketch: Option<&Sketch>,
) -> Result<Option<Decision>, ServiceError> {
    // Under one key, limits with the same algorithm and window share a state. So the limit of 0 gets another algorithm
    // than the limit of `hit`, and therefore a state of its own.
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
            // The deny cache repeats refusals without asking the store. It may not know the state of the first take, so
            // it must not answer here. It never answers a request with a limit that charges refusals. Therefore a third
            // hit goes to such a limit. This hit is a peek, which charges nothing.
            let passes_cache = Hit::new(hit.key, &charged, Op::Peek, Binding::Shadow);
            limiter.decide(&[*hit, refuses, passes_cache], &mut found).await?
        }
    };
    decided(verdict.source)?;
    Ok((found[0].reason != Reason::NotAsked).then_some(found[0]))
}

/// Derives the decision on a hit from `peek`, the decision on a peek at the same limit. The wait of a refusal can stay
/// unknown.
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
        false => (Reason::Exceeded, wait_after_penalty(hit, peek)),
    };
    with_outcome(peek, false, reason, retry_after)
}

/// Returns the wait of a refused take. It is known only if the refusal is free and starts a penalty, and if the limit
/// is unused again when the penalty ends. Then the wait is the penalty.
fn wait_after_penalty(hit: &Hit<'_>, peek: &Decision) -> Wait {
    let penalty_ns = hit.quota.penalty_ns();
    let is_known = penalty_ns > 0 && peek.reset_after_ns <= penalty_ns && hit.quota.denied() == Denied::Free;
    if is_known { Wait::After(penalty_ns) } else { Wait::Unknown }
}

/// Returns the decision of a peek, but with this outcome.
fn with_outcome(peek: &Decision, allowed: bool, reason: Reason, retry_after: Wait) -> Decision {
    let mut decision = *peek;
    (decision.allowed, decision.reason, decision.retry_after) = (allowed, reason, retry_after);
    decision
}

/// Returns the states of the limits after the decisions.
pub(super) fn after<C: Clock>(
    service: &Service<C>,
    plan: &Plan<'_>,
    decisions: &[Decision],
    before: &[Decision],
    allowed: bool,
) -> Vec<After> {
    let hits = plan.hits.iter().zip(sketches(plan)).zip(decisions).zip(before);
    let left = |(((hit, sketch), decision), before): (((&Hit<'_>, Option<&Sketch>), &Decision), &Decision)| {
        let cost = match hit.op {
            Op::Take { cost, .. } if allowed && decision.allowed => cost,
            // The refusal starts a penalty, during which nothing is left.
            Op::Take { .. } if !decision.allowed && hit.quota.penalty_ns() > 0 => before.remaining,
            // The limit charges the take that it refuses.
            Op::Take { cost, .. } if !decision.allowed && hit.quota.denied() == Denied::Charged => cost,
            // The store has no scripts, so it charges a take even if another limit refuses the request. Only a cost
            // above the limit's capacity is not charged.
            Op::Take { cost, .. } if !is_atomic(service, hit, sketch) && cost <= hit.quota.hard_capacity() => cost,
            Op::Force { cost } => cost,
            _ => 0,
        };
        match cost {
            0 => After::from(before),
            _ => After { remaining: before.remaining.saturating_sub(cost), reset_after_ns: None },
        }
    };
    hits.map(left).collect()
}
