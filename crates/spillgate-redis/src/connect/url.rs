//! Parses the URL of a store: where the Redis servers are, how they are found, and which user logs in.
//!
//! The client library ignores parts of a URL that it does not know. Here every mistake is an error, because it could
//! select the wrong database or user.
//!
//! | URL | servers | user | database |
//! |---|---|---|---|
//! | `redis://host` | `host:6379` | none | 0 |
//! | `rediss://u:p@host:7000/5` | `host:7000` with TLS | `u` | 5 |
//! | `unix:///run/redis.sock?user=u&pass=p&db=5` | a socket | `u` | 5 |
//! | `redis-cluster://:p@a,b:7000` | a cluster, found through `a:6379` and `b:7000` | `default` | 0 |
//! | `redis-sentinel://a,b:1/main/5` | the primary `main`, known to `a:26379` and `b:1` | none | 5 |
//! | `redis://host?db=5` | an error: the database must be in the path, as in `redis://host/5` | | |
//! | `redis://u@host` | an error: a user without a password | | |

use redis::{ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo};
use spillgate_core::StoreErrorKind;

use crate::error::Error;

/// The port of a sentinel that has no port in the URL.
const SENTINEL_PORT: u16 = 26379;
/// The maximum number of addresses in a URL. To read the slot map of a cluster, the store can try each of these
/// addresses.
const ADDRESSES_MAX: usize = 64;

/// Returns the address as it is written in a URL or a command. An IPv6 address is in brackets.
pub(crate) fn address_text(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        address => address.to_string(),
    }
}

pub(crate) struct Url {
    pub(crate) servers: Servers,
    /// The user for the Redis servers, and the database.
    pub(crate) user: RedisConnectionInfo,
    pub(crate) is_secure: bool,
}

/// Where the Redis servers are.
pub(crate) enum Servers {
    /// One Redis server: a host and a port, or a socket.
    One(ConnectionAddr),
    /// Some nodes of a cluster. The other nodes are found through them.
    Cluster(Vec<ConnectionAddr>),
    /// The sentinels, and the name by which they know the primary.
    Sentinels(Vec<ConnectionAddr>, String),
}

impl Url {
    /// Parses the URL of a store, without resolving names or reading files.
    ///
    /// # Errors
    /// The error says what is wrong with the URL.
    pub(crate) fn parse(url: &str) -> Result<Url, Error> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("no scheme in the URL of the store"))?;
        // Each of these characters would end the login, and a part of the password would be used as a host.
        if !is_socket(scheme) && rest.rsplit_once('@').is_some_and(|(login, _)| login.contains(['/', '?', '#'])) {
            return Err(invalid("the login in the URL of the store has a `/`, `?` or `#`: write %2F, %3F or %23"));
        }
        match scheme {
            "redis-cluster" | "rediss-cluster" => Url::cluster(rest, scheme.starts_with("rediss")),
            "redis-sentinel" | "rediss-sentinel" => Url::sentinels(rest, scheme.starts_with("rediss")),
            // The client library accepts these schemes only if it does TLS itself. Here this crate does TLS.
            "rediss" | "valkeys" => Url::one(&format!("redis://{rest}"), true),
            _ => Url::one(url, false),
        }
    }

    /// Parses the URL of one Redis server. Each host of a cluster, and each sentinel, is parsed as such a URL too.
    fn one(url: &str, is_secure: bool) -> Result<Url, Error> {
        refuse_what_would_be_ignored(url)?;
        let info = url.into_connection_info().map_err(Error::of_redis)?;
        let user = info.redis_settings().clone();
        if user.username().is_some() && user.password().is_none() {
            return Err(invalid("the URL of the store has a user without a password"));
        }
        Ok(Url { servers: Servers::One(info.addr().clone()), user, is_secure })
    }

    /// Parses the URL of a cluster, without its scheme.
    fn cluster(rest: &str, is_secure: bool) -> Result<Url, Error> {
        let MultiHost { credentials, hosts, path } = MultiHost::split(rest);
        let (addresses, url) = addresses(credentials, hosts, path, None, is_secure)?;
        if url.user.db() != 0 {
            return Err(invalid("a cluster has no database but 0"));
        }
        Ok(Url { servers: Servers::Cluster(addresses), ..url })
    }

    /// Parses the URL of sentinels, without its scheme. The path is the primary's name, and then the database.
    fn sentinels(rest: &str, is_secure: bool) -> Result<Url, Error> {
        let MultiHost { credentials, hosts, path } = MultiHost::split(rest);
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(invalid("no name of the primary that the sentinels know"));
        }
        if path.contains(['?', '#']) {
            return Err(invalid(
                "the URL of the sentinels has a `?` or `#`: after the hosts come the primary's name and the database only",
            ));
        }
        let (addresses, url) = addresses(credentials, hosts, database, Some(SENTINEL_PORT), is_secure)?;
        Ok(Url { servers: Servers::Sentinels(addresses, name.to_owned()), ..url })
    }
}

