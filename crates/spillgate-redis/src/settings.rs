//! The settings of a store: how it reaches Redis, how long it waits, and how it keeps states.
//!
//! A value that is out of bounds is not an error. When a store is created, [`Settings::within_bounds`] replaces the
//! value by the nearest bound:
//!
//! | setting | least | most |
//! |---|---|---|
//! | times | 0, and 1 ms for `probe_every` | a day |
//! | `connections` | 1 | 1,024 |
//! | `max_in_flight` | 0 | 2^28 |
//! | `deny_cache_entries` | 0 | 2^24 |

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// No time is longer than a day, so that sums of times cannot overflow.
pub(crate) const LONGEST: Duration = Duration::from_secs(86_400);
/// The least value of `probe_every`. More frequent probes would only load Redis.
const SHORTEST_PROBE: Duration = Duration::from_millis(1);
/// The maximum number of connections to one Redis server. Each connection has a task and a buffer of 16 KiB or more.
const MAX_CONNECTIONS: usize = 1024;
/// The maximum number of requests in flight. The store computes sums from this number, and the sums must not overflow.
const MAX_IN_FLIGHT: usize = 1 << 28;
/// The maximum number of states in the deny cache. At 128 bytes each, they need 2 GiB.
const MAX_DENY_CACHE_ENTRIES: usize = 1 << 24;

