//! One server: what it is asked, and what becomes of that.

use std::sync::Arc;

use redis::{Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::address::shown;
use crate::breaker::Circuit;
use crate::call::Call;
use crate::deadline;
use crate::failure::{Failed, Failure};
use crate::link::{Links, Live};
use crate::plain::{Plain, numbers};
use crate::request::Request;
use crate::script::Script;
use crate::settings::Settings;
use crate::store::NodeStatus;
use crate::target::{Location, Target};

/// How often a request gives the server its script before it fails: somebody may flush them all the time.
const LOADS_MAX: usize = 3;

/// Room for the parts of a usual command.
const COMMAND_BYTES: usize = 256;

/// What a server answers to a request.
pub(crate) enum Reply {
    /// What the script returned.
    Bytes(Vec<u8>),
    /// Nothing was done: the states are elsewhere.
    Elsewhere(Redirection),
}

/// Where the states of a slot are, by the word of a server that does not have them.
pub(crate) enum Redirection {
    /// There, from now on; or somewhere, from now on.
    Moved(Option<ConnectionAddr>),
    /// There, for this request.
    Ask(ConnectionAddr),
    /// Partly here and partly there, as yet; or all there, and nobody says where that is.
    TryAgain,
}

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

async fn reply(live: &Live, call: &Call<'_, '_, '_>, asking: bool) -> Result<Reply, Failed> {
    let told = match call {
        Call::Script(request) => scripted(live, request, asking).await,
        Call::Plain(plain) => plainly(live, plain, asking).await,
    };
    match told {
        Ok(Some(bytes)) => Ok(Reply::Bytes(bytes)),
        Ok(None) => Err(Failed::new(Failure::Garbled, "no answer to what was asked")),
        Err(error) => match redirection(&error, &live.address) {
            Some(redirection) => Ok(Reply::Elsewhere(redirection)),
            None if matches!(call, Call::Plain(_)) && is_done_in_part(&error, asking) => {
                Err(Failed { class: Failure::Garbled, ..error.into() })
            }
            None => Err(error.into()),
        },
    }
}

/// What the script returns; `None` if it is none of ours.
async fn scripted(live: &Live, request: &Request<'_, '_>, asking: bool) -> RedisResult<Option<Vec<u8>>> {
    let together = request.take().filter(|_| live.has_all_slots());
    let mut reply = match together {
        Some(take) => live.connection.take(&take).await,
        None => alone(live, &command(request), asking).await,
    };
    // Nothing was done: who answers there stands for the nodes of a cluster.
    if together.is_some() && is_error(&reply, ServerErrorKind::CrossSlot) {
        live.lacks_slots();
        reply = alone(live, &command(request), asking).await;
    }
    for _ in 0..LOADS_MAX {
        if !is_error(&reply, ServerErrorKind::NoScript) {
            break;
        }
        let all = commands(asking, &command(request), Some(request.script()));
        reply = all.query_async(&mut live.connection.clone()).await.map(|(reply,)| reply);
    }
    reply.map(|reply| if let Value::BulkString(bytes) = reply { Some(bytes) } else { None })
}

async fn alone(live: &Live, command: &Cmd, asking: bool) -> RedisResult<Value> {
    if !asking {
        return live.connection.ask(command).await;
    }
    commands(asking, command, None).query_async(&mut live.connection.clone()).await.map(|(reply,)| reply)
}

fn is_error(reply: &RedisResult<Value>, kind: ServerErrorKind) -> bool {
    reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(kind))
}

/// The numbers that the transaction answers with, none if the server has not INCREX; `None` if there are others.
async fn plainly(live: &Live, plain: &Plain<'_, '_, '_>, asking: bool) -> RedisResult<Option<Vec<u8>>> {
    let mut all = Pipeline::new();
    if asking {
        all.cmd("ASKING").ignore();
    }
    plain.write(&mut all);
    match all.query_async(&mut live.connection.clone()).await {
        Ok((reply,)) => Ok(numbers(&reply)),
        Err(error) if plain.by_increx && lacks_increx(&error) => Ok(Some(Vec::new())),
        Err(error) => Err(error),
    }
}

