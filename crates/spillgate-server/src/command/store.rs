//! From settings to a store: memory, or what a fleet shares; and whether the rules can be served by it.

use std::num::NonZeroU32;
use std::path::Path;
use std::thread;
use std::time::Duration;

use spillgate::rules::{Limit, Rules};
use spillgate::{Fallback, KeyHasher, Limiter, MemoryOptions, MemoryStore, OnStoreFailure, OpKind, SystemClock};
use spillgate_redis::{Failed, Failure, FixedWindow, RedisStore, Tls};

use super::load::{self, Problems, Trouble};
use super::secret_file;
use super::snapshot;
use super::snapshot_file::LockedFile;
use crate::service::{Backend, Shared};
use crate::settings::{Settings, StoreTls, StoreUrl};

/// What keys are hashed with where no secret is given: sixteen bytes that everybody may know.
const PUBLIC_SECRET: [u8; 16] = *b"spillgate public";

/// A certificate's file is smaller.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// What commands say of names that hang on it.
pub(super) const NO_SECRET: &str = "note: hashed without a secret, as a server without store.key_secret_file does; \
                                    where the fleet has one, or another store.log, store.scripts or \
                                    store.fixed_window, it counts under other keys";

/// How long a command waits for an answer of the store, which is no request of anybody. To connect it has as long as a
/// server, for which the doctor is to speak.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A limiter as the settings say; it is not connected yet.
pub(super) fn limiter(settings: &Settings, snapshot: Option<&LockedFile>) -> Result<Limiter<Backend>, Trouble> {
    let memory = MemoryOptions {
        max_keys: settings.memory.max_keys,
        max_heap_bytes: settings.memory.max_heap,
        on_full: settings.memory.on_full,
    };
    if settings.store.url == StoreUrl::Memory {
        return snapshot::limiter(memory, snapshot);
    }
    let workers = settings.workers.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    // Each thread uses two: each worker, and who watches the store.
    let connections = settings.store.connections.unwrap_or(2 * workers).next_multiple_of(2);
    let store = shared(settings, connections + 2)?;
    let keys = keys(settings)?;
    if settings.store.key_secret_file.is_none() {
        tracing::warn!(
            "store.key_secret_file is not set: keys in the store are hashed with a constant that everybody knows, \
             so that clients can choose keys that share a counter and make lease ids that pass for ours; \
             `openssl rand -hex 16` makes a secret for the fleet"
        );
    }
    if settings.store.tls.skip_name_check {
        tracing::warn!(
            "store.tls.skip_name_check is set: whoever has any certificate that store.tls.ca vouches for can pass for the \
             store; store.tls.server_name asks for a name"
        );
    }
    let nodes = settings.store.expected_nodes.and_then(NonZeroU32::new);
    if nodes.is_none() && settings.on_store_failure == OnStoreFailure::Local {
        tracing::info!(
            "store.expected_nodes is not set: while the store fails, limits that come with a call are counted whole here"
        );
    }
    let fallback = Fallback::new(MemoryStore::new(memory), nodes.unwrap_or(NonZeroU32::MIN));
    let shared = Shared::new(store, fallback, settings.store.deadline);
    Ok(Limiter::with_keys(Backend::Redis(Box::new(shared)), SystemClock::start(), keys))
}

/// A limiter for a command that asks a few questions and has time.
pub(super) fn limiter_to_look(settings: &Settings) -> Result<Limiter<Backend>, Trouble> {
    let mut settings = settings.clone();
    settings.store.deny_cache = 0;
    settings.store.deadline = settings.store.deadline.max(PATIENCE);
    let fallback = Fallback::new(MemoryStore::new(MemoryOptions::default()), NonZeroU32::MIN);
    let shared = Shared::new(shared(&settings, 1)?, fallback, settings.store.deadline);
    Ok(Limiter::with_keys(Backend::Redis(Box::new(shared)), SystemClock::start(), keys(&settings)?))
}

