//! A server under measurement, and how it is asked.

use std::net::SocketAddr;
use std::process::Command;

use kit::{Process, Redis};

pub(crate) struct Server {
    pub(crate) process: Process,
    /// The arguments with which loadgen asks this server.
    pub(crate) request: &'static [&'static str],
    /// Its store, which ends with it.
    pub(crate) redis: Option<Redis>,
}

impl Server {
    /// Starts a server that will listen on `address`, and waits until it does.
    pub(crate) fn start(
        name: &str,
        command: Command,
        address: SocketAddr,
        request: &'static [&'static str],
    ) -> Result<Server, String> {
        Ok(Server { process: Process::start(name, command, address)?, request, redis: None })
    }

    /// The same server, with the store that it asks.
    pub(crate) fn with(self, redis: Redis) -> Server {
        Server { redis: Some(redis), ..self }
    }
}