/// Whether a transaction with these errors may have done something; each has its command's place.
fn is_done_in_part(error: &RedisError, asking: bool) -> bool {
    let errors = error.clone().into_server_errors();
    match errors.as_deref() {
        // One within the answer to EXEC.
        Some([(0, _)]) => true,
        // Without MULTI each command is done by itself, unless all are refused.
        Some([(first, _), .., (last, error)]) => {
            let (is_aborted, refused) = (error.kind() == Some(ServerErrorKind::ExecAbort), last - first + 1);
            !is_aborted
                && *first <= usize::from(asking)
                && errors.as_deref().is_some_and(|errors| errors.len() < refused)
        }
        _ => false,
    }
}

/// Whether the server knows no INCREX. Others may be refused before it, such as MULTI to a user who may not call that: but
/// without INCREX none of them has raised anything.
fn lacks_increx(error: &RedisError) -> bool {
    let errors = error.clone().into_server_errors().unwrap_or_default();
    let mut said = errors.iter().filter_map(|(_, error)| error.details());
    said.any(|said| said.starts_with("unknown command") && said.contains("INCREX"))
}

/// What goes before the command, and the command; the answer is its alone.
fn commands(asking: bool, command: &Cmd, script: Option<&Script>) -> Pipeline {
    let mut all = Pipeline::new();
    if let Some(script) = script {
        all.cmd("SCRIPT").arg("LOAD").arg(script.source).ignore();
    }
    if asking {
        all.cmd("ASKING").ignore();
    }
    all.add_command(command.clone());
    all
}

/// Where the server sends us, if it does; `asked` is its own address.
fn redirection(error: &RedisError, asked: &ConnectionAddr) -> Option<Redirection> {
    let errors = error.clone().into_server_errors()?;
    let (_, error) = errors.first()?;
    let there = || address(error.details()?.split_ascii_whitespace().nth(1)?, asked);
    match error.kind()? {
        ServerErrorKind::Moved => Some(Redirection::Moved(there())),
        ServerErrorKind::Ask => Some(there().map_or(Redirection::TryAgain, Redirection::Ask)),
        ServerErrorKind::TryAgain => Some(Redirection::TryAgain),
        _ => None,
    }
}

/// `host:port`, as of [`at`].
fn address(text: &str, asked: &ConnectionAddr) -> Option<ConnectionAddr> {
    let (host, port) = text.rsplit_once(':')?;
    at(host, port.parse().ok()?, asked)
}

/// That port of that host; a host without a name is the one that was asked, and one that is `?` is any.
pub(crate) fn at(host: &str, port: u16, asked: &ConnectionAddr) -> Option<ConnectionAddr> {
    let host = match (host, asked) {
        ("", ConnectionAddr::Tcp(host, _)) => host,
        ("", _) | ("?", _) => return None,
        (host, _) => host,
    };
    Some(ConnectionAddr::Tcp(host.to_owned(), port))
}

pub(crate) fn command(request: &Request<'_, '_>) -> Cmd {
    let mut command = Cmd::with_capacity(3 + request.keys().len() + 3, COMMAND_BYTES);
    command.arg("EVALSHA").arg(request.script().sha()).arg(request.keys().len());
    for key in request.keys() {
        command.arg(key.as_bytes());
    }
    for argument in request.arguments() {
        command.arg(argument);
    }
    command
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

    use super::{Server, address};
    use crate::breaker::Circuit;
    use crate::call::Call;
    use crate::failure::{Failed, Failure};
    use crate::request::Request;
    use crate::settings::Settings;
    use crate::target::{Access, Location, Target};

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

    #[test]
    fn addresses_that_servers_send_us_to() {
        let asked = ConnectionAddr::Tcp("asked".to_owned(), 1);
        let told = |text| address(text, &asked).map(|address| address.to_string());
        for (text, there) in [("a:7", "a:7"), (":7", "asked:7"), ("::1:7", "::1:7")] {
            assert_eq!(told(text).as_deref(), Some(there));
        }
        for text in ["", "a", "a:", "a:b", "a:65536", "?:7"] {
            assert_eq!(told(text), None, "{text}");
        }
        assert_eq!(address(":7", &ConnectionAddr::Unix("/socket".into())), None);
    }
}
