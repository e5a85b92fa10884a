//! A Redis server for one test: the server of the test kit, with methods that send commands through the client library.

use std::ops::{Deref, DerefMut};

use redis::Value;
use spillgate_testkit::RedisServer;

pub(crate) struct Server(RedisServer);

impl Server {
    /// Starts the server on a free port, and returns as soon as it is ready.
    pub(crate) fn start() -> Server {
        Server(RedisServer::start())
    }

    /// Starts the server on this port. The arguments come after the usual ones.
    pub(crate) fn start_with(port: u16, arguments: &[&str]) -> Server {
        Server(RedisServer::start_with(port, arguments))
    }

    /// Starts a node that does not belong to a cluster yet. Returns the node, and the port on which it talks to other
    /// nodes.
    pub(crate) fn start_node(arguments: &[&str]) -> (Server, String) {
        let (node, bus) = RedisServer::start_node(arguments);
        (Server(node), bus)
    }

    /// Returns the reply to one command, which is sent on a new connection.
    pub(crate) fn run(&self, words: &[impl AsRef<str>]) -> Value {
        run(self.port(), words).unwrap_or_else(|e| panic!("{}: {e}", words[0].as_ref()))
    }

    /// Returns the number after `field` in INFO, or zero if there is no such field.
    pub(crate) fn info(&self, field: &str) -> u64 {
        let text: String = redis::from_redis_value(self.run(&["INFO", "ALL"])).expect("INFO is text");
        let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
        text.split_once(field).and_then(|(_, rest)| digits(rest).parse().ok()).unwrap_or(0)
    }
}

impl From<RedisServer> for Server {
    fn from(server: RedisServer) -> Server {
        Server(server)
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

/// Returns the reply of the server on that port to one command, which is sent on a new connection.
pub(crate) fn run(port: u16, words: &[impl AsRef<str>]) -> redis::RedisResult<Value> {
    let mut connection = redis::Client::open(("127.0.0.1", port))?.get_connection()?;
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
}
