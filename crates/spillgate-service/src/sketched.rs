//! Decides requests with limits that count in sketches (`representation: sketch`).
//!
//! Such a request can also have limits that count in the store. [`Sketch::decide_beside`] says whether the sketches or
//! the store decide first.

use std::time::Duration;

use spillgate::rules::{Limit, Plan};
use spillgate::sketch::Sketch;
use spillgate::{Clock, Decision, Hit, MAX_HITS, Store as _, Time, Timing, Verdict};

use super::validate::within;
use super::{Service, ServiceError};

/// Returns the error for a request that gives units back to a sketch, for example a refund.
fn unsupported(plan: &Plan<'_>) -> ServiceError {
    let place = place_of(plan, |limit| limit.sketch.is_some());
    ServiceError::BadRequest(format!(
        "{place}: its limit has representation: sketch, which cannot give units back: send it no refund, no reset and no \
         reservation"
    ))
}

/// Fails if the plan has a hit on a sketch. Resets and reservations need this check, because no sketch supports them.
pub(super) fn refuse_sketches(plan: &Plan<'_>) -> Result<(), ServiceError> {
    if plan.sketched { Err(unsupported(plan)) } else { Ok(()) }
}

/// Names the first descriptor with a limit for which `is_meant` is true, for the text of an error.
pub(super) fn place_of(plan: &Plan<'_>, is_meant: impl Fn(&Limit) -> bool) -> String {
    let mut planned = plan.descriptors.iter().enumerate();
    let found = planned.find(|(_, planned)| planned.hits.iter().any(|(_, limit)| is_meant(limit)));
    let (index, rule) = found.map_or((0, None), |(index, planned)| (index, planned.rule));
    match rule {
        Some(rule) => format!("descriptor {} (rule `{}`)", index + 1, rule.path),
        None => format!("descriptor {}", index + 1),
    }
}

/// Decides a request that has only one hit, if this hit is on a sketch. Returns `None` for every other request.
///
/// Most requests with sketches have only one hit. Such a request does not need the store, and therefore no future.
#[inline]
pub(super) fn decide_single(
    now: Time,
    plan: &Plan<'_>,
    decisions: &mut [Decision],
) -> Option<Result<Verdict, ServiceError>> {
    let ([hit], [decision]) = (&plan.hits[..], decisions) else { return None };
    let [Some(sketch)] = plan.sketches()[..] else { return None };
    if !sketch.supports(hit.quota, hit.op.kind()) {
        return Some(Err(unsupported(plan)));
    }
    *decision = sketch.hit_now(now, hit);
    Some(Ok(Verdict::of(std::slice::from_ref(hit), std::slice::from_ref(decision), now)))
}

impl<C: Clock> Service<C> {
    /// Decides a plan in which some limits count in sketches.
    pub(super) async fn decide_sketched(
        &self,
        now: Time,
        timeout: Option<Duration>,
        plan: &Plan<'_>,
        decisions: &mut [Decision],
    ) -> Result<Verdict, ServiceError> {
        self.decide_beside(now, timeout, plan, (&plan.sketches(), &plan.hits), decisions).await
    }

    /// Decides `hits`, which are all hits of the plan or only some. If `sketches[i]` is a sketch, it decides `hits[i]`.
    /// The store decides all other hits.
    pub(super) async fn decide_beside(
        &self,
        now: Time,
        timeout: Option<Duration>,
        plan: &Plan<'_>,
        (sketches, hits): (&[Option<&Sketch>], &[Hit<'_>]),
        decisions: &mut [Decision],
    ) -> Result<Verdict, ServiceError> {
        within("limits that match", hits.len(), MAX_HITS)?;
        let store = self.limiter.store();
        for (sketch, hit) in sketches.iter().zip(hits) {
            match sketch {
                Some(sketch) if !sketch.supports(hit.quota, hit.op.kind()) => return Err(unsupported(plan)),
                Some(_) => {}
                None => {
                    if let Some(error) = store.unsupported(std::slice::from_ref(hit)) {
                        return Err(ServiceError::BadRequest(error));
                    }
                }
            }
        }
        let mut timing = Timing::at(now);
        timing.timeout = store.timeout(timeout);
        let verdict = Sketch::decide_beside(sketches, store, timing, now, hits, decisions).await?;
        self.watch_full(verdict.now);
        Ok(verdict)
    }
}
