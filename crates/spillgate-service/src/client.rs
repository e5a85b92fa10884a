//! Which protocol a request came over, and what its sender may do.
//!
//! Every listener makes one [`Client`] for all its connections. So all requests of a listener are counted under one
//! protocol, and have the same rights.

use crate::metrics::Protocol;

/// What the clients of one listener may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grants {
    /// Whether clients may give units back (`is_negative_hits`).
    pub refund: bool,
    /// Whether clients may send a limit of their own (`limit` in a descriptor).
    pub overriding: bool,
}

/// What a listener knows about the senders of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Client {
    /// The protocol under which the request is counted.
    pub protocol: Protocol,
    /// What the listener lets this client send.
    pub grants: Grants,
}

impl Client {
    #[inline]
    #[must_use]
    pub const fn new(protocol: Protocol, grants: Grants) -> Client {
        Client { protocol, grants }
    }
}
