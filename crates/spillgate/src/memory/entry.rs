//! The entry of one state: found or claimed in a table, loaded for a decision, and stored again.
//!
//! A decision needs the state as the kernel's type. A table stores it packed in a slot, or in the slab. All code that
//! converts one into the other, and that keeps slot, slab and budget consistent, is here.
//!
//! The order of calls under the locks of a request:
//!
//! ```text
//! find_or_claim  -->  load_state  -->  decision  -->  store_state
//!        \
//!         obstacle  -->  undo_claim for the other entries of the request, and another attempt
//! ```

use spillgate_core::{Algorithm, Decision, Hit, Packed, Quota, State, Time};

use super::retry::GiveUpOn;
use super::shards::{Content, Fingerprint, LockedBuckets, Obstacle, Position, Slab};
use super::store::{MemoryStore, ShardRef};

/// The lowest `first` of a packed token bucket. The bits from 32 on store the bound of its debt, which is never 0. The
/// bits below store T, the time between two tokens.
const LEAST_TOKEN_BUCKET: u64 = 1 << 32;

/// Where a request finds the state of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// The position of its slot. `None` if the key is unknown and gets no slot.
    pub(super) position: Option<Position>,
    /// The index of the state, if it is in the slab.
    slab_index: Option<u32>,
    /// Whether the slot was claimed for this request.
    pub(super) new: bool,
    /// Whether there is no capacity for what the request would charge. The state must then stay as it is.
    pub(super) over_budget: bool,
}

/// Whether a charge under `quota` may need more bytes in the slab. `in_slab` says that the state is there already.
#[inline]
fn needs_bytes(quota: &Quota, in_slab: bool) -> bool {
    match quota.algorithm() {
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => true,
        // A counter has all its segments from the start. It never grows.
        Algorithm::SlidingWindowCounter { segments: 2.. } => !in_slab,
        Algorithm::TokenBucket | Algorithm::LeakyBucket if !quota.packs() => !in_slab,
        Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindowCounter { .. } => quota.penalty_ns() > 0 && !in_slab,
    }
}

impl MemoryStore {
    /// Finds the entry of `key`. If the key is new and a hit under the quota `charging` needs a slot, claims one.
    ///
    /// Missing capacity is an obstacle at first. If the request has given up on it, the entry is over budget instead.
    #[inline]
    pub(super) fn find_or_claim(
        &self,
        shard: ShardRef<'_>,
        locked: &mut LockedBuckets<'_>,
        key: Fingerprint,
        charging: Option<&Quota>,
        give_up_on: GiveUpOn,
    ) -> Result<Entry, Obstacle> {
        let position = locked.find(key)?;
        let slab_index = position.and_then(|position| match locked.content(position) {
            Content::Inline { .. } => None,
            Content::InSlab { index, .. } => Some(index),
        });
        let entry = Entry { position, slab_index, new: false, over_budget: false };
        let Some(quota) = charging else { return Ok(entry) };
        if needs_bytes(quota, slab_index.is_some()) && !self.budget.has_bytes() {
            return if give_up_on.capacity { Ok(Entry { over_budget: true, ..entry }) } else { Err(Obstacle::Full) };
        }
        if position.is_some() { Ok(entry) } else { self.claim(shard, locked, key, give_up_on) }
    }

    /// Claims a slot for `key`, which must not be in the table.
    pub(super) fn claim(
        &self,
        shard: ShardRef<'_>,
        locked: &mut LockedBuckets<'_>,
        key: Fingerprint,
        give_up_on: GiveUpOn,
    ) -> Result<Entry, Obstacle> {
        let over_budget = Entry { over_budget: true, ..Entry::default() };
        if !self.budget.add_key() {
            return if give_up_on.capacity { Ok(over_budget) } else { Err(Obstacle::Full) };
        }
        let position = match locked.claim(key) {
            Ok(position) => position,
            Err(obstacle) => {
                self.budget.remove_key();
                let hopeless = give_up_on.larger_table && obstacle == Obstacle::Crowded;
                return if hopeless { Ok(over_budget) } else { Err(obstacle) };
            }
        };
        shard.shards.count_entry(shard.index);
        Ok(Entry { position: Some(position), slab_index: None, new: true, over_budget: false })
    }

    /// Removes the entry again if it was claimed for this request.
    pub(super) fn undo_claim(&self, shard: ShardRef<'_>, locked: &LockedBuckets<'_>, key: Fingerprint, entry: &Entry) {
        if let Entry { position: Some(position), new: true, .. } = *entry {
            self.remove(shard, locked, key, position);
        }
    }

    /// Frees the slot of an entry whose state is not in the slab, and its share of the budget.
    fn remove(&self, shard: ShardRef<'_>, locked: &LockedBuckets<'_>, key: Fingerprint, position: Position) {
        locked.remove(key, position);
        shard.shards.uncount_entry(shard.index);
        self.budget.remove_key();
    }

