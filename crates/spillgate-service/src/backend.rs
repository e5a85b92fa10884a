//! The store that the settings chose: memory, or Redis with a fallback to memory.
//!
//! The service sees one store and its health. A new kind of store needs one more variant here, and no change elsewhere
//! in the service.

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
/// use spillgate_service::Backend;
///
/// let backend = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
/// assert!(!backend.is_shared() && backend.health().is_none());
/// ```
#[derive(Debug)]
pub enum Backend {
    /// Stores the counts in this process.
    Memory(MemoryStore),
    /// Stores the counts in Redis, which the servers of a fleet share. A local store answers while Redis fails.
    Redis(Box<FallbackStore<RedisStore>>),
}

impl Backend {
    /// Returns the store in this process: the only store, or the local store of the fallback.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        match self {
            Backend::Memory(store) => store,
            Backend::Redis(store) => store.local(),
        }
    }

    /// Returns the Redis store, if the settings chose it. Commands that examine Redis use it.
    #[must_use]
    pub fn redis(&self) -> Option<&RedisStore> {
        match self {
            Backend::Memory(_) => None,
            Backend::Redis(store) => Some(store.shared()),
        }
    }

    /// Returns whether other processes share this store.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        match self {
            Backend::Memory(_) => false,
            Backend::Redis(_) => true,
        }
    }

    /// Returns the health of a shared store, or `None` for the memory store.
    #[must_use]
    pub fn health(&self) -> Option<StoreHealth> {
        self.redis().map(RedisStore::health)
    }

    /// Returns how long a caller with the timeout `asked` waits for the store. The setting of the store is an upper
    /// bound. Returns `None` for the memory store, which never makes a caller wait.
    #[inline]
    #[must_use]
    pub fn timeout(&self, asked: Option<Duration>) -> Option<Duration> {
        let setting = self.redis()?.timeout();
        Some(asked.map_or(setting, |asked| asked.min(setting)))
    }

    /// Returns whether the store decides all these hits in one atomic step.
    pub(super) fn is_atomic(&self, hits: &[Hit<'_>]) -> bool {
        self.redis().is_none_or(|store| store.is_atomic(hits))
    }

    /// Returns why a shared store does not support one of these hits. Returns `None` if it supports all of them, and
    /// for the memory store.
    #[inline]
    pub(super) fn unsupported(&self, hits: &[Hit<'_>]) -> Option<String> {
        match self {
            Backend::Memory(_) => None,
            Backend::Redis(store) => unsupported(store.shared(), hits),
        }
    }
}

/// Returns why Redis does not support one of these hits.
fn unsupported(store: &RedisStore, hits: &[Hit<'_>]) -> Option<String> {
    let hit = hits.iter().find(|hit| !store.supports(hit.quota, hit.op.kind()))?;
    Some(format!(
        "the store does not support {:?} on this limit ({}): windows and segments have to be whole microseconds, at most \
         71 years; with store.scripts: off only plain fixed windows are supported, without resets and refunds",
        hit.op.kind(),
        hit.quota.algorithm().as_str()
    ))
}

/// A caller always passes the time, because the local store of the fallback has no clock.
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
                // The box keeps this large future out of the futures of requests to the memory store.
                let decided: Pin<Box<dyn Future<Output = _> + Send + '_>> =
                    Box::pin(store.decide(timing, hits, decisions));
                decided.await
            }
        }
    }

    fn try_decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Option<Result<Verdict, StoreError>> {
        match self {
            Backend::Memory(store) => store.try_decide(timing, hits, decisions),
            Backend::Redis(_) => None,
        }
    }
}
