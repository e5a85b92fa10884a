//! Redis servers, clusters, loads and waiting, for several modules of tests.

pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod common;
pub(crate) mod load;
pub(crate) mod server;
