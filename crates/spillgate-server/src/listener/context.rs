//! The values that all connections of a worker share.
//!
//! The code of each protocol needs them, so they are passed as one argument.

use std::sync::Arc;

use spillgate::SystemClock;
use spillgate_service::metrics::Metrics;
use tokio::sync::watch;

use super::Limits;
use super::unread::Pool;

/// What a connection needs to know about the server that it belongs to.
#[derive(Clone)]
pub(super) struct Context {
    /// How long clients may take, and how much they may use. The settings choose these bounds.
    pub(super) limits: Limits,
    /// The counters of the whole server, for example of closed connections and of panics.
    pub(super) metrics: Arc<Metrics>,
    /// The memory that the connections of all workers share, for answers that clients have not read yet.
    pub(super) pool: Arc<Pool>,
    /// The clock for the header field `date` of HTTP/2 answers. Each worker has its own.
    pub(super) clock: Arc<SystemClock>,
    /// Becomes true when the server drains: it accepts no more connections, and ends the open ones.
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
