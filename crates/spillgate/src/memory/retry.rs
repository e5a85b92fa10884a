//! How an obstacle is removed before a request is tried again, and when a shard is swept.
//!
//! A request charges nothing before it has locks and slots for all its states. If it cannot get one of them, it gives
//! its locks up, tries to remove the obstacle, and starts again.

use spillgate_core::Time;

use super::shards::{Content, Fingerprint, Obstacle, Slab};
use super::store::{MemoryStore, ShardRef};

/// The number of home buckets that a sweep usually checks.
const SWEEP_STEPS: usize = 8;
/// The number of home buckets that a sweep checks if the store is full.
const SWEEP_STEPS_WHEN_FULL: usize = 32;
/// One new key in 2^2 causes a sweep. All buckets of a shard are swept while half as many new keys arrive as it has
/// buckets.
const NEW_KEY_BITS: u32 = 2;
/// One decision on a known key in 2^6 causes a sweep.
const KNOWN_KEY_BITS: u32 = 6;

/// What a request could not get in earlier attempts. In the next attempt, a state that needs it is over budget.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GiveUpOn {
    /// The request gives up on capacity in the budget. A sweep was tried before.
    pub(super) capacity: bool,
    /// The request gives up on a larger table, because it would not help. This is a flag of its own: a request that
    /// lacked capacity before may have it now, and still need a larger table.
    pub(super) larger_table: bool,
}

impl MemoryStore {
    /// Tries to remove the obstacle of a request. If that is not possible, notes in `give_up_on` what the next attempt
    /// has to do without.
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
            // Hashed keys never crowd a table that is nearly empty. Other keys may, and no larger table helps them.
            Obstacle::Crowded => {
                let grown = shard.shards.grow(shard.index, now.as_nanos(), |content| self.uncount(shard, content));
                give_up_on.larger_table |= !grown;
            }
        }
    }

    /// Sweeps a few buckets after some of the decisions.
    #[inline]
    pub(super) fn sweep_now_and_then(&self, shard: ShardRef<'_>, key: Fingerprint, new: bool, now: Time) {
        // The mixed bits of time and key serve as a random number.
        let mixed = (now.as_nanos() ^ key.low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if mixed >> (u64::BITS - if new { NEW_KEY_BITS } else { KNOWN_KEY_BITS }) == 0 {
            self.sweep(shard.index, SWEEP_STEPS, now);
        }
    }

    /// Sweeps one shard of each width. All requests may be for one width, while expired entries of the other width use
    /// up the budget.
    fn sweep(&self, shard: usize, steps: usize, now: Time) {
        for shards in [&self.narrow, &self.wide] {
            shards.sweep(shard, steps, now.as_nanos(), |content| {
                self.uncount(ShardRef { shards, index: shard }, content);
            });
        }
    }

    /// Gives back to the budget the key and the bytes of a removed entry.
    fn uncount(&self, shard: ShardRef<'_>, content: Content) {
        self.budget.remove_key();
        if let Content::InSlab { index, .. } = content {
            let state = shard.shards.slab(shard.index).lock().remove(index);
            self.budget.resize(Slab::bytes(&state), 0);
        }
    }
}
