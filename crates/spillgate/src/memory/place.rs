//! Where one state lies, and how it gets out of its slot and back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;
use smallvec::SmallVec;
use spillgate_core::{
    Algorithm, Binding, Decision, Hit, Op, OpKind, Packed, Quota, Reason, State, Time, Verdict, Wait, decide_late,
};

use super::bucket::{Content, Width};
use super::fingerprint::Fingerprint;
use super::shards::Shards;
use super::slab::Slab;
use super::table::{At, Locked, Obstacle, Table};
use super::{MemoryStore, OnFull};

/// The least number that a bucket packs to: it has the bound of a debt, of a second or more, above 32 bits of T.
const LEAST_BUCKET: u64 = 1 << 32;
/// Home buckets looked at for expiry at a time, and when there is no room.
const STEPS: usize = 8;
const STEPS_WHEN_FULL: usize = 32;
/// How often: after one new key in 2^2, so that no entry stays longer than half as many new keys come
/// as there are buckets, and after one decision in 2^6 on keys that are known.
const NEW_BITS: u32 = 2;
const KNOWN_BITS: u32 = 6;

/// The table that a key belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home<'s> {
    shards: &'s Shards,
    shard: usize,
}

impl PartialEq for Home<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<'s> Home<'s> {
    /// Where the table stands among all tables, for those who lock several.
    pub(super) fn order(self) -> (bool, usize) {
        (self.shards.width() == Width::Wide, self.shard)
    }

    #[inline]
    pub(super) fn load(self) -> Guard<Arc<Table>> {
        self.shards.load(self.shard)
    }
}

/// Where a state is.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// `None` for a key that is not known and stays so.
    at: Option<At>,
    /// Its place in the slab.
    boxed: Option<u32>,
    /// It was claimed for this request.
    pub(super) new: bool,
    /// There is no room for what the request would charge: the state stays as it was.
    pub(super) shut: bool,
}

/// What a request does without, where its obstacles could not be overcome: it finds places shut then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Insists {
    on_full: bool,
    /// Only this gives up on a larger table: the room that was wanted before may be there by now.
    on_crowded: bool,
}

/// A state as it was written down.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Inline(Packed),
    Boxed { expires_at: u64, state: State },
}

/// What became of a state that was to be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutBack {
    Done,
    NoRoom,
    /// No slot of this width holds such numbers, the key is there already, or keys are crowded as no hash has them.
    Unfit,
}

/// Whether a charge under `quota` may need more bytes in the slab.
#[inline]
fn needs_bytes(quota: &Quota, boxed: bool) -> bool {
    match quota.algorithm() {
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => true,
        // Segments are as large when new as they ever get.
        Algorithm::SlidingWindowCounter { segments: 2.. } => !boxed,
        Algorithm::TokenBucket | Algorithm::LeakyBucket if !quota.packs() => !boxed,
        _ => quota.penalty_ns() > 0 && !boxed,
    }
}

impl MemoryStore {
    /// The key of a hit's state, and its table.
    #[inline]
    pub(super) fn home(&self, hit: &Hit<'_>) -> (Fingerprint, Home<'_>) {
        let shards = self.shards(hit.quota);
        let key = Fingerprint::of(hit, shards.width());
        (key, Home { shards, shard: shards.shard_of(key) })
    }

    /// Finds the state of `key`; claims a slot for it if it is new and a hit under `charging` needs one.
    ///
    /// Without room that is an obstacle first and, if the caller insists, a place that is shut.
    #[inline]
    pub(super) fn find(
        &self,
        home: Home<'_>,
        locked: &mut Locked<'_>,
        key: Fingerprint,
        charging: Option<&Quota>,
        insists: Insists,
    ) -> Result<Place, Obstacle> {
        let at = locked.find(key)?;
        let boxed = at.and_then(|at| match locked.content(at) {
            Content::Inline { .. } => None,
            Content::Boxed { index, .. } => Some(index),
        });
        let place = Place { at, boxed, new: false, shut: false };
        let Some(quota) = charging else { return Ok(place) };
        if needs_bytes(quota, boxed.is_some()) && !self.room.has_bytes() {
            return if insists.on_full { Ok(Place { shut: true, ..place }) } else { Err(Obstacle::Full) };
        }
        if at.is_some() { Ok(place) } else { self.claim(home, locked, key, insists) }
    }

