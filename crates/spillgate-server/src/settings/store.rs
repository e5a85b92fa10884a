//! Where state lives, and how a fleet's store is reached.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use spillgate_redis::LogForm;

use super::Settings;
use super::secret::masked;
use super::values::Value;
use super::yaml::Wrong;

/// Where state lives, and how it is reached if that is a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    pub url: StoreUrl,
    /// A decision that takes longer is left to `on_store_failure`.
    pub deadline: Duration,
    /// Servers that share the store: what each may admit alone while it cannot be reached.
    pub expected_nodes: Option<u32>,
    /// Holds what keys are hashed with, the same for the whole fleet.
    pub key_secret_file: Option<PathBuf>,
    /// Who logs in.
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
    /// Who asks the sentinels.
    pub sentinel_user: Option<String>,
    pub sentinel_password_file: Option<PathBuf>,
    pub tls: StoreTls,
    /// Shared connections, in pairs; `None` is a pair for each worker.
    pub connections: Option<usize>,
    /// Requests that wait for the store at once.
    pub max_in_flight: usize,
    pub scripts: bool,
    pub log: LogForm,
    /// Refusals that are repeated without asking; 0 for none.
    pub deny_cache: usize,
    pub deny_cache_max_age: Duration,
}

/// Files with certificates for a store behind TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreTls {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// What the store's certificate has to name in place of its host.
    pub server_name: Option<String>,
    pub skip_name_check: bool,
}

/// This process's memory, or a server.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    Memory,
    /// As it was written, a password included: [`Display`](fmt::Display) masks it.
    Shared(String),
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory"),
            StoreUrl::Shared(url) => f.write_str(&masked(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Schemes of a store's URL, and whether TLS is spoken there.
const SCHEMES: [(&str, bool); 9] = [
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

const URL_MEND: &str = "write `memory`, redis://HOST:PORT, rediss:// (TLS), redis-cluster://HOST:PORT,HOST:PORT, \
                        redis-sentinel://HOST:PORT,HOST:PORT/NAME or unix:///path";

impl StoreUrl {
    pub(super) fn read(value: &Value<'_>) -> Result<StoreUrl, Wrong> {
        let text = value.text()?;
        if text == "memory" {
            return Ok(StoreUrl::Memory);
        }
        // What is wrong may be a password in the wrong place: it is not repeated.
        let wrong =
            |what: &str| Err(Wrong::new(&value.node.span, format!("what `{}` says {what}", value.path), URL_MEND));
        let known = text.split_once("://").filter(|(scheme, _)| SCHEMES.iter().any(|(known, _)| known == scheme));
        match known {
            None => wrong("is not a store"),
            Some(("unix", path)) if !path.starts_with('/') => wrong("is no socket: its path begins with `/`"),
            Some((scheme, rest)) if scheme != "unix" && (rest.starts_with('/') || host(rest).is_empty()) => {
                wrong("names no host")
            }
            Some(_) if text.contains(char::is_whitespace) => wrong("has a blank in it"),
            Some(_) => Ok(StoreUrl::Shared(text.to_owned())),
        }
    }

    fn speaks_tls(&self) -> bool {
        let StoreUrl::Shared(url) = self else { return false };
        SCHEMES.iter().any(|(scheme, tls)| *tls && url.split_once("://").is_some_and(|(known, _)| known == *scheme))
    }

    fn names_sentinels(&self) -> bool {
        let StoreUrl::Shared(url) = self else { return false };
        url.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("-sentinel"))
    }

    /// Whether the URL says who logs in.
    fn has_credentials(&self) -> bool {
        let StoreUrl::Shared(url) = self else { return false };
        match url.split_once("://") {
            Some(("unix", path)) => path.contains("user=") || path.contains("pass="),
            Some((_, rest)) => rest.contains('@'),
            None => false,
        }
    }
}

/// Host and port, or several, between who logs in and the path.
fn host(rest: &str) -> &str {
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// What is wrong between settings of the store that are right alone: the key to blame, what, and the mend. `changed`
/// are those keys under `store` and `memory` that are not the default.
pub(super) fn disagreements(
    settings: &Settings,
    changed: &[&'static str],
) -> Vec<(&'static str, String, &'static str)> {
    let (store, snapshot) = (&settings.store, &settings.memory.snapshot);
    let mut found = Vec::new();
    if store.url == StoreUrl::Memory {
        const MEND: &str = "take it out, or set `store.url` to where the fleet counts: redis://127.0.0.1:6379";
        let others = changed.iter().filter(|path| !path.starts_with("memory."));
        found.extend(
            others.map(|path| (*path, format!("`{path}` is for a shared store, and this one is memory"), MEND)),
        );
        let interval = "memory.snapshot.interval";
        if snapshot.path.is_none() && changed.contains(&interval) {
            let help = "set `memory.snapshot.path` to the file that is to be written";
            found.push((interval, "memory.snapshot has an interval but no path".to_owned(), help));
        }
        return found;
    }
    for path in changed.iter().filter(|path| path.starts_with("memory.snapshot.")) {
        let message = format!("`{path}` is for the memory store: the counts are in {}", store.url);
        found.push((*path, message, "take it out; what survives a restart of the store is the store's own setting"));
    }
    for path in changed.iter().filter(|path| matches!(**path, "store.user" | "store.password_file")) {
        if store.url.has_credentials() {
            let message = format!("`store.url` and `{path}` both say who logs in");
            found.push((
                *path,
                message,
                "take what stands before the `@` out of the URL (of a Unix socket: user, pass)",
            ));
        }
    }
    if store.user.is_some() && store.password_file.is_none() {
        let message = "`store.user` has no password".to_owned();
        found.push(("store.user", message, "set `store.password_file` to a file with the user's password"));
    }
    for path in changed.iter().filter(|path| path.starts_with("store.sentinel_") && !store.url.names_sentinels()) {
        let message = format!("`{path}` is for sentinels, and `store.url` names none");
        found.push((*path, message, "write redis-sentinel://HOST:PORT/NAME in `store.url`, or take it out"));
    }
    if store.sentinel_user.is_some() && store.sentinel_password_file.is_none() {
        let message = "`store.sentinel_user` has no password".to_owned();
        let help = "set `store.sentinel_password_file` to a file with the user's password";
        found.push(("store.sentinel_user", message, help));
    }
    if store.tls.skip_name_check && store.tls.server_name.is_some() {
        let message = "`store.tls.server_name` is not looked at with `store.tls.skip_name_check`".to_owned();
        found.push(("store.tls.skip_name_check", message, "take one of them out: the name is the safer way"));
    }
    for path in changed.iter().filter(|path| path.starts_with("store.tls.") && !store.url.speaks_tls()) {
        let message = format!("`{path}` is for TLS, which `store.url` does not speak");
        found.push((*path, message, "write rediss:// (with a second s) in `store.url`, or take it out"));
    }
    match (&store.tls.cert, &store.tls.key) {
        (Some(_), None) => found.push((
            "store.tls.cert",
            "`store.tls.cert` is there without `store.tls.key`".to_owned(),
            "set `store.tls.key` to the file with the certificate's key",
        )),
        (None, Some(_)) => found.push((
            "store.tls.key",
            "`store.tls.key` is there without `store.tls.cert`".to_owned(),
            "set `store.tls.cert` to the file with the key's certificate",
        )),
        _ => {}
    }
    found
}
