//! A redis-server that belongs to one test. The test can kill it, freeze it and start it again.
//!
//! Tests run at the same time, so each test needs a Redis of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{free_port, start_bound};

/// The log line of a server that is ready, in lower case.
const READY: &str = "ready to accept connections";
/// A part of the log of a server that found its port in use, in lower case.
const TAKEN: &str = "address already in use";
/// How many ports are tried for one server. Tests reserve their ports, so only a program that is not a test can take
/// one of them.
const PORTS_TRIED: usize = 5;

/// A redis-server on a loopback port. It stores nothing on disk. The server ends when this value is dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

/// Returns the name of the program: the value of the variable REDIS_SERVER, or `redis-server` if it is not set.
#[must_use]
pub fn redis_program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

impl RedisServer {
    /// Starts a server on a free port, and waits until it is ready.
    ///
    /// # Panics
    /// Panics if the server cannot be started.
    #[must_use]
    pub fn start() -> RedisServer {
        RedisServer::start_with(&[])
    }

    /// Starts a server on a free port, and waits until it is ready. `arguments` are added after the default arguments.
    ///
    /// # Panics
    /// Panics if the server cannot be started.
    #[must_use]
    pub fn start_with(arguments: &[&str]) -> RedisServer {
        RedisServer::start_by(|| owned(arguments))
    }

    /// Starts a server on this port, and waits until it is ready. `arguments` are added after the default arguments.
    ///
    /// # Panics
    /// Panics if the server cannot be started.
    #[must_use]
    pub fn start_at(port: u16, arguments: &[&str]) -> RedisServer {
        let (folder, arguments) = (folder_in_memory(), owned(arguments));
        let process = start_until_logged(&command(port, &arguments, folder.path()), READY);
        RedisServer { process, port, arguments, folder }
    }

    /// Starts a node that does not belong to a cluster yet. `arguments` are added after the default arguments. Returns
    /// the node, and the port on which it talks to other nodes. By default, this second port is 10,000 higher than the
    /// first port, but another program can use that port. So this function chooses both ports.
    ///
    /// # Panics
    /// Panics if the server cannot be started.
    #[must_use]
    pub fn start_node(arguments: &[&str]) -> (RedisServer, String) {
        let mut bus = String::new();
        let node = RedisServer::start_by(|| {
            bus = free_port().to_string();
            owned(&[&["--cluster-enabled", "yes", "--cluster-port", &bus], arguments].concat())
        });
        (node, bus)
    }

    /// Starts a server on a free port. `arguments` is called again for each port that is tried.
    fn start_by(mut arguments: impl FnMut() -> Vec<String>) -> RedisServer {
        let (folder, mut used) = (folder_in_memory(), Vec::new());
        let (process, port) = start_on_free_port(READY, |port| {
            used = arguments();
            command(port, &used, folder.path())
        });
        RedisServer { process, port, arguments: used, folder }
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGKILL to the server, and waits until it has ended.
    ///
    /// # Panics
    /// Panics if the server has ended already.
    pub fn kill(&mut self) {
        self.process.kill().expect("the server runs");
        self.process.wait().expect("the server ends");
    }

    /// Starts the server again on the same port, after [`kill`](RedisServer::kill). The server has lost all its data.
    ///
    /// # Panics
    /// Panics if the server cannot be started.
    pub fn start_again(&mut self) {
        self.start_again_until(&[], READY);
    }

    /// Does the same as [`start_again`](RedisServer::start_again), with `further` arguments. Waits until a line of the
    /// log, changed to lower case, contains `logged`.
    ///
    /// # Panics
    /// Panics if the server cannot be started.
    pub fn start_again_until(&mut self, further: &[&str], logged: &str) {
        let arguments = [&self.arguments[..], &owned(further)].concat();
        self.process = start_until_logged(&command(self.port, &arguments, self.folder.path()), logged);
    }

    /// Sends SIGSTOP. The server keeps its connections open, but answers nothing until [`thaw`](RedisServer::thaw).
    ///
    /// # Panics
    /// Panics if the server has ended.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.process), Signal::STOP).expect("the server runs");
    }

    /// Sends SIGCONT, so that a frozen server works again.
    ///
    /// # Panics
    /// Panics if the server has ended.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).expect("the server runs");
    }

    /// Runs a command with redis-cli, and returns what redis-cli prints.
    ///
    /// # Panics
    /// Panics if redis-cli is not installed.
    #[must_use]
    pub fn cli(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        String::from_utf8_lossy(&output.expect("redis-cli is installed").stdout).trim_end().to_owned()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Errors are ignored, because the server can have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|&argument| argument.to_owned()).collect()
}

fn command(port: u16, arguments: &[String], folder: &Path) -> Command {
    let mut command = Command::new(redis_program());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--enable-debug-command", "yes"]).args(arguments).current_dir(folder);
    command
}

/// Makes a folder for the files of a server. On Linux, the folder is in memory.
///
/// Nodes of a cluster and sentinels wait (`fsync`) until each change of their settings is on the disk. On a busy disk
/// this can take 10 s or more. During this time the node does not answer, and the other nodes believe that it is down.
///
/// # Panics
/// Panics if the folder cannot be made.
#[must_use]
pub fn folder_in_memory() -> TempDir {
    let folder = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
    folder.expect("the folder can be made")
}

/// Starts a server on a free port, and returns its process and its port as soon as a line of its stdout, changed to
/// lower case, contains `logged`. `command` gets the port. If another program has taken the port meanwhile, the next
/// port is tried.
///
/// # Panics
/// Panics if the process cannot be started, or if it ends before this text is printed.
pub fn start_on_free_port(logged: &str, mut command: impl FnMut(u16) -> Command) -> (Child, u16) {
    let mut log = String::new();
    for _ in 0..PORTS_TRIED {
        let port = free_port();
        match try_start(&command(port), logged) {
            Ok(process) => return (process, port),
            Err(printed) => log = printed,
        }
        assert!(log.contains(TAKEN), "a server ended before it logged {logged:?}:\n{log}");
    }
    panic!("{PORTS_TRIED} ports are taken by other programs:\n{log}");
}

/// Starts a process, and returns as soon as a line of its stdout, changed to lower case, contains `logged`.
///
/// # Panics
/// Panics if the process cannot be started, or if it ends before this text is printed.
pub fn start_until_logged(command: &Command, logged: &str) -> Child {
    try_start(command, logged).unwrap_or_else(|log| panic!("a server ended before it logged {logged:?}:\n{log}"))
}

/// Starts a process. If it ends before it logs `logged`, returns its log in lower case.
fn try_start(command: &Command, logged: &str) -> Result<Child, String> {
    let program = command.get_program().to_string_lossy();
    let process = start_bound(command, [Stdio::null(), Stdio::piped(), Stdio::inherit()]);
    let mut process =
        process.unwrap_or_else(|error| panic!("{program} cannot be started: {error} (`make test` installs it)"));
    let lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
    let mut log = String::new();
    for line in lines.map_while(Result::ok) {
        let line = line.to_lowercase();
        if line.contains(logged) {
            return Ok(process);
        }
        log.push_str(&line);
        log.push('\n');
    }
    let _ = process.wait();
    Err(log)
}
