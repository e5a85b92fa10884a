//! Where a server is, and a connection to it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, FromRedisValue, Pipeline, RedisConnectionInfo, RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::failure::{Failed, Failure};
use crate::script::Script;
use crate::settings::Settings;
use crate::tls;

/// What reads and writes a connection: it has to be polled as long as answers are wanted, and ends with it.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How connections are made, and who asks on them.
pub(crate) struct Access {
    pub(crate) user: RedisConnectionInfo,
    pub(crate) tls: Option<TlsConnector>,
    pub(crate) queue: usize,
    /// Whether scripts are run there.
    pub(crate) scripts: bool,
    /// So long all sentinels are waited for.
    pub(crate) sentinels_within: Duration,
}

impl Access {
    pub(crate) fn new(user: RedisConnectionInfo, tls: Option<TlsConnector>, settings: &Settings) -> Access {
        Access {
            user,
            tls,
            queue: settings.max_in_flight,
            scripts: settings.scripts,
            // A connection takes two answers of theirs.
            sentinels_within: settings.connect_timeout / 4,
        }
    }

    /// Connects and logs in.
    pub(crate) async fn open(&self, address: &ConnectionAddr, user: &RedisConnectionInfo) -> Result<Connected, Failed> {
        let (connection, driver) = match (address, &self.tls) {
            (ConnectionAddr::Unix(path), _) => self.greet(UnixStream::connect(path).await?, user).await?,
            (ConnectionAddr::Tcp(host, port), tls) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match tls {
                    Some(tls) => self.greet(tls.connect(tls::server_name(host)?, stream).await?, user).await?,
                    None => self.greet(stream, user).await?,
                }
            }
            _ => return Err(Failed::new(Failure::Other, "an address of another kind")),
        };
        Ok(Connected { connection, driver, address: address.clone() })
    }

    async fn greet<S>(
        &self,
        mut stream: S,
        user: &RedisConnectionInfo,
    ) -> Result<(MultiplexedConnection, Driver), Failed>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        is_let_in(&mut stream).await?;
        // Deadlines are the caller's, and what may be in flight at once never waits to be queued.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(self.queue);
        let (connection, driver) = MultiplexedConnection::new_with_config(user, stream, config).await?;
        Ok((connection, Box::pin(driver)))
    }

    /// The answer to one command, on a connection of its own.
    pub(crate) async fn ask_once(&self, address: &ConnectionAddr, command: &Cmd) -> Result<Value, Failed> {
        self.open(address, &self.user).await?.ask(command).await
    }

    /// A connection to the primary that the sentinels know by that name.
    async fn primary(&self, sentinels: &[ConnectionAddr], name: &str) -> Result<Connected, Failed> {
        let address = self.address_by(sentinels, name).await?;
        let mut primary = self.open(&address, &self.user).await?;
        let role = primary.ask(&redis::cmd("ROLE")).await?;
        // A primary that was frozen does not know what was done without it, and answers when it goes on.
        let is_still_there = self.address_by(sentinels, name).await? == address;
        match role {
            Value::Array(role) if is_still_there && role.first().is_some_and(is_primary) => Ok(primary),
            _ => Err(Failed::new(Failure::Readonly, format!("{address} is no primary"))),
        }
    }

    /// The primary's address by the word of the sentinel that has heard of the latest failover.
    async fn address_by(&self, sentinels: &[ConnectionAddr], name: &str) -> Result<ConnectionAddr, Failed> {
        let told =
            join_all(sentinels.iter().map(|sentinel| timeout(self.sentinels_within, self.told_by(sentinel, name))));
        let late = || Failed::new(Failure::Timeout, "no sentinel answered in time");
        let told = told.await.into_iter().map(|told| told.unwrap_or_else(|_| Err(late())));
        let newest = told.reduce(|newest, told| match (&newest, &told) {
            (Ok((newest_epoch, _)), Ok((epoch, _))) if newest_epoch >= epoch => newest,
            (Ok(_), Err(_)) => newest,
            _ => told,
        });
        newest.unwrap_or_else(|| Err(late())).map(|(_, address)| address)
    }

    /// The epoch of the latest failover, and the primary's address since.
    async fn told_by(&self, sentinel: &ConnectionAddr, name: &str) -> Result<(u64, ConnectionAddr), Failed> {
        // The user of the URL is the servers'.
        let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
        let mut commands = Pipeline::new();
        commands.cmd("SENTINEL").arg("MASTER").arg(name);
        // During a failover the other command does not know yet.
        commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let told = self.open(sentinel, &nobody).await?.ask_all(&commands).await;
        let (fields, (host, port)): (BTreeMap<String, String>, (String, u16)) = told?;
        let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok((epoch, ConnectionAddr::Tcp(host, port)))
    }
}

