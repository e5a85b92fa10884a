//! The memory store itself: its two sets of shards, its budget, and which shard has which key.
//!
//! The other files of this folder add what the store does: decisions, sweeps and snapshots.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::Guard;
use spillgate_core::{Algorithm, Hit, Quota};

use super::budget::Budget;
use super::options::{MemoryOptions, OnFull};
use super::shards::{Fingerprint, Shards, Table, Width};

/// A shard is made for this many keys. A table that grows copies about this many entries at most.
const SHARD_KEYS: usize = 128 * 1024;
/// There are at most 2^12 shards, enough for 500 million keys. More shards help no machine.
const MAX_SHARD_BITS: u32 = 12;

/// A store in this process: hash tables of small buckets, each bucket with a lock of its own.
///
/// A request locks the buckets of all its hits, decides, and unlocks them. All requests lock in the same order. Any
/// number of threads admit exactly what one thread would.
///
/// The store removes only states that equal an empty state, a bounded number in each call. It grows one shard at a
/// time. The [crate's page](crate#guarantees) lists what it guarantees, and the tests of each guarantee.
///
/// Memory for each key, if there are a million keys or more:
///
/// * A token bucket, a queue or a fixed window costs 31 bytes on average, everything included.
/// * A sliding counter of one segment costs 52 bytes.
/// * A state that does not fit a slot needs more: a state under a penalty, a log, a counter of several segments, or
///   leases. A count above 2^38 that is not a multiple of a thousand does not fit either.
///
/// ```
/// use spillgate::{Binding, Hit, MemoryOptions, MemoryStore, Op, Quota, Time};
///
/// let store = MemoryStore::new(MemoryOptions::default());
/// let quota = Quota::per_second(2).build()?;
/// let hit = Hit::new(7, &quota, Op::take(1), Binding::Enforce);
/// let now = Time::from_nanos(1_000_000_000);
/// assert!(store.hit_now(now, &hit).allowed);
/// assert!(store.hit_now(now, &hit).allowed);
/// assert!(!store.hit_now(now, &hit).allowed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryStore {
    /// States that fit three words, and the slab indices of states that fit no slot.
    pub(super) narrow: Shards,
    /// Sliding counters of one segment.
    pub(super) wide: Shards,
    /// Keys and bytes in use, for all shards together.
    pub(super) budget: Budget,
    /// What happens at the bounds.
    pub(super) on_full: OnFull,
    /// How many requests met a bound.
    pub(super) full_requests: AtomicU64,
}

impl MemoryStore {
    /// Makes an empty store. It allocates as states arrive, so high bounds cost little at first.
    #[must_use]
    pub fn new(options: MemoryOptions) -> MemoryStore {
        let shards = options.max_keys.div_ceil(SHARD_KEYS).max(1).next_power_of_two();
        let bits = shards.ilog2().min(MAX_SHARD_BITS);
        MemoryStore {
            narrow: Shards::new(Width::Narrow, bits),
            wide: Shards::new(Width::Wide, bits),
            budget: Budget::new(options.max_keys, options.max_heap_bytes),
            on_full: options.on_full,
            full_requests: AtomicU64::new(0),
        }
    }

    /// The number of requests that met a bound of the store. They were refused or not counted: see [`OnFull`].
    ///
    /// If this number grows, [`MemoryOptions::max_keys`] or [`MemoryOptions::max_heap_bytes`] is too low for the
    /// traffic.
    ///
    /// ```
    /// use spillgate::{Limiter, MemoryOptions, MemoryStore, Quota};
    /// let options = MemoryOptions { max_keys: 1, ..MemoryOptions::default() };
    /// let limiter = Limiter::new(MemoryStore::new(options));
    /// let quota = Quota::per_day(5).build()?;
    /// for user in ["ann", "bob"] {
    ///     let _ = limiter.hit_now("login", user, &quota, 1);
    /// }
    /// assert_eq!((limiter.store().len(), limiter.store().full_requests()), (1, 1));
    /// # Ok::<(), spillgate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn full_requests(&self) -> u64 {
        self.full_requests.load(Ordering::Relaxed)
    }

    /// The number of states in the store, including states that expired but were not swept yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.narrow.entries() + self.wide.entries()
    }

    /// Whether the store has no states.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of a hit's state, and the shard that has it.
    #[inline]
    pub(super) fn locate(&self, hit: &Hit<'_>) -> (Fingerprint, ShardRef<'_>) {
        let shards = self.shards(hit.quota);
        let key = Fingerprint::of(hit.state_key(), shards.width());
        (key, ShardRef { shards, index: shards.shard_of(key) })
    }

    /// The shards for states of `quota`.
    #[inline]
    fn shards(&self, quota: &Quota) -> &Shards {
        match quota.algorithm() {
            Algorithm::SlidingWindowCounter { segments: 1 } => &self.wide,
            Algorithm::TokenBucket
            | Algorithm::LeakyBucket
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter { .. }
            | Algorithm::Concurrency => &self.narrow,
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.len()).field("on_full", &self.on_full).finish_non_exhaustive()
    }
}

/// One shard of the store. Two of them are equal if they are the same shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardRef<'s> {
    /// The narrow or the wide shards.
    pub(super) shards: &'s Shards,
    /// The index of the shard among them.
    pub(super) index: usize,
}

impl PartialEq for ShardRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.lock_order() == other.lock_order()
    }
}

impl<'s> ShardRef<'s> {
    /// The order in which a request locks several shards.
    pub(super) fn lock_order(self) -> (bool, usize) {
        (self.shards.width() == Width::Wide, self.index)
    }

    /// The table of the shard. It lives as long as the guard.
    #[inline]
    pub(super) fn load(self) -> Guard<Arc<Table>> {
        self.shards.load(self.index)
    }
}
