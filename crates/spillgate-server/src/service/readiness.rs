//! Whether the server wants requests, and what that hangs on.

use std::sync::PoisonError;

use spillgate::rules::Rules;
use spillgate::{Clock, OnStoreFailure, Time};
use spillgate_redis::{Circuit, ErrorKind};
use tokio::sync::watch;

use super::Service;

/// Whether the server wants requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// Not while the store does not answer: there are limits that only the store may answer for.
    StoreDown,
    /// Not any more: it ends when the requests in flight are answered.
    Draining,
}

/// How many limits have each of [`OnStoreFailure::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policies([usize; OnStoreFailure::ALL.len()]);

impl Policies {
    pub(super) fn of(rules: &Rules) -> Policies {
        let limits = || rules.rules().flat_map(|rule| &rule.limits);
        let count = |policy| limits().filter(|limit| limit.quota.on_store_failure() == policy).count();
        Policies(OnStoreFailure::ALL.map(count))
    }

    fn errors(&self) -> usize {
        self.iter().find(|(policy, _)| *policy == OnStoreFailure::Error).map_or(0, |(_, count)| count)
    }

    fn iter(&self) -> impl Iterator<Item = (OnStoreFailure, usize)> {
        OnStoreFailure::ALL.into_iter().zip(self.0)
    }

    /// `local 5, deny 2`.
    fn text(&self) -> String {
        let some = self.iter().filter(|(_, count)| *count > 0);
        let all: Vec<_> = some.map(|(policy, count)| format!("{} {count}", policy.as_str())).collect();
        if all.is_empty() { "there are no limits".to_owned() } else { all.join(", ") }
    }
}

impl<C: Clock> Service<C> {
    /// Whether requests are wanted, and if not, why.
    pub fn readiness(&self) -> Readiness {
        match *self.readiness.borrow() {
            Readiness::Ready if self.lacks_store() => Readiness::StoreDown,
            known => known,
        }
    }

    /// Whether requests are wanted.
    pub fn ready(&self) -> bool {
        self.readiness() == Readiness::Ready
    }

    /// Follows the readiness.
    pub fn watch_readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Tells watchers; once draining, nothing else can be said.
    pub fn set_readiness(&self, readiness: Readiness) {
        self.readiness.send_if_modified(|now| {
            let changes = *now != Readiness::Draining && *now != readiness;
            if changes {
                *now = readiness;
            }
            changes
        });
    }

    /// Why the shared store does not decide, if so: to be told again and again.
    pub fn store_fails(&self, why: Option<ErrorKind>) {
        {
            let mut down = self.store_down.lock().unwrap_or_else(PoisonError::into_inner);
            // Who is down already stays so since then.
            let since = down.map_or_else(|| self.limiter.now(), |(since, _)| since);
            *down = why.map(|why| (since, why));
        }
        self.weigh_readiness();
    }

    /// What hangs on the store and on the rules in force.
    pub(super) fn weigh_readiness(&self) {
        self.set_readiness(if self.lacks_store() { Readiness::StoreDown } else { Readiness::Ready });
    }

    /// Whether the shared store does not decide, and there are limits that only the store may answer for.
    fn lacks_store(&self) -> bool {
        self.loaded.load().policies.errors() > 0 && self.store_down().is_some()
    }

    /// Since when the shared store has not decided, and why. Requests may know it before a probe does: they are not asked
    /// any more.
    fn store_down(&self) -> Option<(Time, ErrorKind)> {
        let probed = *self.store_down.lock().unwrap_or_else(PoisonError::into_inner);
        probed.or_else(|| {
            let store = self.limiter.store().shared()?.store();
            let why = || store.last_error().map_or(ErrorKind::CircuitOpen, |trouble| trouble.kind);
            store.is_down().then(|| (self.limiter.now(), why()))
        })
    }

    /// One line about the readiness, for people.
    pub fn readiness_text(&self) -> String {
        let readiness = self.readiness();
        let (now, policies) = (self.limiter.now(), self.loaded.load().policies);
        let store = self.store_down().map(|(since, why)| {
            let (why, class, policies) = (why.explanation(), why.name(), policies.text());
            let secs = now.as_nanos().saturating_sub(since.as_nanos()) / 1_000_000_000;
            format!(
                "the store has not answered for {secs} s: {why} ({class}); answered by on_store_failure: {policies}"
            )
        });
        match (readiness, store) {
            (Readiness::Draining, _) => "draining".to_owned(),
            (Readiness::StoreDown, store) => format!("not ready: {}", store.unwrap_or_default()),
            (Readiness::Ready, Some(store)) => format!("ready: {store}"),
            (Readiness::Ready, None) => match self.limiter.store().shared().map(|shared| shared.store()) {
                None => "ready".to_owned(),
                Some(store) if store.circuit() == Circuit::HalfOpen && !store.is_down() => {
                    "ready: some nodes of the store do not answer".to_owned()
                }
                Some(_) => "ready: the store answers".to_owned(),
            },
        }
    }
}
