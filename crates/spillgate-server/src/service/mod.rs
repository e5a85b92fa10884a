//! The one use case: a request comes in, an answer goes out. No wire types; every protocol calls
//! this, and nothing else calls the limiter or writes decision metrics.

mod answer;
mod backend;
mod error;
mod loaded;
mod looks;
mod moment;
mod options;
mod peer;
mod readiness;
mod refusals;
mod request_log;
pub mod rls;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use spillgate::rules::{Action, Descriptor, Plan, Planned, Request, Rules};
use spillgate::{
    Binding, Clock, Decision, Hit, Limiter, MAX_HITS, Op, OpKind, Source, Store as _, SystemClock, Time, Verdict,
};
use spillgate_redis::ErrorKind;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Level;

use crate::metrics::{Metrics, Outcome};
use crate::settings::Grants;

pub use answer::{Answer, Judged, Status};
pub use backend::{Backend, Shared};
pub use error::ServiceError;
pub use loaded::{Loaded, UNMATCHED};
pub use moment::{Moment, Timing};
pub use options::{Bounds, ServiceOptions};
pub use peer::Peer;
pub use readiness::Readiness;

use answer::Parts;
use request_log::RequestLog;

/// The log is told of a full store at most this often.
const FULL_LOG_EVERY_NS: u64 = 60_000_000_000;

/// Rules, limiter and counters behind one question.
pub struct Service<C = SystemClock> {
    loaded: ArcSwap<Loaded>,
    limiter: Limiter<Backend, C>,
    options: ServiceOptions,
    metrics: Arc<Metrics>,
    readiness: watch::Sender<Readiness>,
    /// Zero while it answers.
    store_down: Mutex<Option<(Time, ErrorKind)>>,
    full: FullLog,
    log: RequestLog,
}

/// When the log was last told that the store is full.
#[derive(Debug, Default)]
struct FullLog {
    requests: AtomicU64,
    told_ns: AtomicU64,
}

impl<C> fmt::Debug for Service<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<C: Clock> Service<C> {
    /// A service that is [ready](Readiness::Ready) at once, unless its limits need a store that nobody has seen yet.
    #[must_use]
    pub fn new(
        rules: Rules,
        limiter: Limiter<Backend, C>,
        options: ServiceOptions,
        metrics: Arc<Metrics>,
    ) -> Service<C> {
        let service = Service {
            loaded: ArcSwap::from_pointee(Loaded::new(rules, &metrics, &options)),
            limiter,
            options,
            metrics,
            readiness: watch::Sender::new(Readiness::Ready),
            store_down: Mutex::new(None),
            full: FullLog::default(),
            log: RequestLog::new(),
        };
        if service.limiter.store().shared().is_some() {
            service.store_fails(Some(ErrorKind::Disconnected));
        }
        service
    }

    /// The rules in force. An answer borrows them, so that a reload cannot pull them away.
    pub fn rules(&self) -> Guard<Arc<Loaded>> {
        self.loaded.load()
    }

    /// Puts other rules in force; requests that are being judged finish by the old ones.
    pub fn replace_rules(&self, rules: Rules) {
        self.loaded.store(Arc::new(Loaded::new(rules, &self.metrics, &self.options)));
        self.metrics.reloads.inc();
        self.weigh_readiness();
    }

    /// The limiter, for the admin listener and for keys of hits.
    pub fn limiter(&self) -> &Limiter<Backend, C> {
        &self.limiter
    }

    /// The counters.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// How it behaves.
    pub fn options(&self) -> &ServiceOptions {
        &self.options
    }

    /// Counts what others count themselves.
    pub fn update_metrics(&self) {
        let store = self.limiter.store().memory();
        let told = self.metrics.store_full.get();
        self.metrics.store_full.inc_by(store.full_requests().saturating_sub(told));
        self.metrics.store_keys.set(i64::try_from(store.len()).unwrap_or(i64::MAX));
        if let Some(shared) = self.limiter.store().shared() {
            self.metrics.store.read(shared.store(), |class| shared.failures(class));
        }
    }

