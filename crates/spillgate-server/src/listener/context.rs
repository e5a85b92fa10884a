//! The values that all connections of a worker share.
//!
//! The code of each protocol needs these values. They are passed as one argument.

use std::sync::Arc;

use spillgate::SystemClock;
use spillgate_service::metrics::Metrics;
use tokio::sync::watch;

use super::Limits;
use super::unread::Pool;

/// The limits, the metrics, the pool of memory for unread answers, the clock, and the signal to drain.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) limits: Limits,
    pub(super) metrics: Arc<Metrics>,
    pub(super) pool: Arc<Pool>,
    pub(super) clock: Arc<SystemClock>,
    pub(super) drain: watch::Receiver<bool>,
}

impl Context {
    pub(super) fn new(
        limits: Limits,
        metrics: &Arc<Metrics>,
        pool: &Arc<Pool>,
        drain: &watch::Sender<bool>,
    ) -> Context {
        let (metrics, pool, clock) = (Arc::clone(metrics), Arc::clone(pool), Arc::new(SystemClock::start()));
        Context { limits, metrics, pool, clock, drain: drain.subscribe() }
    }
}
