//! A server that is measured, and the requests that it gets.

use std::net::SocketAddr;
use std::process::Command;

use kit::{Process, Redis};

use crate::admin::AdminClients;

pub(crate) struct Server {
    pub(crate) process: Process,
    /// The arguments of loadgen for requests to this server.
    pub(crate) request: &'static [&'static str],
    /// The Redis that the server uses as its store. It ends with the server.
    pub(crate) redis: Option<Redis>,
    /// The Redis servers of the other regions, which end with the server.
    pub(crate) _regions: Vec<Redis>,
    /// The address of the admin listener, if the server is a spillgate.
    pub(crate) admin: Option<SocketAddr>,
    /// The clients of the admin listener, if it has any.
    pub(crate) admin_clients: Option<AdminClients>,
}

impl Server {
    /// Starts a server, and waits until it listens on `address`.
    pub(crate) fn start(
        name: &str,
        command: Command,
        address: SocketAddr,
        request: &'static [&'static str],
    ) -> Result<Server, String> {
        let process = Process::start(name, command, address)?;
        Ok(Server { process, request, redis: None, _regions: Vec::new(), admin: None, admin_clients: None })
    }

    /// Returns the same server with the Redis that it uses.
    pub(crate) fn with(self, redis: Redis) -> Server {
        Server { redis: Some(redis), ..self }
    }
}
