//! What a store knows of one of its servers, for readiness and metrics.

/// A server that a store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its host and port, or its socket's path; of a primary that sentinels have not told yet its name.
    pub address: String,
    /// Whether there is a connection to it: there is none before it is first asked.
    pub is_connected: bool,
}
