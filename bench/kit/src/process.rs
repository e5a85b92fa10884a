//! Starts the servers that are measured, each on cores of its own.
//!
//! A server that is left running would use the processor during the next measurement. So a server is killed when its
//! measurement ends, even after an error.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum time from the start of a server until it accepts connections.
const START: Duration = Duration::from_secs(20);

/// A running server. Dropping this value kills it.
pub struct Process {
    pub name: String,
    pub address: SocketAddr,
    child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself, so an error is ignored.
        let _ = self.kill();
    }
}

impl Process {
    /// Starts a server that listens on `address`, and waits until it accepts connections.
    pub fn start(name: &str, mut command: Command, address: SocketAddr) -> Result<Process, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(|e| format!("{name}: {e}"))?;
        let mut process = Process { name: name.to_owned(), address, child };
        let deadline = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = process.child.try_wait() {
                return Err(format!("{name} ended at once: {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("{name} did not listen on {address} in time"));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(process)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL, and returns when it has ended.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

/// Returns the start of a command, to which the caller adds a program and its arguments. The program then runs only on
/// these cores. `taskset` executes the program in its own process, so the process id is that of the program.
pub fn pinned(cores: &str) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cores);
    command
}

/// An address of the loopback interface with a port that is not in use.
pub fn free_address() -> Result<SocketAddr, String> {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(|e| e.to_string())
}