/// A URL without its scheme: `[user:password@]host[:port],host[:port]..[/path]`.
struct MultiHost<'u> {
    /// Everything before the last `@` of the authority (the text before the first `/`). Empty if the authority has no
    /// `@`.
    credentials: &'u str,
    /// The hosts, with commas between them.
    hosts: &'u str,
    /// Everything after the first `/`.
    path: &'u str,
}

impl MultiHost<'_> {
    /// Splits a URL without its scheme. Every text can be split; its parts are checked later.
    fn split(rest: &str) -> MultiHost<'_> {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        MultiHost { credentials, hosts, path }
    }
}

/// Returns the addresses of all hosts, and the URL as it is parsed with the first host. A host without a port gets
/// `port`. If `port` is `None`, such a host gets 6379, the usual port of Redis.
fn addresses(
    credentials: &str,
    hosts: &str,
    database: &str,
    port: Option<u16>,
    is_secure: bool,
) -> Result<(Vec<ConnectionAddr>, Url), Error> {
    let urls: Result<Vec<Url>, Error> = hosts
        .split(',')
        .map(|host| {
            let port = port.filter(|_| !has_port(host)).map(|port| format!(":{port}")).unwrap_or_default();
            Url::one(&format!("redis://{credentials}@{host}{port}/{database}"), is_secure)
        })
        .collect();
    let mut urls = urls?;
    if urls.len() > ADDRESSES_MAX {
        return Err(invalid("too many addresses in the URL of the store"));
    }
    let addresses = urls.iter().filter_map(|url| match &url.servers {
        Servers::One(address) => Some(address.clone()),
        _ => None,
    });
    Ok((addresses.collect(), urls.swap_remove(0)))
}

/// Returns whether a URL with this scheme is the path of a Unix socket.
fn is_socket(scheme: &str) -> bool {
    matches!(scheme, "unix" | "redis+unix" | "valkey+unix")
}

/// Returns whether the host has a port. An IPv6 address in brackets also contains colons.
fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'))
}

/// Refuses the parts of a URL that the client library would ignore, or would refuse without a reason.
fn refuse_what_would_be_ignored(url: &str) -> Result<(), Error> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (location, query) = rest.split_once('?').map_or((rest, None), |(location, query)| (location, Some(query)));
    if is_socket(scheme) {
        let is_known = |pair: &str| ["user=", "pass=", "db="].iter().any(|key| pair.starts_with(key));
        return match query {
            Some(query) if !query.split('&').all(is_known) => Err(invalid("a Unix socket's URL has user, pass and db")),
            _ => Ok(()),
        };
    }
    if query.is_some() {
        return Err(invalid("the URL of the store has a `?`: a database is its path, as in redis://host:6379/5"));
    }
    let MultiHost { hosts: host, path, .. } = MultiHost::split(location);
    let (name, port) = host.rsplit_once(':').filter(|_| has_port(host)).unwrap_or((host, "6379"));
    if host.contains(',') {
        Err(invalid("several addresses are those of a cluster, redis-cluster://, or of sentinels, redis-sentinel://"))
    } else if name.contains(':') && !name.starts_with('[') {
        Err(invalid("write an IPv6 address in brackets, as in redis://[::1]:6379"))
    } else if port.parse::<u16>().is_err() {
        Err(invalid("the port of the store is not a number from 0 to 65535"))
    } else if !path.is_empty() && path.parse::<i64>().is_err() {
        Err(invalid("the database of the store is not a number"))
    } else {
        Ok(())
    }
}

fn invalid(what: &'static str) -> Error {
    Error::new(StoreErrorKind::Other, what)
}

#[cfg(test)]
mod tests;