/// Settings of a [`RedisStore`](crate::RedisStore).
///
/// A value that is out of bounds is replaced by the nearest bound. No time can be longer than a day.
///
/// # Examples
///
/// One Redis server with TLS and a short timeout:
///
/// ```
/// use std::time::Duration;
/// use spillgate_redis::Settings;
///
/// let settings = Settings { timeout: Duration::from_millis(5), ..Settings::new("rediss://limiter:secret@redis.internal/") };
/// assert_eq!(settings.max_in_flight, 4096);
/// ```
///
/// Sentinels with another login than the Redis servers, and a private authority that has signed the certificates:
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
/// A cluster under heavy load. Each worker thread has two connections to each node. The store tries a dead node again
/// after half a second at most:
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
/// A store without the deny cache, so that every refusal comes from Redis, and with logs that other tools can read:
///
/// ```
/// use spillgate_redis::{LogForm, Settings};
///
/// let settings = Settings { deny_cache_entries: 0, log: LogForm::Zset, ..Settings::new("redis://10.0.0.1/") };
/// assert_eq!(settings.deny_cache_max_age.as_secs(), 1); // has no effect here
/// ```
///
/// A Redis server that refuses scripts. The store then serves fixed windows only:
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
    /// * One Redis server: `redis://[user:password@]host[:port][/database]`, or `unix:///path[?user=..&pass=..&db=..]`.
    ///   `valkey://` and `valkeys://` mean the same as `redis://` and `rediss://`. For a database other than 0 the user
    ///   must be allowed SELECT.
    /// * A cluster: `redis-cluster://[user:password@]host[:port],host[:port]..` with the addresses of some nodes. The
    ///   store finds the other nodes through them. The user must be allowed ASKING and CLUSTER SLOTS on all nodes.
    /// * Sentinels: `redis-sentinel://[user:password@]host[:port],host[:port]../name[/database]` with the addresses of
    ///   the sentinels, and the name by which they know the primary. The user logs in to the Redis servers, not to the
    ///   sentinels, and must be allowed ROLE.
    ///
    /// The host in a `redis://` URL must be a single Redis server or a proxy. A proxy in front of several nodes must
    /// reply CROSSSLOT when the keys of a command are in different slots, as a cluster node does. A proxy that picks a
    /// node by the first key alone would count the other keys on the wrong node.
    pub url: String,
    /// The user for the sentinels, if they need a password. `None` means the user `default`. The user must be allowed
    /// SENTINEL MASTER and SENTINEL GET-MASTER-ADDR-BY-NAME.
    pub sentinel_user: Option<String>,
    /// The password for the sentinels. `None` if they need no password.
    pub sentinel_password: Option<String>,
    /// Certificates and names for TLS. They have no effect if the URL does not ask for TLS.
    pub tls: Tls,
    /// Reads passwords and certificates again before each new connection. `None` if they never change.
    pub reread: Option<Reread>,
    /// The time in which a request is decided or fails, including its time in queues. Of this time, a quarter of a
    /// millisecond is reserved for waking the caller. A timeout below 4 ms reserves a sixteenth of itself.
    pub timeout: Duration,
    /// The time in which a connection must be made, the user logged in, and the scripts loaded. If an attempt takes
    /// longer, it fails, and the store tries again.
    pub connect_timeout: Duration,
    /// The number of connections to each Redis server, which all requests share. It is at least 1, at most 1024, and by
    /// default two for each core.
    ///
    /// Each thread alternates between two connections: while Redis decides the requests on one of them, the thread
    /// sends its next requests on the other one. If one of the two does not exist yet, the thread uses a connection of
    /// another thread. A connection is made when a thread first needs it, and lives on that thread's runtime. Threads that
    /// [stand aside](crate::stand_aside) share one further connection.
    pub connections: usize,
    /// The maximum number of requests that wait for replies at the same time. Further requests fail as
    /// [`Overloaded`](crate::StoreErrorKind::Overloaded). With 0, all requests fail.
    ///
    /// A request in several slots of a cluster counts once, although it makes several calls. So up to
    /// [`MAX_HITS`](spillgate_core::MAX_HITS) times this number of calls can be in flight. One connection waits for at
    /// most `max_in_flight` + 65,536 replies. Further commands on that connection fail as `Overloaded` too.
    pub max_in_flight: usize,
    /// The circuit breaker opens when this many requests in a row get no reply. Requests that waited for less than
    /// 7/8 of the [`timeout`](Settings::timeout) do not count.
    pub max_failures: u32,
    /// The longest wait before the store tries again to reach a Redis server that is down, at least a millisecond.
    /// After each wait, the store tries once: it sends one request if the circuit is open, and connects if there is no
    /// connection. While a node of a cluster fails, the store also waits at most this long before it reads the slot map
    /// again.
    pub probe_every: Duration,
    /// The number of states that the deny cache keeps, to refuse requests without a call to Redis. 0 turns the cache
    /// off, and 16,777,216 is the maximum. A state needs 128 bytes. A counter of many segments needs up to 1,100 bytes
    /// more.
    ///
    /// If a state refused a take and did not change, the cache refuses takes on this state until the retry time, as
    /// Redis would. The verdict's source is then `DenyCache`. An allowed take, a force, a refund or a reset through
    /// this store removes the state from the cache. Changes by other clients are not seen until the entry reaches its
    /// [greatest age](Settings::deny_cache_max_age).
    ///
    /// A refusal from the cache also reports the other limits of the request. If the cache has the state of a limit, it
    /// reports the limit as Redis would. If not, it reports the limit as [not asked](spillgate_core::Reason::NotAsked).
    pub deny_cache_entries: usize,
    /// The greatest age of an entry of the deny cache. After this time, the store sees the takes, resets and refunds of
    /// other clients, and a loss of data in Redis. In a cluster, an entry is used for at most 100 ms, even if this
    /// setting is larger. A request in several slots refunds its units if one of the slots refuses, so units that
    /// caused a refusal there can become free soon.
    pub deny_cache_max_age: Duration,
    /// How many new keys of each limit this store makes a second. It can make as many at once after a quiet second, and
    /// the takes that are in flight at that moment can make more. `None` means any number.
    ///
    /// While a limit has no new keys left, the store looks for the keys of its takes before it sends the takes. If a key
    /// does not exist, the request fails as [`NewKeys`](crate::StoreErrorKind::NewKeys), so a client that makes many keys
    /// cannot fill Redis. Callers whose keys exist are decided as always. A `FallbackStore` decides the others by this
    /// program's share of the limit. Limits with the same algorithm, window and capacity count together.
    pub new_keys_per_second: Option<NonZeroU32>,
    /// How a `sliding_window_log` is stored.
    pub log: LogForm,
    /// Whether requests are sent as scripts. Turn this off for Redis servers and proxies that refuse scripts. A request
    /// is then a transaction of plain commands ([`TRANSACTION_COMMANDS`](crate::TRANSACTION_COMMANDS), Redis 7.0 or
    /// later). Without scripts, the store serves only takes and peeks on fixed windows. It refuses to serve a quota
    /// with [`Denied::Charged`](spillgate_core::Denied::Charged) or with a penalty.
    ///
    /// Without scripts, each take is charged even if the request is refused, unless its cost is above the limit: a
    /// plain command adds the cost before the store knows the count. So the counter of a window can exceed the limit,
    /// and the store then refuses smaller costs that would have fit. The units that are admitted in a window never
    /// exceed the limit.
    ///
    /// Without scripts, a window that begins at its first hit must last a whole number of milliseconds. A window that
    /// begins at a multiple of its length since the epoch has a number, which the store needs before it sends the
    /// request. The store computes this number from a time that Redis reported in the last second. If there is no such
    /// report, the request first asks for the time, in another round trip. The estimate of the time costs some
    /// exactness. Let `f(s)` be the maximum number of units that such a quota admits with scripts in a time `s`.
    /// Without scripts the maximum is `f(s + 2d)`, where `d` is the longest timeout of a request plus the difference
    /// between the clocks of a cluster's nodes.
    pub scripts: bool,
}

