//! Who is at the other end of a connection. With this type, the crates of the protocols need no types of sockets.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a server knows about the other end of a connection. It is shown as an address such as `192.0.2.1:4711`, or as
/// `unix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A client of a TCP socket. Behind a proxy, this is the address of the proxy.
    Tcp(SocketAddr),
    /// A process on this machine that has the right to open the Unix socket. It has no address.
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

/// The name of a client, from a certificate that the listener has verified. It is for the log, and gives no rights: a
/// browser sends certificates by itself, also for the pages of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(pub Arc<str>);
