//! The client at the other end of a connection.
//!
//! With this type, protocols do not need the types of sockets.

use std::fmt;
use std::net::SocketAddr;

/// A client, named by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A client on the network.
    Tcp(SocketAddr),
    /// A process on this machine that may open the Unix socket.
    Unix,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => write!(f, "{address}"),
            Peer::Unix => f.write_str("unix"),
        }
    }
}
