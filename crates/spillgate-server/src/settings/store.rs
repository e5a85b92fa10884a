//! The settings of the store, and the conflicts between them.
//!
//! A setting of the store that has no effect could hide a mistake, such as TLS files with a URL without TLS. Each such
//! conflict is an error.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use spillgate_redis::LogForm;

use super::Settings;
use super::error::SettingError;
use super::secret::masked_url;
use super::values::Value;

/// Where the counts are stored, and how a shared store is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Store {
    pub url: StoreUrl,
    /// The time within which the store has to decide. If the store takes longer, `on_store_failure` answers.
    pub deadline: Duration,
    /// The number of servers that share the store. While the store fails, each server admits its part of a limit.
    pub expected_nodes: Option<u32>,
    /// The file with the secret for hashing keys. All servers that share the store have the same secret.
    pub key_secret_file: Option<PathBuf>,
    /// The user of the store.
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
    /// The user of the sentinels.
    pub sentinel_user: Option<String>,
    pub sentinel_password_file: Option<PathBuf>,
    pub tls: StoreTls,
    /// The number of connections to each server of the store. An odd number is rounded up to an even number when the
    /// server starts. `None` means two connections for each worker.
    pub connections: Option<usize>,
    /// The maximum number of requests that wait for the store at once.
    pub max_in_flight: usize,
    pub scripts: bool,
    pub log: LogForm,
    /// The maximum number of refusals in the deny cache. 0 switches the cache off.
    pub deny_cache: usize,
    pub deny_cache_max_age: Duration,
    /// The maximum number of new keys of each limit that a server makes in the store in a second. `None` means any number.
    pub new_keys: Option<NonZeroU32>,
}

/// Files with certificates for a store behind TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreTls {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The name that the store's certificate must have, instead of the host name in the URL.
    pub server_name: Option<String>,
    pub skip_name_check: bool,
}

