//! Makes Redis or Valkey a store of the service: reads its logins and certificates, opens it, and translates between the
//! crate spillgate-redis and the traits of the service.
//!
//! Another kind of store would need a file like this one, with a type that implements [`Store`], [`SharedStore`] and
//! [`SharedLists`]. The file `store.rs` chooses the kind.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate::{
    Decision, Hit, NodeMemory, OpKind, Quota, Span, Store, StoreError, StoreErrorKind, StoreHealth, Timing, Verdict,
};
use spillgate_redis::{Cause, Error, RedisStore, Reread, Tls};
use spillgate_service::shared_store::{Asked, ListEntry, ListWrite, SharedError, SharedLists, SharedStore};
use tokio::time::Instant;

use super::{regular_file, secret_file};
use crate::command::terminal::Problem;
use crate::settings::{PeerSettings, Settings, StoreTls, StoreUrl};

/// The largest certificate file that is read, in bytes.
const MAX_PEM_BYTES: u64 = 1 << 20;
/// How long a call to the store of another region may take, and the longest pause between two attempts to connect.
const REGION_TIMEOUT: Duration = Duration::from_secs(5);
const REGION_PAUSE: Duration = Duration::from_secs(8);
/// While the files cannot be read again, the log has at most one line in this time.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A store on Redis or Valkey.
#[derive(Debug)]
pub(crate) struct Redis {
    store: RedisStore,
    /// Whether the URL asks for TLS.
    is_secure: bool,
}

impl Redis {
    /// Makes the store, which is not connected yet.
    ///
    /// # Errors
    /// The URL, a certificate or a key is invalid.
    fn new(reached: &spillgate_redis::Settings, is_secure: bool) -> Result<Redis, Error> {
        Ok(Redis { store: RedisStore::new(reached)?, is_secure })
    }

    fn explained(&self, error: Error) -> SharedError {
        explained(error, self.is_secure)
    }
}

/// Adds to an error of Redis a text that says how to fix the error. `is_secure` says whether the URL asks for TLS.
pub(crate) fn explained(error: Error, is_secure: bool) -> SharedError {
    let (help, forbidden) = (help_to_connect(&error, is_secure), error.forbidden_command().map(str::to_owned));
    SharedError::new(error.into()).with_forbidden_command(forbidden).with_help(help)
}

impl Store for Redis {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.store.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        self.store.has_clock()
    }

    #[inline]
    fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        self.store.decide(timing, hits, decisions)
    }

    fn decide_known_keys(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        self.store.decide_known_keys(timing, hits, decisions)
    }
}

impl SharedStore for Redis {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn timeout(&self) -> Duration {
        self.store.timeout()
    }

    fn is_atomic(&self, hits: &[Hit<'_>]) -> bool {
        self.store.is_atomic(hits)
    }

    fn unsupported(&self, hits: &[Hit<'_>]) -> Option<String> {
        let hit = hits.iter().find(|hit| !self.store.supports(hit.quota, hit.op.kind()))?;
        Some(format!(
            "the store does not support {:?} on this limit ({}): windows and segments have to be whole microseconds, at most \
             71 years; with store.scripts: off only plain fixed windows are supported, without resets and refunds",
            hit.op.kind(),
            hit.quota.algorithm().as_str()
        ))
    }

    fn health(&self) -> StoreHealth {
        self.store.health()
    }

    fn failures(&self, kind: StoreErrorKind) -> u64 {
        self.store.failures(kind)
    }

    fn take_first_error(&self, kind: StoreErrorKind) -> Option<StoreError> {
        self.store.take_first_error(kind)
    }

    fn last_error(&self) -> Option<SharedError> {
        self.store.last_error().map(|error| self.explained(error))
    }

    fn primary(&self) -> Option<String> {
        self.store.primary()
    }

    fn wait_connected(&self) -> Asked<'_, Result<(), SharedError>> {
        Box::pin(async move { self.store.wait_connected().await.map_err(|error| self.explained(error)) })
    }

    fn probe(&self, number: u32, within: Duration) -> Asked<'_, Result<(), SharedError>> {
        Box::pin(async move { self.store.probe(number, within).await.map(drop).map_err(|error| self.explained(error)) })
    }

