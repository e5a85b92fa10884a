//! The only public type of the folder `node`.

/// The state of one node, for health checks and metrics. [`RedisStore::nodes`](crate::RedisStore::nodes) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The host and port of the Redis server, or the path of its socket. If the store asks sentinels for the primary
    /// and has not connected to it yet, `address` is the name of the primary in the URL.
    pub address: String,
    /// Whether the store has a connection to the node now. Before the store is first used, it has none.
    pub is_connected: bool,
}
