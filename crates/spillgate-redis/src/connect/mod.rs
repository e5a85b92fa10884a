//! How to reach a server: URLs, sentinels, TLS, logging in.

pub(crate) mod connector;
pub(crate) mod endpoint;
pub(crate) mod race;
pub(crate) mod sentinel;
pub(crate) mod tls;
pub(crate) mod url;
