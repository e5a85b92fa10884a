//! Decides a request of several hits.
//!
//! The states of such a request are decided together, because the refusal of one hit changes what the other hits
//! charge. Other requests must not see the states of this request between two of its charges. The request therefore
//! keeps the locks of all its buckets until all its states are stored.

use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;
use spillgate_core::{Decision, Hit, Op, Quota, State, Time, Verdict, decide_late};

use super::entry::Entry;
use super::overflow::Lack;
use super::retry::GiveUpOn;
use super::shards::{Fingerprint, LockedBuckets, Obstacle, Table};
use super::single::{cannot_give_back, charging};
use super::store::{MemoryStore, ShardRef};

/// A state that the request uses. Several hits can use the same state.
struct UsedState<'s, 'q> {
    key: Fingerprint,
    shard: ShardRef<'s>,
    /// The quota of the first hit on the state. The quotas of later hits on this state can have another limit, but they
    /// have the same [identity](Quota::identity).
    quota: &'q Quota,
    /// The quota of the first hit on this state that can need a new key or more bytes in the budget. It is `None` if
    /// there is no such hit.
    charging: Option<&'q Quota>,
}

/// A request of several hits, and its states.
struct MultiHit<'r, 's, 'q> {
    now: Time,
    hits: &'r [Hit<'q>],
    /// The different states, in the order in which the hits first use them.
    used: SmallVec<[UsedState<'s, 'q>; 4]>,
    /// For each hit, the index of its state in `used`.
    state_of: SmallVec<[usize; 4]>,
    /// The indices of the used states, in the order in which their buckets are locked. All requests lock buckets in the
    /// same order, so that they cannot deadlock.
    lock_order: SmallVec<[usize; 4]>,
}

