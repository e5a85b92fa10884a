//! What the service has to know of the client that sent a request.
//!
//! Every listener makes one such value, so that each request of its connections is counted and bounded alike.

use crate::metrics::Protocol;
use crate::settings::Grants;

/// The client that sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Client {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// What the listener allows its clients.
    pub grants: Grants,
}

impl Client {
    /// Returns a client that uses `protocol`, on a listener that allows `grants`.
    #[must_use]
    pub const fn new(protocol: Protocol, grants: Grants) -> Client {
        Client { protocol, grants }
    }
}