    /// Judges one request by the rules in force; `grants` says what its listener may do beyond asking.
    ///
    /// # Errors
    /// The request is malformed, beyond a bound or not allowed here, or the store failed.
    /// A refusal is an answer.
    pub fn decide<'p>(
        &self,
        loaded: &'p Loaded,
        request: &Request<'p>,
        grants: Grants,
    ) -> impl Future<Output = Result<Answer<'p>, ServiceError>> {
        self.decide_in(Timing::default(), loaded, request, grants)
    }

    /// [`decide`](Service::decide) in the time that the caller has.
    ///
    /// # Errors
    /// As there.
    pub async fn decide_in<'p>(
        &self,
        timing: Timing<'_>,
        loaded: &'p Loaded,
        request: &Request<'p>,
        grants: Grants,
    ) -> Result<Answer<'p>, ServiceError> {
        self.admit(request, grants).map_err(|error| self.rejected(error))?;
        // Where it stays: a plan that is returned beside an error is copied.
        let mut plan = loaded.rules.plan(self.limiter.keys(), request, self.options.bounds.value_bytes);
        self.amend(&mut plan, loaded, request).map_err(|error| self.rejected(error))?;
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); plan.hits.len()];
        let now = timing.moment.and_then(Moment::get).unwrap_or_else(|| self.limiter.now());
        let asked = if plan.separately {
            // In a box: all other questions would carry its size around.
            Box::pin(self.ask_separately(now, timing.timeout, &plan, &mut decisions)).await
        } else {
            self.ask(now, timing.timeout, &plan.hits, &mut decisions).await
        };
        let verdict = asked.map_err(|error| self.rejected(error))?;
        let statuses = answer::statuses(&plan, &decisions);
        let parts = Parts { verdict: &verdict, statuses: &statuses, plan: &plan, decisions: &decisions };
        self.count(now, loaded, request, parts);
        if tracing::enabled!(Level::DEBUG) {
            self.log.request(now, request, parts);
        }
        Ok(Answer::new(verdict, statuses, plan, decisions))
    }

    /// What the store is to be asked for this request.
    ///
    /// # Errors
    /// The request is malformed, beyond a bound or not allowed here.
    pub fn plan<'p>(
        &self,
        loaded: &'p Loaded,
        request: &Request<'p>,
        grants: Grants,
    ) -> Result<Plan<'p>, ServiceError> {
        self.admit(request, grants)?;
        let mut plan = loaded.rules.plan(self.limiter.keys(), request, self.options.bounds.value_bytes);
        self.amend(&mut plan, loaded, request)?;
        Ok(plan)
    }

    /// Makes the plan by the rules one of this service.
    #[inline]
    fn amend<'p>(&self, plan: &mut Plan<'p>, loaded: &'p Loaded, request: &Request<'p>) -> Result<(), ServiceError> {
        if loaded.denies_unmatched() {
            loaded.refuse_unmatched(plan, request);
        }
        if plan.too_large {
            return Err(ServiceError::TooLarge { what: "limits that match", max: MAX_HITS });
        }
        if self.options.shadow {
            for hit in &mut plan.hits {
                hit.binding = Binding::Shadow;
            }
        }
        Ok(())
    }

    /// The key of a limit that the caller names itself: who is counted under it.
    ///
    /// # Errors
    /// The bucket is empty, or a name is beyond its bound.
    pub fn key_of_hit(&self, bucket: &str, key: &str) -> Result<u128, ServiceError> {
        let bounds = &self.options.bounds;
        let admit = || {
            if bucket.is_empty() {
                return Err(ServiceError::BadRequest("the bucket is empty: name what is limited".into()));
            }
            within("bytes in the bucket", bucket.len(), bounds.key_bytes)?;
            within("bytes in the key", key.len(), bounds.value_bytes)
        };
        admit().map_err(|error| self.rejected(error))?;
        Ok(self.limiter.keys().start().part(bucket.as_bytes()).part(key.as_bytes()).finish())
    }

    /// Asks for limits that the caller names itself; releases and renewals too. For the log, `named` is a limit's bucket and
    /// key.
    ///
    /// # Errors
    /// There are too many hits, or the store failed.
    pub async fn hit(
        &self,
        named: Option<(&str, &str)>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, ServiceError> {
        let now = self.limiter.now();
        let asked = if self.options.shadow {
            // A shadow lets requests pass; a renewal is none, and is all or nothing as ever.
            let is_request = |hit: &Hit<'_>| matches!(hit.op.kind(), OpKind::Take | OpKind::Peek);
            let watched = |hit: &Hit<'_>| if is_request(hit) { Binding::Shadow } else { hit.binding };
            let watched: SmallVec<[Hit<'_>; 4]> = hits.iter().map(|hit| hit.with_binding(watched(hit))).collect();
            self.ask(now, None, &watched, decisions).await
        } else {
            self.ask(now, None, hits, decisions).await
        };
        let verdict = asked.map_err(|error| self.rejected(error))?;
        // Releases, renewals and resets are not let pass or refused.
        if hits.iter().any(|hit| matches!(hit.op.kind(), OpKind::Take | OpKind::Peek)) {
            self.count_verdict(&verdict);
        }
        if tracing::enabled!(Level::DEBUG) {
            self.log.hit(now, named, hits, &verdict);
        }
        Ok(verdict)
    }

    /// Forgets what was used under the rule that `entries` match in `domain`; says how many limits that were.
    ///
    /// # Errors
    /// The request is malformed or beyond a bound, no limit matches, or the store failed.
    pub async fn reset(&self, domain: &str, entries: &[(&str, &str)]) -> Result<usize, ServiceError> {
        let loaded = self.rules();
        let descriptors = [Descriptor { entries, action: Action::Take(0), limit: None }];
        let request = Request { domain, descriptors: &descriptors, max_wait_ns: 0 };
        self.admit(&request, Grants::default())?;
        let mut plan = loaded.rules.plan(self.limiter.keys(), &request, self.options.bounds.value_bytes);
        if plan.hits.is_empty() {
            return Err(ServiceError::UnknownLimit);
        }
        for hit in &mut plan.hits {
            hit.op = Op::Reset;
        }
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); plan.hits.len()];
        self.ask(self.limiter.now(), None, &plan.hits, &mut decisions).await?;
        Ok(plan.hits.len())
    }

    /// Counts a request that was not judged; for protocols too, where they find out by themselves.
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

    /// Checks everything that needs no rules.
    fn admit(&self, request: &Request<'_>, grants: Grants) -> Result<(), ServiceError> {
        let bounds = &self.options.bounds;
        if request.domain.is_empty() {
            return Err(ServiceError::BadRequest("the domain is empty".into()));
        }
        if request.descriptors.is_empty() {
            return Err(ServiceError::BadRequest("there are no descriptors".into()));
        }
        within("bytes in the domain", request.domain.len(), bounds.key_bytes)?;
        within("descriptors", request.descriptors.len(), bounds.descriptors)?;
        for descriptor in request.descriptors {
            within("entries in a descriptor", descriptor.entries.len(), bounds.entries)?;
            for (key, _) in descriptor.entries {
                within("bytes in an entry's key", key.len(), bounds.key_bytes)?;
            }
            if matches!(descriptor.action, Action::Refund(_)) && !grants.refund {
                return Err(ServiceError::Forbidden("giving units back is not allowed on this listener"));
            }
            if descriptor.limit.is_some() && !grants.overriding {
                return Err(ServiceError::Forbidden("bringing a limit along is not allowed on this listener"));
            }
        }
        Ok(())
    }

    /// One question to the store, all or nothing.
    async fn ask(
        &self,
        now: Time,
        timeout: Option<Duration>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, ServiceError> {
        if hits.is_empty() {
            return Ok(Verdict::of(&[], &[], now));
        }
        within("limits that match", hits.len(), MAX_HITS)?;
        let store = self.limiter.store();
        let unserved = |hit: &&Hit<'_>| !store.supports(hit.quota, hit.op.kind());
        if let (Some(_), Some(hit)) = (store.shared(), hits.iter().find(unserved)) {
            // Rules were looked at when they were loaded: this limit, or what is to be done to it, came with the call.
            return Err(ServiceError::BadRequest(format!(
                "the store cannot do this ({:?}) to this limit ({}): its windows and segments are whole microseconds, \
                 at most 71 years, and with store.scripts: off plain fixed windows are all that is \
                 served, and nothing of them is reset or given back",
                hit.op.kind(),
                hit.quota.algorithm().as_str()
            )));
        }
        let verdict = self.limiter.store().ask(now, timeout, hits, decisions).await?;
        self.watch_full(verdict.now);
        Ok(verdict)
    }

    /// `compat: envoy`: each descriptor is judged and charged alone, in order, at the same time. A store that has to be waited
    /// for is asked at once for those that share no state, and for the others in their order.
    async fn ask_separately(
        &self,
        now: Time,
        timeout: Option<Duration>,
        plan: &Plan<'_>,
        decisions: &mut [Decision],
    ) -> Result<Verdict, ServiceError> {
        let hits_of = |planned: &Planned<'_>| planned.hits.iter().map(|(index, _)| plan.hits[*index]).collect();
        let hits: SmallVec<[SmallVec<[Hit<'_>; 4]>; 4]> = plan.descriptors.iter().map(hits_of).collect();
        let until = self.limiter.store().shared().map(|shared| shared.until(timeout));
        let chains = chains(&hits);
        let (hits, chains) = (&hits, &chains);
        let asked = (0..hits.len()).filter(|place| chains[*place] == *place).map(|first| async move {
            let mut answered: SmallVec<[_; 1]> = SmallVec::new();
            for place in (first..hits.len()).filter(|place| chains[*place] == first) {
                let hits = &hits[place];
                let mut own: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
                // All of a chain has the time of one question.
                let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
                let timeout = if answered.is_empty() { timeout } else { left() };
                let verdict = self.ask(now, timeout, hits, &mut own).await?;
                answered.push((place, verdict.source, own));
            }
            Ok::<_, ServiceError>(answered)
        });
        let mut source = Source::Store;
        for asked in join_all(asked).await {
            for (place, own_source, own) in asked? {
                if own_source != Source::Store {
                    source = own_source;
                }
                for ((index, _), decision) in plan.descriptors[place].hits.iter().zip(own) {
                    decisions[*index] = decision;
                }
            }
        }
        Ok(Verdict::of(&plan.hits, decisions, now).with_source(source))
    }

    /// Tells the log, at most once a minute, that keys are shut out or pass uncounted.
    fn watch_full(&self, now: Time) {
        let requests = self.limiter.store().memory().full_requests();
        if requests == self.full.requests.load(Ordering::Relaxed) {
            return;
        }
        self.full.requests.store(requests, Ordering::Relaxed);
        let told_ns = self.full.told_ns.load(Ordering::Relaxed);
        let (now_ns, order) = (now.as_nanos(), Ordering::Relaxed);
        let due = now_ns.saturating_sub(told_ns) >= FULL_LOG_EVERY_NS;
        if due && self.full.told_ns.compare_exchange(told_ns, now_ns, order, order).is_ok() {
            tracing::warn!(
                requests,
                "the memory store is full: new keys are shut out or uncounted, as memory.on_full says; raise memory.max_keys"
            );
        }
    }

    fn count_verdict(&self, verdict: &Verdict) {
        let counter = if verdict.allowed { &self.metrics.allowed } else { &self.metrics.refused };
        counter.inc();
        self.metrics.store.answered(verdict.source);
    }

    fn count(&self, now: Time, loaded: &Loaded, request: &Request<'_>, answer: Parts<'_, '_>) {
        self.count_verdict(answer.verdict);
        for (index, (status, descriptor)) in answer.statuses.iter().zip(request.descriptors).enumerate() {
            if matches!(descriptor.action, Action::Refund(_)) {
                self.metrics.refunds.inc();
            }
            if descriptor.limit.is_some() {
                self.metrics.overrides.inc();
                continue;
            }
            let Some((rule, counters)) = status.rule.and_then(|rule| Some((rule, loaded.counters.get(rule.index())?)))
            else {
                self.metrics.unmatched.inc();
                self.log.unmatched(now, loaded, request.domain, descriptor.entries);
                continue;
            };
            let outcome = match (status.over, status.enforced_over && !self.options.shadow) {
                (true, true) => Outcome::Refused,
                (true, false) => Outcome::ShadowRefused,
                (false, _) if status.decision.soft_over => Outcome::SoftOver,
                (false, _) => Outcome::Allowed,
            };
            counters.count(&self.metrics, rule, descriptor.entries, outcome);
            if outcome == Outcome::Refused {
                refusals::count(counters, rule, answer.limits(index));
            }
        }
    }
}

/// The first question of the chain that each is in: questions about one state have to wait for one another.
fn chains(hits: &[SmallVec<[Hit<'_>; 4]>]) -> SmallVec<[usize; 4]> {
    let mut chains: SmallVec<[usize; 4]> = (0..hits.len()).collect();
    for (place, own) in hits.iter().enumerate() {
        for other in 0..place {
            if hits[other].iter().any(|hit| own.iter().any(|own| own.key == hit.key)) {
                let (first, last) = (chains[place].min(chains[other]), chains[place].max(chains[other]));
                chains.iter_mut().filter(|chain| **chain == last).for_each(|chain| *chain = first);
            }
        }
    }
    chains
}

fn within(what: &'static str, count: usize, max: usize) -> Result<(), ServiceError> {
    if count > max { Err(ServiceError::TooLarge { what, max }) } else { Ok(()) }
}
