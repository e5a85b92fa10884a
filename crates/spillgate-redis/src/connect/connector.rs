//! Makes connections: opens the socket, starts TLS if needed, and logs in.
//!
//! All connections of the store, to Redis servers and to sentinels, are made here. So none of them can skip TLS or the
//! login.
//!
//! A login looks like this on the wire. AUTH is sent only if the user has a password, and SELECT only for a database
//! other than 0:
//!
//! ```text
//! > PING
//! < -NOAUTH Authentication required.
//! > AUTH limiter secret
//! < +OK
//! > SELECT 5
//! < +OK
//! ```

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionAddr, FromRedisValue, Pipeline, RedisConnectionInfo, RedisResult, Value, cmd};
use spillgate_core::StoreErrorKind;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use crate::connect::secrets::CurrentSecrets;
use crate::connect::tls::TlsClient;
use crate::connection::{CallCounters, Connection};
use crate::error::Error;
use crate::settings::Settings;

/// The future that writes commands and reads replies, until the connection ends. Poll it for as long as replies are
/// needed.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection may wait for one reply for each request in flight, and for this many further replies. A request of
/// several parts waits for several replies. A request that failed at its deadline may still have a reply on the way.
const FURTHER_REPLIES: usize = 1 << 16;

/// How connections are made, and with which user each of them logs in.
pub(crate) struct Connector {
    /// The users and certificates. Call [`reread`](CurrentSecrets::reread) once before the first connection of an
    /// attempt to connect.
    pub(crate) secrets: Arc<CurrentSecrets>,
    /// The maximum number of replies that a connection may wait for.
    pub(crate) waiting_max: usize,
    /// Whether requests are calls of scripts. If so, a new connection has to load the scripts.
    pub(crate) scripts: bool,
    /// Whether one Redis server has the states of all slots, so that one call may contain keys of several slots.
    pub(crate) has_all_slots: bool,
    /// How long to wait for the replies of sentinels.
    pub(crate) sentinels_within: Duration,
    /// Notified when the circuit breaker of a node opens. This wakes the task that watches the store.
    pub(crate) circuit_opened: Arc<Notify>,
    /// Counts the calls on all connections that requests use.
    pub(crate) calls: Arc<CallCounters>,
}

impl Connector {
    /// Creates a connector with this user and the bounds of the settings, for a Redis server that has all slots.
    ///
    /// Sentinels have a quarter of [`Settings::connect_timeout`] to reply. They are asked twice for each connection, so
    /// half of the timeout is left to connect to the primary.
    pub(crate) fn new(user: RedisConnectionInfo, tls: Option<TlsClient>, settings: &Settings) -> Connector {
        Connector {
            secrets: Arc::new(CurrentSecrets::new(user, tls, settings)),
            waiting_max: settings.max_in_flight.saturating_add(FURTHER_REPLIES),
            scripts: settings.scripts,
            has_all_slots: true,
            sentinels_within: settings.connect_timeout / 4,
            circuit_opened: Arc::default(),
            calls: Arc::default(),
        }
    }

    /// Connects to a Redis server and logs in. This function has no timeout, so the caller must set one.
    ///
    /// # Errors
    /// [`Disconnected`](StoreErrorKind::Disconnected) if Redis cannot be reached, or closes the connection, even during
    /// the TLS handshake. [`NoPermission`](StoreErrorKind::NoPermission) if the login is missing or wrong.
    /// [`Other`](StoreErrorKind::Other) if no certificate can have the name of the host. In all other cases, the kind
    /// of the error that Redis sent.
    pub(crate) async fn open(&self, address: &ConnectionAddr) -> Result<OpenConnection, Error> {
        let secrets = self.secrets.now();
        self.open_as(address, &secrets.user, secrets.tls.as_deref()).await
    }

    /// Connects to a sentinel and logs in, as [`open`](Connector::open) does.
    pub(crate) async fn open_sentinel(&self, address: &ConnectionAddr) -> Result<OpenConnection, Error> {
        let secrets = self.secrets.now();
        self.open_as(address, &secrets.sentinel_user, secrets.tls.as_deref()).await
    }

