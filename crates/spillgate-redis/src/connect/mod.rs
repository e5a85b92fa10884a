//! How to reach a server: URLs, sentinels, TLS and login.
//!
//! The rest of the store only asks an endpoint for a connection, and does not know which of these it needs.

pub(crate) mod connector;
pub(crate) mod endpoint;
pub(crate) mod race;
pub(crate) mod sentinel;
pub(crate) mod tls;
pub(crate) mod url;
