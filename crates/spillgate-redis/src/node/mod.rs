//! One node: sends commands to a single server, within deadlines and behind a circuit breaker.
//!
//! A cluster is many of these, every other store is one.

pub(crate) mod breaker;
pub(crate) mod jitter;
mod pool;
pub(crate) mod redirection;
pub(crate) mod send;
pub(crate) mod status;

use std::sync::Arc;

use spillgate_core::Circuit;
use tokio::time::Instant;

use crate::command::Command;
use crate::connect::endpoint::{Endpoint, Location};
use crate::connect::url::address_text;
use crate::deadline;
use crate::error::{self, Error, ErrorKind};
use crate::node::pool::Pool;
use crate::node::send::{NodeReply, reply};
use crate::node::status::NodeStatus;
use crate::settings::Settings;

/// Decides requests whose states are all on one server.
pub(crate) struct Node {
    pool: Arc<Pool>,
}

impl Node {
    pub(crate) fn new(endpoint: Endpoint, settings: &Settings) -> Node {
        Node { pool: Arc::new(Pool::new(endpoint, settings)) }
    }

    /// The reply to the command before the deadline, or an error.
    ///
    /// The command is written once. There are two exceptions, in which the server itself says that it did nothing: it
    /// lacks the script, or some of the slots. `asking` says that another node has redirected the command.
    pub(crate) async fn send(
        &self,
        call: &Command<'_, '_, '_>,
        asking: bool,
        deadline: Instant,
    ) -> Result<NodeReply, Error> {
        if !self.admits() {
            return Err(Error::new(ErrorKind::CircuitOpen, "the circuit is open, so the request was not sent"));
        }
        let live = self.pool.live(deadline).await?;
        let asked = Instant::now();
        // A command that is written is executed even if no caller waits for the reply. So it is not written without
        // time left.
        if asked >= deadline {
            self.pool.breaker.inconclusive();
            return Err(Error::new(ErrorKind::NotSent, "no time was left to send the request"));
        }
        let Some(reply) = deadline::wait_until(deadline, reply(&live, call, asking)).await else {
            live.suspect();
            self.pool.no_reply(asked);
            return Err(Error::new(ErrorKind::Timeout, "no answer before the deadline"));
        };
        match &reply {
            Err(failed) if error::means_node_is_down(failed.kind) => {
                self.pool.is_down(failed);
                if failed.kind == ErrorKind::ReadOnly {
                    live.abandon();
                }
            }
            // The pool notices this by itself.
            Err(failed) if failed.kind == ErrorKind::Disconnected => {}
            // The connection has too many commands without a reply.
            Err(failed) if failed.kind == ErrorKind::Overloaded => {
                live.suspect();
                self.pool.breaker.inconclusive();
            }
            _ => self.pool.replied(),
        }
        reply
    }

    /// Whether the breaker lets a request pass. The clock is not read while the breaker is closed.
    fn admits(&self) -> bool {
        let breaker = &self.pool.breaker;
        breaker.circuit() == Circuit::Closed || breaker.admits(self.pool.at_ns(Instant::now()))
    }

    /// Waits for a connection until the deadline.
    pub(crate) async fn wait_connected(&self, deadline: Instant) -> Result<(), Error> {
        self.pool.wait_connected(deadline).await.map_err(|failed| self.last_error().unwrap_or(failed))
    }

    /// Why the server is down, if it is.
    pub(crate) fn last_error(&self) -> Option<Error> {
        self.pool.last_error()
    }

    pub(crate) fn circuit(&self) -> Circuit {
        self.pool.breaker.circuit()
    }

    /// Where the server was found last, and whether there is a connection.
    pub(crate) fn node(&self) -> NodeStatus {
        let address = match &self.pool.endpoint.location {
            Location::Address(address) => address_text(address),
            Location::Sentinels(sentinels) => {
                self.pool.found().map_or_else(|| sentinels.name.clone(), |address| address_text(&address))
            }
        };
        NodeStatus { address, is_connected: self.pool.is_live() }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.pool.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use redis::{ConnectionAddr, RedisConnectionInfo};
    use spillgate_core::{Binding, Circuit, Hit, Op, Quota};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::{Instant, sleep};

    use super::Node;
    use crate::command::Command;
    use crate::command::request::ScriptCall;
    use crate::connect::connector::Connector;
    use crate::connect::endpoint::{Endpoint, Location};
    use crate::error::{Error, ErrorKind};
    use crate::settings::Settings;

    /// A server that accepts connections and replies to nothing but the first PING, and a node with one connection that
    /// may wait for one more reply.
    async fn silent() -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    client.write_all(b"+PONG\r\n").await.expect("it reads");
                    while client.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
                });
            }
        });
        let minute = Duration::from_secs(60);
        let probe_every = Duration::from_millis(1);
        let settings = Settings { connections: 1, connect_timeout: minute, probe_every, ..Settings::new("") };
        let connector =
            Connector::new(RedisConnectionInfo::default(), None, &Settings { scripts: false, ..settings.clone() });
        let location = Location::Address(ConnectionAddr::Tcp("127.0.0.1".to_owned(), port));
        Node::new(Endpoint { connector: Arc::new(Connector { waiting_max: 2, ..connector }), location }, &settings)
    }

    /// Not one byte came, so the request says nothing about the server.
    #[tokio::test]
    async fn a_connection_that_awaits_too_much_is_no_answer() {
        let server = silent().await;
        let minute = || Instant::now() + Duration::from_secs(60);
        server.wait_connected(minute()).await.expect("it lets in");
        let quota = Quota::per_minute(5).build().expect("valid");
        let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
        let call = Command::Script(ScriptCall::new(None, &hits).expect("well formed"));
        let kind = async |deadline| server.send(&call, false, deadline).await.err().map(|failed| failed.kind);
        assert_eq!(kind(Instant::now() + Duration::from_millis(1)).await, Some(ErrorKind::Timeout));
        assert_eq!(server.circuit(), Circuit::Closed, "the caller had little time");
        // By now the connection waits for the reply to a PING.
        let why = Error::new(ErrorKind::Busy, "a slow script");
        server.pool.is_down(&why);
        sleep(Duration::from_millis(2)).await;
        assert_eq!(kind(minute()).await, Some(ErrorKind::Overloaded), "it is the probe");
        assert_eq!((server.circuit(), server.last_error()), (Circuit::Open, Some(why)));
    }
}
