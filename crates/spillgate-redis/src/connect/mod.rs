//! How to reach a server: URLs, sentinels, TLS and login.
//!
//! The rest of the store only asks an endpoint for a connection, and does not know which of these it needs.
//!
//! A connection is made in this order: [`url`] was parsed when the store was created, [`sentinel`] or the URL gives the
//! address, [`tls`] makes the socket secure, [`connector`] logs in, and [`endpoint`] loads the scripts.

pub(crate) mod connector;
pub(crate) mod endpoint;
pub(crate) mod race;
pub(crate) mod sentinel;
pub(crate) mod tls;
pub(crate) mod url;
