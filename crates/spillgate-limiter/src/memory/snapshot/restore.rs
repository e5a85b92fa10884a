//! Stores one state of a snapshot in a new memory store.
//!
//! The state gets a slot in the same way as the new key of a request, but no decision is made. The file says whether a
//! state was stored in its slot. If such a state does not fit a slot, the file is damaged.

use spillgate_core::{Packed, State, Time};

use crate::memory::retry::GiveUpOn;
use crate::memory::shards::{Content, Fingerprint, LockedBuckets, Obstacle, Shards};
use crate::memory::store::{MemoryStore, ShardRef};

/// A state that was read from a record of the file.
#[derive(Clone, Debug)]
pub(super) enum SavedState {
    /// A state that was stored in a slot.
    Inline(Packed),
    /// A state that was in the slab, the memory for states that do not fit a slot.
    InSlab {
        /// The time when this state expires, in nanoseconds.
        expires_at: u64,
        /// The state in the form that the kernel uses.
        state: State,
    },
}

impl SavedState {
    /// Returns the time when the state expires, in nanoseconds.
    pub(super) const fn expires_at(&self) -> u64 {
        match self {
            SavedState::Inline(packed) => packed.expires_at,
            SavedState::InSlab { expires_at, .. } => *expires_at,
        }
    }
}

/// What happened to a state that was to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Restored,
    /// The store has no capacity for the state.
    NoCapacity,
    /// The state is invalid in one of three ways:
    ///
    /// * Its numbers do not fit a slot of its shard.
    /// * Its key is in the store already.
    /// * No table has a free slot near the bucket that its key chooses. This never happens with hashed keys.
    Invalid,
}

impl MemoryStore {
    /// Stores a saved state. No other thread uses the store yet.
    ///
    /// A full store is not swept here. The caller has dropped the expired states, so a sweep would free nothing.
    pub(super) fn restore_state(&self, shards: &Shards, key: Fingerprint, state: &SavedState, now: Time) -> Outcome {
        let shard = ShardRef { shards, index: shards.shard_of(key) };
        loop {
            let table = shard.load();
            let mut locked = LockedBuckets::starting_at(&table, table.home_bucket(key));
            let attempt = self.try_restore(shard, &mut locked, key, state);
            drop(locked);
            match attempt {
                Ok(outcome) => return outcome,
                Err(Obstacle::Full) => return Outcome::NoCapacity,
                Err(obstacle) => {
                    let mut give_up_on = GiveUpOn::default();
                    self.remove_obstacle(shard, &obstacle, now, &mut give_up_on);
                    if give_up_on.larger_table {
                        return Outcome::Invalid;
                    }
                }
            }
        }
    }

    /// Makes one attempt. Returns [`Outcome::NoCapacity`] if the state needs bytes outside the table and none are left.
    /// Returns an obstacle if the table must grow first, or if the store already has its maximum number of keys.
    fn try_restore(
        &self,
        shard: ShardRef<'_>,
        locked: &mut LockedBuckets<'_>,
        key: Fingerprint,
        state: &SavedState,
    ) -> Result<Outcome, Obstacle> {
        if locked.find(key)?.is_some() {
            return Ok(Outcome::Invalid);
        }
        if matches!(state, SavedState::InSlab { .. }) && !self.budget.has_bytes() {
            return Ok(Outcome::NoCapacity);
        }
        let entry = self.claim(shard, locked, key, GiveUpOn::default())?;
        let Some(position) = entry.position else { return Ok(Outcome::NoCapacity) };
        match state {
            SavedState::Inline(Packed { expires_at, first, second }) => {
                let (expires_at, first, second) = (*expires_at, *first, *second);
                if !locked.write(key, position, Content::Inline { expires_at, first, second }) {
                    self.undo_claim(shard, locked, key, &entry);
                    return Ok(Outcome::Invalid);
                }
            }
            SavedState::InSlab { expires_at, state } => {
                self.store_in_slab(shard, locked, (key, position, None), state.clone(), *expires_at);
            }
        }
        Ok(Outcome::Restored)
    }
}
