//! One server: what it is asked, and what becomes of that.

pub(crate) mod breaker;
pub(crate) mod jitter;
mod pool;
pub(crate) mod redirection;
pub(crate) mod send;
pub(crate) mod status;

use std::sync::Arc;

use tokio::time::Instant;

use crate::command::Call;
use crate::connect::endpoint::{Location, Target};
use crate::connect::url::shown;
use crate::deadline;
use crate::error::{Failed, Failure};
use crate::node::breaker::Circuit;
use crate::node::pool::Links;
use crate::node::send::{Reply, reply};
use crate::node::status::NodeStatus;
use crate::settings::Settings;

/// Decides requests whose states are all on one server.
pub(crate) struct Server {
    links: Arc<Links>,
}

impl Server {
    pub(crate) fn new(target: Target, settings: &Settings) -> Server {
        Server { links: Arc::new(Links::new(target, settings)) }
    }

    /// The reply to the request: by the deadline, or a failure. It is written once, but for a server that has done nothing, by
    /// its own word: it lacks the script, or some of the slots. `asking` says that another server has sent us.
    pub(crate) async fn ask(&self, call: &Call<'_, '_, '_>, asking: bool, deadline: Instant) -> Result<Reply, Failed> {
        if !self.admits() {
            return Err(Failed::new(Failure::Open, "the server is not asked for a while"));
        }
        let live = self.links.live(deadline).await?;
        let asked = Instant::now();
        // What is written is done, also when nobody waits for it.
        if asked >= deadline {
            self.links.breaker.learnt_nothing();
            return Err(Failed::new(Failure::Unasked, "no time was left to ask"));
        }
        let Some(reply) = deadline::by(deadline, reply(&live, call, asking)).await else {
            live.suspect();
            self.links.had_no_answer(asked);
            return Err(Failed::new(Failure::Timeout, "no answer before the deadline"));
        };
        match &reply {
            Err(failed) if failed.class.is_of_the_server() => {
                self.links.serves_nobody(failed);
                if failed.class == Failure::Readonly {
                    live.give_up();
                }
            }
            // The link itself sees to it.
            Err(failed) if failed.class == Failure::Disconnected => {}
            // Of the connection: too many on it have no answer.
            Err(failed) if failed.class == Failure::Overloaded => {
                live.suspect();
                self.links.breaker.learnt_nothing();
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
    pub(crate) async fn connected(&self, deadline: Instant) -> Result<(), Failed> {
        self.links.connected(deadline).await.map_err(|failed| self.trouble().unwrap_or(failed))
    }

    /// Why it does not serve, if so.
    pub(crate) fn trouble(&self) -> Option<Failed> {
        self.links.trouble()
    }

    pub(crate) fn circuit(&self) -> Circuit {
        self.links.breaker.circuit()
    }

    /// Where it was found last, if it was, and whether there is a connection.
    pub(crate) fn node(&self) -> NodeStatus {
        let address = match &self.links.target.location {
            Location::At(address) => shown(address),
            Location::ToldBy(sentinels) => {
                self.links.found().map_or_else(|| sentinels.name.clone(), |address| shown(&address))
            }
        };
        NodeStatus { address, is_connected: self.links.is_live() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.links.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use redis::{ConnectionAddr, RedisConnectionInfo};
    use spillgate_core::{Binding, Hit, Op, Quota};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::{Instant, sleep};

    use super::Server;
    use crate::command::Call;
    use crate::command::request::Request;
    use crate::connect::connector::Access;
    use crate::connect::endpoint::{Location, Target};
    use crate::error::{Failed, Failure};
    use crate::node::breaker::Circuit;
    use crate::settings::Settings;

    /// A server that lets in and says no more, and a store of one connection that awaits one answer beside that to PING.
    async fn silent() -> Server {
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
        let access =
            Access::new(RedisConnectionInfo::default(), None, &Settings { scripts: false, ..settings.clone() });
        let location = Location::At(ConnectionAddr::Tcp("127.0.0.1".to_owned(), port));
        Server::new(Target { access: Arc::new(Access { waiting_max: 2, ..access }), location }, &settings)
    }

    /// No byte came: whether the server serves is as unknown as before.
    #[tokio::test]
    async fn a_connection_that_awaits_too_much_is_no_answer() {
        let server = silent().await;
        let minute = || Instant::now() + Duration::from_secs(60);
        server.connected(minute()).await.expect("it lets in");
        let quota = Quota::per_minute(5).build().expect("valid");
        let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
        let call = Call::Script(Request::new(None, &hits).expect("well formed"));
        let class = async |deadline| server.ask(&call, false, deadline).await.err().map(|failed| failed.class);
        assert_eq!(class(Instant::now() + Duration::from_millis(1)).await, Some(Failure::Timeout));
        assert_eq!(server.circuit(), Circuit::Closed, "the caller had little time");
        // By now it was asked whether it is there.
        let why = Failed::new(Failure::Busy, "somebody's script");
        server.links.serves_nobody(&why);
        sleep(Duration::from_millis(2)).await;
        assert_eq!(class(minute()).await, Some(Failure::Overloaded), "it is the probe");
        assert_eq!((server.circuit(), server.trouble()), (Circuit::Open, Some(why)));
    }
}