    fn memory(&self, within: Duration) -> Asked<'_, Result<Vec<NodeMemory>, SharedError>> {
        Box::pin(async move { self.store.memory(within).await.map_err(|error| self.explained(error)) })
    }

    fn circuit_opened(&self) -> Asked<'_, ()> {
        Box::pin(self.store.circuit_opened())
    }

    fn charged<'a>(
        &'a self,
        hit: &'a Hit<'a>,
        span: Span,
        within: Duration,
    ) -> Asked<'a, Result<Vec<(u64, u64)>, SharedError>> {
        Box::pin(async move {
            let charged = self.store.charged(hit.key, hit.quota, span, within).await;
            charged.map_err(|error| self.explained(error))
        })
    }
}

impl SharedLists for Redis {
    fn list_version(&self, within: Duration) -> Asked<'_, Result<Option<Vec<u8>>, SharedError>> {
        Box::pin(async move { self.store.list_version(within).await.map_err(|error| self.explained(error)) })
    }

    fn set_list_version<'a>(
        &'a self,
        version: (&'a [u8], Duration),
        if_missing: bool,
        within: Duration,
    ) -> Asked<'a, Result<bool, SharedError>> {
        Box::pin(async move {
            let set = self.store.set_list_version(version, if_missing, within).await;
            set.map_err(|error| self.explained(error))
        })
    }

    fn list_length<'a>(&'a self, name: &'a str, within: Duration) -> Asked<'a, Result<usize, SharedError>> {
        Box::pin(async move { self.store.list_length(name, within).await.map_err(|error| self.explained(error)) })
    }

    fn change_list<'a>(
        &'a self,
        name: &'a str,
        put: &'a [(&'a [u8], &'a [u8])],
        removed: &'a [&'a [u8]],
        life: Duration,
        within: Duration,
    ) -> Asked<'a, Result<(), SharedError>> {
        Box::pin(async move {
            let changed = self.store.change_list(name, put, removed, life, within).await;
            changed.map_err(|error| self.explained(error))
        })
    }

    fn read_list<'a>(
        &'a self,
        name: &'a str,
        max: usize,
        within: Duration,
    ) -> Asked<'a, Result<Vec<ListEntry>, SharedError>> {
        Box::pin(async move { self.store.read_list(name, max, within).await.map_err(|error| self.explained(error)) })
    }

    fn put_in_list<'a>(
        &'a self,
        list: (&'a str, usize),
        entry: (&'a [u8], &'a [u8]),
        version: (&'a [u8], Duration),
        within: Duration,
    ) -> Asked<'a, Result<ListWrite, SharedError>> {
        Box::pin(async move {
            let written = self.store.put_in_list(list, entry, version, within).await;
            let spillgate_redis::ListWrite { before, is_done } = written.map_err(|error| self.explained(error))?;
            Ok(ListWrite { before, is_done })
        })
    }

    fn remove_from_list<'a>(
        &'a self,
        name: &'a str,
        entries: &'a [&'a [u8]],
        version: (&'a [u8], Duration),
        within: Duration,
    ) -> Asked<'a, Result<Option<Vec<u8>>, SharedError>> {
        Box::pin(async move {
            let removed = self.store.remove_from_list(name, entries, version, within).await;
            removed.map_err(|error| self.explained(error))
        })
    }

    fn take_from_list<'a>(
        &'a self,
        name: &'a str,
        entries: &'a [&'a [u8]],
        within: Duration,
    ) -> Asked<'a, Result<Vec<Option<Vec<u8>>>, SharedError>> {
        Box::pin(async move {
            self.store.take_from_list(name, entries, within).await.map_err(|error| self.explained(error))
        })
    }
}

