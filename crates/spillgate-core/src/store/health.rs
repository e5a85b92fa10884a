//! The health of a store outside the process, such as Redis.
//!
//! Metrics, readiness checks and logs read this one type for every kind of store. So they need no change when another
//! kind of store is added.

use alloc::string::String;
use alloc::vec::Vec;

use crate::{StoreError, StoreErrorKind};

/// Whether a circuit breaker lets requests through. [`StoreHealth`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// All requests are sent.
    Closed,
    /// Some requests are sent: only one probe (a request that tries a failed node again), or only the requests to those
    /// nodes of a cluster that work.
    HalfOpen,
    /// No request is sent. Each request fails at once.
    Open,
}

/// The calls of a store since the program started, with their durations.
///
/// A call is one command that was sent to the store. Under load, one call can carry several requests.
///
/// ```
/// use spillgate_core::StoreCalls;
///
/// let mut calls = StoreCalls::default();
/// (calls.sent, calls.requests) = (2, 7);
/// assert_eq!(calls.durations.len(), StoreCalls::BOUNDS_NS.len() + 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StoreCalls {
    /// How many calls were sent.
    pub sent: u64,
    /// How many requests these calls carried.
    pub requests: u64,
    /// A histogram of the answered calls. The number at index `i` counts the calls that took at most `BOUNDS_NS[i]`,
    /// and longer than the bound before it. The last number counts the calls that took longer than all
    /// [bounds](StoreCalls::BOUNDS_NS).
    pub durations: [u64; StoreCalls::BOUNDS_NS.len() + 1],
    /// How long all answered calls took together.
    pub duration_sum_ns: u64,
}

impl StoreCalls {
    /// The upper bounds of the numbers in [`durations`](StoreCalls::durations), in nanoseconds.
    pub const BOUNDS_NS: [u64; 21] = [
        250,
        500,
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
    ];
}

/// The health of a store outside the process, as it was when the caller asked for it.
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
    /// The circuit breaker. In a cluster, it is [half open](Circuit::HalfOpen) if only some nodes work.
    pub circuit: Circuit,
    /// Whether every request fails without being sent. Probes are sent nevertheless.
    pub is_down: bool,
    /// The error of a node that does not work. If several nodes do not work, it is the error of one of them. `None` if
    /// all nodes work.
    pub error: Option<StoreError>,
    /// How many nodes (Redis servers) of the store are known.
    pub nodes: usize,
    /// How many nodes have a connection. A node gets its connection with its first request.
    pub nodes_connected: usize,
    /// How many requests wait for their answers.
    pub in_flight: usize,
    /// How many requests have failed since the start, for each kind of error that the store knows. Probes are not
    /// counted.
    pub failures: Vec<(StoreErrorKind, u64)>,
    /// How often the charge of a request that was not admitted may have stayed, because a reply or a refund was lost.
    pub refunds_lost: u64,
    /// How often the store gave a charge back: because it learned of it after the deadline or after the caller had gone,
    /// or because another part of the store refused the request.
    pub given_back: u64,
    /// The calls of the store. If the store does not count its calls, all numbers are 0.
    pub calls: StoreCalls,
    /// How many states are in the deny cache, which repeats refusals without asking the store. `None` if the store has
    /// no such cache.
    pub deny_cache_entries: Option<usize>,
    /// How many requests the deny cache has refused.
    pub deny_cache_hits: u64,
}

impl StoreHealth {
    /// Returns the health of a store with this circuit. All counts are zero.
    #[must_use]
    pub fn new(circuit: Circuit) -> StoreHealth {
        StoreHealth {
            circuit,
            is_down: false,
            error: None,
            nodes: 0,
            nodes_connected: 0,
            in_flight: 0,
            failures: Vec::new(),
            refunds_lost: 0,
            given_back: 0,
            calls: StoreCalls::default(),
            deny_cache_entries: None,
            deny_cache_hits: 0,
        }
    }
}

/// The memory of one node of a store outside the process, as the node reports it.
///
/// ```
/// use spillgate_core::NodeMemory;
///
/// let mut node = NodeMemory::new("10.0.0.7:6379");
/// (node.used_bytes, node.max_bytes) = (512, 1024);
/// assert_eq!(node.evicted_keys, 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeMemory {
    /// The address of the node.
    pub address: String,
    /// The bytes in use.
    pub used_bytes: u64,
    /// The memory limit in bytes. 0 if there is none.
    pub max_bytes: u64,
    /// How many keys the node has evicted since it started. An evicted key can be a count that begins again.
    pub evicted_keys: u64,
}

impl NodeMemory {
    /// Returns the memory of a node that reports nothing.
    pub fn new(address: impl Into<String>) -> NodeMemory {
        NodeMemory { address: address.into(), used_bytes: 0, max_bytes: 0, evicted_keys: 0 }
    }
}