/// Why a command that asks the store has no answer.
pub(super) fn unreachable(settings: &Settings, failed: &Failed) -> Trouble {
    let url = &settings.store.url;
    let said = |words: &str| failed.detail.contains(words);
    let is_secure = ["rediss", "valkeys"].iter().any(|scheme| url.to_string().starts_with(scheme));
    let no_tls = ["no answer within", "corrupt message", "handshake"].iter().any(|words| said(words));
    let help = match missing_right(failed) {
        Some(command) => &format!(
            "ACL SETUSER {} +{command}; the book has the least rights for each kind of store (docs/src/operating/least-rights.md)",
            user(settings)
        ),
        None if failed.class == Failure::Noperm && failed.detail.starts_with("the sentinel") => {
            "check who logs in there: `store.sentinel_user` and `store.sentinel_password_file`"
        }
        None if failed.class == Failure::Noperm => "check who logs in: `store.user` and `store.password_file`",
        None if said("not valid for name") => {
            "set `store.tls.server_name` to a name that the certificate has; if it has none, `store.tls.skip_name_check`"
        }
        None if said("certificate expired") || said("not valid yet") => {
            "give the store a certificate whose dates are right, and see that this machine's clock is"
        }
        None if said("certificate") => {
            "set `store.tls.ca` to a file with the certificate of the authority that signed the store's, or with the \
             store's own, if it signed that itself"
        }
        None if said("cluster support disabled") => "that server is no cluster: write redis:// (rediss:// with TLS)",
        None if said("No such master") => {
            "the sentinels know no primary of that name: SENTINEL MASTERS on one of them lists the names"
        }
        None if is_secure && no_tls => "does that port speak TLS? If not, write the scheme without it: redis://",
        None if said("no Redis") => "check the port: another program listens there, or it speaks TLS (rediss://)",
        None if said("hung up") => "check the port: it may speak TLS (rediss://), or be another program's",
        None => "check the address, that the store runs, and that nothing between here and there forbids it",
    };
    Trouble::new(format!("the store {url} cannot be reached: {failed}"), help)
}

/// Who logs in, as an ACL names the user.
pub(super) fn user(settings: &Settings) -> String {
    match (&settings.store.user, &settings.store.url) {
        (None, StoreUrl::Shared(url)) => spillgate_redis::Settings::new(url).user(),
        (named, _) => named.clone().unwrap_or_default(),
    }
}

/// The command that the store says this user may not run, as an ACL writes it.
fn missing_right(failed: &Failed) -> Option<&str> {
    failed.detail.split_once("run the '")?.1.split_once("' command").map(|(command, _)| command)
}

/// The store that the settings name, with so many connections.
pub(super) fn shared(settings: &Settings, connections: usize) -> Result<RedisStore, Trouble> {
    open(settings, &reached(settings, connections)?)
}

/// The store that is reached so.
pub(super) fn open(settings: &Settings, reached: &spillgate_redis::Settings) -> Result<RedisStore, Trouble> {
    RedisStore::new(reached).map_err(|failed| {
        let message = format!("the store {} cannot be used: {}", settings.store.url, failed.detail);
        let help = match settings.store.tls == StoreTls::default() {
            true => "correct `store.url`: redis://HOST:PORT, or what `spillgate serve --help` has under --store",
            false => "correct `store.url`, or the files under `store.tls`",
        };
        Trouble::new(message, help)
    })
}

/// How the store is reached; files are read.
pub(super) fn reached(settings: &Settings, connections: usize) -> Result<spillgate_redis::Settings, Trouble> {
    let store = &settings.store;
    let StoreUrl::Shared(url) = &store.url else {
        let help = "name a shared one with --store: redis://127.0.0.1:6379";
        return Err(Trouble::new("the store is memory, which this process alone sees", help));
    };
    let password = password_of(store.password_file.as_deref(), "store's password", "store.password_file")?;
    let sentinel_password = store.sentinel_password_file.as_deref();
    let sentinel_password = password_of(sentinel_password, "sentinels' password", "store.sentinel_password_file")?;
    let pem = |path: &Option<_>, setting| path.as_deref().map(|path| certificate(path, setting)).transpose();
    let client = pem(&store.tls.cert, "store.tls.cert")?.zip(pem(&store.tls.key, "store.tls.key")?);
    Ok(spillgate_redis::Settings {
        url: with_credentials(url, store.user.as_deref(), password.as_deref()),
        sentinel_user: store.sentinel_user.clone(),
        sentinel_password,
        tls: Tls {
            ca: pem(&store.tls.ca, "store.tls.ca")?,
            client,
            server_name: store.tls.server_name.clone(),
            skip_name_check: store.tls.skip_name_check,
        },
        timeout: store.deadline,
        connections,
        max_in_flight: store.max_in_flight,
        deny_cache_entries: store.deny_cache,
        deny_cache_max_age: store.deny_cache_max_age,
        log: store.log,
        scripts: store.scripts,
        fixed_window: store.fixed_window,
        ..spillgate_redis::Settings::new("")
    })
}

