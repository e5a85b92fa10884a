//! How a store reaches Redis: URLs, sentinels, TLS and login.
//!
//! The pool only asks an endpoint for a connection. It does not know whether sentinels, TLS or a login are needed.
//!
//! When the store is created, [`url`] parses the URL. A connection is then made in this order: [`secrets`] reads
//! passwords and certificates again, [`sentinel`] or the URL gives the address, [`tls`] makes the socket secure, [`connector`] logs in, and [`endpoint`] loads the scripts.

pub(crate) mod connector;
pub(crate) mod endpoint;
pub(crate) mod race;
pub(crate) mod secrets;
pub(crate) mod sentinel;
pub(crate) mod tls;
pub(crate) mod url;