    async fn open_as(
        &self,
        address: &ConnectionAddr,
        user: &RedisConnectionInfo,
        tls: Option<&TlsClient>,
    ) -> Result<OpenConnection, Error> {
        let opened = async {
            let mut connected = match address {
                ConnectionAddr::Unix(path) => self.on(UnixStream::connect(path).await?, address),
                ConnectionAddr::Tcp(host, port) => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    stream.set_nodelay(true)?;
                    match tls {
                        Some(tls) => self.on(tls.connect(host, stream).await?, address),
                        None => self.on(stream, address),
                    }
                }
                _ => return Err(Error::new(StoreErrorKind::Other, "an address of another kind")),
            };
            connected.log_in(user).await?;
            Ok(connected)
        };
        opened.await.map_err(|error| self.secrets.explained(error))
    }

    /// Returns a connection on this stream. The connection is not logged in yet.
    fn on<S>(&self, stream: S, address: &ConnectionAddr) -> OpenConnection
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (connection, driver) = Connection::new(stream, self.waiting_max);
        OpenConnection { connection, driver: Box::pin(driver), address: address.clone() }
    }

    /// Sends one command on a new connection, and returns the reply. This is for rare commands, such as CLUSTER SLOTS.
    pub(crate) async fn query_once(&self, address: &ConnectionAddr, command: &Cmd) -> Result<Value, Error> {
        self.secrets.reread().await;
        self.open(address).await?.query(command).await
    }
}

/// A connection whose driver does not run in a task yet.
pub(crate) struct OpenConnection {
    pub(crate) connection: Connection,
    /// Must be polled until the last reply has come. Dropping it closes the socket.
    pub(crate) driver: Driver,
    pub(crate) address: ConnectionAddr,
}

impl OpenConnection {
    /// Logs in. PING is sent first. A Redis server that closes the connection at once, for example because it has too
    /// many clients, gives the reason in its reply to PING.
    async fn log_in(&mut self, user: &RedisConnectionInfo) -> Result<(), Error> {
        let logs_in = user.password().is_some();
        match driven(&mut self.driver, self.connection.send(&cmd("PING"))).await {
            // If AUTH follows, NOAUTH is expected here. Without a password no AUTH follows, so NOAUTH is an error:
            // SCRIPT LOAD would come next, and Redis closes a connection that sends such a long command without a
            // login. The user would then not see NOAUTH. NOPERM only means that the user has no right to call PING.
            Err(error) if logs_in && error.code() == Some("NOAUTH") || error.code() == Some("NOPERM") => {}
            reply => drop(reply.map_err(Error::of_redis)?),
        }
        if let Some(password) = user.password() {
            self.query(cmd("AUTH").arg(user.username()).arg(password)).await.map_err(|error| match error.kind {
                StoreErrorKind::Other => Error { kind: StoreErrorKind::NoPermission, ..error },
                _ => error,
            })?;
        }
        if user.db() != 0 {
            self.query(cmd("SELECT").arg(user.db())).await?;
        }
        Ok(())
    }

    /// Returns the reply to one command.
    pub(crate) async fn query(&mut self, command: &Cmd) -> Result<Value, Error> {
        driven(&mut self.driver, self.connection.send(command)).await.map_err(Error::of_redis)
    }

    /// Returns the replies to several commands that are written together.
    ///
    /// # Errors
    /// The first error among the replies, or a reply that is not a `T`.
    pub(crate) async fn query_all<T: FromRedisValue>(&mut self, commands: &Pipeline) -> Result<T, Error> {
        driven(&mut self.driver, commands.query_async(&mut self.connection)).await.map_err(Error::of_redis)
    }
}

/// Polls the driver until the reply has come, because no task polls it yet.
async fn driven<T>(driver: &mut Driver, reply: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    tokio::pin!(reply);
    tokio::select! {
        // `biased` polls the reply first. So the command is queued before the driver is polled.
        biased;
        reply = &mut reply => return reply,
        () = driver => {}
    }
    // The driver has ended, and the connection with it. The pending reply now returns the reason.
    reply.await
}
