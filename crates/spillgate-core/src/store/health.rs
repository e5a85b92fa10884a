//! How a store outside the process is doing.
//!
//! Metrics, readiness and logs read one value, whatever the store is. So a second kind of store needs no change there.

use alloc::vec::Vec;

use crate::{StoreError, StoreErrorKind};

/// Whether a circuit breaker lets requests through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// All requests are sent.
    Closed,
    /// Some requests are sent: one probe, or those to the nodes of a cluster that serve.
    HalfOpen,
    /// No request is sent. Each one fails at once.
    Open,
}

/// The state of a store outside the process, at the time of the call.
///
/// ```
/// use spillgate_core::{Circuit, StoreHealth};
///
/// let health = StoreHealth::new(Circuit::Closed);
/// assert!(!health.is_down && health.error.is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreHealth {
    /// Whether requests are sent.
    pub circuit: Circuit,
    /// Whether every request fails without being sent, except probes.
    pub is_down: bool,
    /// Why a node of the store does not serve, if one does not.
    pub error: Option<StoreError>,
    /// Nodes of the store that are known.
    pub nodes: usize,
    /// Nodes that have a connection. A node has none before its first request.
    pub nodes_connected: usize,
    /// Requests that wait for their answers.
    pub in_flight: usize,
    /// Requests that failed since the start, for each kind that the store knows. Probes are not among them.
    pub failures: Vec<(StoreErrorKind, u64)>,
    /// How often a part of the store may have kept the charge of a request that was not admitted.
    pub refunds_lost: u64,
}

impl StoreHealth {
    /// The health of a store with this circuit. All counts are zero.
    #[must_use]
    pub const fn new(circuit: Circuit) -> StoreHealth {
        StoreHealth {
            circuit,
            is_down: false,
            error: None,
            nodes: 0,
            nodes_connected: 0,
            in_flight: 0,
            failures: Vec::new(),
            refunds_lost: 0,
        }
    }
}
