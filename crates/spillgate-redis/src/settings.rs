//! The settings of a store: how it reaches its server, how long it waits, and how it keeps states.
//!
//! They are plain data without I/O, so every part of the store can read them.
//!
//! A value out of bounds is never an error here. [`Settings::within_bounds`] replaces it when a store is created:
//!
//! | setting | least | most |
//! |---|---|---|
//! | times | 0, and 1 ms for `probe_every` | a day |
//! | `connections` | 1 | 1,024 |
//! | `max_in_flight` | 0 | 2^28 |
//! | `deny_cache_entries` | 0 | 2^24 |

use std::time::Duration;

/// No time is longer than a day, so that sums of times cannot overflow.
pub(crate) const LONGEST: Duration = Duration::from_secs(86_400);
/// The least `probe_every`. More frequent probes would only load the server.
const SHORTEST_PROBE: Duration = Duration::from_millis(1);
/// The most connections to one server. Each has a task and a buffer of 16 KiB or more.
const MAX_CONNECTIONS: usize = 1024;
/// The most requests in flight. It leaves space for the sums that are computed from it.
const MAX_IN_FLIGHT: usize = 1 << 28;
/// The most states in the deny cache: 2 GiB at 128 bytes each.
const MAX_DENY_CACHE_ENTRIES: usize = 1 << 24;

/// Settings of a [`RedisStore`](crate::RedisStore).
///
/// A value that is out of bounds is replaced by the bound. No time is longer than a day.
///
/// # Examples
///
/// One server with TLS and a short timeout:
///
/// ```
/// use std::time::Duration;
/// use spillgate_redis::Settings;
///
/// let settings = Settings { timeout: Duration::from_millis(5), ..Settings::new("rediss://limiter:secret@redis.internal/") };
/// assert_eq!(settings.max_in_flight, 4096);
/// ```
///
/// Sentinels with a login of their own, and servers with a private authority:
///
/// ```
/// use spillgate_redis::{Settings, Tls};
///
/// let authority = b"-----BEGIN CERTIFICATE-----".to_vec(); // the contents of a PEM file
/// let settings = Settings {
///     sentinel_user: Some("watcher".to_owned()),
///     sentinel_password: Some("secret".to_owned()),
///     tls: Tls { ca: Some(authority), ..Tls::default() },
///     ..Settings::new("rediss-sentinel://limiter:secret@10.0.0.1,10.0.0.2,10.0.0.3/main")
/// };
/// assert_eq!(settings.user(), "limiter");
/// ```
///
/// A cluster under much load. Each worker has two connections of its own, and a dead node is tried again about every
/// half second:
///
/// ```
/// use std::time::Duration;
/// use spillgate_redis::Settings;
///
/// let workers = 8;
/// let settings = Settings {
///     connections: 2 * workers,
///     connect_timeout: Duration::from_secs(2),
///     max_in_flight: 16_384,
///     max_failures: 16,
///     probe_every: Duration::from_millis(500),
///     ..Settings::new("redis-cluster://10.0.0.1:7000,10.0.0.2:7000")
/// };
/// assert!(settings.scripts);
/// ```
///
/// A store whose refusals are never repeated from memory, and whose logs other tools can read:
///
/// ```
/// use spillgate_redis::{LogForm, Settings};
///
/// let settings = Settings { deny_cache_entries: 0, log: LogForm::Zset, ..Settings::new("redis://10.0.0.1/") };
/// assert_eq!(settings.deny_cache_max_age.as_secs(), 1); // has no effect here
/// ```
///
/// A server that refuses scripts. It serves fixed windows only:
///
/// ```
/// use spillgate_core::{OpKind, Quota};
/// use spillgate_redis::Settings;
///
/// let settings = Settings { scripts: false, ..Settings::new("redis://proxy.internal/") };
/// assert!(settings.supports(&Quota::fixed_window(5, std::time::Duration::from_secs(60)).build()?, OpKind::Take));
/// assert!(!settings.supports(&Quota::per_minute(5).build()?, OpKind::Take)); // a token bucket
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone)]
pub struct Settings {
    /// Where the store is. Write `rediss` instead of `redis` for TLS.
    ///
    /// * One server: `redis://[user:password@]host[:port][/database]`, or `unix:///path[?user=..&pass=..&db=..]`.
    ///   `valkey://` and `valkeys://` mean the same as `redis://` and `rediss://`. For a database other than 0 the user
    ///   must be allowed SELECT.
    /// * A cluster: `redis-cluster://[user:password@]host[:port],host[:port]..` with the addresses of some nodes. The
    ///   other nodes are found through them. The user must be allowed ASKING and CLUSTER SLOTS on all nodes.
    /// * Sentinel: `redis-sentinel://[user:password@]host[:port],host[:port]../name[/database]` with the addresses of
    ///   the sentinels, and the name by which they know the primary. The user is the user of the servers, and must be
    ///   allowed ROLE.
    ///
    /// A single address must be a single server. A proxy in front of several nodes must reply CROSSSLOT, as a cluster
    /// node does, when the keys of a command are in different slots. A proxy that picks a server by the first key alone
    /// would count the other keys on the wrong server.
    pub url: String,
    /// The user for the sentinels, if they need a password; `default` if `None`. It must be allowed SENTINEL MASTER and
    /// SENTINEL GET-MASTER-ADDR-BY-NAME.
    pub sentinel_user: Option<String>,
    /// The password for the sentinels.
    pub sentinel_password: Option<String>,
    /// Certificates for TLS.
    pub tls: Tls,
    /// The time in which a request is decided or fails, including time in queues. A part of it is reserved for waking
    /// the caller: a quarter of a millisecond, or a sixteenth of a timeout below 4 ms.
    pub timeout: Duration,
    /// The time in which a connection is made, the user logged in and the scripts loaded. After that the attempt starts
    /// again.
    pub connect_timeout: Duration,
    /// Shared connections to each server: at least 1, at most 1024, and by default two for each core.
    ///
    /// A thread uses two of them in turn: while the server decides the requests on one, the thread fills the other. It
    /// borrows another connection while one of them is missing. A connection is made when a thread first needs it, and
    /// lives on that thread's runtime.
    pub connections: usize,
    /// Requests that may wait for replies at the same time. Further requests fail as
    /// [`Overloaded`](crate::ErrorKind::Overloaded); with 0, all do.
    ///
    /// A request in several slots of a cluster counts once, so up to [`MAX_HITS`](spillgate_core::MAX_HITS) times this
    /// number of calls may be in flight. A connection waits for this number of replies and 65,536 more. Further
    /// commands fail in the same way.
    pub max_in_flight: usize,
    /// The circuit breaker opens after this number of requests in a row without a reply. Requests that had less time
    /// than [`timeout`](Settings::timeout) do not count.
    pub max_failures: u32,
    /// The longest wait before the store tries a server again that is down; at least a millisecond. Three things are
    /// repeated this often: one request while the circuit is open, an attempt to connect, and, while a node of a
    /// cluster fails, a look at the slot map.
    pub probe_every: Duration,
    /// States that the deny cache keeps, to refuse requests without a call to the server. 0 keeps none, and 16,777,216
    /// is the most. A state takes 128 bytes, and a counter of many segments up to 1,100 more.
    ///
    /// A state that refused a take for free refuses again until its retry time, as the server would. The verdict's
    /// source is then `DenyCache`. A take, force or refund through this store removes the state's entry at once.
    /// Changes by other clients are not seen.
    ///
    /// Other limits of the request are reported as the server would report them, if their states are known and
    /// unchanged by this store. If not, they are reported as [not asked](spillgate_core::Reason::NotAsked).
    pub deny_cache_entries: usize,
    /// The greatest age of an entry of the deny cache. After this time a take, reset or refund by another client is
    /// seen, and so is a server that has lost the state. In a cluster it is 100 ms at most, because a refusal there may
    /// be due to units that a request in several slots is about to refund.
    pub deny_cache_max_age: Duration,
    /// How a `sliding_window_log` is stored.
    pub log: LogForm,
    /// Whether requests are scripts. Turn this off for servers and proxies that refuse scripts. A request is then a
    /// transaction of plain commands ([`TRANSACTION_COMMANDS`](crate::TRANSACTION_COMMANDS), Redis 7.0 or later). It
    /// serves only takes and peeks on fixed windows whose refusals are free and start no penalty.
    ///
    /// Each hit is charged by itself, even if the request is refused. A counter may therefore pass its limit, and then
    /// refuses smaller costs that would have fit. The units that are admitted in a window never pass the limit.
    ///
    /// Windows by the first hit must be whole milliseconds. Windows since the epoch are numbered by the time that the
    /// server reported in the last second. A request that finds no such report asks for the time first, in a round trip
    /// of its own. The bound of these windows is f(s + 2d). Here d is the longest timeout of a request plus the
    /// difference between the clocks of a cluster's nodes.
    pub scripts: bool,
}

