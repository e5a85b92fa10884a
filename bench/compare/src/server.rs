//! A server under measurement: started on its core, awaited, and ended whatever happens.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Cli, Protocol};

/// How long a server may take until it accepts connections.
const START: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    process: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody left to tell.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    pub(crate) fn limit(cli: &Cli, protocol: Protocol) -> Result<Server, String> {
        let address = free_address()?;
        let mut command = pinned(cli.server_core);
        command.arg(cli.tools.join("limits")).arg(protocol.limit()).arg(address.to_string()).env("RT", "current");
        Server::start(format!("{} (answers at once)", protocol.limit()), command, address)
    }

    pub(crate) fn contender(cli: &Cli, protocol: Protocol) -> Result<Server, String> {
        let address = free_address()?;
        let mut command = pinned(cli.server_core);
        if let Some(contender) = &cli.contender {
            command.args(contender.replace("{address}", &address.to_string()).split_whitespace()).env("RT", "current");
            return Server::start(contender.clone(), command, address);
        }
        let other = free_address()?;
        let (grpc, http) = match protocol {
            Protocol::Grpc => (address, other),
            Protocol::Http => (other, address),
        };
        command.arg(&cli.spillgate).arg("serve").arg(&cli.rules).args(["--workers", "1"]);
        command.arg("--grpc").arg(grpc.to_string()).arg("--http").arg(http.to_string());
        command.arg("--admin").arg(free_address()?.to_string());
        Server::start(String::from("spillgate"), command, address)
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    fn start(name: String, mut command: Command, address: SocketAddr) -> Result<Server, String> {
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(|e| format!("{name}: {e}"))?;
        let mut server = Server { name, address, process };
        let deadline = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = server.process.try_wait() {
                return Err(format!("{} ended at once: {status}", server.name));
            }
            if Instant::now() > deadline {
                return Err(format!("{} does not listen on {address}", server.name));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

/// A command that runs on one core only; taskset becomes the command, so the process id is the server's.
pub(crate) fn pinned(core: u32) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(core.to_string());
    command
}

fn free_address() -> Result<SocketAddr, String> {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(|e| e.to_string())
}
