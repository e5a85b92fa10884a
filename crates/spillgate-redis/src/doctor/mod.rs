//! Examines the Redis servers of a store, and collects the facts that decide whether the store can keep limits.
//!
//! The findings are data: the doctor (this module) does not say whether a finding is good or bad. It runs scripts on
//! keys that no request uses, and removes these keys at the end. It changes nothing else.
//!
//! Each Redis server is examined in this order. The first error ends the examination of that server, and is part of its
//! report:
//!
//! | step | command | finding |
//! |---|---|---|
//! | login | PING | an error if the login is missing |
//! | the server | INFO | [`Info`] |
//! | clock | TIME, eight times | [`ServerReport::ahead_ns`] |
//! | rights | each command of the store, tried without its effect | [`ServerReport::forbidden`] |
//! | scripts | SCRIPT LOAD and EVALSHA, once for each script | [`ServerReport::scripts`] |
//! | latency | EVALSHA, or GET if scripts are off, [`CALLS`] times | [`ServerReport::calls`] |

mod acl;
mod probe;
mod shards;

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, cmd};
use spillgate_core::{QuotaError, StoreErrorKind, Time};
use tokio::time::timeout;

use crate::connect::connector::Connector;
use crate::connect::endpoint::{Endpoint, Location};
use crate::connect::race::first_success;
use crate::connect::sentinel::Sentinels;
use crate::connect::tls::TlsClient;
use crate::connect::url::{Servers, Url, address_text};
use crate::error::{Cause, Error};
use crate::settings::Settings;

use probe::{Probe, permitted, within};
use shards::Shard;

pub use acl::CLUSTER_COMMANDS;
pub use probe::CALLS;

/// The findings about a store. [`examine`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The single Redis server, or each primary of a cluster.
    pub servers: Vec<ServerReport>,
    /// The cluster, if the store is one.
    pub cluster: Option<ClusterReport>,
    /// The sentinels in the URL. Empty if the URL names no sentinels.
    pub sentinels: Vec<SentinelReport>,
}

/// What one sentinel reports. [`examine`] has an example of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentinelReport {
    /// The host and port of the sentinel.
    pub address: String,
    /// The address of the primary, or the reason why the sentinel did not report it.
    pub primary: Result<String, Error>,
}

/// The findings about one Redis server. A field is `None` if the user may not use the command that reads it.
/// [`examine`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerReport {
    /// The host and port of the server, or its socket.
    pub address: String,
    /// The facts in the reply to INFO.
    pub info: Option<Info>,
    /// The error that ended the examination, if there was one.
    pub error: Option<Error>,
    /// The commands that the user may not use on `sg:*`.
    ///
    /// If scripts are on, the doctor tries [`SCRIPT_COMMANDS`](crate::SCRIPT_COMMANDS) and the commands that run
    /// scripts. If scripts are off, the doctor tries [`TRANSACTION_COMMANDS`](crate::TRANSACTION_COMMANDS). On a
    /// cluster it also tries [`CLUSTER_COMMANDS`].
    ///
    /// A push (LPUSH or RPUSH) creates a list. This list would stay if the user may run no scripts and may neither
    /// write a string nor remove a key. In this case, the doctor does not try a push, and reports LPUSH and RPUSH as
    /// forbidden.
    pub forbidden: Vec<&'static str>,
    /// The commands of [`LIST_COMMANDS`](crate::LIST_COMMANDS) that the user may not use on `sg:*`.
    pub forbidden_of_lists: Vec<&'static str>,
    /// Each script, with the error if it does not run. Empty if scripts are off, or if a command is forbidden.
    pub scripts: Vec<(&'static str, Option<Error>)>,
    /// How far the server's clock is ahead of the local clock, and the greatest error of this number, both in
    /// nanoseconds. The greatest error is half of the round trip.
    pub ahead_ns: Option<(i64, u64)>,
    /// The durations of [`CALLS`] calls that were made one after the other, sorted. Empty if a command is forbidden, or
    /// if a script does not run.
    pub calls: Vec<Duration>,
}

/// The facts in the reply to INFO. [`examine`] has an example of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// `redis` or `valkey`.
    pub product: String,
    /// The version of the product.
    pub version: String,
    /// `master` or `slave`.
    pub role: String,
    /// The number of connected replicas.
    pub replicas: u64,
    /// Whether the server refuses writes while it has too few replicas (`min-replicas-to-write`).
    pub waits_for_replicas: bool,
    /// The server's memory limit in bytes. 0 means no limit.
    pub maxmemory_bytes: u64,
    /// The server's memory in use, in bytes.
    pub used_memory_bytes: u64,
    /// What Redis does when its memory is full, such as `noeviction`.
    pub maxmemory_policy: String,
    /// Whether the server is a node of a cluster.
    pub in_cluster: bool,
    /// Whether the server is a sentinel. A sentinel has no keys, so nothing else is examined.
    pub is_sentinel: bool,
}

