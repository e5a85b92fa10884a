//! What several modules of tests share: servers, clusters, loads, and waiting for a condition.

pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod common;
pub(crate) mod load;
pub(crate) mod server;
