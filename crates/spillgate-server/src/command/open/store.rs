//! Opens the shared store of the settings, and hashes its keys.
//!
//! `serve`, `check` and `key` reach the store only through this file, and the doctor opens it with the same `redis.rs`. So
//! all of them reach the same store and the same keys. Redis and Valkey are the only kind of shared store. Another kind
//! would be chosen here and in the doctor.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use spillgate::regions::{Peers, RegionStore};
use spillgate::{FallbackStore, Hit, KeyHasher, MemoryStore, OpKind, Quota, StoreErrorKind};
use spillgate_service::Backend;
use spillgate_service::shared_store::{SharedError, SharedLists};

use super::{redis, secret_file};
use crate::command::terminal::Problem;
use crate::settings::{Settings, StoreUrl};

/// The key secret that is used if the settings name none. Everyone can know it, because it is in the source code.
const PUBLIC_SECRET: [u8; 16] = *b"spillgate public";

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
        let user = redis::login_user(settings);
        let help = format!(
            "ACL SETUSER {user} +{command}; the book has the least rights for each kind of store \
             (docs/src/operating/least-rights.md)"
        );
        return Problem::new(message, help);
    }
    Problem::new(message, error.help())
}

/// Returns the shared store of the settings, with this many connections. While it fails, `local` decides, with the share
/// that one of `nodes` servers has of each limit. `regions` are told what it admits of shared limits.
pub(crate) fn backend(
    settings: &Settings,
    connections: usize,
    local: MemoryStore,
    nodes: NonZeroU32,
    regions: Option<&Arc<Peers>>,
) -> Result<Backend, Problem> {
    let store = redis::store(settings, connections)?;
    let store = match regions {
        Some(peers) => RegionStore::new(store, Arc::clone(peers), settings.store.deadline),
        None => RegionStore::alone(store),
    };
    Ok(Backend::with_fallback(FallbackStore::new(store, local, nodes)))
}

/// Opens a second access to the shared store, for lists. Each call waits at most for the time `within`. The access has
/// one connection, no scripts and no deny cache, and shares nothing with the store that decides. So a long list delays no
/// decision.
pub(crate) fn lists(settings: &Settings, within: Duration) -> Result<Box<dyn SharedLists>, Problem> {
    let reached = redis::settings_of(settings, 1)?;
    let reached = spillgate_redis::Settings { timeout: within, scripts: false, deny_cache_entries: 0, ..reached };
    Ok(Box::new(redis::store_with(settings, &reached)?))
}

/// Returns whether the shared store of the settings supports the operation on the quota. Needs no URL and no files.
pub(crate) fn supports(settings: &Settings, quota: &Quota, op: OpKind) -> bool {
    redis::modes(settings).supports(quota, op)
}

/// The name of a key in the shared store.
pub(crate) struct KeyName {
    pub(crate) name: String,
    /// The slot of the key in a Redis cluster.
    pub(crate) slot: u16,
}

/// Returns a function that names the key of a hit in the shared store. It does not connect to the store.
pub(crate) fn key_names(settings: &Settings) -> Result<impl Fn(&Hit<'_>) -> KeyName, Problem> {
    if !settings.store.scripts {
        let help = "list the counters by their prefix: redis-cli --scan --pattern 'sg:*'";
        let message = "without scripts, the name of a counter changes with each window of the store's clock";
        return Err(Problem::new(message, help));
    }
    let modes = redis::modes(settings);
    Ok(move |hit: &Hit<'_>| {
        let key = modes.key(hit);
        KeyName { name: key.to_string(), slot: key.slot() }
    })
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

/// Returns a number by which regions see whether they have one key secret. It says nothing about the secret.
pub(crate) fn check_value(settings: &Settings) -> Result<u64, Problem> {
    let key = key_hasher(settings)?.start().part(b"spillgate regions").finish();
    Ok((key >> 64) as u64)
}

/// Checks the settings of a shared store and of those of other regions, with the files that they name, without connecting to a
/// store.
pub(crate) fn check_settings(settings: &Settings) -> Result<(), Problem> {
    if settings.store.url == StoreUrl::Memory {
        return Ok(());
    }
    redis::store(settings, 1)?;
    for peer in &settings.regions.peers {
        redis::region_store(settings, peer)?;
    }
    key_hasher(settings).map(drop)
}