fn password_of(file: Option<&Path>, what: &str, setting: &str) -> Result<Option<String>, Trouble> {
    let Some(path) = file else { return Ok(None) };
    let text = secret_file::read(path, what, setting)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let none = || {
        let help = "put the password on one line into it, at most 4 KiB";
        Trouble::new(format!("{} holds no password", path.display()), help)
    };
    text.ok_or_else(none).map(Some)
}

/// What keys in the shared store are hashed with.
pub(super) fn keys(settings: &Settings) -> Result<KeyHasher, Trouble> {
    let Some(path) = &settings.store.key_secret_file else { return Ok(KeyHasher::with_secret(PUBLIC_SECRET)) };
    let digits = secret_file::read(path, "key secret", "store.key_secret_file")?;
    let secret = digits.and_then(|digits| secret_file::hexadecimal(&digits)).ok_or_else(|| {
        let help = "put 32 hexadecimal digits into it, as `openssl rand -hex 16` prints them, the same on every server";
        Trouble::new(format!("{} holds no key secret", path.display()), help)
    })?;
    Ok(KeyHasher::with_secret(secret))
}

/// What is wrong with the settings of a shared store, files included; it is not asked.
pub(super) fn check(settings: &Settings) -> Result<(), Trouble> {
    if settings.store.url == StoreUrl::Memory {
        return Ok(());
    }
    shared(settings, 1)?;
    keys(settings).map(drop)
}

/// What is wrong with rules on the shared store of the settings; nothing is on memory.
pub(super) fn check_rules(settings: &Settings, rules: &Rules) -> Result<(), Problems> {
    load::problems(unserved(settings, rules))
}

/// The same, and what is wrong with them for a server while the store fails.
pub(super) fn unserved_by_server(settings: &Settings, rules: &Rules) -> Vec<Trouble> {
    let mut found = unserved(settings, rules);
    let local = |limit: &&Limit| limit.quota.on_store_failure() == OnStoreFailure::Local;
    let is_shared = settings.store.url != StoreUrl::Memory;
    if let (true, None, Some(limit)) = (is_shared, settings.store.expected_nodes, limits(rules).find(local)) {
        let message = format!(
            "{}: while the store fails this limit is counted by each server for its share (on_store_failure: local), \
             and nobody said how many servers there are",
            origin(limit)
        );
        let help = "set `store.expected_nodes` to the most servers that share the store, or give the limit, or all of them \
                    in the settings, `on_store_failure: allow`, `deny` or `error`";
        found.push(Trouble::new(message, help));
    }
    found
}

/// What the rules say that is of no use to the store of the settings: of each kind the first place.
pub(super) fn notes(settings: &Settings, rules: &Rules) -> Vec<String> {
    if settings.store.url != StoreUrl::Memory {
        return Vec::new();
    }
    let policy = limits(rules).find(|limit| limit.quota.on_store_failure() != OnStoreFailure::Local);
    let slot = limits(rules).find(|limit| limit.slot_by.is_some());
    let found = [("on_store_failure", policy), ("slot_by", slot)].into_iter();
    let note = |(key, limit): (&str, Option<&Limit>)| {
        Some(format!("{}: {key} has no effect while store.url is memory", origin(limit?)))
    };
    found.filter_map(note).collect()
}

/// How the store is asked, whichever it is.
pub(super) fn modes(settings: &Settings) -> spillgate_redis::Settings {
    spillgate_redis::Settings {
        log: settings.store.log,
        scripts: settings.store.scripts,
        fixed_window: settings.store.fixed_window,
        ..spillgate_redis::Settings::new("")
    }
}

