//! The state of one server, for health checks and metrics.
//!
//! [`NodeStatus`] is public because [`RedisStore::nodes`](crate::RedisStore::nodes) returns it. The rest of the folder
//! `node` is private.

/// The state of one server, as [`RedisStore::nodes`](crate::RedisStore::nodes) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The host and port of the server, or the path of its socket. If the store asks sentinels for the primary and no
    /// sentinel has returned an address yet, this is the name of the primary in the settings.
    pub address: String,
    /// Whether the store has a connection to the server. Before the first request it has no connection.
    pub is_connected: bool,
}
