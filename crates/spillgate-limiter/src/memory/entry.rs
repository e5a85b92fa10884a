//! Finds or claims the entry of a state in a table, loads the state for a decision, and stores it again. To claim an
//! entry is to reserve a free slot for a new key.
//!
//! A decision needs a [`State`]. The store keeps it packed in a slot, or in the slab (a list of states that do not fit
//! a slot). This module converts between these forms, and counts in the budget how many keys and bytes the store has.
//!
//! A request makes these calls in this order, while it has its locks. An obstacle is the reason why the request must be
//! tried again:
//!
//! ```text
//! find_or_claim  -->  load_state  -->  decision  -->  store_state
//!        \
//!         obstacle  -->  undo_claim for the other entries of the request, and another attempt
//! ```

use spillgate_core::{Algorithm, Decision, Hit, Packed, Quota, State, Time};

use super::overflow::Lack;
use super::retry::GiveUpOn;
use super::shards::{Content, Fingerprint, LockedBuckets, Obstacle, Position, Slab};
use super::store::{MemoryStore, ShardRef};

/// The lowest value that the field `first` of a packed token bucket can have. In `first`, the bits from 32 on store the
/// bound of the debt (used tokens, measured as time), which is never 0. The lower 32 bits store the time between two
/// tokens, or the limit from which this time is computed if it is long.
const LEAST_TOKEN_BUCKET: u64 = 1 << 32;

/// Where a request finds the state of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// The position of the key's slot. It is `None` if the key is unknown and gets no slot.
    pub(super) position: Option<Position>,
    /// The index of the state, if it is in the slab.
    slab_index: Option<u32>,
    /// Whether the slot was claimed for this request.
    pub(super) new: bool,
    /// Whether the budget has too few free keys or bytes for a charge on this state, or the table has no free slot for
    /// its key. If so, the stored state must not change.
    pub(super) over_budget: bool,
}

impl Entry {
    /// Returns what the store lacks for the state of `key`.
    pub(super) fn lack(&self, key: Fingerprint) -> Lack {
        match (self.over_budget, self.position) {
            (false, _) => Lack::Nothing,
            (true, Some(_)) => Lack::Bytes,
            (true, None) => Lack::Slot(key),
        }
    }
}

/// Returns whether a charge under `quota` can need more bytes in the slab. `in_slab` says whether the state is in the
/// slab already. One case is left out: the very large count of a window, which is stored even if no bytes are free.
#[inline]
fn needs_bytes(quota: &Quota, in_slab: bool) -> bool {
    match quota.algorithm() {
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => true,
        // A counter in the slab has all its segments from the start, so it never grows.
        Algorithm::SlidingWindowCounter { segments: 2.. } => !in_slab,
        Algorithm::TokenBucket | Algorithm::LeakyBucket if !quota.packs() => !in_slab,
        Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindowCounter { .. } => quota.penalty_ns() > 0 && !in_slab,
    }
}

impl MemoryStore {
    /// Finds the entry of `key`. If the key is new and `charging` is a quota, claims a slot for the key. `charging` is
    /// the quota of a hit that can need a free key or free bytes in the budget, and `None` for any other hit.
    ///
    /// If the sketch of a full store keeps the key, the entry is over budget.
    ///
    /// If capacity is missing, this function returns an obstacle. But if `give_up_on.capacity` is true, it returns an
    /// entry that is over budget.
    #[inline]
    pub(super) fn find_or_claim(
        &self,
        shard: ShardRef<'_>,
        locked: &mut LockedBuckets<'_>,
        key: Fingerprint,
        (charging, now): (Option<&Quota>, Time),
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
        if position.is_some() {
            return Ok(entry);
        }
        match &self.overflow {
            Some(overflow) if overflow.keeps(key, quota, now) => Ok(Entry { over_budget: true, ..entry }),
            _ => self.claim(shard, locked, key, give_up_on),
        }
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

    /// Frees the slot of an entry whose state is not in the slab. The budget then counts one key less.
    fn remove(&self, shard: ShardRef<'_>, locked: &LockedBuckets<'_>, key: Fingerprint, position: Position) {
        locked.remove(key, position);
        shard.shards.uncount_entry(shard.index);
        self.budget.remove_key();
    }

    /// Returns the time at which a request of the time `now` is decided. The result is later than `now` only if the key
    /// has no state and the request is late.
    #[inline]
    pub(super) fn not_before(&self, shard: ShardRef<'_>, entry: &Entry, now: Time) -> Time {
        if entry.position.is_some() && !entry.new { now } else { shard.shards.not_before(shard.index, now) }
    }

    /// Loads the state. The caller must [store](MemoryStore::store_state) the state again before it releases its locks.
    #[inline]
    pub(super) fn load_state(
        &self,
        shard: ShardRef<'_>,
        locked: &LockedBuckets<'_>,
        (key, entry): (Fingerprint, &Entry),
        (quota, now): (&Quota, Time),
    ) -> State {
        match entry.position.filter(|_| !entry.new).map(|position| locked.content(position)) {
            None => self.overflow.as_ref().map(|overflow| overflow.state(key, quota, now)).unwrap_or_default(),
            Some(Content::Inline { expires_at, first, second }) => {
                State::unpack(Packed { expires_at, first, second }, quota)
            }
            Some(Content::InSlab { index, .. }) => self.load_from_slab(shard, entry, index),
        }
    }

    /// Decides the usual hit: a take on a state that is in its slot and stays in its slot.
    ///
    /// If the hit needs another path, returns false and does not change the state.
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
        // The condition is true for every packed token bucket, but also for queues, and for windows with a large count.
        // Only the times of token buckets are needed. The times of other states do no harm.
        if packed.first >= LEAST_TOKEN_BUCKET {
            bucket.note_time(now.as_nanos());
        }
        bucket.replace(width, position.slot, packed)
    }

    /// Returns the newest time that is noted beside the slot of this entry. A few neighbouring slots share one noted
    /// time. This time is the newest time at which a token bucket in these slots was charged.
    ///
    /// Returns `now` if the noted time is not between `now` and one second later, or if `quota` is not a token bucket.
    /// The noted time can be later than `now`, because a request that has read the clock later can be decided first.
    pub(super) fn newest(&self, locked: &LockedBuckets<'_>, entry: &Entry, quota: &Quota, now: Time) -> Time {
        match entry.position {
            Some(position) if quota.algorithm() == Algorithm::TokenBucket => {
                Time::from_nanos(locked.newest_ns(position, now.as_nanos()))
            }
            _ => now,
        }
    }

    /// Loads a state from the slab. The bytes of the state are not counted in the budget until the state is stored
    /// again.
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

    /// Stores the state. If the state is empty, removes the entry instead. If the entry is over budget, does nothing.
    ///
    /// A state whose numbers fit the slot is stored in the slot. Any other state is stored in the slab. A state moves
    /// between slot and slab as its numbers grow and shrink.
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

    /// Stores a state that does not fit a slot. If the state is empty, removes its entry instead.
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
