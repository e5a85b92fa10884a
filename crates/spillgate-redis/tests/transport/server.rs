//! A Redis server for one test, which can be killed, frozen and started again.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use redis::Value;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) use crate::port::free_port;

pub(crate) struct Server {
    process: Child,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

/// The server program: `redis-server`, or the value of REDIS_SERVER.
pub(crate) fn program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

impl Server {
    /// Starts it on a free port, and returns once it is ready.
    pub(crate) fn start() -> Server {
        Server::start_with(free_port(), &[])
    }

    pub(crate) fn start_with(port: u16, arguments: &[&str]) -> Server {
        let folder = TempDir::new().expect("a folder");
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let process = spawn(port, &arguments, folder.path(), "ready to accept connections");
        Server { process, port, arguments, folder }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Kills it by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }

    /// After [`kill`](Server::kill): starts the same server again, and returns once its log says `logged`.
    pub(crate) fn start_again(&mut self, more: &[&str], logged: &str) {
        let more = more.iter().map(|&argument| argument.to_owned());
        let arguments: Vec<String> = self.arguments.iter().cloned().chain(more).collect();
        self.process = spawn(self.port, &arguments, self.folder.path(), logged);
    }

    /// Sends SIGSTOP: the server keeps its connections and does not reply.
    pub(crate) fn freeze(&self) {
        kill_process(Pid::from_child(&self.process), Signal::STOP).expect("it runs");
    }

    pub(crate) fn thaw(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).expect("it is there");
    }

    /// The reply to one command, on a connection of its own.
    pub(crate) fn run(&self, words: &[impl AsRef<str>]) -> Value {
        run(self.port, words).unwrap_or_else(|e| panic!("{}: {e}", words[0].as_ref()))
    }

    /// The number after `field` in INFO; zero without such a field.
    pub(crate) fn info(&self, field: &str) -> u64 {
        let text: String = redis::from_redis_value(self.run(&["INFO", "ALL"])).expect("INFO is text");
        let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
        text.split_once(field).and_then(|(_, rest)| digits(rest).parse().ok()).unwrap_or(0)
    }
}

/// The reply of the server on that port to one command, on a connection of its own.
pub(crate) fn run(port: u16, words: &[impl AsRef<str>]) -> redis::RedisResult<Value> {
    let mut connection = redis::Client::open(("127.0.0.1", port))?.get_connection()?;
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
}

fn spawn(port: u16, arguments: &[String], folder: &Path, logged: &str) -> Child {
    let mut command = Command::new(program());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--enable-debug-command", "yes"]).args(arguments).current_dir(folder);
    started(&mut command, logged)
}

/// Starts the process, and returns once its log says `logged`.
pub(crate) fn started(command: &mut Command, logged: &str) -> Child {
    let process = command.stdout(Stdio::piped()).spawn();
    let mut process = process.unwrap_or_else(|error| panic!("{}: {error} (`make test` installs it)", program()));
    let log = BufReader::new(process.stdout.take().expect("stdout is piped"));
    let mut last = String::new();
    let mut lines = log.lines().map_while(Result::ok);
    let is_logged = lines.any(|line| {
        last = line;
        last.to_lowercase().contains(logged)
    });
    assert!(is_logged, "redis-server ended and never said {logged:?}; its last words: {last}");
    process
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
