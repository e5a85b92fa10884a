//! A Redis server for a measurement. It counts commands and bytes.
//!
//! The counts of Redis are exact, and do not depend on the speed of the machine.

use std::net::SocketAddr;

use redis::{Connection, ConnectionLike as _, FromRedisValue};

use crate::process::{Process, pinned};

/// A Redis server that writes nothing to disk. It ends when this value is dropped.
pub struct Redis {
    pub process: Process,
    connection: Connection,
}

impl Redis {
    /// Starts a Redis server on one core. `arguments` are added to the usual arguments.
    pub fn start(core: u32, address: SocketAddr, arguments: &[&str]) -> Result<Redis, String> {
        let mut command = pinned(&core.to_string());
        command.args(["redis-server", "--save", "", "--appendonly", "no", "--loglevel", "warning"]);
        command.arg("--bind").arg(address.ip().to_string()).arg("--port").arg(address.port().to_string());
        command.args(arguments);
        Redis::of(Process::start("redis-server", command, address)?)
    }

    /// Connects to a Redis server that is already running.
    pub fn of(process: Process) -> Result<Redis, String> {
        let connection = connection(process.address)?;
        Ok(Redis { process, connection })
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.process.address)
    }

    pub fn run<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, String> {
        let answer = redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection);
        answer.map_err(|e| format!("{}: {e}", words.join(" ")))
    }

    /// Runs a command, like [`run`](Redis::run), but the words of the command may be bytes that are not text.
    pub fn run_bytes<T: FromRedisValue>(&mut self, words: &[&[u8]]) -> Result<T, String> {
        redis::Cmd::new().arg(words).query(&mut self.connection).map_err(|e| e.to_string())
    }

    pub fn is_connected(&self) -> bool {
        self.connection.is_open()
    }

    pub fn reconnect(&mut self) -> Result<(), String> {
        self.connection = connection(self.process.address)?;
        Ok(())
    }

    /// Returns the value of a field in the answer to INFO.
    pub fn info<T: std::str::FromStr>(&mut self, field: &str) -> Result<T, String> {
        let text: String = self.run(&["INFO", "everything"])?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).ok_or_else(|| format!("INFO has no {field}"))
    }

    /// Returns what Redis has counted since the last [`reset_counts`](Redis::reset_counts).
    pub fn counted(&mut self) -> Result<Counted, String> {
        let text: String = self.run(&["INFO", "everything"])?;
        let number =
            |field: &str| text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok()).unwrap_or(0);
        let calls = |line: &str| -> Option<(bool, u64)> {
            let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            // This program itself sends these commands, so they are not counted.
            let is_ours = matches!(command, "info" | "config|resetstat");
            let calls = rest.split(',').next()?.parse().ok().filter(|_| !is_ours)?;
            Some((command == "evalsha", calls))
        };
        let all: Vec<_> = text.lines().filter_map(calls).collect();
        Ok(Counted {
            scripts: all.iter().filter(|(is_script, _)| *is_script).map(|(_, calls)| calls).sum(),
            commands: all.iter().map(|(_, calls)| calls).sum(),
            bytes_in: number("total_net_input_bytes:"),
            bytes_out: number("total_net_output_bytes:"),
        })
    }

    /// Sets all counts to 0.
    pub fn reset_counts(&mut self) -> Result<(), String> {
        self.run(&["CONFIG", "RESETSTAT"])
    }
}

fn connection(address: SocketAddr) -> Result<Connection, String> {
    let url = format!("redis://{address}/");
    redis::Client::open(url).and_then(|client| client.get_connection()).map_err(|e| format!("redis-server: {e}"))
}

/// The counts of a Redis server. The commands that read the counts are not counted as commands, but their few bytes are
/// counted.
#[derive(Clone, Copy)]
pub struct Counted {
    /// Script calls. The store decides requests by calling scripts.
    pub scripts: u64,
    /// All commands, including the commands that scripts call.
    pub commands: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}
