//! Decides a request of one hit (one operation on one limit for one key).
//!
//! Most requests have one hit. For them, this code makes no lists: neither of hits, nor of locks, nor of states.
//! [`try_one`](MemoryStore::try_one) alone decides most takes on known keys. It works directly on the packed state in
//! the slot.

use std::slice;

use spillgate_core::{Decision, Hit, Op, Quota, Reason, State, Time, Wait, decide_late};

use super::retry::GiveUpOn;
use super::shards::{Fingerprint, LockedBuckets, Obstacle, Table};
use super::store::{MemoryStore, ShardRef};

/// Returns the quota of the hit if the store may have to keep a new key or a larger state for this hit. Otherwise returns
/// `None`.
#[inline]
pub(super) fn charging<'q>(hit: &Hit<'q>) -> Option<&'q Quota> {
    let counts = match hit.op {
        // A take of cost 0 asks whether work may begin whose units are counted later, by a force. If there is no space to
        // count them, it is refused. A limit of 0 never admits a take.
        Op::Take { .. } => hit.quota.limit() > 0 || !hit.quota.refusal_is_free(),
        Op::Force { .. } | Op::Settle { change: 1.., .. } => true,
        _ => false,
    };
    counts.then_some(hit.quota)
}

/// Refuses an operation that would give back units of a key in the sketch. Other keys may have raised the same cells.
pub(super) fn refuse_to_give_back(hit: &Hit<'_>, decision: &mut Decision) {
    if matches!(hit.op, Op::Refund { .. } | Op::Reset) {
        *decision = Decision::refuse(hit.quota.capacity(), Reason::Unsupported, Wait::Never);
    }
}

impl MemoryStore {
    /// Decides a request of one hit, with the same result as [`decide_all`](MemoryStore::decide_all).
    ///
    /// An attempt can meet an obstacle, for example a table that is being replaced. `remove_obstacle` then removes the
    /// obstacle, or notes what the request cannot have. After that, the request is tried again.
    #[inline]
    pub(super) fn decide_one(&self, now: Time, hit: &Hit<'_>, decision: &mut Decision) {
        let (key, shard) = self.locate(hit);
        let mut give_up_on = GiveUpOn::default();
        loop {
            let table = shard.load();
            match self.try_one(now, hit, (key, shard, &table), give_up_on, decision) {
                Ok(new) => {
                    drop(table);
                    return self.sweep_now_and_then(shard, key, new, now);
                }
                Err(obstacle) => self.remove_obstacle(shard, &obstacle, now, &mut give_up_on),
            }
        }
    }

    /// Makes one attempt. Returns whether the key is new, or the obstacle that stopped the attempt.
    ///
    /// This function gives up its locks before it returns, so that the caller can sweep.
    #[inline]
    pub(super) fn try_one(
        &self,
        now: Time,
        hit: &Hit<'_>,
        (key, shard, table): (Fingerprint, ShardRef<'_>, &Table),
        give_up_on: GiveUpOn,
        decision: &mut Decision,
    ) -> Result<bool, Obstacle> {
        let mut locked = LockedBuckets::starting_at(table, table.home_bucket(key));
        if let Some(position) = locked.find(key)?
            && self.decide_in_slot(now, hit, (&locked, position), decision)
        {
            return Ok(false);
        }
        self.try_any(now, hit, (key, shard, &mut locked), give_up_on, decision)
    }

    /// Makes one attempt for a hit of any kind, on a known or a new key.
    ///
    /// This function is not inlined, so that `try_one` stays short.
    #[inline(never)]
    fn try_any(
        &self,
        now: Time,
        hit: &Hit<'_>,
        (key, shard, locked): (Fingerprint, ShardRef<'_>, &mut LockedBuckets<'_>),
        give_up_on: GiveUpOn,
        decision: &mut Decision,
    ) -> Result<bool, Obstacle> {
        let entry = self.find_or_claim(shard, locked, key, charging(hit), give_up_on)?;
        let mut state = self.load_state(shard, locked, (key, &entry), (hit.quota, now));
        let in_sketch = entry.position.is_none() && self.is_in_sketch(&state);
        let (states, hits, decisions) = (slice::from_mut(&mut state), slice::from_ref(hit), slice::from_mut(decision));
        let newest = self.newest(locked, &entry, hit.quota, now);
        if entry.over_budget {
            self.decide_over_budget((now, newest), hits, (states, &[0]), &[entry.lack(key)], decisions);
        } else {
            decide_late(states, &[0], hits, now, newest, decisions);
        }
        self.store_state(shard, locked, (key, &entry), state, (hit.quota, now));
        if in_sketch {
            refuse_to_give_back(hit, &mut decisions[0]);
        }
        Ok(entry.new)
    }

    /// Returns whether a state that is not in the store comes from the sketch of a full store.
    pub(super) fn is_in_sketch(&self, state: &State) -> bool {
        self.overflow.is_some() && *state != State::default()
    }
}
