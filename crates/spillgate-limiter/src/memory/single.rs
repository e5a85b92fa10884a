//! Decides a request of one hit.
//!
//! Most requests have one hit. To be fast, this code makes no lists of hits, locks or states.
//! [`try_one`](MemoryStore::try_one) alone decides most takes on known keys. This function works directly on the packed
//! state in the slot.

use std::slice;

use spillgate_core::{Decision, Hit, Op, Quota, Reason, State, Time, Wait, decide_late};

use super::entry::Entry;
use super::retry::GiveUpOn;
use super::shards::{Fingerprint, LockedBuckets, Obstacle, Table};
use super::store::{MemoryStore, ShardRef};

/// Returns the quota of the hit if the store may have to keep a new key or a larger state for this hit. Returns `None`
/// for any other hit.
#[inline]
pub(super) fn charging<'q>(hit: &Hit<'q>) -> Option<&'q Quota> {
    let counts = match hit.op {
        // A caller that sends a take of cost 0 asks whether work may begin, and counts the units of this work later, by
        // a force. If there is no space to count these units, the take is refused. A limit of 0 never admits a take, so
        // only its charged refusals need space.
        Op::Take { .. } => hit.quota.limit() > 0 || !hit.quota.refusal_is_free(),
        Op::Force { .. } | Op::Settle { change: 1.., .. } => true,
        _ => false,
    };
    counts.then_some(hit.quota)
}

/// Returns the answer to a reset or a refund of units that a sketch counts, because a sketch cannot give units back.
pub(super) fn cannot_give_back(hit: &Hit<'_>) -> Decision {
    Decision::refuse(hit.quota.capacity(), Reason::Unsupported, Wait::Never)
}

impl MemoryStore {
    /// Decides a request of one hit, with the same result as [`decide_all`](MemoryStore::decide_all).
    ///
    /// An attempt can meet an obstacle, for example a table that is being replaced. `remove_obstacle` then removes the
    /// obstacle, or notes what the request cannot get. After that, the request is tried again.
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
    /// This function releases its locks before it returns, because a sweep by the caller locks buckets too.
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
        let entry = self.find_or_claim(shard, locked, key, (charging(hit), now), give_up_on)?;
        let now = self.not_before(shard, &entry, now);
        let mut state = self.load_state(shard, locked, (key, &entry), (hit.quota, now));
        let is_kept = self.is_kept_by_sketch(hit, (key, &entry), now);
        let hit = if is_kept { &hit.with_op(Op::Peek) } else { hit };
        let (states, hits, decisions) = (slice::from_mut(&mut state), slice::from_ref(hit), slice::from_mut(decision));
        let newest = self.newest(locked, &entry, hit.quota, now);
        if entry.over_budget {
            self.decide_over_budget((now, newest), hits, (states, &[0]), &[entry.lack(key)], decisions);
        } else {
            decide_late(states, &[0], hits, now, newest, decisions);
        }
        self.store_state(shard, locked, (key, &entry), state, (hit.quota, now));
        if is_kept {
            decisions[0] = cannot_give_back(hit);
        }
        Ok(entry.new)
    }

    /// Returns whether `hit` would give back units that the sketch of a full store still counts. The sketch cannot
    /// forget these units, because other keys may have raised the same cells. So the next state of the key would count
    /// them again, and the caller would not know it.
    #[inline]
    pub(super) fn is_kept_by_sketch(&self, hit: &Hit<'_>, (key, entry): (Fingerprint, &Entry), now: Time) -> bool {
        let Some(overflow) = &self.overflow else { return false };
        let gives_back = match hit.op {
            Op::Reset | Op::Refund { receipt: None, .. } => true,
            // A receipt is for units of a state in the store, and the sketch counts none of them.
            Op::Refund { receipt: Some(_), .. } => entry.position.is_none(),
            Op::Take { .. } | Op::Peek | Op::Force { .. } | Op::Renew { .. } | Op::Settle { .. } => false,
        };
        gives_back && overflow.state(key, hit.quota, now) != State::default()
    }
}
