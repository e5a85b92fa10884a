//! Opens the shared store (Redis or Valkey) of the settings: its URL, logins, certificates and key secret.
//!
//! `serve`, `check`, `key` and `doctor` use the same code, so that they reach the same store and the same keys.

use std::path::Path;
use std::time::Duration;

use spillgate::{KeyHasher, StoreErrorKind};
use spillgate_redis::Tls;
use spillgate_service::shared_store::SharedError;

use super::redis::Redis;
use super::secret_file;
use crate::command::terminal::Problem;
use crate::settings::{Settings, StoreTls, StoreUrl};

/// The key secret that is used if the settings name none. Everyone can know it, because it is in the source code.
const PUBLIC_SECRET: [u8; 16] = *b"spillgate public";

/// The largest certificate file that is read, in bytes.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// The note that `check` and `key` print if the settings name no key secret.
pub(crate) const NO_SECRET: &str = "note: keys are hashed without a secret, as on a server without \
                                    store.key_secret_file. If your servers have a key secret, or another value of \
                                    store.log or store.scripts, they use other keys";

/// How long `check` and `doctor` wait for an answer of the store. No client waits for these commands, so this time can
/// be long. The time to connect is the same as for the server, so that the doctor finds the same faults as the server.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the error of a command that cannot reach the store, with help for the likely cause.
pub(crate) fn unreachable(settings: &Settings, error: &SharedError) -> Problem {
    let url = &settings.store.url;
    let problem = if error.kind() == StoreErrorKind::NoPermission { "refuses access" } else { "cannot be reached" };
    let message = format!("the store {url} {problem}: {error}");
    if let Some(command) = error.forbidden_command() {
        let user = login_user(settings);
        let help = format!(
            "ACL SETUSER {user} +{command}; the book has the least rights for each kind of store \
             (docs/src/operating/least-rights.md)"
        );
        return Problem::new(message, help);
    }
    Problem::new(message, error.help())
}

/// Returns whether the URL of the store asks for TLS.
pub(crate) fn is_secure(settings: &Settings) -> bool {
    let url = settings.store.url.to_string();
    ["rediss", "valkeys"].iter().any(|scheme| url.starts_with(scheme))
}

/// Returns the user that logs in, as an ACL names it.
pub(crate) fn login_user(settings: &Settings) -> String {
    match (&settings.store.user, &settings.store.url) {
        (None, StoreUrl::Shared(url)) => spillgate_redis::Settings::new(url).user(),
        (named, _) => named.clone().unwrap_or_default(),
    }
}

/// Returns the store of the settings, with this many connections.
pub(crate) fn redis_store(settings: &Settings, connections: usize) -> Result<Redis, Problem> {
    redis_store_with(settings, &redis_settings(settings, connections)?)
}

/// Returns the store with these settings of `spillgate-redis`.
pub(crate) fn redis_store_with(settings: &Settings, reached: &spillgate_redis::Settings) -> Result<Redis, Problem> {
    Redis::new(reached, is_secure(settings)).map_err(|error| {
        let message = format!("the store {} cannot be used: {}", settings.store.url, error.detail());
        let help = match settings.store.tls == StoreTls::default() {
            true => "correct `store.url`: redis://HOST:PORT, or another form of --store in `spillgate serve --help`",
            false => "correct `store.url`, or the files under `store.tls`",
        };
        Problem::new(message, help)
    })
}

/// Returns the settings of `spillgate-redis` for the store. Reads the files with passwords and certificates.
pub(crate) fn redis_settings(settings: &Settings, connections: usize) -> Result<spillgate_redis::Settings, Problem> {
    let store = &settings.store;
    let StoreUrl::Shared(url) = &store.url else {
        let help = "name a shared store with --store: redis://127.0.0.1:6379";
        return Err(Problem::new("the store is memory, which only the server process can see", help));
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
        ..spillgate_redis::Settings::new("")
    })
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

/// Returns the hasher of the keys in the shared store.
pub(crate) fn key_hasher(settings: &Settings) -> Result<KeyHasher, Problem> {
    let Some(path) = &settings.store.key_secret_file else { return Ok(KeyHasher::with_secret(PUBLIC_SECRET)) };
    let digits = secret_file::read(path, "key secret", "store.key_secret_file")?;
    let secret = digits.and_then(|digits| secret_file::hexadecimal(&digits)).ok_or_else(|| {
        let help = "write 32 hexadecimal digits into it (`openssl rand -hex 16` prints them), the same on every server";
        Problem::new(format!("{} holds no key secret", path.display()), help)
    })?;
    Ok(KeyHasher::with_secret(secret))
}

/// Checks the settings of a shared store and the files that they name, without connecting to the store.
pub(crate) fn check_settings(settings: &Settings) -> Result<(), Problem> {
    if settings.store.url == StoreUrl::Memory {
        return Ok(());
    }
    redis_store(settings, 1)?;
    key_hasher(settings).map(drop)
}

/// Returns only those settings of `spillgate-redis` that change commands and keys. They need no URL and no files.
pub(crate) fn modes(settings: &Settings) -> spillgate_redis::Settings {
    spillgate_redis::Settings {
        log: settings.store.log,
        scripts: settings.store.scripts,
        ..spillgate_redis::Settings::new("")
    }
}

fn certificate(path: &Path, setting: &str) -> Result<Vec<u8>, Problem> {
    let unread = |why: String| {
        let help = format!("check `{setting}`: it has to be a PEM file (-----BEGIN ...) that this user may read");
        Problem::new(format!("{} cannot be read: {why}", path.display()), help)
    };
    match std::fs::metadata(path) {
        Ok(file) if file.len() > MAX_PEM_BYTES => Err(unread("it is larger than 1 MiB".to_owned())),
        Ok(_) => std::fs::read(path).map_err(|error| unread(error.to_string())),
        Err(error) => Err(unread(error.to_string())),
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
