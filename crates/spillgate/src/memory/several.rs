//! A request of several hits: locks the buckets of all hits, decides, and stores the states.
//!
//! Such a request charges all its limits or none, so no other request may see its states between two charges. It keeps
//! the locks of all its buckets from the first check to the last charge.

use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;
use spillgate_core::{Decision, Hit, Quota, State, Time, Verdict, decide_late};

use super::entry::Entry;
use super::retry::GiveUpOn;
use super::shards::{Fingerprint, LockedBuckets, Obstacle, Table};
use super::single::charging;
use super::store::{MemoryStore, ShardRef};

/// A state of the request. Several hits may count in it.
struct Target<'s, 'q> {
    /// The key of the state.
    key: Fingerprint,
    /// The shard that has the key.
    shard: ShardRef<'s>,
    /// The quota of the first hit on the state. Other hits may have another limit, but the same
    /// [identity](Quota::identity).
    quota: &'q Quota,
    /// The quota of a hit that may need capacity, if there is one.
    charging: Option<&'q Quota>,
}

/// A request of several hits, and its states.
struct MultiHit<'r, 's, 'q> {
    /// The time of the decision.
    now: Time,
    /// The hits, in the order of the caller.
    hits: &'r [Hit<'q>],
    /// The different states, in the order in which the hits first use them.
    targets: SmallVec<[Target<'s, 'q>; 4]>,
    /// For each hit, the index of its target.
    state_of: SmallVec<[usize; 4]>,
    /// The indices of the targets in the order of their buckets. All requests lock in this order.
    lock_order: SmallVec<[usize; 4]>,
}

impl<'r, 's, 'q> MultiHit<'r, 's, 'q> {
    /// Finds the targets of the hits. Two hits have one target if they count in the same state.
    fn new(store: &'s MemoryStore, now: Time, hits: &'r [Hit<'q>]) -> MultiHit<'r, 's, 'q> {
        let mut targets: SmallVec<[Target<'s, 'q>; 4]> = SmallVec::new();
        let mut state_of = SmallVec::new();
        for hit in hits {
            let (key, shard) = store.locate(hit);
            let known = targets.iter().position(|target| target.key == key && target.shard == shard);
            state_of.push(known.unwrap_or(targets.len()));
            match known {
                Some(known) => targets[known].charging = targets[known].charging.or(charging(hit)),
                None => targets.push(Target { key, shard, quota: hit.quota, charging: charging(hit) }),
            }
        }
        let mut lock_order: SmallVec<[usize; 4]> = (0..targets.len()).collect();
        lock_order.sort_unstable_by_key(|&i| (targets[i].shard.lock_order(), targets[i].key.high));
        MultiHit { now, hits, targets, state_of, lock_order }
    }
}

/// The result of an attempt. If it succeeds, this is the verdict, and whether each target is new. Else it is the index
/// of the target that met an obstacle, and the obstacle.
type Attempt = Result<(Verdict, SmallVec<[bool; 4]>), (usize, Obstacle)>;

/// The locks of a request, in ascending order, and the entries of its targets.
struct LockedEntries<'t> {
    /// One item for each chain of buckets that does not overlap an earlier one.
    locks: SmallVec<[LockedBuckets<'t>; 4]>,
    /// For each target, the index of its locks, and its entry.
    entries: SmallVec<[(usize, Entry); 4]>,
}

impl MemoryStore {
    /// Decides a request of any number of hits.
    ///
    /// The tables are loaded before the first lock is taken, and kept until the last lock is given up. If a table is
    /// replaced in between, the locks report it as an obstacle.
    pub(super) fn decide_all(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Verdict {
        let request = MultiHit::new(self, now, hits);
        let mut give_up_on = GiveUpOn::default();
        loop {
            let tables: SmallVec<[Guard<Arc<Table>>; 4]> = request.targets.iter().map(|t| t.shard.load()).collect();
            let attempt = self.try_all(&request, &tables, give_up_on, decisions);
            drop(tables);
            match attempt {
                Ok((verdict, new)) => {
                    for (target, new) in request.targets.iter().zip(new) {
                        self.sweep_now_and_then(target.shard, target.key, new, now);
                    }
                    return verdict;
                }
                Err((target, obstacle)) => {
                    self.remove_obstacle(request.targets[target].shard, &obstacle, now, &mut give_up_on);
                }
            }
        }
    }

    /// One attempt: everything from the locks to the stored states, or the first obstacle.
    fn try_all(
        &self,
        request: &MultiHit<'_, '_, '_>,
        tables: &[Guard<Arc<Table>>],
        give_up_on: GiveUpOn,
        decisions: &mut [Decision],
    ) -> Attempt {
        let LockedEntries { locks, entries } = self.lock_entries(request, tables, give_up_on)?;
        let targets = || request.targets.iter().zip(&entries);
        let mut states: SmallVec<[State; 4]> =
            targets().map(|(t, (lock, entry))| self.load_state(t.shard, &locks[*lock], entry, t.quota)).collect();
        let over_budget: SmallVec<[bool; 4]> = entries.iter().map(|(_, entry)| entry.over_budget).collect();
        let now = request.now;
        let newest = targets().map(|(t, (lock, entry))| self.newest(&locks[*lock], entry, t.quota, now));
        let newest = newest.max().unwrap_or(now);
        let verdict = if over_budget.contains(&true) {
            self.decide_over_budget(
                (now, newest),
                request.hits,
                (&mut states, &request.state_of),
                &over_budget,
                decisions,
            )
        } else {
            decide_late(&mut states, &request.state_of, request.hits, now, newest, decisions)
        };
        // The decision converted no debt that drains before `newest`. All states of the request must remember `newest`,
        // even a state whose own newest time was older.
        for ((t, (lock, entry)), state) in targets().zip(states) {
            self.store_state(t.shard, &locks[*lock], (t.key, entry), state, (t.quota, newest));
        }
        Ok((verdict, entries.iter().map(|(_, entry)| entry.new).collect()))
    }

    /// Locks all buckets that the request needs, and finds or claims its slots: all of them or none.
    ///
    /// If a target meets an obstacle, the entries that were claimed are removed and all locks are given up. The index
    /// of the target is returned with the obstacle.
    fn lock_entries<'t>(
        &self,
        request: &MultiHit<'_, '_, '_>,
        tables: &'t [Guard<Arc<Table>>],
        give_up_on: GiveUpOn,
    ) -> Result<LockedEntries<'t>, (usize, Obstacle)> {
        let mut locks: SmallVec<[LockedBuckets<'t>; 4]> = SmallVec::new();
        let mut entries: SmallVec<[(usize, Entry); 4]> =
            smallvec::smallvec![(0, Entry::default()); request.targets.len()];
        for (done, &i) in request.lock_order.iter().enumerate() {
            let target = &request.targets[i];
            let home = tables[i].home_bucket(target.key);
            // Two chains may overlap. A bucket that is locked already must not be locked again.
            if !locks.last().is_some_and(|last| last.contains(&tables[i], home)) {
                locks.push(LockedBuckets::starting_at(&tables[i], home));
            }
            let last = locks.len() - 1;
            match self.find_or_claim(target.shard, &mut locks[last], target.key, target.charging, give_up_on) {
                Ok(entry) => entries[i] = (last, entry),
                Err(obstacle) => {
                    for &i in &request.lock_order[..done] {
                        let (lock, entry) = &entries[i];
                        self.undo_claim(request.targets[i].shard, &locks[*lock], request.targets[i].key, entry);
                    }
                    return Err((i, obstacle));
                }
            }
        }
        Ok(LockedEntries { locks, entries })
    }
}
