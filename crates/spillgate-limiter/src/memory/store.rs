//! The memory store itself: its two sets of shards, its budget, and the choice of the shard for a key.
//!
//! The other files of this folder add what the store does: decisions, sweeps and snapshots.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::Guard;
use spillgate_core::{Algorithm, Hit, Quota};

use super::budget::Budget;
use super::options::{MemoryOptions, OnFull};
use super::overflow::Overflow;
use super::shards::{Fingerprint, Shards, Table, Width};

/// The number of shards is chosen so that a full store has about this many keys in a shard, or fewer. Each shard has
/// its own table. So when a table grows, it copies about this many entries at most.
const SHARD_KEYS: usize = 128 * 1024;
/// There are at most 2^12 shards, which is enough for 500 million keys. No machine would be faster with more shards.
const MAX_SHARD_BITS: u32 = 12;

/// A store in the memory of this process. It has hash tables of small buckets, and each bucket has its own lock.
///
/// A request locks the buckets of all its hits, decides, and unlocks them. All requests lock buckets in the same order,
/// so they cannot deadlock. Any number of threads together admit exactly what one thread would admit.
///
/// The store removes only expired states. A key with an expired state is decided like a key without a state, so the
/// removal changes no decision. Each call removes a bounded number of states. The store grows one shard (a part of the
/// keys) at a time. The [crate's page](crate#guarantees) lists what the store guarantees, and the tests of each
/// guarantee.
///
/// If there are a million keys or more, a key takes this much memory:
///
/// * A token bucket, a leaky bucket or a fixed window takes 31 bytes on average, including all overhead.
/// * A sliding counter of one segment takes 52 bytes.
/// * A state that does not fit its slot takes more. Such states are logs, leases, counters of several segments, states
///   under a penalty, and the buckets of some [shares](Quota::share). A fixed window does not fit either if its count
///   is 2^38 or more and not a multiple of a thousand.
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
    /// The shards for all states except the states in `wide`.
    pub(super) narrow: Shards,
    /// The shards for sliding counters of one segment.
    pub(super) wide: Shards,
    /// The budget of all shards together.
    pub(super) budget: Budget,
    pub(super) on_full: OnFull,
    /// The sketch that limits new keys while the store is full. `None` without [`OnFull::Sketch`].
    pub(super) overflow: Option<Box<Overflow>>,
    /// How many requests needed more capacity than the store had.
    pub(super) full_requests: AtomicU64,
    /// Counts the shards that were swept by time. It says which shard is next.
    pub(super) next_swept: AtomicUsize,
}

impl MemoryStore {
    /// Makes an empty store. High bounds cost little at first, because memory is allocated when states arrive. Only the
    /// sketch of [`OnFull::Sketch`] is allocated now.
    #[must_use]
    pub fn new(options: MemoryOptions) -> MemoryStore {
        let shards = options.max_keys.div_ceil(SHARD_KEYS).max(1).next_power_of_two();
        let bits = shards.ilog2().min(MAX_SHARD_BITS);
        let sketch_bytes = match options.on_full {
            OnFull::Sketch { bytes } => bytes.min(options.max_heap_bytes),
            OnFull::Deny | OnFull::Allow => 0,
        };
        let is_sketch = matches!(options.on_full, OnFull::Sketch { .. });
        MemoryStore {
            narrow: Shards::new(Width::Narrow, bits),
            wide: Shards::new(Width::Wide, bits),
            budget: Budget::new(options.max_keys, options.max_heap_bytes - sketch_bytes),
            on_full: options.on_full,
            overflow: is_sketch.then(|| Box::new(Overflow::with_bytes(sketch_bytes))),
            full_requests: AtomicU64::new(0),
            next_swept: AtomicUsize::new(0),
        }
    }

    /// Returns the number of requests that needed more capacity than the store had. [`OnFull`] says whether such
    /// requests are refused, not counted, or limited by a sketch.
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
    ///     let _ = limiter.take_now(&quota, ("login", user), 1);
    /// }
    /// assert_eq!((limiter.store().len(), limiter.store().full_requests()), (1, 1));
    /// # Ok::<(), spillgate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn full_requests(&self) -> u64 {
        self.full_requests.load(Ordering::Relaxed)
    }

    /// Reserves bytes of [`MemoryOptions::max_heap_bytes`] that the program uses outside the store, for example in
    /// [sketches](crate::sketch). Fewer bytes are then left for states that do not fit a slot. Each call replaces the
    /// number of the call before.
    ///
    /// ```
    /// use spillgate::{MemoryOptions, MemoryStore};
    /// let store = MemoryStore::new(MemoryOptions::default());
    /// store.reserve_heap(64 << 20);
    /// ```
    pub fn reserve_heap(&self, bytes: usize) {
        self.budget.reserve(bytes);
    }

    /// Returns the number of states in the store, including states that expired but were not removed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.narrow.entries() + self.wide.entries()
    }

    /// Returns the maximum number of states in the store, which is [`MemoryOptions::max_keys`].
    ///
    /// ```
    /// use spillgate::{MemoryOptions, MemoryStore};
    /// let options = MemoryOptions { max_keys: 5, ..MemoryOptions::default() };
    /// assert_eq!(MemoryStore::new(options).max_keys(), 5);
    /// ```
    #[must_use]
    pub const fn max_keys(&self) -> usize {
        self.budget.max_keys()
    }

    /// Returns the number of states that were removed because they had expired. An expired state decides like an empty
    /// state, so no caller notices its removal.
    ///
    /// ```
    /// use spillgate::{MemoryOptions, MemoryStore};
    /// assert_eq!(MemoryStore::new(MemoryOptions::default()).expired_keys(), 0);
    /// ```
    #[must_use]
    pub fn expired_keys(&self) -> u64 {
        self.budget.expired()
    }

    /// Returns whether [`len`](MemoryStore::len) is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the key of the hit's state, and the shard to which the key belongs.
    #[inline]
    pub(super) fn locate(&self, hit: &Hit<'_>) -> (Fingerprint, ShardRef<'_>) {
        let shards = self.shards(hit.quota);
        let key = Fingerprint::of(hit.state_key(), shards.width());
        (key, ShardRef { shards, index: shards.shard_of(key) })
    }

    /// Returns the shards for states of `quota`.
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

/// A reference to one shard of the store. Two references are equal if they refer to the same shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardRef<'s> {
    /// The narrow or the wide shards.
    pub(super) shards: &'s Shards,
    pub(super) index: usize,
}

impl PartialEq for ShardRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.lock_order() == other.lock_order()
    }
}

impl<'s> ShardRef<'s> {
    /// Returns a sort key. A request locks the buckets of its shards in ascending order of this key.
    pub(super) fn lock_order(self) -> (bool, usize) {
        (self.shards.width() == Width::Wide, self.index)
    }

    /// Returns the table of the shard. The table lives at least as long as the guard.
    #[inline]
    pub(super) fn load(self) -> Guard<Arc<Table>> {
        self.shards.load(self.index)
    }
}