/// Returns how to fix an error of a connection. `is_secure` says whether the URL asks for TLS.
fn help_to_connect(error: &Error, is_secure: bool) -> &'static str {
    const NO_TLS: &str = "does that port use TLS? If not, write redis:// in the URL";
    match error.cause() {
        Cause::SentinelPermission => {
            "check the login of the sentinels: `store.sentinel_user` and `store.sentinel_password_file`"
        }
        Cause::CertificateName => {
            "set `store.tls.server_name` to a name in the certificate; if it has no name, set `store.tls.skip_name_check`"
        }
        Cause::CertificateDates => "renew the store's certificate, or correct the clock of this machine",
        Cause::Certificate => {
            "set `store.tls.ca` to a file with the certificate of the authority that signed the store's certificate. If that \
             is self-signed, use the store's certificate itself"
        }
        Cause::ClientCertificate => {
            "the store wants a certificate of this client from an authority that it trusts: set `store.tls.cert` and \
             `store.tls.key`"
        }
        Cause::TlsHandshake => NO_TLS,
        Cause::NotACluster => "that server is not a cluster: write redis:// (rediss:// with TLS)",
        Cause::UnknownPrimary => {
            "the sentinels do not know a primary of that name: SENTINEL MASTERS on one of them lists the names"
        }
        Cause::NotRedis => "check the port: another program listens there, or it uses TLS (rediss://)",
        Cause::ConnectionClosed => "check the port: it may use TLS (rediss://), or belong to another program",
        _ if error.kind() == StoreErrorKind::NoPermission => "check the login: `store.user` and `store.password_file`",
        _ if error.kind() == StoreErrorKind::Timeout && is_secure => NO_TLS,
        _ => "check the address, that the store runs, and that no firewall blocks the connection",
    }
}

/// Returns the store of the settings, with this many connections.
pub(super) fn store(settings: &Settings, connections: usize) -> Result<Redis, Problem> {
    store_with(settings, &settings_of(settings, connections)?)
}

/// Returns the store with these settings of `spillgate-redis`.
pub(crate) fn store_with(settings: &Settings, reached: &spillgate_redis::Settings) -> Result<Redis, Problem> {
    Redis::new(reached, settings.store.url.speaks_tls()).map_err(|error| {
        let message = format!("the store {} cannot be used: {}", settings.store.url, error.detail());
        let help = match settings.store.tls == StoreTls::default() {
            true => "correct `store.url`: redis://HOST:PORT, or another form of --store in `spillgate serve --help`",
            false => "correct `store.url`, or the files under `store.tls`",
        };
        Problem::new(message, help)
    })
}

/// Returns the store of another region, as a server of this region tells it what it admits. It has one connection to each
/// node, and tries again after up to eight seconds. Nothing but `Peers` uses it, so it has no circuit breaker.
pub(crate) fn region_store(settings: &Settings, peer: &PeerSettings) -> Result<RedisStore, Problem> {
    let (reached, read) = region_settings(settings, peer)?;
    open_region(&reached, &read, &format!("the store of the region `{}`", peer.name))
}

/// Returns the settings as they would be if the store of another region were the own one, and those of `spillgate-redis`
/// for it.
pub(crate) fn region_settings(
    settings: &Settings,
    peer: &PeerSettings,
) -> Result<(Settings, spillgate_redis::Settings), Problem> {
    let (all, own) = (&settings.regions.login, &peer.login);
    let has_own_tls = own.tls != StoreTls::default();
    let mut reached = settings.clone();
    reached.store = crate::settings::Store {
        url: peer.url.clone(),
        user: own.user.clone().or_else(|| all.user.clone()),
        password_file: own.password_file.clone().or_else(|| all.password_file.clone()),
        tls: if has_own_tls { own.tls.clone() } else { all.tls.clone() },
        scripts: true,
        ..crate::settings::Store::default()
    };
    let group = |is_own: bool| if is_own { format!("regions.peers.{}", peer.name) } else { "regions".to_owned() };
    let names = Names { password: group(own.password_file.is_some()), tls: group(has_own_tls) };
    let read = unhurried(settings_named(&reached, 1, &names)?);
    Ok((reached, read))
}