/// A cluster, as reported by the node that replied first. [`examine`] has an example of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterReport {
    /// `ok` or `fail`. `None` if the user may not use CLUSTER INFO.
    pub state: Option<String>,
    /// The number of slots that have a node. A complete cluster has 16384.
    pub slots: usize,
    /// The addresses of the primaries without a replica.
    pub alone: Vec<String>,
}

/// Examines the store at `settings.url`. `now` reads the local clock. The doctor waits for each reply at most
/// [`Settings::timeout`].
///
/// # Errors
/// The store cannot be reached, or the URL is invalid. A primary that sentinels name, but that does not answer, is a
/// finding, not an error.
///
/// ```no_run
/// # async fn example() -> Result<(), spillgate_redis::Error> {
/// use std::time::SystemTime;
/// use spillgate_core::Time;
/// use spillgate_redis::Settings;
/// use spillgate_redis::doctor::examine;
///
/// let now = || {
///     let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
///     Time::from_nanos(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
/// };
/// let report = examine(&Settings::new("redis://127.0.0.1/"), &now).await?;
/// for server in &report.servers {
///     println!("{}: {} commands are forbidden", server.address, server.forbidden.len());
/// }
/// # Ok(())
/// # }
/// ```
pub async fn examine(settings: &Settings, now: &(dyn Fn() -> Time + Sync)) -> Result<Report, Error> {
    let settings = &settings.within_bounds();
    let url = Url::parse(&settings.url)?;
    let tls = if url.is_secure { Some(TlsClient::new(&settings.tls)?) } else { None };
    let connector = Arc::new(Connector::new(url.user, tls, settings));
    let location = match url.servers {
        Servers::One(address) => Location::Address(address),
        Servers::Sentinels(sentinels, name) => Location::Sentinels(Sentinels::new(sentinels, name)),
        Servers::Cluster(seeds) => {
            let open = seeds.iter().map(|seed| connector.open(seed));
            let first =
                within(settings.connect_timeout, first_success(open.collect(), settings.connect_timeout)).await?;
            return cluster(&connector, Probe::new(first, settings.timeout), settings, now).await;
        }
    };
    let endpoint = Endpoint { connector, location };
    let connected = timeout(settings.connect_timeout, endpoint.reach()).await;
    let connected = connected.unwrap_or_else(|_| Err(endpoint.named(probe::late(settings.connect_timeout))));
    let (server, sentinels) = match (connected, &endpoint.location) {
        (Ok(connected), location) => {
            let mut probe = Probe::new(connected, settings.timeout);
            probe.check_login().await.map_err(|error| endpoint.named(error))?;
            let server = server(probe, settings, None, now).await;
            let server = ServerReport { error: server.error.map(|error| endpoint.named(error)), ..server };
            let sentinels = match location {
                Location::Sentinels(sentinels) => sentinels.each(&endpoint.connector, settings.connect_timeout).await,
                Location::Address(_) => Vec::new(),
            };
            (server, sentinels)
        }
        (Err(error), Location::Sentinels(sentinels)) if is_silent(&error) => {
            let Some(primary) = sentinels.named() else { return Err(error) };
            let server = ServerReport { error: Some(error), ..ServerReport::of(&primary) };
            (server, sentinels.each(&endpoint.connector, settings.connect_timeout).await)
        }
        (Err(error), _) => return Err(error),
    };
    let reply = |(address, primary): (ConnectionAddr, Result<ConnectionAddr, Error>)| SentinelReport {
        address: address_text(&address),
        primary: primary.map(|primary| address_text(&primary)),
    };
    Ok(Report { servers: vec![server], cluster: None, sentinels: sentinels.into_iter().map(reply).collect() })
}

/// Returns whether a server does not answer, for a reason that only the server and the network can show.
fn is_silent(error: &Error) -> bool {
    matches!(error.kind, StoreErrorKind::Timeout | StoreErrorKind::Disconnected) && error.cause == Cause::Unknown
}

/// Examines the primaries of a cluster, one after the other. `first` is a connection to the node that replied first.
///
/// # Errors
/// An error if that first node does not report the slots. A primary that cannot be reached is a finding, not an error.
async fn cluster(
    connector: &Connector,
    mut first: Probe,
    settings: &Settings,
    now: &(dyn Fn() -> Time + Sync),
) -> Result<Report, Error> {
    first.check_login().await?;
    let reply = first.query(cmd("CLUSTER").arg("SLOTS")).await?;
    let shards = shards::read(&reply, first.address());
    let reply = permitted(first.text(cmd("CLUSTER").arg("INFO")).await)?;
    let report = ClusterReport {
        state: reply.and_then(|reply| field(&reply, "cluster_state")),
        slots: shards.iter().map(Shard::slots).sum(),
        alone: shards.iter().filter(|shard| shard.replicas == 0).map(|shard| address_text(&shard.primary)).collect(),
    };
    let mut servers = Vec::new();
    for shard in &shards {
        servers.push(match within(settings.connect_timeout, connector.open(&shard.primary)).await {
            Ok(connected) => {
                let probe = Probe::new(connected, settings.timeout);
                server(probe, settings, Some(shard), now).await
            }
            Err(error) => ServerReport { error: Some(error), ..ServerReport::of(&shard.primary) },
        });
    }
    Ok(Report { servers, cluster: Some(report), sentinels: Vec::new() })
}

