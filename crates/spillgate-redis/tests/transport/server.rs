//! A Redis server for one test: the kit's server, with commands over the client library.

use std::ops::{Deref, DerefMut};

use redis::Value;
use spillgate_testkit::RedisServer;

pub(crate) struct Server(RedisServer);

impl Server {
    /// Starts it on a free port, and returns once it is ready.
    pub(crate) fn start() -> Server {
        Server(RedisServer::start())
    }

    /// Starts it on this port. The arguments come after the usual ones.
    pub(crate) fn start_with(port: u16, arguments: &[&str]) -> Server {
        Server(RedisServer::start_with(port, arguments))
    }

    /// The reply to one command, on a connection of its own.
    pub(crate) fn run(&self, words: &[impl AsRef<str>]) -> Value {
        run(self.port(), words).unwrap_or_else(|e| panic!("{}: {e}", words[0].as_ref()))
    }

    /// The number after `field` in INFO; zero without such a field.
    pub(crate) fn info(&self, field: &str) -> u64 {
        let text: String = redis::from_redis_value(self.run(&["INFO", "ALL"])).expect("INFO is text");
        let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
        text.split_once(field).and_then(|(_, rest)| digits(rest).parse().ok()).unwrap_or(0)
    }
}

impl Deref for Server {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.0
    }
}

/// The reply of the server on that port to one command, on a connection of its own.
pub(crate) fn run(port: u16, words: &[impl AsRef<str>]) -> redis::RedisResult<Value> {
    let mut connection = redis::Client::open(("127.0.0.1", port))?.get_connection()?;
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
}
