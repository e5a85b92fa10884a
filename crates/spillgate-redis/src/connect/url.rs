//! Parses the URL of a store: where the servers are, how they are found, and which user logs in.
//!
//! The client library ignores parts of a URL that it does not know. Here every mistake is an error, since a mistake
//! could select the wrong database or user.

use redis::{ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo};

use crate::error::{Error, ErrorKind};

const SENTINEL_PORT: u16 = 26379;
/// A request for the slot map may try each of them.
const ADDRESSES_MAX: usize = 64;

/// The address as a URL or a command contains it: an IPv6 address is in brackets.
pub(crate) fn address_text(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        address => address.to_string(),
    }
}

/// A parsed URL.
pub(crate) struct Url {
    pub(crate) servers: Servers,
    /// The user for the servers, and the database.
    pub(crate) user: RedisConnectionInfo,
    pub(crate) is_secure: bool,
}

/// Where the servers are.
pub(crate) enum Servers {
    One(ConnectionAddr),
    /// Some nodes of a cluster, through which the others are found.
    Cluster(Vec<ConnectionAddr>),
    /// The sentinels, and the name by which they know the primary.
    Sentinels(Vec<ConnectionAddr>, String),
}

impl Url {
    /// # Errors
    /// The text is not the URL of a store.
    pub(crate) fn parse(url: &str) -> Result<Url, Error> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("no scheme in the URL of the store"))?;
        match scheme {
            "redis-cluster" | "rediss-cluster" => Url::cluster(rest, scheme.starts_with("rediss")),
            "redis-sentinel" | "rediss-sentinel" => Url::sentinels(rest, scheme.starts_with("rediss")),
            // The client library knows these schemes only if it does TLS itself.
            "rediss" | "valkeys" => Url::one(&format!("redis://{rest}"), true),
            _ => Url::one(url, false),
        }
    }

    fn one(url: &str, is_secure: bool) -> Result<Url, Error> {
        refuse_what_would_be_ignored(url)?;
        let info = url.into_connection_info()?;
        let user = info.redis_settings().clone();
        if user.username().is_some() && user.password().is_none() {
            return Err(invalid("the URL of the store has a user without a password"));
        }
        Ok(Url { servers: Servers::One(info.addr().clone()), user, is_secure })
    }

    fn cluster(rest: &str, is_secure: bool) -> Result<Url, Error> {
        let MultiHost { credentials, hosts, path } = MultiHost::split(rest);
        let (addresses, url) = addresses(credentials, hosts, path, None, is_secure)?;
        if url.user.db() != 0 {
            return Err(invalid("a cluster has no database but 0"));
        }
        Ok(Url { servers: Servers::Cluster(addresses), ..url })
    }

    fn sentinels(rest: &str, is_secure: bool) -> Result<Url, Error> {
        let MultiHost { credentials, hosts, path } = MultiHost::split(rest);
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(invalid("no name of the primary that the sentinels know"));
        }
        let (addresses, url) = addresses(credentials, hosts, database, Some(SENTINEL_PORT), is_secure)?;
        Ok(Url { servers: Servers::Sentinels(addresses, name.to_owned()), ..url })
    }
}

/// `[user:password@]host[:port],host[:port]..[/path]`.
struct MultiHost<'u> {
    credentials: &'u str,
    hosts: &'u str,
    path: &'u str,
}

impl MultiHost<'_> {
    fn split(rest: &str) -> MultiHost<'_> {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        MultiHost { credentials, hosts, path }
    }
}

/// All hosts, and the rest of the URL as parsed with the first host.
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

/// An IPv6 address in brackets contains colons of its own.
fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'))
}

/// Refuses what the client library ignores, or refuses without a reason.
fn refuse_what_would_be_ignored(url: &str) -> Result<(), Error> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (location, query) = rest.split_once('?').map_or((rest, None), |(location, query)| (location, Some(query)));
    if matches!(scheme, "unix" | "redis+unix" | "valkey+unix") {
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
        Err(invalid("the port of the store is no number up to 65535"))
    } else if !path.is_empty() && path.parse::<i64>().is_err() {
        Err(invalid("the database of the store is no number"))
    } else {
        Ok(())
    }
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::Other, what)
}

