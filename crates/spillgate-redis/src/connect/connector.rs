//! Makes connections: opens the socket, TLS if it is asked for, and logs in.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionAddr, FromRedisValue, Pipeline, RedisConnectionInfo, RedisResult, Value, cmd};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use crate::connect::tls::TlsClient;
use crate::connection::Connection;
use crate::error::{Error, ErrorKind};
use crate::settings::Settings;

/// What reads and writes a connection: it has to be polled as long as answers are wanted, and ends with it.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Answers that a connection may await beside one for each request in flight: for requests of several parts, and for those whose
/// time was over before.
const ANSWERS_BESIDE: usize = 1 << 16;

/// How connections are made, and who asks on them.
pub(crate) struct Connector {
    pub(crate) user: RedisConnectionInfo,
    pub(crate) tls: Option<TlsClient>,
    /// Who asks the sentinels; the other user is the servers'.
    pub(crate) sentinel_user: RedisConnectionInfo,
    /// Answers that a connection may await at once.
    pub(crate) waiting_max: usize,
    /// Whether scripts are run there.
    pub(crate) scripts: bool,
    /// Whether a server has the states of all slots, so that several can be asked about in one call.
    pub(crate) has_all_slots: bool,
    /// So long sentinels are waited for.
    pub(crate) sentinels_within: Duration,
    /// Woken when the breaker of a server opens.
    pub(crate) circuit_opened: Arc<Notify>,
}

impl Connector {
    pub(crate) fn new(user: RedisConnectionInfo, tls: Option<TlsClient>, settings: &Settings) -> Connector {
        let mut sentinel_user = RedisConnectionInfo::default();
        if let Some(password) = &settings.sentinel_password {
            sentinel_user = sentinel_user.set_password(password);
        }
        if let Some(name) = &settings.sentinel_user {
            sentinel_user = sentinel_user.set_username(name);
        }
        Connector {
            user,
            tls,
            sentinel_user,
            waiting_max: settings.max_in_flight.saturating_add(ANSWERS_BESIDE),
            scripts: settings.scripts,
            has_all_slots: true,
            // A connection takes two answers of theirs.
            sentinels_within: settings.connect_timeout / 4,
            circuit_opened: Arc::default(),
        }
    }

    /// Connects and logs in.
    pub(crate) async fn open(
        &self,
        address: &ConnectionAddr,
        user: &RedisConnectionInfo,
    ) -> Result<OpenConnection, Error> {
        let mut connected = match (address, &self.tls) {
            (ConnectionAddr::Unix(path), _) => self.on(UnixStream::connect(path).await?, address),
            (ConnectionAddr::Tcp(host, port), tls) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match tls {
                    Some(tls) => self.on(tls.connect(host, stream).await?, address),
                    None => self.on(stream, address),
                }
            }
            _ => return Err(Error::new(ErrorKind::Other, "an address of another kind")),
        };
        connected.log_in(user).await?;
        Ok(connected)
    }

    fn on<S>(&self, stream: S, address: &ConnectionAddr) -> OpenConnection
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (connection, driver) = Connection::new(stream, self.waiting_max);
        OpenConnection { connection, driver: Box::pin(driver), address: address.clone() }
    }

    /// The answer to one command, on a connection of its own.
    pub(crate) async fn query_once(&self, address: &ConnectionAddr, command: &Cmd) -> Result<Value, Error> {
        self.open(address, &self.user).await?.query(command).await
    }
}

/// A connection, and to whom.
pub(crate) struct OpenConnection {
    pub(crate) connection: Connection,
    pub(crate) driver: Driver,
    pub(crate) address: ConnectionAddr,
}

impl OpenConnection {
    /// A server that hangs up at once says why, as the answer to the first question.
    async fn log_in(&mut self, user: &RedisConnectionInfo) -> Result<(), Error> {
        let logs_in = user.password().is_some();
        match driven(&mut self.driver, self.connection.send(&cmd("PING"))).await {
            // Nobody is logged in yet; to who never will be, a server may hang up in the middle of the scripts.
            Err(error) if logs_in && error.code() == Some("NOAUTH") || error.code() == Some("NOPERM") => {}
            told => drop(told?),
        }
        if let Some(password) = user.password() {
            self.query(cmd("AUTH").arg(user.username()).arg(password)).await.map_err(|failed| match failed.kind {
                ErrorKind::Other => Error { kind: ErrorKind::NoPermission, ..failed },
                _ => failed,
            })?;
        }
        if user.db() != 0 {
            self.query(cmd("SELECT").arg(user.db())).await?;
        }
        Ok(())
    }

    pub(crate) async fn query(&mut self, command: &Cmd) -> Result<Value, Error> {
        Ok(driven(&mut self.driver, self.connection.send(command)).await?)
    }

    pub(crate) async fn query_all<T: FromRedisValue>(&mut self, commands: &Pipeline) -> Result<T, Error> {
        Ok(driven(&mut self.driver, commands.query_async(&mut self.connection)).await?)
    }
}

/// What is told by a connection that nobody keeps yet.
async fn driven<T>(driver: &mut Driver, told: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    tokio::pin!(told);
    tokio::select! {
        // It is asked before the server is listened to.
        biased;
        told = &mut told => return told,
        () = driver => {}
    }
    // The connection has ended, and told that.
    told.await
}
