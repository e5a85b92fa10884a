//! What the service has to know of the client that sent a request.
//!
//! Every listener makes one such value, so that each request of its connections is counted and bounded alike.

use crate::metrics::Protocol;

/// What the clients of one listener may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grants {
    /// Whether clients may give units back (`is_negative_hits`).
    pub refund: bool,
    /// Whether clients may send a limit of their own (`limit` in a descriptor).
    pub overriding: bool,
}

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
    #[inline]
    #[must_use]
    pub const fn new(protocol: Protocol, grants: Grants) -> Client {
        Client { protocol, grants }
    }
}