/// Examines one server. In a cluster, `shard` has the slots of this server.
async fn server(
    mut server: Probe,
    settings: &Settings,
    shard: Option<&Shard>,
    now: &(dyn Fn() -> Time + Sync),
) -> ServerReport {
    let mut report = ServerReport::of(server.address());
    let result = collect(&mut server, settings, shard, now, &mut report).await;
    server.clean_up().await;
    report.error = result.err();
    report
}

/// Does the steps in the table at the top of this file, after the login. If a step fails, the findings of the earlier
/// steps stay in the report.
async fn collect(
    server: &mut Probe,
    settings: &Settings,
    shard: Option<&Shard>,
    now: &(dyn Fn() -> Time + Sync),
    report: &mut ServerReport,
) -> Result<(), Error> {
    report.info = permitted(server.text(&cmd("INFO")).await)?.map(|text| Info::read(&text));
    if report.info.as_ref().is_some_and(|info| info.is_sentinel) {
        return Ok(());
    }
    let samples =
        probe::Samples::new().map_err(|error: QuotaError| Error::new(StoreErrorKind::Other, error.to_string()))?;
    let key = samples.key_in(|slot| shard.is_none_or(|shard| shard.has(slot)));
    server.key = key.ok_or_else(|| Error::new(StoreErrorKind::Other, "the server has no slot"))?;
    report.ahead_ns = server.ahead_ns(now).await?;
    report.forbidden = acl::forbidden(server, &samples, settings, shard.is_some()).await?;
    report.forbidden_of_lists = acl::forbidden_of_lists(server, &samples).await?;
    // If a right is missing, a script may stop in the middle and leave a key that never expires. So no script is run.
    if !report.forbidden.is_empty() {
        return Ok(());
    }
    if settings.scripts {
        report.scripts = server.scripts(&samples).await;
    }
    if report.scripts.iter().all(|(_, error)| error.is_none()) {
        report.calls = server.calls(&samples, settings.scripts).await?;
    }
    Ok(())
}

impl ServerReport {
    fn of(address: &ConnectionAddr) -> ServerReport {
        ServerReport {
            address: address_text(address),
            info: None,
            error: None,
            forbidden: Vec::new(),
            forbidden_of_lists: Vec::new(),
            scripts: Vec::new(),
            ahead_ns: None,
            calls: Vec::new(),
        }
    }
}

impl Info {
    /// Reads the lines `name:value` of INFO. If a line is missing, its value is an empty text or 0.
    fn read(text: &str) -> Info {
        let of = |name: &str| field(text, name).unwrap_or_default();
        let (valkey, number) = (of("valkey_version"), |name: &str| of(name).parse().unwrap_or(0));
        let (product, version) =
            if valkey.is_empty() { ("redis", of("redis_version")) } else { ("valkey", valkey.clone()) };
        Info {
            product: product.to_owned(),
            version,
            role: of("role"),
            replicas: number("connected_slaves"),
            // INFO has this line only if `min-replicas-to-write` is set.
            waits_for_replicas: field(text, "min_slaves_good_slaves").is_some(),
            maxmemory_bytes: number("maxmemory"),
            used_memory_bytes: number("used_memory"),
            maxmemory_policy: of("maxmemory_policy"),
            in_cluster: number("cluster_enabled") == 1,
            is_sentinel: of("redis_mode") == "sentinel" || of("server_mode") == "sentinel",
        }
    }
}

/// Returns the value in the line `name:value`.
pub(crate) fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::Info;

    #[test]
    fn info_of_either_product_is_read() {
        let text = "# Server\r\nredis_version:7.0.15\r\ncluster_enabled:0\r\n# Memory\r\nused_memory:512\r\nmaxmemory:1024\r\n\
                    maxmemory_policy:volatile-ttl\r\nrole:master\r\nconnected_slaves:2\r\nmin_slaves_good_slaves:2\r\n";
        let redis = Info::read(text);
        assert_eq!((redis.product.as_str(), redis.version.as_str()), ("redis", "7.0.15"));
        let memory = (redis.used_memory_bytes, redis.maxmemory_bytes, redis.maxmemory_policy.as_str());
        assert_eq!(memory, (512, 1024, "volatile-ttl"));
        assert_eq!((redis.role.as_str(), redis.replicas, redis.in_cluster), ("master", 2, false));
        assert!(redis.waits_for_replicas);
        let valkey = Info::read("redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.1.0\ncluster_enabled:1\n");
        assert_eq!((valkey.product.as_str(), valkey.version.as_str(), valkey.in_cluster), ("valkey", "8.1.0", true));
        assert!(!valkey.waits_for_replicas);
        let sentinel = |mode: &str| Info::read(&format!("{mode}:sentinel\n")).is_sentinel;
        assert!(sentinel("redis_mode") && sentinel("server_mode") && !redis.is_sentinel && !valkey.is_sentinel);
    }
}
