//! A server under measurement: started on its core, awaited, and ended whatever happens.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take until it accepts connections.
const START: Duration = Duration::from_secs(20);

/// A process that listens, and ends with this.
pub struct Process {
    pub name: String,
    pub address: SocketAddr,
    child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody left to tell.
        let _ = self.kill();
    }
}

impl Process {
    /// Starts a server that will listen on `address`, and waits until it does.
    pub fn start(name: &str, mut command: Command, address: SocketAddr) -> Result<Process, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(|e| format!("{name}: {e}"))?;
        let mut process = Process { name: name.to_owned(), address, child };
        let deadline = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = process.child.try_wait() {
                return Err(format!("{name} ended at once: {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("{name} does not listen on {address}"));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(process)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// By SIGKILL; returns once it is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

/// A command that runs on these cores only; taskset becomes the command, so the process id is the server's.
pub fn pinned(cores: &str) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cores);
    command
}

/// Of loopback, with a port that nobody listens on.
pub fn free_address() -> Result<SocketAddr, String> {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(|e| e.to_string())
}
