//! A redis-server that belongs to one test, and can be killed, frozen and started again.
//!
//! Tests run at the same time, so each needs a server of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::free_port;

/// The line of its log by which a server says that it is ready.
const READY: &str = "ready to accept connections";

/// A redis-server on a loopback port. It keeps nothing on disk, and ends when this is dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

/// The program: `redis-server`, or the one that the variable REDIS_SERVER names.
#[must_use]
pub fn redis_program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

impl RedisServer {
    /// Starts one on a free port, and returns when it is ready.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start() -> RedisServer {
        RedisServer::start_with(free_port(), &[])
    }

    /// Starts one on this port. The arguments come after the usual ones.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_with(port: u16, arguments: &[&str]) -> RedisServer {
        let folder = TempDir::new().expect("a folder");
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let process = spawn(port, &arguments, folder.path(), READY);
        RedisServer { process, port, arguments, folder }
    }

    /// A node that does not belong to a cluster yet, and the port on which the nodes talk to each other. That port is
    /// chosen here: the usual one, ten thousand ports higher, may be in use.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_node() -> (RedisServer, String) {
        let bus = free_port().to_string();
        (RedisServer::start_with(free_port(), &["--cluster-enabled", "yes", "--cluster-port", &bus]), bus)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The id of its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends it by SIGKILL, and returns when it has ended.
    ///
    /// # Panics
    /// If it has ended already.
    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }

    /// After [`kill`](RedisServer::kill): starts the same server again, which has forgotten everything.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_again(&mut self) {
        self.start_again_until(&[], READY);
    }

    /// [`start_again`](RedisServer::start_again) with further arguments. It returns when the log contains `logged`, a text
    /// in lower case.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_again_until(&mut self, further: &[&str], logged: &str) {
        let further = further.iter().map(|&argument| argument.to_owned());
        let arguments: Vec<String> = self.arguments.iter().cloned().chain(further).collect();
        self.process = spawn(self.port, &arguments, self.folder.path(), logged);
    }

    /// SIGSTOP: it keeps its connections, and answers nothing.
    ///
    /// # Panics
    /// If it has ended.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.process), Signal::STOP).expect("it runs");
    }

    /// SIGCONT: it goes on.
    ///
    /// # Panics
    /// If it has ended.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).expect("it runs");
    }

    /// What redis-cli prints of the answer to a command.
    ///
    /// # Panics
    /// If redis-cli is not installed.
    #[must_use]
    pub fn cli(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        String::from_utf8_lossy(&output.expect("redis-cli is installed").stdout).trim_end().to_owned()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(port: u16, arguments: &[String], folder: &Path, logged: &str) -> Child {
    let mut command = Command::new(redis_program());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--enable-debug-command", "yes"]).args(arguments).current_dir(folder);
    start_until_logged(&mut command, logged)
}

/// Starts a process, and returns when its stdout contains `logged`, a text in lower case.
///
/// # Panics
/// If it cannot be started, or if it ends before that.
pub fn start_until_logged(command: &mut Command, logged: &str) -> Child {
    let program = command.get_program().to_string_lossy().into_owned();
    let process = command.stdout(Stdio::piped()).spawn();
    let mut process = process.unwrap_or_else(|error| panic!("{program}: {error} (`make test` installs it)"));
    let log = BufReader::new(process.stdout.take().expect("stdout is piped"));
    let mut last = String::new();
    let mut lines = log.lines().map_while(Result::ok);
    let is_logged = lines.any(|line| {
        last = line;
        last.to_lowercase().contains(logged)
    });
    assert!(is_logged, "{program} ended and never logged {logged:?}; its last line: {last}");
    process
}