    fn claim(
        &self,
        home: Home<'_>,
        locked: &mut Locked<'_>,
        key: Fingerprint,
        insists: Insists,
    ) -> Result<Place, Obstacle> {
        if !self.room.take_key() {
            return if insists.on_full { Ok(Place { shut: true, ..Place::default() }) } else { Err(Obstacle::Full) };
        }
        let at = match locked.claim(key) {
            Ok(at) => at,
            Err(obstacle) => {
                self.room.give_back_key();
                let hopeless = insists.on_crowded && obstacle == Obstacle::Crowded;
                return if hopeless { Ok(Place { shut: true, ..Place::default() }) } else { Err(obstacle) };
            }
        };
        home.shards.note_entry(home.shard);
        Ok(Place { at: Some(at), boxed: None, new: true, shut: false })
    }

    /// Undoes what [`find`](MemoryStore::find) claimed.
    pub(super) fn unclaim(&self, home: Home<'_>, locked: &Locked<'_>, key: Fingerprint, place: &Place) {
        if let Place { at: Some(at), new: true, .. } = *place {
            self.remove(home, locked, key, at);
        }
    }

    fn remove(&self, home: Home<'_>, locked: &Locked<'_>, key: Fingerprint, at: At) {
        locked.remove(key, at);
        home.shards.note_removal(home.shard);
        self.room.give_back_key();
    }

    /// The state, to be [`put`](MemoryStore::put) back under the same locks.
    #[inline]
    pub(super) fn take(&self, home: Home<'_>, locked: &Locked<'_>, place: &Place, quota: &Quota) -> State {
        let Some(at) = place.at else { return State::default() };
        match locked.content(at) {
            _ if place.new => State::default(),
            Content::Inline { expires_at, first, second } => State::unpack(Packed { expires_at, first, second }, quota),
            Content::Boxed { index, .. } => self.take_boxed(home, place, index),
        }
    }

