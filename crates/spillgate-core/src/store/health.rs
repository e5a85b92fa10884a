//! The health of a store outside the process, such as Redis.
//!
//! Metrics, readiness checks and logs read this one type for every kind of store. So they need no change when another
//! kind of store is added.

use alloc::vec::Vec;

use crate::{StoreError, StoreErrorKind};

/// Whether a circuit breaker lets requests through. [`StoreHealth`] has an example.
///
/// This enum is exhaustive on purpose: a circuit breaker has no other states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// All requests are sent.
    Closed,
    /// Some requests are sent: only one probe (a request that tries a failed server again), or only the requests to
    /// those nodes of a cluster that work.
    HalfOpen,
    /// No request is sent. Each request fails at once.
    Open,
}

/// The health of a store outside the process, at the time when the store was asked for it.
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
    /// Whether the circuit breaker lets requests through.
    pub circuit: Circuit,
    /// Whether every request fails without being sent. Probes are sent nevertheless.
    pub is_down: bool,
    /// The error of a node that does not work. If several nodes do not work, it is the error of one of them. `None` if
    /// all nodes work.
    pub error: Option<StoreError>,
    /// How many nodes (servers) of the store are known.
    pub nodes: usize,
    /// How many nodes have a connection. A node gets its connection with its first request.
    pub nodes_connected: usize,
    /// How many requests wait for their answers.
    pub in_flight: usize,
    /// How many requests have failed since the start, for each kind of error that the store knows. Probes are not
    /// counted.
    pub failures: Vec<(StoreErrorKind, u64)>,
    /// How many refunds were lost. After a lost refund, a part of the store may have kept the charge of a request that
    /// was not admitted.
    pub refunds_lost: u64,
}

impl StoreHealth {
    /// Returns the health of a store with this circuit. All counts are zero.
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
