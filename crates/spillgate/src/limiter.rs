//! Reads the clock once, asks the store once.

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store, StoreError, Time, Verdict};

use crate::{Clock, KeyHasher, SystemClock};

/// A store, a clock and the secret that keys are hashed with.
///
/// Share it behind an `Arc`: two limiters count apart. Those of a fleet count together in a store outside the process,
/// if they hash keys with one secret:
///
/// ```text
/// let store = RedisStore::connect("redis://10.0.0.7/").await?; // of spillgate-redis
/// let fallback = Fallback::new(MemoryStore::new(MemoryOptions::default()), expected_nodes);
/// let store = FallbackStore::new(store, fallback);
/// let limiter = Limiter::with_keys(store, SystemClock::start(), KeyHasher::with_secret(secret));
/// ```
///
/// A store that has a clock of its own decides by that, so nodes need not agree on the time; the limiter's clock is
/// for stores without one, and for the local state of a [`FallbackStore`](crate::FallbackStore).
#[derive(Debug)]
pub struct Limiter<S, C = SystemClock> {
    store: S,
    clock: C,
    keys: KeyHasher,
}

impl<S: Store> Limiter<S> {
    /// A limiter on the system's clock, with a secret of its own.
    #[must_use]
    pub fn new(store: S) -> Limiter<S> {
        Limiter::with_clock(store, SystemClock::start())
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// A limiter on a clock of the caller's.
    #[must_use]
    pub fn with_clock(store: S, clock: C) -> Limiter<S, C> {
        Limiter::with_keys(store, clock, KeyHasher::random())
    }

    /// A limiter whose store holds states of keys that were hashed with this secret.
    #[must_use]
    pub const fn with_keys(store: S, clock: C, keys: KeyHasher) -> Limiter<S, C> {
        Limiter { store, clock, keys }
    }

    /// Decides all `hits` of one request, all or nothing; `decisions` has the same length.
    ///
    /// # Errors
    /// The store failed; nothing is known about what was charged.
    pub async fn decide(&self, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<Verdict, StoreError> {
        let now = if self.store.has_clock() { None } else { Some(self.clock.now()) };
        self.store.decide(now, hits, decisions).await
    }

    /// Takes `cost` units for `key` in `bucket`, if they fit `quota`; a cost of 0 only looks.
    ///
    /// The quota may differ from call to call: what was used is kept as long as the algorithm
    /// and the window are the same. The time is the limiter's, or the store's if it has a clock; waits count from then.
    ///
    /// # Errors
    /// The store failed; nothing is known about what was charged.
    pub async fn hit(&self, bucket: &str, key: &str, quota: &Quota, cost: u64) -> Result<Decision, StoreError> {
        let mut decisions = [Decision::default()];
        self.decide(&[self.hit_on(bucket, key, quota, cost)], &mut decisions).await?;
        let [decision] = decisions;
        Ok(decision)
    }

    /// The question that [`hit`](Limiter::hit) asks.
    pub(crate) fn hit_on<'q>(&self, bucket: &str, key: &str, quota: &'q Quota, cost: u64) -> Hit<'q> {
        let key = self.keys.start().part(bucket.as_bytes()).part(key.as_bytes()).finish();
        Hit::new(key, quota, Op::take(cost), Binding::Enforce)
    }

    /// The time now, by the limiter's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// What keys are hashed with.
    #[must_use]
    pub const fn keys(&self) -> &KeyHasher {
        &self.keys
    }
}
