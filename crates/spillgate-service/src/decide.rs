//! Decides a request: checks it, finds its limits, asks the store, and counts the answer.
//!
//! All protocols share this code, so that a request gets the same answer over each of them.

use std::future::Future;
use std::time::Duration;

use smallvec::SmallVec;
use spillgate::regions::not_supported;
use spillgate::rules::{Plan, Request};
use spillgate::{Binding, Clock, Decision, Hit, MAX_HITS, Time, Timing, Verdict};
use tokio::time::Instant;
use tracing::Level;

use super::answer::{self, Answer, AnswerView};
use super::sketched::{decide_single, place_of};
use super::validate::within;
use super::{Client, Grants, Loaded, Service, ServiceError};
use crate::metrics::Metrics;

impl<C: Clock> Service<C> {
    /// Decides one request of `client` by the rules in `loaded`.
    ///
    /// # Errors
    /// The request is malformed, exceeds a bound or is not allowed on its listener, or the store failed. A refusal is
    /// an answer, not an error.
    pub fn decide<'p, 'q: 'p>(
        &self,
        loaded: &'p Loaded,
        request: &Request<'q>,
        client: Client,
    ) -> impl Future<Output = Result<Answer<'p>, ServiceError>> {
        self.decide_in(Timing::default(), loaded, request, client)
    }

    /// Does what [`decide`](Service::decide) does, but with the time and the timeout in `timing`. If `timing` has no
    /// time, the service reads the clock.
    ///
    /// # Errors
    /// The errors of [`decide`](Service::decide).
    pub async fn decide_in<'p, 'q: 'p>(
        &self,
        timing: Timing,
        loaded: &'p Loaded,
        request: &Request<'q>,
        client: Client,
    ) -> Result<Answer<'p>, ServiceError> {
        let begun = Metrics::begin_decision();
        self.validate(request, client.grants).map_err(|error| self.rejected(error))?;
        let now = timing.now.unwrap_or_else(|| self.limiter.now());
        if self.operator.is_on()
            && let Some(refused) = self.refuse_blocked(now, loaded, request, client.protocol)
        {
            self.metrics.end_decision(begun);
            return Ok(refused);
        }
        // The plan is not built by `Service::plan`, because that function returns the plan within a `Result`, which
        // costs one more copy of the plan.
        let mut plan = loaded.rules.plan(self.limiter.keys(), request, self.options.bounds.value_bytes);
        self.apply_options(now, &mut plan, loaded, request).map_err(|error| self.rejected(error))?;
        // `smallvec![...]` would build a second list and copy it, so `resize` fills this list in its place.
        let mut decisions: SmallVec<[Decision; 4]> = SmallVec::new();
        decisions.resize(plan.hits.len(), Decision::default());
        let decided = if plan.separately {
            // The two boxes keep the large futures of these rare cases out of the future of every other request.
            Box::pin(self.decide_separately(now, timing.timeout, &plan, &mut decisions)).await
        } else if plan.sketched {
            match decide_single(now, &plan, &mut decisions) {
                Some(decided) => decided,
                None => Box::pin(self.decide_sketched(now, timing.timeout, &plan, &mut decisions)).await,
            }
        } else {
            self.decide_hits(now, timing.timeout, &plan.hits, &mut decisions).await
        };
        let verdict = decided.map_err(|error| self.failed_as_planned(begun, error, &plan))?;
        let statuses = answer::statuses(&plan, &decisions);
        let view = AnswerView { verdict: &verdict, statuses: &statuses, plan: &plan, decisions: &decisions };
        self.count(now, client.protocol, loaded, request, view);
        if tracing::enabled!(Level::DEBUG) {
            self.log.request(now, request, view);
        }
        self.metrics.end_decision(begun);
        Ok(Answer::new(verdict, statuses, plan, decisions))
    }

    /// Returns the hits that [`decide`](Service::decide) would send to the store for this request.
    ///
    /// # Errors
    /// The request is malformed, exceeds a bound or is not allowed on its listener.
    pub fn plan<'p, 'q: 'p>(
        &self,
        loaded: &'p Loaded,
        request: &Request<'q>,
        grants: Grants,
    ) -> Result<Plan<'p>, ServiceError> {
        self.validate(request, grants)?;
        let mut plan = loaded.rules.plan(self.limiter.keys(), request, self.options.bounds.value_bytes);
        self.apply_options(self.limiter.now(), &mut plan, loaded, request)?;
        Ok(plan)
    }

    /// Applies the options of the service, and the shadow switches of operators, to the plan.
    #[inline]
    fn apply_options<'p>(
        &self,
        now: Time,
        plan: &mut Plan<'p>,
        loaded: &'p Loaded,
        request: &Request<'_>,
    ) -> Result<(), ServiceError> {
        if loaded.denies_unmatched() {
            loaded.refuse_unmatched(plan, request);
        }
        if plan.too_large {
            return Err(ServiceError::TooLarge { what: "limits that match", max: MAX_HITS });
        }
        if self.operator.is_on() {
            self.apply_switches(now, plan);
        }
        if self.options.shadow {
            for hit in &mut plan.hits {
                hit.binding = Binding::Shadow;
            }
        }
        Ok(())
    }

    /// Sends hits to the store in one request, which is all or nothing.
    pub(super) async fn decide_hits(
        &self,
        now: Time,
        timeout: Option<Duration>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, ServiceError> {
        if hits.is_empty() {
            return Ok(Verdict::unlimited(now));
        }
        within("limits that match", hits.len(), MAX_HITS)?;
        let store = self.limiter.store();
        // The limits of rules were checked when the rules were loaded. So an unsupported limit or operation comes from
        // the client, and the error says that the client's request is wrong.
        if let Some(error) = store.unsupported(hits) {
            return Err(ServiceError::BadRequest(error));
        }
        let timeout = store.timeout(timeout);
        let verdict = self.limiter.decide_at(now, timeout, hits, decisions).await?;
        self.watch_full(verdict.now);
        Ok(verdict)
    }

    /// Counts a request that was not decided. If the time of this request is measured, `begun` is when it began, and
    /// the time since then is counted too.
    #[cold]
    pub(super) fn failed(&self, begun: Option<Instant>, error: ServiceError) -> ServiceError {
        self.metrics.end_decision(begun);
        self.rejected(error)
    }

    /// Does what [`failed`](Service::failed) does. If regions share a limit of the plan, and it does not support what the
    /// request asks, the error names this limit.
    #[cold]
    #[inline(never)]
    fn failed_as_planned(&self, begun: Option<Instant>, error: ServiceError, plan: &Plan<'_>) -> ServiceError {
        self.failed(
            begun,
            match error {
                ServiceError::BadRequest(text) if plan.hits.iter().any(|hit| not_supported(hit).is_some()) => {
                    ServiceError::BadRequest(format!("{}: {text}", place_of(plan, |limit| limit.quota.is_shared())))
                }
                error => error,
            },
        )
    }

    /// Counts a request that was not decided, and returns its error. Protocols call this function for errors that they
    /// find themselves, such as a body that is not JSON.
    #[cold]
    pub fn rejected(&self, error: ServiceError) -> ServiceError {
        match error.rejection() {
            Some(reason) => self.metrics.rejected(reason).inc(),
            None => self.metrics.store_errors.inc(),
        };
        if tracing::enabled!(Level::DEBUG) {
            self.log.rejected(self.limiter.now(), &error);
        }
        error
    }
}
