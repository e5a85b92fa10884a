//! The state of one server, for health checks and metrics.
//!
//! [`NodeStatus`] is public because [`RedisStore::nodes`](crate::RedisStore::nodes) returns it. The rest of the folder
//! `node` is private.

/// The state of one server, as [`RedisStore::nodes`](crate::RedisStore::nodes) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The host and port of the server, or the path of its socket. If the store asks sentinels for the primary and has
    /// not connected to it yet, this is the name of the primary in the URL.
    pub address: String,
    /// Whether the store has a connection to the server. It connects when it is first used.
    pub is_connected: bool,
}