/// The memory of this process, or a shared store.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum StoreUrl {
    #[default]
    Memory,
    /// The URL as it was written. It can have a password, which [`Display`](fmt::Display) masks.
    Shared(String),
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory"),
            StoreUrl::Shared(url) => f.write_str(&masked_url(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The schemes of a store's URL, and whether each scheme uses TLS.
pub(super) const SCHEMES: [(&str, bool); 9] = [
    ("redis", false),
    ("rediss", true),
    ("valkey", false),
    ("valkeys", true),
    ("redis-cluster", false),
    ("rediss-cluster", true),
    ("redis-sentinel", false),
    ("rediss-sentinel", true),
    ("unix", false),
];

/// The forms of the URL of a shared store. A macro, because a constant cannot be a part of another constant text.
macro_rules! url_forms {
    () => {
        "redis://HOST:PORT, rediss://HOST:PORT (with TLS), redis-cluster://HOST:PORT,HOST:PORT, \
         redis-sentinel://HOST:PORT,HOST:PORT/NAME or unix:///path"
    };
}
pub(super) use url_forms;

const URL_HELP: &str = concat!("write `memory`, ", url_forms!());

impl StoreUrl {
    pub(super) fn read(value: &Value<'_>) -> Result<StoreUrl, SettingError> {
        let text = value.text()?;
        if text == "memory" {
            return Ok(StoreUrl::Memory);
        }
        // The wrong value is not repeated, because it can be a password in the wrong place.
        let fault = |what: &str| {
            Err(SettingError::new(&value.node.at.bytes(), format!("the value of `{}` {what}", value.path), URL_HELP))
        };
        let known = text.split_once("://").filter(|(scheme, _)| SCHEMES.iter().any(|(known, _)| known == scheme));
        match known {
            None => fault("is not a store"),
            Some(("unix", path)) if !path.starts_with('/') => fault("has a socket path that does not begin with `/`"),
            Some((scheme, rest)) if scheme != "unix" && (rest.starts_with('/') || host(rest).is_empty()) => {
                fault("has no host")
            }
            Some((scheme, rest)) if scheme != "unix" && login(rest).contains(['/', '?', '#']) => {
                Err(SettingError::new(
                    &value.node.at.bytes(),
                    format!("the login in `{}` has a `/`, `?` or `#`", value.path),
                    "write %2F for `/`, %3F for `?` and %23 for `#`, or set `store.password_file` to a file with the password",
                ))
            }
            Some(_) if text.contains(char::is_whitespace) => fault("contains a space"),
            Some(_) => Ok(StoreUrl::Shared(text.to_owned())),
        }
    }

    /// Returns whether the connection uses TLS.
    pub(crate) fn speaks_tls(&self) -> bool {
        let StoreUrl::Shared(url) = self else { return false };
        SCHEMES.iter().any(|(scheme, tls)| *tls && url.split_once("://").is_some_and(|(known, _)| known == *scheme))
    }

    fn names_sentinels(&self) -> bool {
        let StoreUrl::Shared(url) = self else { return false };
        url.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("-sentinel"))
    }

    /// Returns whether the URL has a user or a password.
    fn has_credentials(&self) -> bool {
        let StoreUrl::Shared(url) = self else { return false };
        match url.split_once("://") {
            Some(("unix", path)) => path.contains("user=") || path.contains("pass="),
            Some((_, rest)) => rest.contains('@'),
            None => false,
        }
    }
}

/// Returns the user and the password of a URL: everything before its last `@`.
fn login(rest: &str) -> &str {
    rest.rsplit_once('@').map_or("", |(login, _)| login)
}

/// Returns the hosts and ports of a URL: the part between the login and the path.
fn host(rest: &str) -> &str {
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// Finds conflicts between settings of the store that are each valid alone. Returns for each conflict its key, its
/// message and its fix. `changed` contains each key under `store` and `memory`, and the key `on_store_failure`, if its
/// value is not the default.
pub(super) fn conflicts(settings: &Settings, changed: &[&'static str]) -> Vec<(&'static str, String, &'static str)> {
    let (store, snapshot) = (&settings.store, &settings.memory.snapshot);
    let mut found = Vec::new();
    if store.url == StoreUrl::Memory {
        const HELP: &str = "remove this setting, or set `store.url` to the shared store: redis://127.0.0.1:6379";
        let others = changed.iter().filter(|path| !path.starts_with("memory."));
        found.extend(
            others.map(|path| (*path, format!("`{path}` is for a shared store, but `store.url` is memory"), HELP)),
        );
        let interval = "memory.snapshot.interval";
        if snapshot.path.is_none() && changed.contains(&interval) {
            let help = "set `memory.snapshot.path` to the file to write";
            found.push((interval, "memory.snapshot has an interval but no path".to_owned(), help));
        }
        return found;
    }
    for path in changed.iter().filter(|path| path.starts_with("memory.snapshot.")) {
        let message = format!("`{path}` is for the memory store, but the counts are in {}", store.url);
        found.push((*path, message, "remove this key; the store's configuration decides what a restart keeps"));
    }
    for path in changed.iter().filter(|path| matches!(**path, "store.user" | "store.password_file")) {
        if store.url.has_credentials() {
            let message = format!("`store.url` and `{path}` both have a login");
            found.push((
                *path,
                message,
                "remove the part before the `@` from the URL (for a Unix socket: user and pass)",
            ));
        }
    }
    if store.user.is_some() && store.password_file.is_none() {
        let message = "`store.user` has no password".to_owned();
        found.push(("store.user", message, "set `store.password_file` to a file with the user's password"));
    }
    for path in changed.iter().filter(|path| path.starts_with("store.sentinel_") && !store.url.names_sentinels()) {
        let message = format!("`{path}` is for sentinels, but `store.url` names no sentinels");
        found.push((*path, message, "write redis-sentinel://HOST:PORT/NAME in `store.url`, or remove this setting"));
    }
    if store.sentinel_user.is_some() && store.sentinel_password_file.is_none() {
        let message = "`store.sentinel_user` has no password".to_owned();
        let help = "set `store.sentinel_password_file` to a file with the user's password";
        found.push(("store.sentinel_user", message, help));
    }
    if store.tls.skip_name_check && store.tls.server_name.is_some() {
        let message = "`store.tls.server_name` has no effect with `store.tls.skip_name_check`".to_owned();
        found.push(("store.tls.skip_name_check", message, "remove one of them; the name is the safer choice"));
    }
    for path in changed.iter().filter(|path| path.starts_with("store.tls.") && !store.url.speaks_tls()) {
        let message = format!("`{path}` is for TLS, but `store.url` does not use TLS");
        found.push((*path, message, "write rediss:// (with a second s) in `store.url`, or remove this setting"));
    }
    if store.new_keys.is_some() && store.expected_nodes.is_none() {
        let message =
            "`store.new_keys` needs the number of servers, because each of them decides newcomers by its share"
                .to_owned();
        found.push((
            "store.new_keys",
            message,
            "set `store.expected_nodes` to the highest number of servers that share the store",
        ));
    }
    match (&store.tls.cert, &store.tls.key) {
        (Some(_), None) => found.push((
            "store.tls.cert",
            "`store.tls.cert` is set without `store.tls.key`".to_owned(),
            "set `store.tls.key` to the file with the certificate's key",
        )),
        (None, Some(_)) => found.push((
            "store.tls.key",
            "`store.tls.key` is set without `store.tls.cert`".to_owned(),
            "set `store.tls.cert` to the file with the key's certificate",
        )),
        _ => {}
    }
    found
}
