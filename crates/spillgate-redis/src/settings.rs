//! How a store reaches its server, and how long it waits.

use std::time::Duration;

/// Settings of a [`RedisStore`](crate::RedisStore).
///
/// ```
/// use std::time::Duration;
/// use spillgate_redis::Settings;
///
/// let settings = Settings { timeout: Duration::from_millis(5), ..Settings::new("rediss://limiter:secret@redis.internal/") };
/// assert_eq!(settings.max_in_flight, 4096);
/// ```
#[derive(Clone)]
pub struct Settings {
    /// What there is, and where; `rediss` in place of `redis` for TLS.
    ///
    /// * One server: `redis://[user:password@]host[:port][/database]` (`valkey://` and `valkeys://` say the same), or
    ///   `unix:///path[?user=..&pass=..&db=..]`. For a database other than 0 the user has to be allowed SELECT.
    /// * A cluster: `redis-cluster://[user:password@]host[:port],host[:port]..`, some of its nodes, which tell of the
    ///   others. The user has to be allowed ASKING and CLUSTER SLOTS on all of them.
    /// * Sentinel: `redis-sentinel://[user:password@]host[:port],host[:port]../name[/database]`, the sentinels, and the
    ///   name by which they know the primary. The user is the servers', and has to be allowed ROLE; the sentinels are
    ///   asked without one.
    pub url: String,
    /// Certificates for TLS.
    pub tls: Tls,
    /// Within this a request is decided or has failed; queueing included.
    pub timeout: Duration,
    /// Within this a connection is made, the user logged in and the scripts loaded, or it is tried anew.
    pub connect_timeout: Duration,
    /// Shared connections to each server; a thread keeps to one of them, so that its requests travel together. It is made when the
    /// thread first asks, and lives on the runtime that asked.
    pub connections: usize,
    /// Requests that may wait for answers at once; others fail as [`Overloaded`](crate::Failure::Overloaded).
    pub max_in_flight: usize,
    /// So many requests in a row without an answer open the circuit breaker.
    pub max_failures: u32,
    /// While it is open, one request may try at least so often; where there is no connection, one is tried; and while a
    /// node of a cluster fails, the others are asked who has its slots now.
    pub probe_every: Duration,
}

impl Settings {
    /// For `url`, with ten milliseconds for each request.
    pub fn new(url: impl Into<String>) -> Settings {
        Settings {
            url: url.into(),
            tls: Tls::default(),
            timeout: Duration::from_millis(10),
            connect_timeout: Duration::from_secs(1),
            connections: std::thread::available_parallelism().map_or(1, usize::from),
            max_in_flight: 4096,
            max_failures: 8,
            probe_every: Duration::from_millis(250),
        }
    }
}

/// The secret parts stay out of logs.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Certificates, all in PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// Who vouches for the server; the system's certificates if `None`.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate chain and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