impl Settings {
    /// Settings for `url`, with the defaults and ten milliseconds for each request.
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

    /// The same settings, each value within its bounds. Every part of the store gets these.
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

/// How a `sliding_window_log` is stored. The keys of the two forms have different names, so counting starts again after
/// a change.
///
/// ```
/// use std::time::Duration;
/// use spillgate_core::{Binding, Hit, Op, Quota};
/// use spillgate_redis::{LogForm, RedisKey};
///
/// let quota = Quota::sliding_window_log(5, Duration::from_secs(60)).build()?;
/// let hit = Hit::new(7, &quota, Op::take(1), Binding::Enforce);
/// assert_ne!(RedisKey::with(&hit, LogForm::Packed), RedisKey::with(&hit, LogForm::Zset));
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogForm {
    /// A list of times: at most 600 bytes for the first hit and 12 for each further one. A take of n units writes n
    /// elements. 65,536 of them take the server about ten milliseconds.
    #[default]
    Packed,
    /// A sorted set that other tools can read. A score is a time in microseconds. A member is the exact time and a
    /// number, as in `1790000000.123456789-0000000000`. It takes at most 120 bytes and 60 for each hit up to 128 hits,
    /// then 160 for each hit. After a penalty the first member has the score `-inf` and is `until` and a time.
    Zset,
}

/// Passwords and keys must not appear in logs.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Certificates and names for TLS. All certificates and keys are in PEM.
///
/// ```
/// use spillgate_redis::Tls;
///
/// let tls = Tls { server_name: Some("redis.internal".to_owned()), ..Tls::default() };
/// assert!(tls.ca.is_none() && !tls.skip_name_check);
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    /// The certificates of the authorities that may sign the server's certificate, or the server's own certificate.
    /// With `None`, the authorities of the system.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate chain and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that the server's certificate must have, instead of the host in the URL: a name or an IP address.
    pub server_name: Option<String>,
    /// Accepts a trusted certificate with any name. Anyone with a certificate from a trusted authority can then pose as
    /// the server.
    pub skip_name_check: bool,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
