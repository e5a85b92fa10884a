//! What a server listens on, and how much its clients can use.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::App;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An IP address and a port; with port 0, the system chooses a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The maximum number of connections of a listener for operators. Operators, probes and Prometheus need few, and each
/// takes memory.
const ADMIN_CONNECTIONS: usize = 256;

/// How much the clients of a server can use. `default()` permits nothing; the settings have the usual values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// The maximum number of connections of each listener for clients.
    pub connections: usize,
    /// The maximum number of requests in flight on one HTTP/2 connection.
    pub streams: u32,
    /// The maximum number of bytes of unread answers, for all HTTP/2 connections together.
    pub unread: usize,
    /// The maximum number of bytes of requests that are being read, decided or waited for, for all connections together.
    pub in_flight: usize,
    /// A connection is closed if it has no request for this time.
    pub idle: Duration,
    /// The header of a request must arrive within this time. The body has the same time again.
    pub receive: Duration,
    /// A handshake of TLS must end within this time.
    pub handshake: Duration,
    /// After a drain begins, the requests in flight must end within this time.
    pub drain: Duration,
    /// A client is asked to end a connection of about this age, and to make a new one. `None` means never.
    pub age: Option<Duration>,
    /// After a client was asked because of the age of its connection, the connection must end within this time.
    pub age_grace: Duration,
}

impl Limits {
    /// Returns the maximum number of connections of the admin listener, and of the health listener.
    #[must_use]
    pub fn admin_connections(&self) -> usize {
        self.connections.min(ADMIN_CONNECTIONS)
    }

    /// Returns the maximum number of connections of the listener of `app`.
    pub(super) fn connections_of(&self, app: &App) -> usize {
        if app.is_for_operators() { self.admin_connections() } else { self.connections }
    }
}
