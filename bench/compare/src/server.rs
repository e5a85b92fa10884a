//! A server that is measured, and the requests that it gets.

use std::net::SocketAddr;
use std::process::Command;

use kit::{Process, Redis};

pub(crate) struct Server {
    pub(crate) process: Process,
    /// The arguments of loadgen for requests to this server.
    pub(crate) request: &'static [&'static str],
    /// The Redis that the server uses as its store. It ends with the server.
    pub(crate) redis: Option<Redis>,
}

impl Server {
    /// Starts a server, and waits until it listens on `address`.
    pub(crate) fn start(
        name: &str,
        command: Command,
        address: SocketAddr,
        request: &'static [&'static str],
    ) -> Result<Server, String> {
        Ok(Server { process: Process::start(name, command, address)?, request, redis: None })
    }

    /// Returns the same server with the Redis that it uses.
    pub(crate) fn with(self, redis: Redis) -> Server {
        Server { redis: Some(redis), ..self }
    }
}
