//! State in this process: exact, bounded, gone with the process.

mod shard;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use spillgate_core::{
    Binding, Decision, Hit, MAX_HITS, Op, OpKind, Quota, Reason, State, Store, StoreError, Time, Verdict, Wait, decide,
};

use shard::Shard;

/// Shards of a large store: enough that two cores seldom meet.
const SHARDS: usize = 64;
/// Below this many keys one shard holds all, so that the bound is exact.
const SHARD_FROM_KEYS: usize = SHARDS * 1024;

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
    /// Bytes in the states that own memory (logs, segments, leases), after which none of them
    /// grows; 1 GiB unless set. Passed by one growth of one state in each shard at most.
    pub max_heap_bytes: usize,
    /// What happens at either bound.
    pub on_full: OnFull,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { max_keys: 10_000_000, max_heap_bytes: 1 << 30, on_full: OnFull::Deny }
    }
}

/// A store in this process: shards, each behind its own lock.
///
/// A request locks the shards of all its hits, in one order for all requests, decides, and
/// unlocks: any number of threads admit exactly what one thread would. It forgets only states
/// that equal no state, a bounded number at each new key.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    on_full: OnFull,
    full_requests: AtomicU64,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(options: MemoryOptions) -> MemoryStore {
        let count = if options.max_keys < SHARD_FROM_KEYS { 1 } else { SHARDS };
        let shard = || Mutex::new(Shard::new(options.max_keys / count, options.max_heap_bytes / count));
        MemoryStore {
            shards: (0..count).map(|_| shard()).collect(),
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
        let transaction = Transaction::begin(self, hits, now);
        if transaction.keys.iter().any(|place| place.before.is_some()) {
            self.full_requests.fetch_add(1, Ordering::Relaxed);
        }
        Ok(transaction.run(now, hits, decisions))
    }

    /// Requests that met a bound of the store: refused or not counted, as [`OnFull`] says.
    #[must_use]
    pub fn full_requests(&self) -> u64 {
        self.full_requests.load(Ordering::Relaxed)
    }

    /// How many states are held, those that expired lately included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether no state is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard_of(&self, state_key: u128) -> usize {
        // The count is a power of two; the map inside a shard hashes by the low bits.
        (state_key >> 64) as usize & (self.shards.len() - 1)
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
        f.debug_struct("MemoryStore").field("shards", &self.shards.len()).field("on_full", &self.on_full).finish()
    }
}

/// The locks and the states of one request.
struct Transaction<'s> {
    /// In ascending order of the shard's index.
    shards: SmallVec<[(usize, MutexGuard<'s, Shard>); 4]>,
    /// One for each state that the hits count in.
    keys: SmallVec<[Place; 4]>,
    states: SmallVec<[State; 4]>,
    /// For each hit, the index of its state.
    state_of: SmallVec<[usize; 4]>,
    on_full: OnFull,
}

/// Where a state lives.
struct Place {
    state_key: u128,
    /// Index into the transaction's locks.
    shard: usize,
    /// The shard does not hold it yet.
    new: bool,
    /// There is no room: the state as it was, which stays whatever is decided.
    before: Option<State>,
}

impl Place {
    /// Whether it will need one of the shard's places.
    fn is_new_in(&self, shard: usize) -> bool {
        self.shard == shard && self.new && self.before.is_none()
    }
}

impl<'s> Transaction<'s> {
    fn begin(store: &'s MemoryStore, hits: &[Hit<'_>], now: Time) -> Transaction<'s> {
        let mut indices: SmallVec<[usize; 4]> = hits.iter().map(|hit| store.shard_of(hit.state_key())).collect();
        indices.sort_unstable();
        indices.dedup();
        let mut transaction = Transaction {
            shards: indices.iter().map(|&i| (i, store.shards[i].lock())).collect(),
            keys: SmallVec::new(),
            states: SmallVec::new(),
            state_of: SmallVec::new(),
            on_full: store.on_full,
        };
        for hit in hits {
            let state = transaction.take_state(store, hit, now);
            transaction.state_of.push(state);
        }
        transaction
    }

    /// Takes the hit's state out of its shard, once for all hits on it.
    fn take_state(&mut self, store: &MemoryStore, hit: &Hit<'_>, now: Time) -> usize {
        let state_key = hit.state_key();
        let known = self.keys.iter().position(|place| place.state_key == state_key);
        let index = known.unwrap_or_else(|| {
            let shard_index = store.shard_of(state_key);
            let shard = self.shards.partition_point(|(i, _)| *i < shard_index);
            let state = self.shards[shard].1.take(state_key);
            self.keys.push(Place { state_key, shard, new: state.is_none(), before: None });
            self.states.push(state.unwrap_or_default());
            self.keys.len() - 1
        });
        let charges = matches!(hit.op.kind(), OpKind::Take | OpKind::Force);
        if charges && self.keys[index].before.is_none() {
            let (shard, state) = (self.keys[index].shard, &self.states[index]);
            let others = self.keys.iter().enumerate().filter(|(i, place)| *i != index && place.is_new_in(shard));
            let reserved = others.count();
            if !self.shards[shard].1.has_room(state_key, state, hit.quota, reserved, now) {
                self.keys[index].before = Some(state.clone());
            }
        }
        index
    }

    fn run(mut self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Verdict {
        let verdict = if self.on_full == OnFull::Deny && hits.iter().enumerate().any(|(i, hit)| self.is_shut(i, hit)) {
            self.refuse(now, hits, decisions)
        } else {
            decide(&mut self.states, &self.state_of, hits, now, decisions)
        };
        for (index, place) in self.keys.iter_mut().enumerate() {
            let state = place.before.take().unwrap_or_else(|| std::mem::take(&mut self.states[index]));
            if let Some(i) = self.state_of.iter().position(|&s| s == index) {
                self.shards[place.shard].1.put(place.state_key, state, hits[i].quota, now);
            }
        }
        verdict
    }

    /// Whether the hit is a take that the full store has to refuse.
    fn is_shut(&self, i: usize, hit: &Hit<'_>) -> bool {
        self.keys[self.state_of[i]].before.is_some() && hit.op.kind() == OpKind::Take && hit.binding != Binding::Shadow
    }

    /// Refuses the whole request for want of room: all takes and forces become looks.
    fn refuse(&mut self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Verdict {
        let look = |hit: &Hit<'_>| match hit.op.kind() {
            OpKind::Take | OpKind::Force => Op::Look,
            _ => hit.op,
        };
        let looks: SmallVec<[Hit<'_>; 4]> = hits.iter().map(|hit| Hit { op: look(hit), ..*hit }).collect();
        let verdict = decide(&mut self.states, &self.state_of, &looks, now, decisions);
        let shut = hits.iter().enumerate().filter(|(i, hit)| self.is_shut(*i, hit));
        let mut first = None;
        for (i, _) in shut {
            first = first.or(Some(i));
            decisions[i].allowed = false;
            decisions[i].reason = Reason::StoreFull;
            decisions[i].remaining = 0;
            decisions[i].retry_after = Wait::Unknown;
        }
        Verdict { allowed: false, binding: first, retry_after: Wait::Unknown, ..verdict }
    }
}

#[cfg(test)]
mod tests;
