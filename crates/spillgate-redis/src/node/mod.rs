//! One server: what it is asked, and what becomes of that.

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
    links: Arc<Pool>,
}

impl Node {
    pub(crate) fn new(endpoint: Endpoint, settings: &Settings) -> Node {
        Node { links: Arc::new(Pool::new(endpoint, settings)) }
    }

    /// The reply to the request: by the deadline, or a failure. It is written once, but for a server that has done nothing, by
    /// its own word: it lacks the script, or some of the slots. `asking` says that another server has sent us.
    pub(crate) async fn send(
        &self,
        call: &Command<'_, '_, '_>,
        asking: bool,
        deadline: Instant,
    ) -> Result<NodeReply, Error> {
        if !self.admits() {
            return Err(Error::new(ErrorKind::CircuitOpen, "the server is not asked for a while"));
        }
        let live = self.links.live(deadline).await?;
        let asked = Instant::now();
        // What is written is done, also when nobody waits for it.
        if asked >= deadline {
            self.links.breaker.inconclusive();
            return Err(Error::new(ErrorKind::NotSent, "no time was left to ask"));
        }
        let Some(reply) = deadline::wait_until(deadline, reply(&live, call, asking)).await else {
            live.suspect();
            self.links.had_no_answer(asked);
            return Err(Error::new(ErrorKind::Timeout, "no answer before the deadline"));
        };
        match &reply {
            Err(failed) if error::means_node_is_down(failed.kind) => {
                self.links.is_down(failed);
                if failed.kind == ErrorKind::ReadOnly {
                    live.give_up();
                }
            }
            // The link itself sees to it.
            Err(failed) if failed.kind == ErrorKind::Disconnected => {}
            // Of the connection: too many on it have no answer.
            Err(failed) if failed.kind == ErrorKind::Overloaded => {
                live.suspect();
                self.links.breaker.inconclusive();
            }
            _ => self.links.answered(),
        }
        reply
    }

    /// Whether the breaker lets a request pass; while it is closed that costs no look at the clock.
    fn admits(&self) -> bool {
        let breaker = &self.links.breaker;
        breaker.circuit() == Circuit::Closed || breaker.admits(self.links.at_ns(Instant::now()))
    }

    /// Waits for a connection until the deadline.
    pub(crate) async fn wait_connected(&self, deadline: Instant) -> Result<(), Error> {
        self.links.wait_connected(deadline).await.map_err(|failed| self.last_error().unwrap_or(failed))
    }

    /// Why it does not serve, if so.
    pub(crate) fn last_error(&self) -> Option<Error> {
        self.links.last_error()
    }

    pub(crate) fn circuit(&self) -> Circuit {
        self.links.breaker.circuit()
    }

    /// Where it was found last, if it was, and whether there is a connection.
    pub(crate) fn node(&self) -> NodeStatus {
        let address = match &self.links.endpoint.location {
            Location::Address(address) => address_text(address),
            Location::Sentinels(sentinels) => {
                self.links.found().map_or_else(|| sentinels.name.clone(), |address| address_text(&address))
            }
        };
        NodeStatus { address, is_connected: self.links.is_live() }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.links.end();
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

    /// A server that lets in and says no more, and a store of one connection that awaits one answer beside that to PING.
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

    /// No byte came: whether the server serves is as unknown as before.
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
        // By now it was asked whether it is there.
        let why = Error::new(ErrorKind::Busy, "somebody's script");
        server.links.is_down(&why);
        sleep(Duration::from_millis(2)).await;
        assert_eq!(kind(minute()).await, Some(ErrorKind::Overloaded), "it is the probe");
        assert_eq!((server.circuit(), server.last_error()), (Circuit::Open, Some(why)));
    }
}
