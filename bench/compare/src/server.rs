//! A server under measurement: started on its core, awaited, and ended whatever happens.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take until it accepts connections.
const START: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    /// The arguments with which loadgen asks this server.
    pub(crate) request: &'static [&'static str],
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
    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Starts a server that will listen on `address`, and waits until it does.
    pub(crate) fn start(
        name: &str,
        mut command: Command,
        address: SocketAddr,
        request: &'static [&'static str],
    ) -> Result<Server, String> {
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(|e| format!("{name}: {e}"))?;
        let mut server = Server { name: name.to_owned(), address, request, process };
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

/// A command that runs on these cores only; taskset becomes the command, so the process id is the server's.
pub(crate) fn pinned(cores: &str) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cores);
    command
}

pub(crate) fn free_address() -> Result<SocketAddr, String> {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(|e| e.to_string())
}
