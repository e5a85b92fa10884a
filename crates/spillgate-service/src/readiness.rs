//! Whether the server should get requests, and if not, why.
//!
//! Load balancers ask each server for its readiness, and send requests only to ready servers. A server that cannot
//! decide some of its limits is not ready, so that the requests go to servers that can.

use std::sync::PoisonError;

use spillgate::rules::Rules;
use spillgate::{Circuit, Clock, OnStoreFailure, StoreErrorKind, Time};
use tokio::sync::watch;

use super::Service;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The server should get requests.
    Ready,
    /// The server should get no requests, because the shared store does not decide and some limits have the policy
    /// `on_store_failure: error`, so only the store can decide them.
    StoreDown,
    /// The server should get no more requests, because it ends as soon as the requests in flight are answered.
    Draining,
}

/// A time in which the shared store does not decide, with its beginning and its cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    since: Time,
    why: StoreErrorKind,
}

/// The number of limits for each policy, in the order of [`OnStoreFailure::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policies([usize; OnStoreFailure::ALL.len()]);

impl Policies {
    pub(super) fn of(rules: &Rules) -> Policies {
        let limits = || rules.rules().flat_map(|rule| &rule.limits);
        let count = |policy| limits().filter(|limit| limit.quota.on_store_failure() == policy).count();
        Policies(OnStoreFailure::ALL.map(count))
    }

    /// Returns the number of limits with the policy `on_store_failure: error`. Only the store can decide these limits.
    fn errors(&self) -> usize {
        self.iter().find(|(policy, _)| *policy == OnStoreFailure::Error).map_or(0, |(_, count)| count)
    }

    fn iter(&self) -> impl Iterator<Item = (OnStoreFailure, usize)> {
        OnStoreFailure::ALL.into_iter().zip(self.0)
    }

    /// Returns a text like `local 5, deny 2`.
    fn text(&self) -> String {
        let some = self.iter().filter(|(_, count)| *count > 0);
        let all: Vec<_> = some.map(|(policy, count)| format!("{} {count}", policy.as_str())).collect();
        if all.is_empty() { "there are no limits".to_owned() } else { all.join(", ") }
    }
}

impl<C: Clock> Service<C> {
    /// Returns the readiness now. A request can find out that the store fails before a probe does. The readiness takes
    /// this into account too.
    pub fn readiness(&self) -> Readiness {
        match *self.readiness.borrow() {
            Readiness::Ready if self.lacks_store() => Readiness::StoreDown,
            known => known,
        }
    }

    pub fn ready(&self) -> bool {
        self.readiness() == Readiness::Ready
    }

    /// Returns a receiver that is notified when [`set_readiness`](Service::set_readiness) changes the readiness.
    pub fn watch_readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Sets the readiness and wakes the watchers. [`Draining`](Readiness::Draining) is final: later calls do nothing.
    pub fn set_readiness(&self, readiness: Readiness) {
        self.readiness.send_if_modified(|now| {
            let changes = *now != Readiness::Draining && *now != readiness;
            if changes {
                *now = readiness;
            }
            changes
        });
    }

    /// Sets why the shared store does not decide, or `None` if it decides. The server calls this function after each
    /// probe of the store.
    pub fn set_store_error(&self, why: Option<StoreErrorKind>) {
        {
            let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
            // If an outage goes on, the time when it began stays the same.
            let since = outage.map_or_else(|| self.limiter.now(), |outage| outage.since);
            *outage = why.map(|why| Outage { since, why });
        }
        self.update_readiness();
    }

    /// Sets the readiness from the state of the store and the current rules.
    pub(super) fn update_readiness(&self) {
        self.set_readiness(if self.lacks_store() { Readiness::StoreDown } else { Readiness::Ready });
    }

    /// Returns whether the shared store does not decide and some limits have the policy `on_store_failure: error`.
    fn lacks_store(&self) -> bool {
        self.loaded.load().policies.errors() > 0 && self.outage().is_some()
    }

    /// Returns why the shared store does not decide. Returns `None` if it decides, or if the store is memory.
    pub fn store_error(&self) -> Option<StoreErrorKind> {
        self.outage().map(|outage| outage.why)
    }

    /// Returns the outage of the shared store, if there is one. If requests find an outage before a probe does, they
    /// open the circuit breaker, which then stops all requests to the store. So an open circuit breaker counts as an
    /// outage.
    fn outage(&self) -> Option<Outage> {
        let probed = *self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        probed.or_else(|| {
            let health = self.limiter.store().health().filter(|health| health.is_down)?;
            let why = health.error.map_or(StoreErrorKind::CircuitOpen, |error| error.kind());
            Some(Outage { since: self.limiter.now(), why })
        })
    }

    /// Returns one line about the readiness, for people.
    pub fn readiness_text(&self) -> String {
        let readiness = self.readiness();
        let (now, policies) = (self.limiter.now(), self.loaded.load().policies);
        let outage = self.outage().map(|Outage { since, why }| {
            let (explained, name, policies) = (why.explanation(), why.as_str(), policies.text());
            let secs = now.as_nanos().saturating_sub(since.as_nanos()) / 1_000_000_000;
            format!(
                "the store has not answered for {secs} s: {explained} ({name}); limits follow on_store_failure: {policies}"
            )
        });
        match (readiness, outage) {
            (Readiness::Draining, _) => "draining".to_owned(),
            (Readiness::StoreDown, outage) => format!("not ready: {}", outage.unwrap_or_default()),
            (Readiness::Ready, Some(outage)) => format!("ready: {outage}"),
            (Readiness::Ready, None) => match self.limiter.store().health() {
                None => "ready".to_owned(),
                Some(health) if health.circuit == Circuit::HalfOpen && !health.is_down => {
                    "ready: some nodes of the store do not answer".to_owned()
                }
                Some(_) => "ready: the store answers".to_owned(),
            },
        }
    }
}
