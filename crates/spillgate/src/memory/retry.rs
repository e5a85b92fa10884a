//! What a request does about an obstacle before it is tried again, and the sweeps.
//!
//! A request charges nothing before it has locks and slots for all its states. If something is missing, the request
//! gives its locks up, removes the obstacle as far as that is possible, and starts again.

use spillgate_core::Time;

use super::shards::{Content, Fingerprint, Obstacle, Slab};
use super::store::{MemoryStore, ShardRef};

/// The number of home buckets that a sweep checks: usually, and when the store is full.
const SWEEP_STEPS: usize = 8;
const SWEEP_STEPS_WHEN_FULL: usize = 32;
/// One new key in 2^2 causes a sweep. All buckets of a shard are swept while half as many new keys arrive as it has
/// buckets.
const NEW_KEY_BITS: u32 = 2;
/// One decision on a known key in 2^6 causes a sweep.
const KNOWN_KEY_BITS: u32 = 6;

/// What a request could not get in earlier attempts. The next attempt treats the states that need it as over budget.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GiveUpOn {
    /// Capacity in the budget, although a sweep was tried.
    pub(super) capacity: bool,
    /// A larger table, because it would not help. This is a flag of its own: a request that lacked capacity before may
    /// have it now, and still need a larger table.
    pub(super) larger_table: bool,
}

impl MemoryStore {
    /// Tries to remove what was in the way of a request. Notes in `give_up_on` what the next attempt must do without.
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

    /// Sweeps one shard of each width. Expired entries of one width may use up the budget while all requests are for the
    /// other.
    fn sweep(&self, shard: usize, steps: usize, now: Time) {
        for shards in [&self.narrow, &self.wide] {
            shards.sweep(shard, steps, now.as_nanos(), |content| {
                self.uncount(ShardRef { shards, index: shard }, content);
            });
        }
    }

    /// Returns to the budget what a removed entry used.
    fn uncount(&self, shard: ShardRef<'_>, content: Content) {
        self.budget.remove_key();
        if let Content::InSlab { index, .. } = content {
            let state = shard.shards.slab(shard.index).lock().remove(index);
            self.budget.resize(Slab::bytes(&state), 0);
        }
    }
}
