//! The values that all connections of a worker share.
//!
//! The code of each protocol needs them, so they are passed as one argument.

use std::sync::Arc;

use spillgate::SystemClock;
use spillgate_service::metrics::Metrics;
use tokio::sync::watch;

use super::pool::Pool;
use super::tls::Turns;
use super::{Limits, Phase, in_flight};

/// The memory that the connections of all workers share.
#[derive(Clone)]
pub(super) struct Pools {
    /// For answers that clients have not read yet.
    pub(super) unread: Arc<Pool>,
    /// For requests that are being read, decided or waited for.
    pub(super) in_flight: Arc<Pool>,
}

impl Pools {
    pub(super) fn new(limits: &Limits, metrics: &Metrics) -> Pools {
        Pools {
            unread: Arc::new(Pool::new(limits.unread, 0, metrics.unread.clone())),
            in_flight: Arc::new(in_flight::pool(limits.in_flight, metrics)),
        }
    }
}

/// What a connection needs to know about the server that it belongs to.
#[derive(Clone)]
pub(super) struct Context {
    /// How long clients may take, and how much they may use. The settings choose these bounds.
    pub(super) limits: Limits,
    /// The counters of the whole server, for example of closed connections and of panics.
    pub(super) metrics: Arc<Metrics>,
    pub(super) pools: Pools,
    /// The clock for the header field `date` of HTTP/2 answers. Each worker has its own.
    pub(super) clock: Arc<SystemClock>,
    /// Handshakes of TLS take turns, so that they leave time for open connections. Each worker has its own.
    pub(super) turns: Arc<Turns>,
    /// How far the server is on its way to its end.
    pub(super) phase: watch::Receiver<Phase>,
}

impl Context {
    pub(super) fn new(limits: Limits, metrics: &Arc<Metrics>, pools: &Pools, phase: &watch::Sender<Phase>) -> Context {
        let (metrics, pools, clock) = (Arc::clone(metrics), pools.clone(), Arc::new(SystemClock::start()));
        Context { limits, metrics, pools, clock, turns: Arc::default(), phase: phase.subscribe() }
    }
}
