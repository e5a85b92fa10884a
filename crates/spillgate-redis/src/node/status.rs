//! The state of one server, for health checks and metrics.
//!
//! It is a file of its own because the node creates it and the store returns it.

/// A server that a store knows, as [`RedisStore::nodes`](crate::RedisStore::nodes) lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its host and port, or its socket's path. For a primary that sentinels have not named yet, its name.
    pub address: String,
    /// Whether there is a connection. Before the first request there are no connections.
    pub is_connected: bool,
}
