//! Opens the limiter of the server: in memory, or on a shared store with a fallback in memory.
//!
//! This code also logs warnings about settings that are valid but unsafe.

use std::num::NonZeroU32;
use std::thread;
use std::time::Duration;

use spillgate::{Limiter, MemoryStore, OnStoreFailure};
use spillgate_service::Backend;
use spillgate_service::shared_store::SharedLists;

use super::regions::OtherRegions;
use super::snapshot_file::LockedFile;
use super::{log, snapshot};
use crate::command::open::{memory, store};
use crate::command::terminal::Problem;
use crate::settings::{Settings, StoreUrl};

/// How long the lists of blocks and shadow switches wait for the store. No request waits for them.
const LIST_WITHIN: Duration = Duration::from_secs(1);

/// Opens the limiter of the settings. It does not connect to a shared store yet.
pub(super) fn open(
    settings: &Settings,
    snapshot: Option<&LockedFile>,
    regions: Option<&OtherRegions>,
) -> Result<Limiter<Backend>, Problem> {
    let memory = memory::options(settings)?;
    if settings.store.url == StoreUrl::Memory {
        return snapshot::limiter(memory, snapshot);
    }
    let workers = settings.workers.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    // Each worker uses two connections.
    let connections = settings.store.connections.unwrap_or(2 * workers).next_multiple_of(2);
    let nodes = settings.store.expected_nodes.and_then(NonZeroU32::new);
    let local = MemoryStore::new(memory);
    let store = store::backend(
        settings,
        connections,
        local,
        nodes.unwrap_or(NonZeroU32::MIN),
        regions.map(OtherRegions::peers),
    )?;
    let keys = store::key_hasher(settings)?;
    if settings.store.key_secret_file.is_none() {
        tracing::warn!(
            "store.key_secret_file is not set: keys in the store are hashed with a public constant. Clients can then \
             choose keys that share a counter, and forge lease ids and reservation ids. `openssl rand -hex 16` makes a \
             secret for all servers"
        );
    }
    if settings.store.tls.skip_name_check {
        tracing::warn!(
            "store.tls.skip_name_check is set: any machine with a certificate of the authorities in store.tls.ca can \
             impersonate the store. store.tls.server_name checks a name instead"
        );
    }
    if nodes.is_none() && settings.on_store_failure == OnStoreFailure::Local {
        tracing::info!(
            "store.expected_nodes is not set: if a request contains its own limit, this server admits the whole limit \
             while the store fails, and not only a share of it"
        );
    }
    Ok(Limiter::with_keys(store, log::clock(), keys))
}

/// Opens the access to the shared store for the lists of blocks and shadow switches. Returns `None` if the store is
/// memory.
pub(super) fn lists(settings: &Settings) -> Result<Option<Box<dyn SharedLists>>, Problem> {
    if settings.store.url == StoreUrl::Memory {
        return Ok(None);
    }
    store::lists(settings, LIST_WITHIN).map(Some)
}
