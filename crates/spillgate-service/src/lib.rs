//! Decides requests for all protocols of the server, so that each of them decides, counts and logs in the same way.
//!
//! This crate has no types of a wire protocol. Only this crate calls the limiter to serve a request, and only this
//! crate writes the metrics of decisions.

mod accounting;
mod answer;
mod backend;
mod blocked;
mod client;
pub mod counted_by;
mod decide;
mod error;
pub mod explain;
mod history;
mod insight;
mod loaded;
pub mod metrics;
mod named_limits;
pub mod operator;
mod operator_changes;
mod options;
mod peeks;
mod peer;
mod readiness;
mod refusals;
pub mod reload_requests;
pub mod reloads;
mod request_log;
mod reserve;
pub mod rls;
pub mod seek;
mod separately;
pub mod shared_store;
mod sketched;
#[cfg(test)]
mod tests;
pub mod text;
mod validate;

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use spillgate::regions::Peers;
use spillgate::rules::Rules;
use spillgate::{Clock, Limiter, StoreErrorKind, SystemClock, Time};
use tokio::sync::watch;

pub use crate::metrics::Protocol;

use crate::metrics::Metrics;
use crate::operator::Operator;

pub use answer::{Answer, LimitDecision, Status};
pub use backend::{Backend, Fleet};
pub use client::{Client, Grants};
pub use error::ServiceError;
pub use history::{HISTORY_STEP, HISTORY_STEPS, LimitStep, LimitView, StoreLatency, Totals};
pub use insight::Watched;
pub use insight::caller_name;
pub use loaded::{Loaded, UNMATCHED};
pub use named_limits::{Reset, ResetLimit, not_reset};
pub use operator_changes::BlockMade;
pub use options::{Bounds, CallerKeys, Insight, ServiceOptions};
pub use peer::{ClientName, Peer};
pub use readiness::Readiness;
pub use reserve::{Claim, Records, Reserved, SETTLEMENTS_BYTES, Settlement};

use accounting::FullLog;
use history::History;
use readiness::Outage;
use request_log::RequestLog;
use reserve::Settlements;
use seek::Seekers;
use shared_store::SharedLists;

/// The rules, the limiter and the counters that answer requests.
pub struct Service<C = SystemClock> {
    loaded: ArcSwap<Loaded>,
    limiter: Limiter<Backend, C>,
    options: ServiceOptions,
    metrics: Arc<Metrics>,
    readiness: watch::Sender<Readiness>,
    /// Since when the shared store counts as down because of its probes, and why. It also counts as down before its
    /// first probe. `None` while the shared store counts as up, and for the memory store.
    outage: Mutex<Option<Outage>>,
    full: FullLog,
    log: RequestLog,
    history: parking_lot::Mutex<History>,
    operator: Operator,
    seekers: Seekers,
    settlements: Settlements,
    /// A random number, by which this server is told apart from other servers. It is new after each start.
    number: u64,
    /// A secret number that insight mixes with the keys of callers, so that callers cannot compute their hashes.
    caller_seed: u64,
}

impl<C> fmt::Debug for Service<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<C: Clock> Service<C> {
    /// Makes a service. A shared store counts as down until its first probe succeeds. If a limit has the policy
    /// `on_store_failure: error`, a service with a shared store is [ready](Readiness::Ready) only after this probe. In
    /// all other cases, the service is ready at once.
    #[must_use]
    pub fn new(
        rules: Rules,
        limiter: Limiter<Backend, C>,
        options: ServiceOptions,
        metrics: Arc<Metrics>,
    ) -> Service<C> {
        metrics.rules_loaded.set(seconds(limiter.now()));
        metrics.reload_successful.set(1);
        let caller_seed = insight::caller_seed(limiter.keys(), options.has_public_keys);
        let loaded = Loaded::new(rules, &metrics, (&options, caller_seed), None, limiter.now());
        let service = Service {
            loaded: ArcSwap::from_pointee(loaded),
            limiter,
            options,
            metrics,
            readiness: watch::Sender::new(Readiness::Ready),
            outage: Mutex::new(None),
            full: FullLog::default(),
            log: RequestLog::new(),
            history: parking_lot::Mutex::default(),
            operator: Operator::default(),
            seekers: Seekers::default(),
            settlements: Settlements::default(),
            number: RandomState::new().build_hasher().finish(),
            caller_seed,
        };
        if service.limiter.store().is_shared() {
            service.set_store_error(Some(StoreErrorKind::Disconnected));
        }
        service
    }

    /// Returns the current rules. An answer borrows from these rules, so they live until the last answer is dropped,
    /// even if a reload replaces them.
    pub fn rules(&self) -> Guard<Arc<Loaded>> {
        self.loaded.load()
    }

    /// Replaces the current rules. Requests that are in flight are still decided by the old rules.
    pub fn replace_rules(&self, rules: Rules) {
        self.load(rules, self.loaded.load().caller_keys());
        self.metrics.reloads.inc();
        self.metrics.rules_loaded.set(seconds(self.limiter.now()));
        self.metrics.reload_successful.set(1);
        self.update_readiness();
    }

    /// Changes how reports show callers. All counts stay. A caller that was counted before has a name only after its next
    /// request.
    pub fn replace_caller_keys(&self, keys: CallerKeys) {
        let rules = self.loaded.load().rules.clone();
        self.load(rules, keys);
    }

    fn load(&self, rules: Rules, keys: CallerKeys) {
        let (before, now) = (self.loaded.load(), self.limiter.now());
        let insight = Insight { keys, ..self.options.insight };
        let options = (&ServiceOptions { insight, ..self.options }, self.caller_seed);
        self.loaded.store(Arc::new(Loaded::new(rules, &self.metrics, options, Some(&before), now)));
    }

    /// Returns the limiter. To serve a request, use [`decide`](Service::decide) and its relatives instead, because they
    /// also count.
    pub fn limiter(&self) -> &Limiter<Backend, C> {
        &self.limiter
    }

    /// Returns the other regions that are told what this server admits, and how many requests the guaranteed shares of this
    /// region have admitted. `None` if nobody is told.
    pub fn regions(&self) -> Option<(&Peers, u64)> {
        self.limiter.store().shared()?.regions()
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Lets this server share its blocks and shadow switches with all servers that use `store`.
    ///
    /// Give `store` connections of its own, so that commands for these lists delay no decision.
    #[must_use]
    pub fn with_shared_lists(self, store: Box<dyn SharedLists>) -> Service<C> {
        Service { operator: Operator::in_store(store), ..self }
    }

    /// Returns the blocks and shadow switches that operators have made.
    pub fn operator(&self) -> &Operator {
        &self.operator
    }

    pub fn options(&self) -> &ServiceOptions {
        &self.options
    }
}

/// Returns the time in whole seconds since 1970, as metrics show it.
fn seconds(time: Time) -> i64 {
    i64::try_from(time.as_nanos() / 1_000_000_000).unwrap_or(i64::MAX)
}
