//! Removes the obstacle of a request before the request is tried again, and decides when a shard is swept.
//!
//! A request charges nothing before it has locks and slots for all its states. If it cannot get a lock or a slot, it
//! releases the locks that it has, tries to remove the obstacle, and starts again.

use std::sync::atomic::Ordering;

use spillgate_core::Time;

use super::shards::{Content, Fingerprint, Obstacle, Slab};
use super::store::{MemoryStore, ShardRef};

/// The number of home buckets that a sweep usually checks. A home bucket is where the search for a key begins.
const SWEEP_STEPS: usize = 8;
/// The number of home buckets that a sweep checks if the store is full.
const SWEEP_STEPS_WHEN_FULL: usize = 32;
/// The number of home buckets of a shard that a sweep by time checks at once. A thread that wants to replace the table of
/// this shard waits for these checks, which take some ten microseconds.
const SWEEP_STEPS_BY_TIME: usize = 256;
/// The least number of home buckets that a sweep by time checks, so that a small store is swept in a short time.
const LEAST_STEPS_BY_TIME: usize = 1024;
/// One in 2^2 new keys causes a sweep. A sweep checks 8 home buckets, so 8/4 = 2 home buckets are checked for each new
/// key, on average. So in a shard with `n` home buckets, about `n/2` new keys cause a check of all home buckets.
const NEW_KEY_BITS: u32 = 2;
/// One in 2^6 decisions on known keys causes a sweep.
const KNOWN_KEY_BITS: u32 = 6;

/// The things that a request could not get in earlier attempts, and no longer waits for: free keys or bytes in the
/// budget, or a larger table. If one of them is still missing in the next attempt, the state is over budget: its
/// charges are not stored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GiveUpOn {
    /// A few buckets were swept for this request, by this thread or by another one. If capacity is still missing, the
    /// request gives up on it.
    pub(super) capacity: bool,
    /// The request gives up on a larger table, because a larger table would not help. This flag is separate from
    /// `capacity`, because a request that found capacity after a sweep can still need a larger table.
    pub(super) larger_table: bool,
}

impl MemoryStore {
    /// Tries to remove the obstacle of a request. Notes in `give_up_on` what the next attempts must no longer wait for.
    #[cold]
    pub(super) fn remove_obstacle(
        &self,
        shard: ShardRef<'_>,
        obstacle: &Obstacle,
        now: Time,
        give_up_on: &mut GiveUpOn,
    ) {
        match obstacle {
            Obstacle::Full => {
                self.sweep(shard.index, SWEEP_STEPS_WHEN_FULL, now);
                give_up_on.capacity = true;
            }
            Obstacle::Moved => shard.shards.wait(shard.index),
            // If the table is nearly empty but has no free slot for this key, a larger table would not help. Hashed
            // keys never cause this, but other keys can.
            Obstacle::Crowded => {
                let grown = shard.shards.grow(shard.index, now.as_nanos(), |content| self.uncount(shard, content));
                give_up_on.larger_table |= !grown;
            }
        }
    }

    /// Sweeps a few buckets after one in 64 decisions on known keys, and after one in four decisions on new keys.
    #[inline]
    pub(super) fn sweep_now_and_then(&self, shard: ShardRef<'_>, key: Fingerprint, new: bool, now: Time) {
        // The mixed bits of time and key serve as a random number.
        let mixed = (now.as_nanos() ^ key.low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if mixed >> (u64::BITS - if new { NEW_KEY_BITS } else { KNOWN_KEY_BITS }) == 0 {
            self.sweep(shard.index, SWEEP_STEPS, now);
        }
    }

    /// Removes expired states from one of `parts` equal parts of the store, and makes tables smaller that are nearly
    /// empty. The next call continues where this call has ended.
    ///
    /// Decisions remove expired states too. But if they stop, for example after an attack, nothing else does, and the
    /// store keeps its memory. So call this function regularly, for example ten times a second with 600 `parts`. No
    /// decision changes, because an expired state decides like an empty one. Decisions wait at most while a few buckets
    /// are checked, or while one shard is made smaller.
    ///
    /// ```
    /// use spillgate::{Limiter, MemoryStore, Quota, Time};
    ///
    /// let store = MemoryStore::new(spillgate::MemoryOptions::default());
    /// let quota = Quota::per_second(5).build()?;
    /// let hit = spillgate::Hit::new(7, &quota, spillgate::Op::take(1), spillgate::Binding::Enforce);
    /// assert!(store.hit_now(Time::from_nanos(1_000_000_000), &hit).allowed);
    /// assert_eq!(store.len(), 1);
    /// store.sweep_part(Time::from_nanos(9_000_000_000), 1);
    /// assert_eq!(store.len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sweep_part(&self, now: Time, parts: usize) {
        let count = self.narrow.count();
        let steps_of = |shard: usize| self.narrow.home_buckets(shard).max(self.wide.home_buckets(shard));
        let all: usize = (0..count).map(steps_of).sum();
        let mut left = all.div_ceil(parts.max(1)).max(LEAST_STEPS_BY_TIME).min(all);
        while left > 0 {
            let shard = self.next_swept.fetch_add(1, Ordering::Relaxed) % count;
            let steps = left.min(SWEEP_STEPS_BY_TIME).min(steps_of(shard));
            self.sweep(shard, steps, now);
            // A shard that another thread makes smaller at the same time can have no steps left.
            left -= steps.max(1);
        }
    }

    /// Sweeps one shard with narrow slots and one shard with wide slots.
    ///
    /// If all requests use slots of one width and swept only shards of this width, no request would remove the expired
    /// entries in slots of the other width. Those entries would use a part of the budget forever.
    fn sweep(&self, shard: usize, steps: usize, now: Time) {
        for shards in [&self.narrow, &self.wide] {
            shards.sweep(shard, steps, now.as_nanos(), |content| {
                self.uncount(ShardRef { shards, index: shard }, content);
            });
        }
    }

    /// Counts in the budget that an expired entry was removed. If the state of the entry is in the slab, frees the
    /// state there.
    fn uncount(&self, shard: ShardRef<'_>, content: Content) {
        self.budget.remove_expired_key();
        if let Content::InSlab { index, .. } = content {
            let state = shard.shards.slab(shard.index).lock().remove(index);
            self.budget.resize(Slab::bytes(&state), 0);
        }
    }
}