/// Whether the server talks to us. One that hangs up says why, but to nobody's question: the client library would drop it.
async fn is_let_in(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<(), Failed> {
    // It may have hung up already, and what it said is there all the same.
    let written = stream.write_all(b"PING\r\n").await;
    let (mut said, mut length) = ([0; 512], 0);
    while length < said.len() && !said[..length].ends_with(b"\n") {
        match stream.read(&mut said[length..]).await? {
            0 => return Err(written.err().map_or_else(hung_up, Failed::from)),
            more => length += more,
        }
    }
    let said = String::from_utf8_lossy(&said[..length]);
    match said.trim_end().strip_prefix('-') {
        // Nobody is logged in yet.
        Some(error) if error.starts_with("NOAUTH") || error.starts_with("NOPERM") => Ok(()),
        Some(error) => Err(Failed::said(error.to_owned())),
        None => Ok(()),
    }
}

fn hung_up() -> Failed {
    Failed::new(Failure::Disconnected, "the server hung up")
}

fn is_primary(role: &Value) -> bool {
    matches!(role, Value::BulkString(role) if role == b"master")
}

/// A connection, and to whom.
pub(crate) struct Connected {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: Driver,
    pub(crate) address: ConnectionAddr,
}

impl Connected {
    pub(crate) async fn ask(&mut self, command: &Cmd) -> Result<Value, Failed> {
        driven(&mut self.driver, command.query_async(&mut self.connection)).await
    }

    async fn ask_all<T: FromRedisValue>(&mut self, commands: &Pipeline) -> Result<T, Failed> {
        driven(&mut self.driver, commands.query_async(&mut self.connection)).await
    }
}

/// What is told by a connection that nobody keeps yet.
async fn driven<T>(driver: &mut Driver, told: impl Future<Output = RedisResult<T>>) -> Result<T, Failed> {
    tokio::select! {
        told = told => Ok(told?),
        () = driver => Err(hung_up()),
    }
}

/// A server, and how it is found.
pub(crate) struct Target {
    pub(crate) access: Arc<Access>,
    pub(crate) location: Location,
}

pub(crate) enum Location {
    At(ConnectionAddr),
    /// At the primary that these sentinels know by this name.
    PrimaryOf(Vec<ConnectionAddr>, String),
}

impl Target {
    /// Finds the server, connects, logs in, and loads the scripts.
    pub(crate) async fn connect(&self) -> Result<Connected, Failed> {
        let mut connected = self.reach().await?;
        if self.access.scripts {
            let mut all = Pipeline::new();
            for script in Script::ALL {
                all.cmd("SCRIPT").arg("LOAD").arg(script.source).ignore();
            }
            connected.ask_all::<()>(&all).await?;
        }
        Ok(connected)
    }

    /// The same without the scripts.
    pub(crate) async fn reach(&self) -> Result<Connected, Failed> {
        match &self.location {
            Location::At(address) => self.access.open(address, &self.access.user).await,
            Location::PrimaryOf(sentinels, name) => self.access.primary(sentinels, name).await,
        }
    }
}
