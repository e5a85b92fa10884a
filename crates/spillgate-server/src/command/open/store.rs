//! From settings to the shared store (Redis or Valkey): its URL, logins, certificates and key secret.
//!
//! `serve`, `check`, `key` and `doctor` use the same code, so that they reach the same store and the same keys.

use std::path::Path;
use std::time::Duration;

use spillgate::KeyHasher;
use spillgate_redis::{Error, ErrorKind, RedisStore, Tls};

use super::secret_file;
use crate::command::terminal::Problem;
use crate::settings::{Settings, StoreTls, StoreUrl};

/// What keys are hashed with where no secret is given: sixteen bytes that everybody may know.
const PUBLIC_SECRET: [u8; 16] = *b"spillgate public";

/// A certificate's file is smaller.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// What commands say of names that hang on it.
pub(crate) const NO_SECRET: &str = "note: hashed without a secret, as a server without store.key_secret_file does; \
                                    where the fleet has one, or another store.log or store.scripts, it \
                                    counts under other keys";

/// How long a command waits for an answer of the store, which is no request of anybody. To connect it has as long as a
/// server, for which the doctor is to speak.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a command that asks the store has no answer.
pub(crate) fn unreachable(settings: &Settings, failed: &Error) -> Problem {
    let url = &settings.store.url;
    let said = |words: &str| failed.detail.contains(words);
    let is_secure = ["rediss", "valkeys"].iter().any(|scheme| url.to_string().starts_with(scheme));
    let no_tls = ["no answer within", "corrupt message", "handshake"].iter().any(|words| said(words));
    let help = match missing_command(failed) {
        Some(command) => &format!(
            "ACL SETUSER {} +{command}; the book has the least rights for each kind of store (docs/src/operating/least-rights.md)",
            login_user(settings)
        ),
        None if failed.kind == ErrorKind::NoPermission && failed.detail.starts_with("the sentinel") => {
            "check who logs in there: `store.sentinel_user` and `store.sentinel_password_file`"
        }
        None if failed.kind == ErrorKind::NoPermission => "check who logs in: `store.user` and `store.password_file`",
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
        None if said("not in the protocol of Redis") => {
            "check the port: another program listens there, or it speaks TLS (rediss://)"
        }
        None if said("hung up") => "check the port: it may speak TLS (rediss://), or be another program's",
        None => "check the address, that the store runs, and that nothing between here and there forbids it",
    };
    Problem::new(format!("the store {url} cannot be reached: {failed}"), help)
}

/// Who logs in, as an ACL names the user.
pub(crate) fn login_user(settings: &Settings) -> String {
    match (&settings.store.user, &settings.store.url) {
        (None, StoreUrl::Shared(url)) => spillgate_redis::Settings::new(url).user(),
        (named, _) => named.clone().unwrap_or_default(),
    }
}

/// The command that the store says this user may not run, as an ACL writes it.
fn missing_command(failed: &Error) -> Option<&str> {
    failed.detail.split_once("run the '")?.1.split_once("' command").map(|(command, _)| command)
}

/// The store that the settings name, with so many connections.
pub(crate) fn redis_store(settings: &Settings, connections: usize) -> Result<RedisStore, Problem> {
    redis_store_with(settings, &redis_settings(settings, connections)?)
}

/// The store that is reached so.
pub(crate) fn redis_store_with(
    settings: &Settings,
    reached: &spillgate_redis::Settings,
) -> Result<RedisStore, Problem> {
    RedisStore::new(reached).map_err(|failed| {
        let message = format!("the store {} cannot be used: {}", settings.store.url, failed.detail);
        let help = match settings.store.tls == StoreTls::default() {
            true => "correct `store.url`: redis://HOST:PORT, or what `spillgate serve --help` has under --store",
            false => "correct `store.url`, or the files under `store.tls`",
        };
        Problem::new(message, help)
    })
}

/// How the store is reached; files are read.
pub(crate) fn redis_settings(settings: &Settings, connections: usize) -> Result<spillgate_redis::Settings, Problem> {
    let store = &settings.store;
    let StoreUrl::Shared(url) = &store.url else {
        let help = "name a shared one with --store: redis://127.0.0.1:6379";
        return Err(Problem::new("the store is memory, which this process alone sees", help));
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
        let help = "put the password on one line into it, at most 4 KiB";
        Problem::new(format!("{} holds no password", path.display()), help)
    };
    text.ok_or_else(none).map(Some)
}

/// What keys in the shared store are hashed with.
pub(crate) fn key_hasher(settings: &Settings) -> Result<KeyHasher, Problem> {
    let Some(path) = &settings.store.key_secret_file else { return Ok(KeyHasher::with_secret(PUBLIC_SECRET)) };
    let digits = secret_file::read(path, "key secret", "store.key_secret_file")?;
    let secret = digits.and_then(|digits| secret_file::hexadecimal(&digits)).ok_or_else(|| {
        let help = "put 32 hexadecimal digits into it, as `openssl rand -hex 16` prints them, the same on every server";
        Problem::new(format!("{} holds no key secret", path.display()), help)
    })?;
    Ok(KeyHasher::with_secret(secret))
}

/// Checks the settings of a shared store and the files that they name. It does not connect.
pub(crate) fn check_settings(settings: &Settings) -> Result<(), Problem> {
    if settings.store.url == StoreUrl::Memory {
        return Ok(());
    }
    redis_store(settings, 1)?;
    key_hasher(settings).map(drop)
}

/// How the store is asked, whichever it is.
pub(crate) fn modes(settings: &Settings) -> spillgate_redis::Settings {
    spillgate_redis::Settings {
        log: settings.store.log,
        scripts: settings.store.scripts,
        ..spillgate_redis::Settings::new("")
    }
}

fn certificate(path: &Path, setting: &str) -> Result<Vec<u8>, Problem> {
    let unread = |why: String| {
        let help = format!("check `{setting}`: it is a file in PEM (-----BEGIN ...), which this user may read");
        Problem::new(format!("{} cannot be read: {why}", path.display()), help)
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