/// Returns the settings of an access that decides nothing.
fn unhurried(read: spillgate_redis::Settings) -> spillgate_redis::Settings {
    spillgate_redis::Settings {
        timeout: REGION_TIMEOUT,
        connect_timeout: REGION_TIMEOUT,
        probe_every: REGION_PAUSE,
        max_failures: u32::MAX,
        deny_cache_entries: 0,
        new_keys_per_second: None,
        max_in_flight: spillgate_redis::Settings::new("").max_in_flight,
        ..read
    }
}

/// Returns a further access to the store of this region, for what its servers say about themselves.
pub(crate) fn own_region_store(settings: &Settings) -> Result<RedisStore, Problem> {
    open_region(settings, &unhurried(settings_of(settings, 1)?), "the store")
}

fn open_region(settings: &Settings, reached: &spillgate_redis::Settings, what: &str) -> Result<RedisStore, Problem> {
    RedisStore::new(reached).map_err(|error| {
        let message = format!("{what} {} cannot be used: {}", settings.store.url, error.detail());
        Problem::new(message, "correct its URL, or the files of its certificates")
    })
}

/// Returns the settings of `spillgate-redis` for the store. Reads the files with passwords and certificates, and has them
/// read again before each new connection.
pub(crate) fn settings_of(settings: &Settings, connections: usize) -> Result<spillgate_redis::Settings, Problem> {
    settings_named(settings, connections, &Names::default())
}

/// Does what [`settings_of`] does, for a store whose files other settings name.
fn settings_named(
    settings: &Settings,
    connections: usize,
    names: &Names,
) -> Result<spillgate_redis::Settings, Problem> {
    let read = read_settings(settings, connections, names)?;
    Ok(spillgate_redis::Settings { reread: reread(settings, connections, names), ..read })
}

/// The groups of the settings that name the files of a store, for errors.
#[derive(Clone, Debug)]
struct Names {
    password: String,
    tls: String,
}

impl Default for Names {
    fn default() -> Names {
        Names { password: "store".to_owned(), tls: "store".to_owned() }
    }
}

/// Returns the function that reads the files again, or `None` if there are none.
fn reread(settings: &Settings, connections: usize, names: &Names) -> Option<Reread> {
    let store = &settings.store;
    let secrets = [&store.password_file, &store.sentinel_password_file, &store.tls.ca, &store.tls.cert, &store.tls.key];
    if secrets.into_iter().all(Option::is_none) {
        return None;
    }
    // A server has several accesses to the store: for requests, and for lists.
    static LOGGED_AT: Mutex<Option<Instant>> = Mutex::new(None);
    let (settings, names) = (settings.clone(), names.clone());
    Some(Reread::new(move || {
        read_settings(&settings, connections, &names).map_err(|problem| {
            let mut logged_at = LOGGED_AT.lock();
            if logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                *logged_at = Some(Instant::now());
                tracing::warn!(
                    "a file with a password or certificate of the store cannot be read again, so new connections use \
                     what was read earlier: {problem}"
                );
            }
            problem.to_string()
        })
    }))
}

fn read_settings(settings: &Settings, connections: usize, names: &Names) -> Result<spillgate_redis::Settings, Problem> {
    let store = &settings.store;
    let StoreUrl::Shared(url) = &store.url else {
        let help = "name a shared store with --store: redis://127.0.0.1:6379";
        return Err(Problem::new("the store is memory, which only the server process can see", help));
    };
    let password_setting = format!("{}.password_file", names.password);
    let password = password_of(store.password_file.as_deref(), "store's password", &password_setting)?;
    let sentinel_password = store.sentinel_password_file.as_deref();
    let sentinel_password = password_of(sentinel_password, "sentinels' password", "store.sentinel_password_file")?;
    let pem = |path: &Option<_>, key| {
        path.as_deref().map(|path| pem_file(path, &format!("{}.tls.{key}", names.tls))).transpose()
    };
    let client = pem(&store.tls.cert, "cert")?.zip(pem(&store.tls.key, "key")?);
    Ok(spillgate_redis::Settings {
        url: with_credentials(url, store.user.as_deref(), password.as_deref()),
        sentinel_user: store.sentinel_user.clone(),
        sentinel_password,
        tls: Tls {
            ca: pem(&store.tls.ca, "ca")?,
            client,
            server_name: store.tls.server_name.clone(),
            skip_name_check: store.tls.skip_name_check,
        },
        timeout: store.deadline,
        connections,
        max_in_flight: store.max_in_flight,
        deny_cache_entries: store.deny_cache,
        deny_cache_max_age: store.deny_cache_max_age,
        new_keys_per_second: store.new_keys,
        log: store.log,
        scripts: store.scripts,
        ..spillgate_redis::Settings::new("")
    })
}

