//! A Redis server for one test, and a connection that sends many requests at the same time.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use redis::Value;
use spillgate_redis::{Script, ScriptCall};

use crate::port::free_port;

/// The server program: `redis-server`, or the value of REDIS_SERVER.
fn program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// A server on a free port. It ends with the test.
pub(crate) struct RedisServer {
    process: Child,
    port: u16,
}

impl RedisServer {
    pub(crate) fn start() -> RedisServer {
        let port = free_port();
        let mut process = Command::new(program())
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error} (`make test` installs it)", program()));
        let log = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let ready = log.lines().map_while(Result::ok).any(|line| line.contains("Ready to accept connections"));
        assert!(ready, "redis-server ended before it was ready");
        RedisServer { process, port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn connect(&self) -> Client {
        let client = redis::Client::open(("127.0.0.1", self.port)).expect("an address");
        let mut connection = client.get_connection().expect("redis-server answers");
        for script in Script::ALL {
            let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script.source).query(&mut connection).expect("Lua");
            assert_eq!(sha, script.sha(), "{script:?}");
        }
        Client(connection)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) struct Client(redis::Connection);

/// The command of a request.
pub(crate) fn call(request: &ScriptCall<'_, '_>) -> redis::Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(request.script().sha()).arg(request.keys().len());
    for key in request.keys() {
        call.arg(key.as_bytes());
    }
    for argument in request.arguments() {
        call.arg(argument);
    }
    call
}

impl Client {
    /// The replies to all commands, which are sent at the same time.
    pub(crate) fn ask(&mut self, commands: impl IntoIterator<Item = redis::Cmd>) -> Vec<Value> {
        let mut pipeline = redis::Pipeline::new();
        for command in commands {
            pipeline.add_command(command);
        }
        pipeline.query(&mut self.0).expect("redis-server answers")
    }

    pub(crate) fn ask_one(&mut self, command: redis::Cmd) -> Value {
        self.ask([command]).remove(0)
    }
}

/// A bulk string; empty for a key that does not exist.
pub(crate) fn bytes(reply: &Value) -> &[u8] {
    match reply {
        Value::BulkString(bytes) => bytes,
        Value::Nil => &[],
        other => panic!("not a bulk string: {other:?}"),
    }
}

/// xorshift64* (Vigna, 2014): the same requests in every run.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len() as u64) as usize]
    }
}