impl Settings {
    /// Creates settings for `url` with the default values. The timeout of a request is ten milliseconds, for a program that
    /// serves requests. For calls to other services, use [`for_calls`](Settings::for_calls).
    pub fn new(url: impl Into<String>) -> Settings {
        Settings {
            url: url.into(),
            sentinel_user: None,
            sentinel_password: None,
            tls: Tls::default(),
            reread: None,
            timeout: Duration::from_millis(10),
            connect_timeout: Duration::from_secs(1),
            connections: 2 * std::thread::available_parallelism().map_or(1, usize::from),
            max_in_flight: 4096,
            max_failures: 8,
            probe_every: Duration::from_millis(250),
            deny_cache_entries: 65_536,
            deny_cache_max_age: Duration::from_secs(1),
            new_keys_per_second: None,
            log: LogForm::Packed,
            scripts: true,
        }
    }

    /// Creates settings for the calls of a program to other services: for a `Pacer` or a `FarSide`. The timeout of a request
    /// is five seconds, because such a call waits anyway, and an answer that comes late is worth more than an error. All
    /// other values are those of [`new`](Settings::new).
    ///
    /// ```
    /// use spillgate_redis::Settings;
    ///
    /// assert_eq!(Settings::for_calls("redis://10.0.0.7/").timeout.as_secs(), 5);
    /// ```
    pub fn for_calls(url: impl Into<String>) -> Settings {
        Settings { timeout: Duration::from_secs(5), ..Settings::new(url) }
    }

    /// Returns the same settings with each value within its bounds. Every part of the store gets these settings.
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

/// How a `sliding_window_log` is stored. The two forms use different keys. So after a change of the form, all logs
/// begin empty.
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
    /// A list with one element, a time, for each unit that was taken. The list needs at most 600 bytes for the first
    /// unit, and 12 bytes for each further unit. Redis needs about ten milliseconds to write 65,536 elements.
    #[default]
    Packed,
    /// A sorted set that other tools can read, with one member for each unit. The score of a member is a time in
    /// microseconds. The name of a member is the exact time and a number, as in `1790000000.123456789-0000000000`. A
    /// set of `n` units takes at most `120 + 60n` bytes if `n` is at most 128, and otherwise at most `160n` bytes.
    /// After a penalty, the first member has the score `-inf`, and its name begins with `until` and a time.
    Zset,
}

/// Omits almost all fields, because passwords and keys must not appear in logs.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Reads the settings of a store again, so that a password or a certificate can change while the store is in use.
///
/// The store calls the function before each new connection, on a thread for blocking calls, and one call at a time. Of
/// the result, it uses the login in [`url`](Settings::url), the login of the sentinels, and [`tls`](Settings::tls). Other
/// settings stay as they were, and so does the choice between TLS and no TLS.
///
/// If the function fails, or takes longer than an eighth of [`connect_timeout`](Settings::connect_timeout), the
/// connection is made with what was read last. If that login fails, the error contains the reason. A connection that is
/// open stays open: Redis checks a login only once.
///
/// ```
/// use spillgate_redis::{Reread, Settings};
///
/// fn settings() -> Result<Settings, String> {
///     let password = std::fs::read_to_string("/run/secrets/redis").map_err(|error| error.to_string())?;
///     Ok(Settings::new(format!("redis://:{}@redis.internal/", password.trim())))
/// }
///
/// let settings = Settings { reread: Some(Reread::new(settings)), ..Settings::new("redis://:first@redis.internal/") };
/// assert!(settings.reread.is_some());
/// ```
#[derive(Clone)]
pub struct Reread(Arc<dyn Fn() -> Result<Settings, String> + Send + Sync>);

impl Reread {
    /// Returns a value that calls `read`. The error of `read` is a text for the log. It must not contain a secret.
    pub fn new(read: impl Fn() -> Result<Settings, String> + Send + Sync + 'static) -> Reread {
        Reread(Arc::new(read))
    }

    pub(crate) fn call(&self) -> Result<Settings, String> {
        (self.0)()
    }
}

impl std::fmt::Debug for Reread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reread")
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
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the authorities that may sign the Redis server's certificate, or the server's own
    /// certificate. `None` means the authorities that the system trusts.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate chain and its private key. `None` if Redis does not ask for them.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// The name or IP address that the server's certificate must have, instead of the host in the URL.
    pub server_name: Option<String>,
    /// Accepts a trusted certificate with any name. Any owner of a certificate from a trusted authority can then
    /// pretend to be Redis.
    pub skip_name_check: bool,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