/// Returns only those settings of `spillgate-redis` that change commands and keys. They need no URL and no files.
pub(crate) fn modes(settings: &Settings) -> spillgate_redis::Settings {
    spillgate_redis::Settings {
        log: settings.store.log,
        scripts: settings.store.scripts,
        ..spillgate_redis::Settings::new("")
    }
}

/// Returns the user that logs in, as an ACL names it.
pub(crate) fn login_user(settings: &Settings) -> String {
    match (&settings.store.user, &settings.store.url) {
        (None, StoreUrl::Shared(url)) => spillgate_redis::Settings::new(url).user(),
        (named, _) => named.clone().unwrap_or_default(),
    }
}

fn password_of(file: Option<&Path>, what: &str, setting: &str) -> Result<Option<String>, Problem> {
    let Some(path) = file else { return Ok(None) };
    let text = secret_file::read(path, what, setting)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let none = || {
        let help = "write the password into it as one line of at most 4 KiB";
        Problem::new(format!("{} holds no password", path.display()), help)
    };
    text.ok_or_else(none).map(Some)
}

/// Reads a file with certificates or a key. `setting` names it in errors.
pub(crate) fn pem_file(path: &Path, setting: &str) -> Result<Vec<u8>, Problem> {
    let unread = |why: String| {
        let help = format!("check `{setting}`: it has to be a PEM file (-----BEGIN ...) that this user may read");
        Problem::new(format!("{} cannot be read: {why}", path.display()), help).in_file(path)
    };
    match regular_file::read(path, MAX_PEM_BYTES) {
        Ok(bytes) if bytes.len() as u64 > MAX_PEM_BYTES => Err(unread("it is larger than 1 MiB".to_owned())),
        read => read.map_err(|error| unread(error.to_string())),
    }
}

/// Adds a login to a URL that has none.
fn with_credentials(url: &str, user: Option<&str>, password: Option<&str>) -> String {
    let (Some(password), Some((scheme, rest))) = (password, url.split_once("://")) else { return url.to_owned() };
    let (user, password) = (quoted(user.unwrap_or_default()), quoted(password));
    if scheme != "unix" {
        return format!("{scheme}://{user}:{password}@{rest}");
    }
    let separator = if rest.contains('?') { '&' } else { '?' };
    let user = if user.is_empty() { String::new() } else { format!("user={user}&") };
    format!("{url}{separator}{user}pass={password}")
}

/// Percent-encodes a text for a URL.
fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => quoted.push(char::from(byte)),
            _ => quoted.push_str(&format!("%{byte:02X}")),
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_becomes_part_of_the_url() {
        let url = |url, user| with_credentials(url, user, Some("p@ss/w:rd é"));
        assert_eq!(url("redis://h:1/2", Some("a b")), "redis://a%20b:p%40ss%2Fw%3Ard%20%C3%A9@h:1/2");
        assert_eq!(url("redis-cluster://h,i", None), "redis-cluster://:p%40ss%2Fw%3Ard%20%C3%A9@h,i");
        assert_eq!(url("unix:///r", Some("u")), "unix:///r?user=u&pass=p%40ss%2Fw%3Ard%20%C3%A9");
        assert_eq!(url("unix:///r?db=1", None), "unix:///r?db=1&pass=p%40ss%2Fw%3Ard%20%C3%A9");
        assert_eq!(with_credentials("redis://h", None, None), "redis://h");
    }
}
