//! A server under measurement, and how it is asked.

use std::net::SocketAddr;
use std::process::Command;

use kit::Process;

pub(crate) struct Server {
    pub(crate) process: Process,
    /// The arguments with which loadgen asks this server.
    pub(crate) request: &'static [&'static str],
    /// What it needs beside itself, and ends with it.
    _beside: Option<Process>,
}

impl Server {
    /// Starts a server that will listen on `address`, and waits until it does.
    pub(crate) fn start(
        name: &str,
        command: Command,
        address: SocketAddr,
        request: &'static [&'static str],
    ) -> Result<Server, String> {
        Ok(Server { process: Process::start(name, command, address)?, request, _beside: None })
    }

    /// The same server, with another process that lives as long.
    pub(crate) fn beside(self, other: Process) -> Server {
        Server { _beside: Some(other), ..self }
    }
}