impl<'r, 's, 'q> MultiHit<'r, 's, 'q> {
    /// Finds the states that the hits use.
    fn new(store: &'s MemoryStore, now: Time, hits: &'r [Hit<'q>]) -> MultiHit<'r, 's, 'q> {
        let mut used: SmallVec<[UsedState<'s, 'q>; 4]> = SmallVec::new();
        let mut state_of = SmallVec::new();
        for hit in hits {
            let (key, shard) = store.locate(hit);
            let known = used.iter().position(|state| state.key == key && state.shard == shard);
            state_of.push(known.unwrap_or(used.len()));
            match known {
                Some(known) => used[known].charging = used[known].charging.or(charging(hit)),
                None => used.push(UsedState { key, shard, quota: hit.quota, charging: charging(hit) }),
            }
        }
        let mut lock_order: SmallVec<[usize; 4]> = (0..used.len()).collect();
        lock_order.sort_unstable_by_key(|&i| (used[i].shard.lock_order(), used[i].key.high));
        MultiHit { now, hits, used, state_of, lock_order }
    }
}

/// The result of an attempt. `Ok` has the verdict, and says for each used state whether its key is new. `Err` has the
/// index of the state that met an obstacle, and the obstacle (the reason why the request must be tried again).
type Attempt = Result<(Verdict, SmallVec<[bool; 4]>), (usize, Obstacle)>;

/// The locks of a request, in ascending order, and the entries of its states.
struct LockedEntries<'t> {
    /// The locked chains of buckets. Chains that overlap are one item.
    locks: SmallVec<[LockedBuckets<'t>; 4]>,
    /// For each used state, the index of its chain in `locks`, and its entry.
    entries: SmallVec<[(usize, Entry); 4]>,
}

impl MemoryStore {
    /// Decides a request of any number of hits.
    ///
    /// The tables are loaded before the first lock is taken, and kept until the last lock is released. If another
    /// thread moves a bucket to a new table before the request has locked this bucket, the attempt ends with an
    /// obstacle.
    pub(super) fn decide_all(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Verdict {
        let request = MultiHit::new(self, now, hits);
        let mut give_up_on = GiveUpOn::default();
        loop {
            let tables: SmallVec<[Guard<Arc<Table>>; 4]> = request.used.iter().map(|used| used.shard.load()).collect();
            let attempt = self.try_all(&request, &tables, give_up_on, decisions);
            drop(tables);
            match attempt {
                Ok((verdict, new)) => {
                    for (used, new) in request.used.iter().zip(new) {
                        self.sweep_now_and_then(used.shard, used.key, new, now);
                    }
                    return verdict;
                }
                Err((i, obstacle)) => {
                    self.remove_obstacle(request.used[i].shard, &obstacle, now, &mut give_up_on);
                }
            }
        }
    }

    /// Makes one attempt: locks the buckets, decides, and stores the states. If it meets an obstacle, returns the
    /// obstacle.
    fn try_all(
        &self,
        request: &MultiHit<'_, '_, '_>,
        tables: &[Guard<Arc<Table>>],
        give_up_on: GiveUpOn,
        decisions: &mut [Decision],
    ) -> Attempt {
        let LockedEntries { locks, entries } = self.lock_entries(request, tables, give_up_on)?;
        let used_entries = || request.used.iter().zip(&entries);
        let times = used_entries().map(|(used, (_, entry))| self.not_before(used.shard, entry, request.now));
        let now = times.max().unwrap_or(request.now);
        let mut states: SmallVec<[State; 4]> = used_entries()
            .map(|(used, (lock, entry))| {
                // A new state begins with the units of the quota for which the sketch has let the key go.
                let quota = used.charging.unwrap_or(used.quota);
                self.load_state(used.shard, &locks[*lock], (used.key, entry), (quota, now))
            })
            .collect();
        let is_kept = |i: usize| {
            let j = request.state_of[i];
            self.is_kept_by_sketch(&request.hits[i], (request.used[j].key, &entries[j].1), now)
        };
        // These lists are empty for nearly all requests, and then they allocate no memory.
        let kept: Vec<usize> = match self.overflow {
            None => Vec::new(),
            Some(_) => (0..request.hits.len()).filter(|i| is_kept(*i)).collect(),
        };
        let mut replaced = Vec::new();
        if !kept.is_empty() {
            replaced.extend_from_slice(request.hits);
            kept.iter().for_each(|i| replaced[*i] = replaced[*i].with_op(Op::Peek));
        }
        let hits = if kept.is_empty() { request.hits } else { &replaced };
        let newest = used_entries().map(|(used, (lock, entry))| self.newest(&locks[*lock], entry, used.quota, now));
        let newest = newest.max().unwrap_or(now);
        let verdict = if entries.iter().any(|(_, entry)| entry.over_budget) {
            let lacks: SmallVec<[Lack; 4]> = used_entries().map(|(used, (_, entry))| entry.lack(used.key)).collect();
            self.decide_over_budget((now, newest), hits, (&mut states, &request.state_of), &lacks, decisions)
        } else {
            decide_late(&mut states, &request.state_of, hits, now, newest, decisions)
        };
        // `decide_late` uses one time, `newest`, for all states of the request. So `newest` is noted for each of these
        // states, even if a state itself was last charged at an earlier time.
        for ((used, (lock, entry)), state) in used_entries().zip(states) {
            self.store_state(used.shard, &locks[*lock], (used.key, entry), state, (used.quota, newest));
        }
        for i in kept {
            decisions[i] = cannot_give_back(&request.hits[i]);
        }
        Ok((verdict, entries.iter().map(|(_, entry)| entry.new).collect()))
    }

    /// Locks all buckets that the request needs, and finds or claims an entry for each used state.
    ///
    /// If a state meets an obstacle, removes the entries that were claimed, releases all locks, and returns the index
    /// of the state and the obstacle.
    fn lock_entries<'t>(
        &self,
        request: &MultiHit<'_, '_, '_>,
        tables: &'t [Guard<Arc<Table>>],
        give_up_on: GiveUpOn,
    ) -> Result<LockedEntries<'t>, (usize, Obstacle)> {
        let mut locks: SmallVec<[LockedBuckets<'t>; 4]> = SmallVec::new();
        let mut entries: SmallVec<[(usize, Entry); 4]> = smallvec::smallvec![(0, Entry::default()); request.used.len()];
        for (done, &i) in request.lock_order.iter().enumerate() {
            let used = &request.used[i];
            let home = tables[i].home_bucket(used.key);
            // Two chains can overlap. If this thread locked the same bucket twice, it would wait for itself forever.
            if !locks.last().is_some_and(|last| last.contains(&tables[i], home)) {
                locks.push(LockedBuckets::starting_at(&tables[i], home));
            }
            let last = locks.len() - 1;
            let charging = (used.charging, request.now);
            match self.find_or_claim(used.shard, &mut locks[last], used.key, charging, give_up_on) {
                Ok(entry) => entries[i] = (last, entry),
                Err(obstacle) => {
                    for &i in &request.lock_order[..done] {
                        let (lock, entry) = &entries[i];
                        self.undo_claim(request.used[i].shard, &locks[*lock], request.used[i].key, entry);
                    }
                    return Err((i, obstacle));
                }
            }
        }
        Ok(LockedEntries { locks, entries })
    }
}
