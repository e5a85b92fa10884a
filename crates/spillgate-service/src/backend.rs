//! The store that the settings chose: memory, or a shared store with a fallback to memory.
//!
//! The service sees one store and its health. A new kind of shared store implements [`Store`] and [`SharedStore`], and
//! needs no change here.

use std::fmt;
use std::time::Duration;

use spillgate::{
    Decision, FallbackStore, Hit, MemoryStore, OpKind, Quota, Store, StoreError, StoreHealth, Timing, Verdict,
};

use crate::shared_store::{Asked, SharedStore};

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
    /// Stores the counts in a store that the servers of a fleet share. A local store answers while the shared one
    /// fails.
    Shared(Fleet),
}

/// A shared store with its fallback.
#[derive(Debug)]
pub struct Fleet(Box<dyn WithFallback>);

/// A [`FallbackStore`] without the type of its shared store, so that the service needs no type parameter for that
/// store. The compiler still compiles `decide` for each type of store: only the call that makes its future is dynamic.
trait WithFallback: fmt::Debug + Send + Sync {
    fn local(&self) -> &MemoryStore;
    fn shared(&self) -> &dyn SharedStore;
    fn supports(&self, quota: &Quota, op: OpKind) -> bool;
    fn decide<'a>(
        &'a self,
        timing: Timing,
        hits: &'a [Hit<'a>],
        decisions: &'a mut [Decision],
    ) -> Asked<'a, Result<Verdict, StoreError>>;
}

impl<S: Store + SharedStore> WithFallback for FallbackStore<S> {
    fn local(&self) -> &MemoryStore {
        FallbackStore::local(self)
    }

    fn shared(&self) -> &dyn SharedStore {
        FallbackStore::<S>::shared(self)
    }

    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        Store::supports(self, quota, op)
    }

    fn decide<'a>(
        &'a self,
        timing: Timing,
        hits: &'a [Hit<'a>],
        decisions: &'a mut [Decision],
    ) -> Asked<'a, Result<Verdict, StoreError>> {
        // The box keeps this large future out of the futures of requests to the memory store.
        Box::pin(Store::decide(self, timing, hits, decisions))
    }
}

impl Backend {
    /// Returns a backend for a fleet. The shared store of `store` decides, and while it fails, the local store of
    /// `store` answers.
    #[must_use]
    pub fn with_fallback<S: Store + SharedStore + 'static>(store: FallbackStore<S>) -> Backend {
        Backend::Shared(Fleet(Box::new(store)))
    }

    /// Returns the store in this process: the only store, or the local store of the fallback.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        match self {
            Backend::Memory(store) => store,
            Backend::Shared(store) => store.0.local(),
        }
    }

    /// Returns the shared store, or `None` for the memory store. Code that watches or examines the shared store needs
    /// this function.
    #[must_use]
    pub fn shared(&self) -> Option<&dyn SharedStore> {
        match self {
            Backend::Memory(_) => None,
            Backend::Shared(store) => Some(store.0.shared()),
        }
    }

    /// Returns whether other processes share this store.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        match self {
            Backend::Memory(_) => false,
            Backend::Shared(_) => true,
        }
    }

    /// Returns the health of a shared store, or `None` for the memory store.
    #[must_use]
    pub fn health(&self) -> Option<StoreHealth> {
        self.shared().map(SharedStore::health)
    }

    /// Returns how long a request waits for the shared store: as long as the timeout `asked` of its client, but at most
    /// as long as the store's own timeout. Returns `None` for the memory store, which never makes a request wait.
    #[inline]
    #[must_use]
    pub fn timeout(&self, asked: Option<Duration>) -> Option<Duration> {
        let setting = self.shared()?.timeout();
        Some(asked.map_or(setting, |asked| asked.min(setting)))
    }

    /// Returns whether the store decides all these hits in one atomic step.
    pub(super) fn is_atomic(&self, hits: &[Hit<'_>]) -> bool {
        self.shared().is_none_or(|store| store.is_atomic(hits))
    }

    /// Returns why a shared store does not support one of these hits. Returns `None` if the shared store supports all
    /// of them, or if the store is memory.
    #[inline]
    pub(super) fn unsupported(&self, hits: &[Hit<'_>]) -> Option<String> {
        self.shared()?.unsupported(hits)
    }
}

/// `timing` must always contain the time, because the local store of the fallback has no clock.
impl Store for Backend {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        match self {
            Backend::Memory(store) => store.supports(quota, op),
            Backend::Shared(store) => store.0.supports(quota, op),
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
            Backend::Shared(store) => store.0.decide(timing, hits, decisions).await,
        }
    }

    #[inline]
    fn try_decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Option<Result<Verdict, StoreError>> {
        match self {
            Backend::Memory(store) => store.try_decide(timing, hits, decisions),
            Backend::Shared(_) => None,
        }
    }
}