#[cfg(test)]
mod tests {
    use redis::ConnectionAddr;

    use super::{Servers, Url, address_text};

    /// The addresses, the name of the primary, and the user.
    fn parsed(url: &str) -> Option<(Vec<String>, String, String)> {
        let Url { servers, user, is_secure } = Url::parse(url).ok()?;
        let (addresses, name) = match servers {
            Servers::One(address) => (vec![address], String::new()),
            Servers::Cluster(addresses) => (addresses, String::new()),
            Servers::Sentinels(addresses, name) => (addresses, name),
        };
        let user = format!("{:?} {:?} {} {is_secure}", user.username(), user.password(), user.db());
        Some((addresses.iter().map(ToString::to_string).collect(), name, user))
    }

    #[test]
    fn an_address_is_shown_as_it_can_be_pasted() {
        let tcp = |host: &str| address_text(&ConnectionAddr::Tcp(host.to_owned(), 7000));
        assert_eq!(["h", "127.0.0.1", "::1"].map(tcp), ["h:7000", "127.0.0.1:7000", "[::1]:7000"]);
        assert_eq!(address_text(&ConnectionAddr::Unix("/r.sock".into())), "/r.sock");
    }

    #[test]
    fn several_addresses_share_what_else_the_url_says() {
        let (addresses, _, user) = parsed("rediss-cluster://limiter:p%40ss@a:7000,b,[::1]:7002").expect("a URL");
        assert_eq!(addresses, ["a:7000", "b:6379", "::1:7002"]);
        assert_eq!(user, "Some(\"limiter\") Some(\"p@ss\") 0 true");
        let (addresses, name, user) = parsed("redis-sentinel://:p@a,b:1,[::1],[::2]:3/main/2").expect("a URL");
        assert_eq!(addresses, ["a:26379", "b:1", "::1:26379", "::2:3"]);
        assert_eq!((name.as_str(), user.as_str()), ("main", "None Some(\"p\") 2 false"));
        let (addresses, name, _) = parsed("redis-sentinel://a:1/main").expect("a URL");
        assert_eq!((addresses.as_slice(), name.as_str()), (["a:1".to_owned()].as_slice(), "main"));
        for url in ["redis-cluster://a:1/", "redis-cluster://a:1,b:2/0", "valkeys://a", "redis+unix:///socket"] {
            assert!(parsed(url).is_some(), "{url}");
        }
    }

    #[test]
    fn an_invalid_url_is_rejected() {
        let many = format!("redis-cluster://{}", vec!["a"; 65].join(","));
        let none = [
            "",
            "a:6379",
            "http://a",
            "redis-cluster://",
            "redis-cluster://a,",
            "redis-cluster://a:x",
            "redis-cluster://a/1",
            "redis-sentinel://a:1",
            "redis-sentinel://a:1/",
            "redis-sentinel:///main",
            "redis-sentinel://a/main/x",
            &many,
        ];
        for url in none {
            assert!(parsed(url).is_none(), "{url}");
        }
    }

    #[test]
    fn nothing_in_a_url_is_ignored() {
        let wrong = [
            ("redis://a?db=5", "a database is its path"),
            ("redis://a/5?db=6", "a database is its path"),
            ("redis-cluster://a,b?x", "a database is its path"),
            ("redis://u@a", "a user without a password"),
            ("redis-cluster://u@a,b", "a user without a password"),
            ("unix:///socket?user=u", "a user without a password"),
            ("unix:///socket?password=p", "user, pass and db"),
            ("redis://a:1,b:2", "redis-cluster://"),
            ("redis://::1", "in brackets"),
            ("redis://a:x", "port"),
            ("redis://a:65536", "port"),
            ("redis://a:", "port"),
            ("redis://u:p@a/x", "database"),
        ];
        for (url, why) in wrong {
            let failed = Url::parse(url).err().expect(url);
            assert!(failed.detail.contains(why), "{url}: {failed}");
        }
        for url in ["redis://:p@a", "redis://u:p@[::1]/3", "redis://a:1/", "unix:///s?user=u&pass=p&db=2", "valkey://a"]
        {
            assert!(parsed(url).is_some(), "{url}");
        }
    }
}
