//! A redis-server of our own, and what it counts.

use std::net::SocketAddr;

use kit::Process;
use redis::{Connection, FromRedisValue};

pub(crate) struct Redis {
    pub(crate) process: Process,
    connection: Connection,
}

impl Redis {
    pub(crate) fn start(core: u32, address: SocketAddr) -> Result<Redis, String> {
        let process = kit::redis_server(core, address)?;
        let connection = redis::Client::open(url(address)).and_then(|client| client.get_connection());
        Ok(Redis { process, connection: connection.map_err(|e| format!("redis-server: {e}"))? })
    }

    pub(crate) fn url(&self) -> String {
        url(self.process.address)
    }

    pub(crate) fn run<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, String> {
        let answer = redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection);
        answer.map_err(|e| format!("{}: {e}", words.join(" ")))
    }

    /// A number of INFO.
    pub(crate) fn info(&mut self, field: &str) -> Result<u64, String> {
        let text: String = self.run(&["INFO", "everything"])?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).ok_or_else(|| format!("INFO has no {field}"))
    }

    /// What it counted since it was last [forgotten](Redis::forget).
    pub(crate) fn counted(&mut self) -> Result<Counted, String> {
        let text: String = self.run(&["INFO", "everything"])?;
        let number = |line: &str, field: &str| -> Option<u64> {
            let (_, rest) = line.split_once(field)?;
            rest.split([',', '\r']).next()?.parse().ok()
        };
        let find = |field: &str| text.lines().find_map(|line| number(line, field)).unwrap_or(0);
        // Commands of scripts are calls too, so only those count that clients send.
        let commands =
            text.lines().filter(|line| line.starts_with("cmdstat_evalsha:")).filter_map(|line| number(line, "calls="));
        Ok(Counted {
            commands: commands.sum(),
            bytes_in: find("total_net_input_bytes:"),
            bytes_out: find("total_net_output_bytes:"),
        })
    }

    pub(crate) fn forget(&mut self) -> Result<(), String> {
        self.run(&["CONFIG", "RESETSTAT"])
    }
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("redis://{address}/")
}

/// What a server counts; the questions after it are in the bytes, and do not matter among so many.
#[derive(Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) commands: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}