fn limits(rules: &Rules) -> impl Iterator<Item = &Limit> {
    rules.rules().flat_map(|rule| &rule.limits)
}

fn origin(limit: &Limit) -> String {
    limit.origin.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// The limits that the shared store cannot count, or not as the rules name them.
fn unserved(settings: &Settings, rules: &Rules) -> Vec<Trouble> {
    if settings.store.url == StoreUrl::Memory {
        return Vec::new();
    }
    let modes = modes(settings);
    let supports = |limit: &Limit, kind| modes.supports(&limit.quota, kind);
    let mut found = Vec::new();
    for limit in limits(rules) {
        let kinds = [OpKind::Peek, if limit.post_paid { OpKind::Force } else { OpKind::Take }];
        if !kinds.iter().all(|kind| supports(limit, *kind)) {
            found.push(uncountable(settings, limit));
        }
    }
    // What INCREX counts cannot be charged by force, which scripts can.
    let is_native = |limit: &&Limit| supports(limit, OpKind::Take) && !supports(limit, OpKind::Force);
    let has_force = |limit: &&Limit| modes.scripts && limit.quota.supports(OpKind::Force);
    for rule in rules.rules().filter(|rule| rule.limits.len() > 1) {
        if let Some(limit) = rule.limits.iter().filter(has_force).find(is_native) {
            let message = format!(
                "{}: with store.fixed_window: native this window has to be the only limit of its rule",
                origin(limit)
            );
            let help =
                "leave the rule this one limit, or the window `anchor: epoch`, or set `store.fixed_window: script`";
            found.push(Trouble::new(message, help));
        }
    }
    found
}

fn uncountable(settings: &Settings, limit: &Limit) -> Trouble {
    let (place, algorithm) = (origin(limit), limit.quota.algorithm().as_str());
    let message = format!("{place}: the store {} cannot count this {algorithm}", settings.store.url);
    let is_native = settings.store.fixed_window == FixedWindow::Native && limit.post_paid;
    let help = match settings.store.scripts {
        false => {
            "without scripts (store.scripts: off) only fixed windows are served, and none with `penalty`, `denied: \
             charged` or `post_paid`: write such a one, or allow scripts"
        }
        true if is_native => "what is charged afterwards needs `store.fixed_window: script`",
        true => "a window there is a whole number of microseconds, of segments too, and at most 71 years",
    };
    Trouble::new(message, help)
}

fn certificate(path: &Path, setting: &str) -> Result<Vec<u8>, Trouble> {
    let unread = |why: String| {
        let help = format!("check `{setting}`: it is a file in PEM (-----BEGIN ...), which this user may read");
        Trouble::new(format!("{} cannot be read: {why}", path.display()), help)
    };
    match std::fs::metadata(path) {
        Ok(file) if file.len() > MAX_PEM_BYTES => Err(unread("it is larger than 1 MiB".to_owned())),
        Ok(_) => std::fs::read(path).map_err(|error| unread(error.to_string())),
        Err(error) => Err(unread(error.to_string())),
    }
}

/// The URL with who logs in; it names nobody yet.
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

/// As URLs write it.
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
    fn who_logs_in_becomes_part_of_the_url() {
        let url = |url, user| with_credentials(url, user, Some("p@ss/w:rd é"));
        assert_eq!(url("redis://h:1/2", Some("a b")), "redis://a%20b:p%40ss%2Fw%3Ard%20%C3%A9@h:1/2");
        assert_eq!(url("redis-cluster://h,i", None), "redis-cluster://:p%40ss%2Fw%3Ard%20%C3%A9@h,i");
        assert_eq!(url("unix:///r", Some("u")), "unix:///r?user=u&pass=p%40ss%2Fw%3Ard%20%C3%A9");
        assert_eq!(url("unix:///r?db=1", None), "unix:///r?db=1&pass=p%40ss%2Fw%3Ard%20%C3%A9");
        assert_eq!(with_credentials("redis://h", None, None), "redis://h");
    }
}