    /// Loads the state. The caller [stores](MemoryStore::store_state) it again under the same locks.
    #[inline]
    pub(super) fn load_state(
        &self,
        shard: ShardRef<'_>,
        locked: &LockedBuckets<'_>,
        entry: &Entry,
        quota: &Quota,
    ) -> State {
        let Some(position) = entry.position else { return State::default() };
        match locked.content(position) {
            _ if entry.new => State::default(),
            Content::Inline { expires_at, first, second } => State::unpack(Packed { expires_at, first, second }, quota),
            Content::InSlab { index, .. } => self.load_from_slab(shard, entry, index),
        }
    }

    /// The usual path: a take on a state that is in its slot and stays there.
    ///
    /// Returns false and changes nothing if the hit needs another path.
    #[inline]
    pub(super) fn decide_in_slot(
        &self,
        now: Time,
        hit: &Hit<'_>,
        (locked, position): (&LockedBuckets<'_>, Position),
        decision: &mut Decision,
    ) -> bool {
        let (bucket, width) = locked.bucket(position);
        let Content::Inline { expires_at, first, second } = bucket.content(width, position.slot) else { return false };
        let mut packed = Packed { expires_at, first, second };
        if !packed.decide(hit, now, decision) || packed.expires_at == 0 {
            return false;
        }
        // Every packed token bucket passes this check. A window with a large count passes it too. Its time is then
        // noted without need, which does no harm.
        if packed.first >= LEAST_TOKEN_BUCKET {
            bucket.note_time(now.as_nanos());
        }
        bucket.replace(width, position.slot, packed)
    }

    /// The newest time at which the state may have been charged, if the algorithm needs it; else `now`.
    ///
    /// Requests do not arrive in the order in which they read the clock.
    pub(super) fn newest(&self, locked: &LockedBuckets<'_>, entry: &Entry, quota: &Quota, now: Time) -> Time {
        match entry.position {
            Some(position) if quota.algorithm() == Algorithm::TokenBucket => {
                Time::from_nanos(locked.newest_ns(position, now.as_nanos()))
            }
            _ => now,
        }
    }

    /// Loads a state from the slab. Its bytes do not count until it is stored again.
    fn load_from_slab(&self, shard: ShardRef<'_>, entry: &Entry, index: u32) -> State {
        let mut slab = shard.shards.slab(shard.index).lock();
        if entry.over_budget {
            // The decision works on a copy, which is not stored.
            return slab.get(index).clone();
        }
        let state = slab.load(index);
        self.budget.resize(Slab::bytes(&state), 0);
        state
    }

    /// Stores the state. An empty state is removed instead, and nothing is stored for an entry that is over budget.
    ///
    /// The state goes to the slot if its numbers fit, and else to the slab. It moves from one to the other as its
    /// numbers grow and shrink.
    #[inline]
    pub(super) fn store_state(
        &self,
        shard: ShardRef<'_>,
        locked: &LockedBuckets<'_>,
        (key, entry): (Fingerprint, &Entry),
        state: State,
        (quota, now): (&Quota, Time),
    ) {
        let Some(position) = entry.position.filter(|_| !entry.over_budget) else { return };
        let packed = state.pack(quota);
        if let Some(Packed { expires_at: expires_at @ 1.., first, second }) = packed
            && locked.write(key, position, Content::Inline { expires_at, first, second })
        {
            if first >= LEAST_TOKEN_BUCKET {
                locked.note_time(position, now.as_nanos());
            }
            if let Some(index) = entry.slab_index {
                shard.shards.slab(shard.index).lock().remove(index);
            }
            return;
        }
        if quota.algorithm() == Algorithm::TokenBucket {
            locked.note_time(position, now.as_nanos());
        }
        self.store_unpacked(shard, locked, (key, position, entry.slab_index), state, quota);
    }

    /// Stores a state that does not fit a slot, or removes an empty one.
    #[cold]
    fn store_unpacked(
        &self,
        shard: ShardRef<'_>,
        locked: &LockedBuckets<'_>,
        (key, position, slab_index): (Fingerprint, Position, Option<u32>),
        state: State,
        quota: &Quota,
    ) {
        let expires_at = state.expires_at(quota);
        if expires_at == 0 {
            if let Some(index) = slab_index {
                shard.shards.slab(shard.index).lock().remove(index);
            }
            return self.remove(shard, locked, key, position);
        }
        self.store_in_slab(shard, locked, (key, position, slab_index), state, expires_at);
    }

    /// Stores a state in the slab, and its index in the slot.
    pub(super) fn store_in_slab(
        &self,
        shard: ShardRef<'_>,
        locked: &LockedBuckets<'_>,
        (key, position, slab_index): (Fingerprint, Position, Option<u32>),
        state: State,
        expires_at: u64,
    ) {
        let mut slab = shard.shards.slab(shard.index).lock();
        let index = slab_index.unwrap_or_else(|| slab.allocate());
        self.budget.resize(0, Slab::bytes(&state));
        slab.store(index, state);
        let fits = locked.write(key, position, Content::InSlab { expires_at, index });
        debug_assert!(fits, "an index and a time fit every slot");
    }
}
