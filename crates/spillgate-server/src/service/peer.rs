//! Who asks, as far as a connection tells.

use std::fmt;
use std::net::SocketAddr;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A network address.
    Tcp(SocketAddr),
    /// A process on this machine that may open the socket.
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
