//! State in this process: exact, bounded, gone with the process but for what a snapshot keeps.

mod batch;
mod bucket;
mod fingerprint;
mod place;
mod record;
mod room;
mod shards;
mod slab;
mod snapshot;
mod sync;
mod table;
mod transaction;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use spillgate_core::{Algorithm, Decision, Hit, MAX_HITS, OpKind, Quota, Store, StoreError, Time, Verdict};

use bucket::Width;
use room::Room;
use shards::Shards;

pub use snapshot::{Restored, Saved, SnapshotError};

/// Keys a shard has room for: up to 500 million keys, copying so many entries is all that growing does at once.
const SHARD_KEYS: usize = 128 * 1024;
/// Of the shards: more than this are no use to any machine.
const MAX_SHARD_BITS: u32 = 12;
/// What happens to a key that needs room when the store is full: a new key, and at the bound on
/// bytes any key whose log or leases would grow. States that count are never thrown out:
/// forgetting one would let its key through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnFull {
    /// Requests with a take that needs room are refused, charging nothing: their forces are lost.
    #[default]
    Deny,
    /// What needs room is decided, but not counted.
    Allow,
}

/// The bounds of a [`MemoryStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// States at most; 10 million unless set.
    pub max_keys: usize,
    /// Bytes in the states that do not fit a slot (logs, several segments, leases, penalties), after
    /// which none of them grows; 1 GiB unless set. Passed by one growth for each thread at most. A request that
    /// meets this bound copies the state it may not charge.
    pub max_heap_bytes: usize,
    /// What happens at either bound.
    pub on_full: OnFull,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { max_keys: 10_000_000, max_heap_bytes: 1 << 30, on_full: OnFull::Deny }
    }
}

/// A store in this process: tables of small buckets, each behind its own lock.
///
/// A request locks the buckets of all its hits, in one order for all requests, decides, and
/// unlocks: any number of threads admit exactly what one thread would. It forgets only states
/// that equal no state, a bounded number in each call, and grows a shard at a time. What it guarantees, and the tests
/// that hold it, is on the [crate's page](crate#guarantees).
///
/// A token bucket, a queue or a fixed window takes 31 bytes on average, all in, where there are a
/// million keys or more; a sliding counter of one segment takes 52. A state that does not fit a slot takes a
/// place in a slab besides: one under a penalty, a log, several segments, leases, and counts above 2^38 that are no
/// multiples of a thousand.
pub struct MemoryStore {
    /// States of three words, and the places of those that fit no slot.
    narrow: Shards,
    /// Sliding counters of one segment.
    wide: Shards,
    room: Room,
    on_full: OnFull,
    full_requests: AtomicU64,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(options: MemoryOptions) -> MemoryStore {
        let shards = options.max_keys.div_ceil(SHARD_KEYS).max(1).next_power_of_two();
        let bits = shards.ilog2().min(MAX_SHARD_BITS);
        MemoryStore {
            narrow: Shards::new(Width::Narrow, bits),
            wide: Shards::new(Width::Wide, bits),
            room: Room::new(options.max_keys, options.max_heap_bytes),
            on_full: options.on_full,
            full_requests: AtomicU64::new(0),
        }
    }

    /// Decides all `hits` of one request at `now`; `decisions` has the same length.
    ///
    /// # Errors
    /// [`StoreError::Malformed`] if the lengths differ or there are over [`MAX_HITS`] hits.
    pub fn decide_now(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<Verdict, StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::Malformed("hits and decisions differ in length"));
        }
        if hits.len() > MAX_HITS {
            return Err(StoreError::Malformed("more hits than one request can have"));
        }
        Ok(match (hits, &mut *decisions) {
            ([hit], [decision]) => {
                self.decide_one(now, hit, decision);
                Verdict::of(hits, decisions, now)
            }
            _ => self.decide_all(now, hits, decisions),
        })
    }

    /// Decides one hit at `now`: what [`decide_now`](MemoryStore::decide_now) does, without a verdict.
    #[must_use]
    pub fn hit_now(&self, now: Time, hit: &Hit<'_>) -> Decision {
        let mut decision = Decision::default();
        self.decide_one(now, hit, &mut decision);
        decision
    }

    /// Decides many requests of one hit each at `now`, in order, all by themselves: the same as
    /// [`hit_now`](MemoryStore::hit_now) for each, and faster where the keys are many, since memory is
    /// asked for several at a time.
    ///
    /// # Errors
    /// [`StoreError::Malformed`] if the lengths differ.
    pub fn hit_batch_now(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<(), StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::Malformed("hits and decisions differ in length"));
        }
        self.decide_each(now, hits, decisions);
        Ok(())
    }

    /// Requests that met a bound of the store: refused or not counted, as [`OnFull`] says.
    #[must_use]
    pub fn full_requests(&self) -> u64 {
        self.full_requests.load(Ordering::Relaxed)
    }

    /// How many states are held, those that expired lately included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.narrow.entries() + self.wide.entries()
    }

    /// Whether no state is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tables that states of `quota` lie in.
    #[inline]
    fn shards(&self, quota: &Quota) -> &Shards {
        match quota.algorithm() {
            Algorithm::SlidingWindowCounter { segments: 1 } => &self.wide,
            _ => &self.narrow,
        }
    }
}

impl Store for MemoryStore {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        quota.supports(op)
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let now = now.ok_or(StoreError::Malformed("the memory store has no clock of its own: pass the time"))?;
        self.decide_now(now, hits, decisions)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.len()).field("on_full", &self.on_full).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
