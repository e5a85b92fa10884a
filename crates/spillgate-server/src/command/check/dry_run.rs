//! What a shared store would decide, without taking anything from it.

use std::time::Duration;

use spillgate::{Algorithm, Anchor, Binding, Clock, Decision, Hit, Op, OpKind, Quota, Reason, Store as _, Wait};

use super::asked::{After, decided};
use crate::service::{Service, ServiceError};

/// The answer to each hit on its own; `before` are those to looks.
///
/// A take goes along with one on a limit of nothing: all or nothing is charged, so nothing is, and the take is
/// judged as it stands. A refusal that costs all the same is told by the look alone.
pub(super) async fn decisions<C: Clock>(
    service: &Service<C>,
    hits: &[Hit<'_>],
    before: &[Decision],
) -> Result<Vec<Decision>, ServiceError> {
    let nothing = Quota::fixed_window(0, Duration::from_secs(1)).anchor(Anchor::FirstHit).build();
    let nothing = nothing.expect("invariant: a limit of nothing is valid");
    let mut decisions = Vec::new();
    for (hit, look) in hits.iter().zip(before) {
        // What is counted without scripts is asked about alone, and charges its refusals.
        let by_script = service.limiter().store().supports(hit.quota, OpKind::Force);
        if hit.op.kind() != OpKind::Take || !hit.quota.refusal_is_free() || !by_script {
            decisions.push(by_look(hit, look));
            continue;
        }
        let refuses = Hit::new(hit.key, &nothing, Op::take(1), Binding::Enforce);
        let mut both = [Decision::default(); 2];
        let verdict = service.limiter().decide(&[*hit, refuses], &mut both).await?;
        decided(verdict.source)?;
        // In a request that is refused nobody has a turn: it comes when those before it have had theirs.
        let queues = both[0].allowed && hit.quota.algorithm() == Algorithm::LeakyBucket;
        decisions.push(both[0].with_delay_ns(if queues { look.reset_after_ns } else { 0 }));
    }
    Ok(decisions)
}

/// As much as a look tells of a take.
fn by_look(hit: &Hit<'_>, look: &Decision) -> Decision {
    let cost = match hit.op {
        Op::Take { cost, .. } => cost,
        // It cannot be refused.
        Op::Force { .. } => return judged(look, true, Reason::Fits, Wait::NONE),
        _ => return *look,
    };
    if !look.allowed || cost <= look.remaining {
        return *look;
    }
    let (reason, retry_after) = match cost > hit.quota.hard_capacity() {
        true => (Reason::CostAboveCapacity, Wait::Never),
        false => (Reason::Exceeded, Wait::Unknown),
    };
    judged(look, false, reason, retry_after)
}

/// The decision of a peek, with another outcome.
fn judged(peek: &Decision, allowed: bool, reason: Reason, retry_after: Wait) -> Decision {
    let mut decision = *peek;
    (decision.allowed, decision.reason, decision.retry_after) = (allowed, reason, retry_after);
    decision
}

/// What would be left.
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