    /// The usual way: a take on a state that is in its slot and stays there. False, and nothing is
    /// changed, if this is something else.
    #[inline]
    pub(super) fn decide_in_slot(
        &self,
        now: Time,
        hit: &Hit<'_>,
        (locked, at): (&Locked<'_>, At),
        decision: &mut Decision,
    ) -> bool {
        let (bucket, width) = locked.bucket(at);
        let Content::Inline { expires_at, first, second } = bucket.content(width, at.slot) else { return false };
        let mut packed = Packed { expires_at, first, second };
        if !packed.decide(hit, now, decision) || packed.expires_at == 0 {
            return false;
        }
        // The first number of a packed bucket is never below this. A window's may be above it too: its time is noted
        // as well, which does no harm.
        if packed.first >= LEAST_BUCKET {
            bucket.note_time(now.as_nanos());
        }
        bucket.replace(width, at.slot, packed)
    }

    /// The newest time that the state may have been charged at, where that matters: requests come in another order than
    /// they read the clock in.
    pub(super) fn newest(&self, locked: &Locked<'_>, place: &Place, quota: &Quota, now: Time) -> Time {
        match place.at {
            Some(at) if quota.algorithm() == Algorithm::TokenBucket => {
                Time::from_nanos(locked.newest_ns(at, now.as_nanos()))
            }
            _ => now,
        }
    }

    fn take_boxed(&self, home: Home<'_>, place: &Place, index: u32) -> State {
        let mut slab = home.shards.slab(home.shard).lock();
        if place.shut {
            // What becomes of it will not be kept.
            return slab.get(index).clone();
        }
        let state = slab.take(index);
        self.room.resize(Slab::bytes(&state), 0);
        state
    }

    /// Keeps the state; nothing is kept of one that equals none, or for which there was no room.
    #[inline]
    pub(super) fn put(
        &self,
        home: Home<'_>,
        locked: &Locked<'_>,
        (key, place): (Fingerprint, &Place),
        state: State,
        (quota, now): (&Quota, Time),
    ) {
        let Some(at) = place.at.filter(|_| !place.shut) else { return };
        let packed = state.pack(quota);
        if let Some(Packed { expires_at: expires_at @ 1.., first, second }) = packed
            && locked.write(key, at, Content::Inline { expires_at, first, second })
        {
            if first >= LEAST_BUCKET {
                locked.note_time(at, now.as_nanos());
            }
            if let Some(index) = place.boxed {
                home.shards.slab(home.shard).lock().remove(index);
            }
            return;
        }
        if quota.algorithm() == Algorithm::TokenBucket {
            locked.note_time(at, now.as_nanos());
        }
        self.put_boxed(home, locked, (key, at, place.boxed), state, quota);
    }

    #[cold]
    fn put_boxed(
        &self,
        home: Home<'_>,
        locked: &Locked<'_>,
        (key, at, boxed): (Fingerprint, At, Option<u32>),
        state: State,
        quota: &Quota,
    ) {
        let expires_at = state.expires_at(quota);
        if expires_at == 0 {
            if let Some(index) = boxed {
                home.shards.slab(home.shard).lock().remove(index);
            }
            return self.remove(home, locked, key, at);
        }
        self.write_boxed(home, locked, (key, at, boxed), state, expires_at);
    }

    fn write_boxed(
        &self,
        home: Home<'_>,
        locked: &Locked<'_>,
        (key, at, boxed): (Fingerprint, At, Option<u32>),
        state: State,
        expires_at: u64,
    ) {
        let mut slab = home.shards.slab(home.shard).lock();
        let index = boxed.unwrap_or_else(|| slab.reserve());
        self.room.resize(0, Slab::bytes(&state));
        slab.put(index, state);
        let fits = locked.write(key, at, Content::Boxed { expires_at, index });
        debug_assert!(fits, "an index and a time fit every slot");
    }

    /// Keeps a state that was written down, in a store that nobody asks yet.
    pub(super) fn put_back(&self, shards: &Shards, key: Fingerprint, kept: &Kept, now: Time) -> PutBack {
        let home = Home { shards, shard: shards.shard_of(key) };
        loop {
            let table = home.load();
            let mut locked = Locked::from(&table, table.home(key));
            let tried = self.try_put_back(home, &mut locked, key, kept);
            drop(locked);
            match tried {
                Ok(done) => return done,
                Err(Obstacle::Full) => return PutBack::NoRoom,
                Err(obstacle) => {
                    let mut insists = Insists::default();
                    self.overcome(home, &obstacle, now, &mut insists);
                    if insists.on_crowded {
                        return PutBack::Unfit;
                    }
                }
            }
        }
    }

    fn try_put_back(
        &self,
        home: Home<'_>,
        locked: &mut Locked<'_>,
        key: Fingerprint,
        kept: &Kept,
    ) -> Result<PutBack, Obstacle> {
        if locked.find(key)?.is_some() {
            return Ok(PutBack::Unfit);
        }
        if matches!(kept, Kept::Boxed { .. }) && !self.room.has_bytes() {
            return Ok(PutBack::NoRoom);
        }
        let place = self.claim(home, locked, key, Insists::default())?;
        let Some(at) = place.at else { return Ok(PutBack::NoRoom) };
        match kept {
            Kept::Inline(Packed { expires_at, first, second }) => {
                let (expires_at, first, second) = (*expires_at, *first, *second);
                if !locked.write(key, at, Content::Inline { expires_at, first, second }) {
                    self.unclaim(home, locked, key, &place);
                    return Ok(PutBack::Unfit);
                }
            }
            Kept::Boxed { expires_at, state } => {
                self.write_boxed(home, locked, (key, at, None), state.clone(), *expires_at);
            }
        }
        Ok(PutBack::Done)
    }

    /// Decides where `shut` states cannot be charged: what becomes of those is not kept.
    #[cold]
    pub(super) fn decide_shut(
        &self,
        (now, newest): (Time, Time),
        hits: &[Hit<'_>],
        (states, state_of): (&mut [State], &[usize]),
        shut: &[bool],
        decisions: &mut [Decision],
    ) -> Verdict {
        self.full_requests.fetch_add(1, Ordering::Relaxed);
        let refuses = |i: usize| {
            let take = hits[i].op.kind() == OpKind::Take && hits[i].binding != Binding::Shadow;
            shut[state_of[i]] && take && self.on_full == OnFull::Deny
        };
        let Some(first) = (0..hits.len()).find(|&i| refuses(i)) else {
            return decide_late(states, state_of, hits, now, newest, decisions);
        };
        // The whole request is refused for want of room: all its takes and forces become looks.
        let look = |hit: &Hit<'_>| match hit.op.kind() {
            OpKind::Take | OpKind::Force => Op::Peek,
            _ => hit.op,
        };
        let looks: SmallVec<[Hit<'_>; 4]> = hits.iter().map(|hit| hit.with_op(look(hit))).collect();
        let mut verdict = decide_late(states, state_of, &looks, now, newest, decisions);
        for i in (first..hits.len()).filter(|&i| refuses(i)) {
            decisions[i].allowed = false;
            decisions[i].reason = Reason::StoreFull;
            decisions[i].remaining = 0;
            decisions[i].retry_after = Wait::Unknown;
        }
        (verdict.allowed, verdict.binding, verdict.retry_after) = (false, Some(first), Wait::Unknown);
        verdict
    }

    /// Clears the way for a request that has to begin anew; notes in `insists` what it should do without then.
    #[cold]
    pub(super) fn overcome(&self, home: Home<'_>, obstacle: &Obstacle, now: Time, insists: &mut Insists) {
        match obstacle {
            Obstacle::Full => {
                self.tend(home.shard, STEPS_WHEN_FULL, now);
                insists.on_full = true;
            }
            Obstacle::Moved => home.shards.wait(home.shard),
            // Only keys that are no hashes crowd a table that is nearly empty; no size would help them.
            Obstacle::Crowded => {
                let grown = home.shards.grow(home.shard, now.as_nanos(), |gone| self.forget(home, gone));
                insists.on_crowded |= !grown;
            }
        }
    }

    /// Forgets a little, now and then.
    #[inline]
    pub(super) fn tend_after(&self, home: Home<'_>, key: Fingerprint, new: bool, now: Time) {
        // The digits of time and key, well mixed, are as good as a die.
        let mixed = (now.as_nanos() ^ key.low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if mixed >> (u64::BITS - if new { NEW_BITS } else { KNOWN_BITS }) == 0 {
            self.tend(home.shard, STEPS, now);
        }
    }

    /// Looks at states of both widths: those of one may hold the room, and nobody may come to look at them.
    fn tend(&self, shard: usize, steps: usize, now: Time) {
        for shards in [&self.narrow, &self.wide] {
            shards.tend(shard, steps, now.as_nanos(), |gone| self.forget(Home { shards, shard }, gone));
        }
    }

    /// Gives back the room of an entry that was removed.
    fn forget(&self, home: Home<'_>, content: Content) {
        self.room.give_back_key();
        if let Content::Boxed { index, .. } = content {
            let state = home.shards.slab(home.shard).lock().remove(index);
            self.room.resize(Slab::bytes(&state), 0);
        }
    }
}
