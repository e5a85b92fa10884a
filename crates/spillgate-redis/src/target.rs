//! Where a server is, and a connection to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, FromRedisValue, Pipeline, RedisConnectionInfo, RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::failure::{Failed, Failure};
use crate::script::Script;
use crate::sentinels::Sentinels;
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
    /// So long sentinels are waited for.
    pub(crate) sentinels_within: Duration,
}

impl Access {
    pub(crate) fn new(user: RedisConnectionInfo, tls: Option<TlsConnector>, settings: &Settings) -> Access {
        Access {
            user,
            tls,
            queue: settings.max_in_flight.max(1),
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
        is_let_in(&mut stream, user.password().is_some()).await?;
        // Deadlines are the caller's. As many requests as may be in flight do not wait to be queued; parts of theirs may,
        // for the driver to take others out.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(self.queue);
        let (connection, driver) = MultiplexedConnection::new_with_config(user, stream, config).await?;
        Ok((connection, Box::pin(driver)))
    }

    /// The answer to one command, on a connection of its own.
    pub(crate) async fn ask_once(&self, address: &ConnectionAddr, command: &Cmd) -> Result<Value, Failed> {
        self.open(address, &self.user).await?.ask(command).await
    }
}

/// Whether the server talks to us. One that hangs up says why, but to nobody's question: the client library would drop it.
async fn is_let_in(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), logs_in: bool) -> Result<(), Failed> {
    // It may have hung up already, and what it said is there all the same.
    let written = stream.write_all(b"*1\r\n$4\r\nPING\r\n").await.and(stream.flush().await);
    let (mut said, mut length) = ([0; 512], 0);
    while length < said.len() && !said[..length].ends_with(b"\n") {
        match stream.read(&mut said[length..]).await? {
            0 => return Err(written.err().map_or_else(hung_up, Failed::from)),
            more => length += more,
        }
    }
    let said = String::from_utf8_lossy(&said[..length]);
    match said.trim_end().strip_prefix('-') {
        // Nobody is logged in yet; to who never will be, a server may hang up in the middle of the scripts.
        Some(error) if error.starts_with("NOAUTH") && logs_in || error.starts_with("NOPERM") => Ok(()),
        Some(error) => Err(Failed::said(error.to_owned())),
        None if said.starts_with('+') => Ok(()),
        None => Err(Failed::new(Failure::Disconnected, "what answers there is no Redis")),
    }
}

fn hung_up() -> Failed {
    Failed::new(Failure::Disconnected, "the server hung up")
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

    pub(crate) async fn ask_all<T: FromRedisValue>(&mut self, commands: &Pipeline) -> Result<T, Failed> {
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
    /// At the primary that sentinels know.
    ToldBy(Sentinels),
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
            Location::ToldBy(sentinels) => sentinels.primary(&self.access).await,
        }
    }
}
