//! How a store reaches its server, and how long it waits.

use std::time::Duration;

/// Nothing lasts longer than a day here, so that sums of times are times.
pub(crate) const LONGEST: Duration = Duration::from_secs(86_400);
/// Who tries more often only tries.
const SHORTEST_PROBE: Duration = Duration::from_millis(1);
const MAX_CONNECTIONS: usize = 1024;
const MAX_IN_FLIGHT: usize = 1 << 28;
const MAX_DENY_CACHE_ENTRIES: usize = 1 << 24;

/// Settings of a [`RedisStore`](crate::RedisStore).
///
/// What is out of bounds is brought to the bound. No time is longer than a day.
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
    ///   name by which they know the primary. The user is the servers', and has to be allowed ROLE.
    ///
    /// What has one address has to be one server, or answer CROSSSLOT like a node of a cluster where keys are not in one
    /// slot. A proxy that picks one of several servers by the first key would count the others in the wrong place.
    pub url: String,
    /// Who asks the sentinels, if they want a password: the user, `default` if `None`, who has to be allowed SENTINEL MASTER
    /// and SENTINEL GET-MASTER-ADDR-BY-NAME.
    pub sentinel_user: Option<String>,
    /// The password for the sentinels.
    pub sentinel_password: Option<String>,
    /// Certificates for TLS.
    pub tls: Tls,
    /// Within this a request is decided or has failed; queueing included. A quarter of a millisecond of it, or a sixteenth of
    /// a shorter time, is for waking whoever waits.
    pub timeout: Duration,
    /// Within this a connection is made, the user logged in and the scripts loaded, or it is tried anew.
    pub connect_timeout: Duration,
    /// Shared connections to each server. A thread uses two of them in turn, so that its requests travel together and the
    /// server decides the ones while the thread writes the others; it borrows another while one is missing. They are made
    /// when the thread first asks, and live on the runtime that asked. At least 1, at most 1024; by default, two for each
    /// core.
    pub connections: usize,
    /// Requests that may wait for answers at once; others fail as [`Overloaded`](crate::ErrorKind::Overloaded): all of them
    /// at 0. A request in several slots of a cluster counts once, so up to [`MAX_HITS`](spillgate_core::MAX_HITS) times as
    /// many calls may be in flight. A connection awaits 65,536 answers beside one for each; others fail in the same way.
    pub max_in_flight: usize,
    /// So many requests in a row without an answer open the circuit breaker. Requests that had less than
    /// [`timeout`](Settings::timeout) do not count.
    pub max_failures: u32,
    /// While it is open, one request may try at least so often; where there is no connection, one is tried; and while a
    /// node of a cluster fails, the others are asked who has its slots now. At least a millisecond.
    pub probe_every: Duration,
    /// States that are kept to refuse without asking the server, at 128 bytes each, and up to 1,100 more for a counter of
    /// many segments; 0 keeps none, and 16,777,216 is the most.
    ///
    /// A state that refused a take for free refuses again until its time: the store would say the same. Such a verdict's
    /// source is `DenyCache`. What is taken, forced or given back through this store ends the state's entry at once; what
    /// others do is not in it. Other limits of the request are reported as the store would, if their states are known and
    /// were not changed through this store since, else as [not asked](spillgate_core::Reason::NotAsked).
    pub deny_cache_entries: usize,
    /// No entry is used for longer: within this a take, reset or refund made elsewhere is seen, and so is a server that
    /// has lost the state. In a cluster it is 100 ms at most: there a refusal may be due to what a request in several
    /// slots is about to give back.
    pub deny_cache_max_age: Duration,
    /// How a `sliding_window_log` is kept.
    pub log: LogForm,
    /// Whether requests are scripts. Where they are not, for servers and proxies that refuse them, a request is a
    /// transaction of plain commands ([`TRANSACTION_COMMANDS`](crate::TRANSACTION_COMMANDS), Redis 7.0 or later), and serves takes
    /// and looks on fixed windows alone, whose refusals are free and start no penalty.
    ///
    /// Each hit is charged by itself, whether the request passes or not. So a counter may run over its limit, and then
    /// refuses lower costs that would have fit; but never is more than the limit admitted in a window. Windows by the
    /// first hit are whole milliseconds. Windows since the epoch are told apart by the server's time as it was told
    /// in the last second; a request that comes later asks for the time first, in a round trip of its own. Their bound
    /// is f(s + 2d), where d is the longest timeout of a request, and how much the clocks of a cluster's nodes differ.
    pub scripts: bool,
}

impl Settings {
    /// For `url`, with ten milliseconds for each request.
    pub fn new(url: impl Into<String>) -> Settings {
        Settings {
            url: url.into(),
            sentinel_user: None,
            sentinel_password: None,
            tls: Tls::default(),
            timeout: Duration::from_millis(10),
            connect_timeout: Duration::from_secs(1),
            connections: 2 * std::thread::available_parallelism().map_or(1, usize::from),
            max_in_flight: 4096,
            max_failures: 8,
            probe_every: Duration::from_millis(250),
            deny_cache_entries: 65_536,
            deny_cache_max_age: Duration::from_secs(1),
            log: LogForm::Packed,
            scripts: true,
        }
    }

    pub(crate) fn within_bounds(&self) -> Settings {
        Settings {
            timeout: self.timeout.min(LONGEST),
            connect_timeout: self.connect_timeout.min(LONGEST),
            connections: self.connections.clamp(1, MAX_CONNECTIONS),
            max_in_flight: self.max_in_flight.min(MAX_IN_FLIGHT),
            probe_every: self.probe_every.clamp(SHORTEST_PROBE, LONGEST),
            deny_cache_entries: self.deny_cache_entries.min(MAX_DENY_CACHE_ENTRIES),
            deny_cache_max_age: self.deny_cache_max_age.min(LONGEST),
            ..self.clone()
        }
    }
}

/// How a `sliding_window_log` is kept. Keys of the two forms have different names: after a change counting starts anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogForm {
    /// A list of times, at most 600 bytes for the first hit and 12 for each further one. A take of n units writes n
    /// elements: 65,536 take the server about ten milliseconds.
    #[default]
    Packed,
    /// A sorted set that other tools can read: scores are microseconds, members exact times and a number, as in
    /// `1790000000.123456789-0000000000`. At most 120 bytes and 60 for each hit up to 128 of them, then 160 for each.
    /// After a penalty the first member, with the score `-inf`, is `until` and a time.
    Zset,
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
    /// Who vouches for the server, or the certificate that it has itself; the system's certificates if `None`.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate chain and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// What certificates have to name in place of the host: a name or an IP address.
    pub server_name: Option<String>,
    /// Whether it does not matter what they name: whoever has any certificate that is vouched for can then stand in for the
    /// server.
    pub skip_name_check: bool,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
