//! Finds out what a shared store would decide, without taking units from it.
//!
//! With this code, an operator can ask a live store about a real client without changing that client's counts.

use std::time::Duration;

use spillgate::{Algorithm, Anchor, Binding, Clock, Decision, Hit, Op, OpKind, Quota, Reason, Store as _, Wait};

use super::asked::{After, decided};
use crate::service::{Service, ServiceError};

/// Returns the decision on each hit (the part of a request that is about one limit), as if the request had only this hit.
/// `before` has, for each hit, the decision on a peek (a hit that takes nothing) at the same limit.
///
/// For each take (a hit that takes units), sends one request with this take and a second take at a limit of 0. The second
/// take is always refused. A request is charged as a whole or not at all, so nothing is charged. The store still decides
/// the first take. If a refused request would be charged, the answer is computed from the peek instead.
pub(super) async fn decisions<C: Clock>(
    service: &Service<C>,
    hits: &[Hit<'_>],
    before: &[Decision],
) -> Result<Vec<Decision>, ServiceError> {
    let nothing = Quota::fixed_window(0, Duration::from_secs(1)).anchor(Anchor::FirstHit).build();
    let nothing = nothing.expect("invariant: a limit of 0 is valid");
    let mut decisions = Vec::new();
    for (hit, peek) in hits.iter().zip(before) {
        // Without scripts, the store charges each take even if it refuses the request. Only a store with scripts supports
        // `Force`, so this support shows whether the store uses scripts.
        let by_script = service.limiter().store().supports(hit.quota, OpKind::Force);
        if hit.op.kind() != OpKind::Take || !hit.quota.refusal_is_free() || !by_script {
            decisions.push(by_peek(hit, peek));
            continue;
        }
        let refuses = Hit::new(hit.key, &nothing, Op::take(1), Binding::Enforce);
        let mut both = [Decision::default(); 2];
        let verdict = service.limiter().decide(&[*hit, refuses], &mut both).await?;
        decided(verdict.source)?;
        // A refused request has no delay, so the delay of a leaky bucket (a queue) is computed here. The delay is the time
        // until the queue is empty.
        let queues = both[0].allowed && hit.quota.algorithm() == Algorithm::LeakyBucket;
        decisions.push(both[0].with_delay_ns(if queues { peek.reset_after_ns } else { 0 }));
    }
    Ok(decisions)
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
