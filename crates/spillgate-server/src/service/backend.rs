//! The store that the settings chose: memory, or Redis with a fallback to memory.
//!
//! The service sees one store and its health. Another store needs one more variant here, and no change elsewhere in the
//! service.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use spillgate::{
    Decision, FallbackStore, Hit, MemoryStore, OpKind, Quota, Store, StoreError, StoreHealth, Timing, Verdict,
};
use spillgate_redis::RedisStore;

/// The store that the settings chose.
///
/// ```
/// use spillgate::{MemoryOptions, MemoryStore};
/// use spillgate_server::service::Backend;
///
/// let backend = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
/// assert!(!backend.is_shared() && backend.health().is_none());
/// ```
#[derive(Debug)]
pub enum Backend {
    /// States in this process.
    Memory(MemoryStore),
    /// States that a fleet shares, with a local store for the time when Redis fails.
    Redis(Box<FallbackStore<RedisStore>>),
}

impl Backend {
    /// The store in this process: the only store, or the local one of the fallback.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        match self {
            Backend::Memory(store) => store,
            Backend::Redis(store) => store.local(),
        }
    }

    /// The Redis store, if this is one. Commands that examine Redis use it.
    #[must_use]
    pub fn redis(&self) -> Option<&RedisStore> {
        match self {
            Backend::Memory(_) => None,
            Backend::Redis(store) => Some(store.shared()),
        }
    }

    /// Whether other processes share this store.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        match self {
            Backend::Memory(_) => false,
            Backend::Redis(_) => true,
        }
    }

    /// The health of a shared store. `None` for memory.
    #[must_use]
    pub fn health(&self) -> Option<StoreHealth> {
        self.redis().map(RedisStore::health)
    }

    /// How long a caller with the timeout `asked` waits for the store. The setting of the store is the longest time.
    /// `None` for memory, which never waits.
    #[inline]
    #[must_use]
    pub fn timeout(&self, asked: Option<Duration>) -> Option<Duration> {
        let setting = self.redis()?.timeout();
        Some(asked.map_or(setting, |asked| asked.min(setting)))
    }

    /// Why a shared store does not support one of these hits. `None` if it supports them all, and for memory.
    #[inline]
    pub(super) fn unsupported(&self, hits: &[Hit<'_>]) -> Option<String> {
        match self {
            Backend::Memory(_) => None,
            Backend::Redis(store) => unsupported(store.shared(), hits),
        }
    }
}

/// Why Redis does not support one of these hits.
fn unsupported(store: &RedisStore, hits: &[Hit<'_>]) -> Option<String> {
    let hit = hits.iter().find(|hit| !store.supports(hit.quota, hit.op.kind()))?;
    Some(format!(
        "the store does not support {:?} on this limit ({}): windows and segments have to be whole microseconds, at most \
         71 years; with store.scripts: off only plain fixed windows are supported, without resets and refunds",
        hit.op.kind(),
        hit.quota.algorithm().as_str()
    ))
}

/// The local store of the fallback has no clock, so a caller always passes the time, whichever store this is.
impl Store for Backend {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        match self {
            Backend::Memory(store) => store.supports(quota, op),
            Backend::Redis(store) => store.supports(quota, op),
        }
    }

    #[inline]
    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        match self {
            Backend::Memory(store) => store.decide(timing, hits, decisions).await,
            Backend::Redis(store) => {
                // The box keeps the size of this future, and its type, out of requests to memory.
                let decided: Pin<Box<dyn Future<Output = _> + Send + '_>> =
                    Box::pin(store.decide(timing, hits, decisions));
                decided.await
            }
        }
    }
}
