//! A Redis server for one test, and a connection that sends many requests at the same time.

use redis::Value;
use spillgate_redis::{Script, ScriptCall};

/// A Redis server on a free port. It is stopped at the end of the test.
pub(crate) struct RedisServer(spillgate_testkit::RedisServer);

impl RedisServer {
    pub(crate) fn start() -> RedisServer {
        RedisServer(spillgate_testkit::RedisServer::start())
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port()
    }

    pub(crate) fn connect(&self) -> Client {
        let client = redis::Client::open(("127.0.0.1", self.port())).expect("the URL is valid");
        let mut connection = client.get_connection().expect("redis-server answers");
        for script in Script::ALL {
            let sha: String = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(script.source)
                .query(&mut connection)
                .expect("the script is valid Lua");
            assert_eq!(sha, script.sha(), "{script:?}");
        }
        Client(connection)
    }
}

pub(crate) struct Client(redis::Connection);

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
    /// Sends all commands at the same time, and returns their replies.
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

/// Returns the bytes of a reply. They are empty for a key that does not exist.
pub(crate) fn bytes(reply: &Value) -> &[u8] {
    match reply {
        Value::BulkString(bytes) => bytes,
        Value::Nil => &[],
        other => panic!("not a bulk string: {other:?}"),
    }
}
