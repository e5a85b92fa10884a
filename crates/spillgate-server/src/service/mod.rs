//! The one use case: a request comes in, a decision goes out.
//!
//! Every protocol calls this, so that all of them decide, count and log in the same way. There are no wire types here.
//! Nothing else calls the limiter to serve a request or writes metrics of decisions.

mod accounting;
mod answer;
mod backend;
mod decide;
mod error;
mod loaded;
mod named_limits;
mod options;
mod peeks;
mod peer;
mod readiness;
mod refusals;
mod request_log;
pub mod rls;
mod separately;
#[cfg(test)]
mod tests;
mod validate;

use std::fmt;
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use spillgate::rules::Rules;
use spillgate::{Clock, Limiter, StoreErrorKind, SystemClock};
use tokio::sync::watch;

use crate::metrics::Metrics;

pub use answer::{Answer, LimitDecision, Status};
pub use backend::Backend;
pub use error::ServiceError;
pub use loaded::{Loaded, UNMATCHED};
pub use options::{Bounds, ServiceOptions};
pub use peer::Peer;
pub use readiness::Readiness;

use accounting::FullLog;
use readiness::Outage;
use request_log::RequestLog;

/// The rules, the limiter and the counters that answer requests.
pub struct Service<C = SystemClock> {
    loaded: ArcSwap<Loaded>,
    limiter: Limiter<Backend, C>,
    options: ServiceOptions,
    metrics: Arc<Metrics>,
    readiness: watch::Sender<Readiness>,
    /// Since when and why the shared store does not decide, by its last probe. `None` while it decides.
    outage: Mutex<Option<Outage>>,
    full: FullLog,
    log: RequestLog,
}

impl<C> fmt::Debug for Service<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<C: Clock> Service<C> {
    /// A service that is [ready](Readiness::Ready) at once, unless its limits need a shared store. Such a store counts as
    /// down until its first probe.
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
            outage: Mutex::new(None),
            full: FullLog::default(),
            log: RequestLog::new(),
        };
        if service.limiter.store().is_shared() {
            service.set_store_error(Some(StoreErrorKind::Disconnected));
        }
        service
    }

    /// The rules in force. An answer borrows from them, so that a reload cannot drop them too early.
    pub fn rules(&self) -> Guard<Arc<Loaded>> {
        self.loaded.load()
    }

    /// Puts other rules in force. Requests that are being decided finish by the old rules.
    pub fn replace_rules(&self, rules: Rules) {
        self.loaded.store(Arc::new(Loaded::new(rules, &self.metrics, &self.options)));
        self.metrics.reloads.inc();
        self.update_readiness();
    }

    /// The limiter, for snapshots, for keys of hits and for commands.
    pub fn limiter(&self) -> &Limiter<Backend, C> {
        &self.limiter
    }

    /// The counters.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The options of this service.
    pub fn options(&self) -> &ServiceOptions {
        &self.options
    }
}
