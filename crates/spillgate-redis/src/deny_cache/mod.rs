//! The deny cache keeps states that refused a take, so that the next take is refused without a call to Redis.
//!
//! Without this cache, one client that sends far too many requests could use as much of Redis as all other clients
//! together.
//!
//! A free refusal stays true until its retry time: only a refund, a reset or a loss of data can free units earlier. So
//! the cache keeps the states that Redis showed in its reply to a refused request. From these states, the kernel
//! decides the next request, at the current time of Redis. The cache also keeps the states of the request
//! that did not refuse, because a refusal reports their remaining units too.
//!
//! The cache removes an entry when a request of this store could have changed its state. The cache does not see changes
//! by other clients until the entry is too old. Until then, `retry_after` can be too short if other clients have taken
//! more units. If other clients have refunded units, the cache still refuses takes of these units.
//!
//! The entries are divided into sets of at most four entries. The key of a state selects the set of its entry.
//!
//! | event | effect on the entry of the state |
//! |---|---|
//! | Redis shows the state in a free refusal | a new entry is stored, or the old entry is replaced |
//! | any other request on the state is sent | the entry is removed when the request ends or fails |
//! | the entry is older than the greatest age | it is not used any more, and the next removal in its set removes it |
//! | a new entry comes, and its set is full | it replaces the old entry whose refusal ends first, or is dropped |
//! | a settlement charges the state, and nothing else of the request is on it | an entry that refuses stays; another is removed |
//! | another client takes or refunds | none until the entry is too old |
//!
//! In a full set, a new entry that does not refuse is dropped if all old entries still refuse.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use spillgate_core::{Algorithm, Binding, Decision, Hit, Op, OpKind, Reason, Source, State, Time, Verdict, Wait};
use tokio::time::Instant;

use crate::command::ObservedStates;
use crate::command::args::max_used;
use crate::command::request::decide_refused;

/// The number of entries in a set. A state is stored in one of the entries of its set.
const ENTRIES_PER_SET: usize = 4;
/// The greatest age of an entry in a cluster, even if the settings allow more. A request in several slots takes units
/// in one slot, and refunds them if another slot refuses. Such units can cause a refusal of another request, although
/// they are refunded soon. So the cache repeats a refusal for a short time only.
pub(crate) const CLUSTER_MAX_AGE: Duration = Duration::from_millis(100);
/// A larger state is not kept. A counter of 128 segments has 1032 bytes, and a whole log can have a mebibyte.
const STATE_BYTES_MAX: usize = 1100;

/// A cache with a fixed maximum number of entries.
pub(crate) struct DenyCache {
    /// The start of the cache's clock. This clock counts nanoseconds.
    start: Instant,
    /// An entry of this age or more is no longer used. The age of an entry counts from the time when its request was
    /// sent.
    max_age_ns: u64,
    /// Whether a single Redis server decides all requests, so that the times of all states come from one clock.
    has_one_clock: bool,
    /// The hash of a state's key selects its set. Empty if the cache is off.
    sets: Box<[Set]>,
    /// The generation of each set. Every request reads and changes the generations of its sets. Stored apart from the
    /// sets, they are small enough to stay in the cache of the processor.
    generations: Box<[Generation]>,
    /// The maximum number of entries in a set. It is less than [`ENTRIES_PER_SET`] only if the whole cache has fewer
    /// entries.
    entries_per_set: usize,
    /// No entry refuses after this time, in nanoseconds since `start`. A request that comes later does not read the
    /// sets.
    refuses_until_ns: AtomicU64,
    /// The number of requests that the cache has refused.
    refusals: AtomicU64,
}

/// The entries of the states whose hashes select this set: at most one entry for each state. The list is allocated when
/// it is first needed.
type Set = Mutex<Vec<Entry>>;

/// A number that grows with each removal in its set. Before a request is sent, its guard stores the generations of the
/// request's sets. If the generation of a set has changed when the reply comes, the states of this set in the reply are
/// not kept: another request may have changed them after Redis read them. A generation repeats only after 2^31 removals
/// in one set, far more than come during one request.
///
/// The bit [`HAS_ENTRIES`] is part of the generation. So if one thread removes while another thread inserts, either the
/// removal sees the bit and takes the lock, or the insertion sees the new generation and inserts nothing.
type Generation = AtomicU32;

/// The bit of a set's generation that says that the set may have entries.
const HAS_ENTRIES: u32 = 1;
/// How much a generation grows with each removal.
const GENERATION_STEP: u32 = 2;

/// A state as Redis showed it.
struct Entry {
    state_key: u128,
    /// The state after the refused request.
    state: State,
    /// `Some` if Redis showed only a part of the state, as it does for permits and for a log. From this part, the cache
    /// can decide only a take with the same `max_used`. Such a take fits if at most `max_used` units are used.
    max_used: Option<u64>,
    /// The time on the clock of Redis when Redis showed the state.
    now: Time,
    /// When the request was sent, in nanoseconds on the cache's clock.
    sent_ns: u64,
    /// When the reply to the request came, in nanoseconds on the cache's clock.
    replied_ns: u64,
    /// When the entry stops refusing, in nanoseconds on the cache's clock. It is `sent_ns` if the state did not refuse.
    refuses_until_ns: u64,
}

/// Guards the entries while a request is sent to Redis. When the guard is dropped, it removes the entries of all states
/// in the request, because the request may have changed these states even if it failed. The states that the reply has
/// just shown stay in the cache.
pub(crate) struct RequestGuard<'c, 'h, 'q> {
    cache: &'c DenyCache,
    hits: &'h [Hit<'q>],
    /// When the request was sent, on the cache's clock.
    sent_ns: u64,
    /// The generation of each hit's set. Empty if the cache is off.
    generations: SmallVec<[u32; 4]>,
    /// The keys of the states that the reply showed and the cache has kept.
    learnt: Vec<u128>,
}

/// A state from the cache, with the current time of Redis as far as it is known.
struct KnownState {
    state_key: u128,
    state: State,
    /// The clock of Redis now shows at least `now`, and at most `latest`.
    now: Time,
    latest: Time,
}

impl DenyCache {
    /// Creates a cache of at most this many entries. An entry is not used for longer than `max_age`.
    pub(crate) fn new(entries: usize, max_age: Duration, has_one_clock: bool) -> DenyCache {
        let entries_per_set = entries.clamp(1, ENTRIES_PER_SET);
        let sets = entries / entries_per_set;
        DenyCache {
            start: Instant::now(),
            max_age_ns: nanos(max_age),
            has_one_clock,
            sets: (0..sets).map(|_| Set::default()).collect(),
            generations: (0..sets).map(|_| Generation::default()).collect(),
            entries_per_set,
            refuses_until_ns: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Returns the number of entries, including those that no longer refuse. This visits all sets, so call it for
    /// metrics, not for each request.
    pub(crate) fn entries(&self) -> usize {
        let has_entries = |index: &usize| self.generations[*index].load(Ordering::Acquire) & HAS_ENTRIES != 0;
        (0..self.sets.len()).filter(has_entries).map(|index| self.entries_of(index).len()).sum()
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.sets.is_empty()
    }

    /// Returns the refusal of `hits` if Redis is known to refuse them. `None` means that the request must be sent to
    /// Redis.
    ///
    /// The kernel decides the hits on each known state as a part of a request that is refused. Hits on unknown states
    /// do not refuse. They are reported as [`Reason::NotAsked`], because nothing is known about their limits.
    pub(crate) fn refuse(&self, hits: &[Hit<'_>], decisions: &mut [Decision], at: Instant) -> Option<Verdict> {
        let at_ns = self.ns(at);
        if self.refuses_until_ns.load(Ordering::Relaxed) <= at_ns || !hits.iter().all(is_free) {
            return None;
        }
        let first_of_state = |i: &usize| hits[..*i].iter().all(|other| other.state_key() != hits[*i].state_key());
        let known: SmallVec<[KnownState; 2]> =
            (0..hits.len()).filter(first_of_state).filter_map(|i| self.known(&hits[i], hits, at_ns)).collect();
        let now = known.iter().map(|known| known.now).max()?;
        // Takes that do not fit together even on an empty state are refused in every state. If this state is unknown,
        // the cache would report the takes as not asked. So Redis has to decide the request.
        let is_known = |hit: &Hit<'_>| known.iter().any(|known| known.state_key == hit.state_key());
        if !hits.iter().all(|hit| is_known(hit) || may_fit(hit, hits)) {
            return None;
        }
        decisions.fill(Decision::default().with_reason(Reason::NotAsked));
        let mut is_refused = false;
        for known in known {
            let now = if self.has_one_clock { now } else { known.now };
            is_refused |= known.decide(hits, now, decisions);
        }
        if !is_refused {
            return None;
        }
        self.refusals.fetch_add(1, Ordering::Relaxed);
        Some(Verdict::of(hits, decisions, now).with_source(Source::DenyCache))
    }

    /// Returns the state of one of `hits`, if the cache has it.
    fn known(&self, hit: &Hit<'_>, hits: &[Hit<'_>], at_ns: u64) -> Option<KnownState> {
        let state_key = hit.state_key();
        let set = self.set_of(state_key)?;
        if self.generations[set].load(Ordering::Acquire) & HAS_ENTRIES == 0 {
            return None;
        }
        let entries = self.entries_of(set);
        let entry = entries.iter().find(|entry| entry.state_key == state_key)?;
        let age_ns = at_ns.saturating_sub(entry.sent_ns);
        let is_usable = entry.max_used.is_none_or(|max_used| max_used_alone(hit, hits) == Some(max_used));
        if age_ns >= self.max_age_ns || !is_usable {
            return None;
        }
        let after = |ns| entry.now.after(Duration::from_nanos(ns));
        // `latest` assumes that Redis read the state as soon as the request was sent, and that the clock of Redis runs
        // faster than the local clock by a thousandth.
        let latest = after(age_ns.saturating_add(age_ns.div_ceil(1000)));
        let now = after(at_ns.saturating_sub(entry.replied_ns));
        Some(KnownState { state_key, state: entry.state.clone(), now, latest })
    }

    /// Returns the guard of a request. Create it before the request is sent, and drop it after the reply.
    pub(crate) fn guard<'c, 'h, 'q>(&'c self, hits: &'h [Hit<'q>], sent: Instant) -> RequestGuard<'c, 'h, 'q> {
        let generation = |hit: &Hit<'_>| {
            Some(self.generations[self.set_of(hit.state_key())?].load(Ordering::Acquire) & !HAS_ENTRIES)
        };
        let generations = hits.iter().filter_map(generation).collect();
        RequestGuard { cache: self, hits, sent_ns: self.ns(sent), generations, learnt: Vec::new() }
    }

    /// Removes the entry of the state, and all entries of its set that are too old: without that, an entry that no
    /// request needs could stay in the set forever. If the set has no entries, this method takes no lock. With
    /// `keep_refusal`, an entry that refuses stays.
    fn remove(&self, state_key: u128, at_ns: u64, keep_refusal: bool) {
        let Some(set) = self.set_of(state_key) else { return };
        let generation = &self.generations[set];
        if generation.fetch_add(GENERATION_STEP, Ordering::AcqRel) & HAS_ENTRIES == 0 {
            return;
        }
        let mut entries = self.entries_of(set);
        let lasts = |entry: &Entry| at_ns.saturating_sub(entry.sent_ns) < self.max_age_ns;
        let stays = |entry: &Entry| entry.state_key != state_key || keep_refusal && entry.refuses_until_ns > at_ns;
        entries.retain(|entry| stays(entry) && lasts(entry));
        if entries.is_empty() {
            generation.fetch_and(!HAS_ENTRIES, Ordering::AcqRel);
        }
    }

    /// Inserts the entry. If the set is full, the entry replaces another one or is dropped. Returns `false` if there
    /// has been a removal in the set since the request was sent, because the new entry may then be out of date.
    fn insert(&self, entry: Entry, generation: u32) -> bool {
        let Some(set) = self.set_of(entry.state_key) else { return false };
        let mut entries = self.entries_of(set);
        // `fetch_or` sets the bit and reads the generation in one atomic step. A later removal sees the bit and waits
        // for the lock. An earlier removal has changed the generation, so nothing is inserted. In that case the bit can
        // be set although the set has no entries. The next removal clears the bit.
        if self.generations[set].fetch_or(HAS_ENTRIES, Ordering::AcqRel) & !HAS_ENTRIES != generation {
            return false;
        }
        self.refuses_until_ns.fetch_max(entry.refuses_until_ns, Ordering::Relaxed);
        let own = entries.iter().position(|other| other.state_key == entry.state_key);
        if own.is_none() && entries.len() < self.entries_per_set {
            let missing = self.entries_per_set - entries.len();
            entries.reserve_exact(missing);
            entries.push(entry);
            return true;
        }
        // The new entry replaces the entry of the same state. If no such entry exists, it replaces the entry whose
        // refusal ends first. An entry that still refuses is not replaced by an entry that does not refuse.
        let refuses = |entry: &Entry, at_ns| entry.refuses_until_ns > at_ns;
        let gives_way = |at: &usize| refuses(&entry, entry.replied_ns) || !refuses(&entries[*at], entry.replied_ns);
        let first = (0..entries.len()).min_by_key(|position| entries[*position].refuses_until_ns);
        if let Some(position) = own.or(first.filter(gives_way)) {
            entries[position] = entry;
        }
        true
    }

    /// Returns the index of the set that the key of the state selects. `None` if the cache is off.
    fn set_of(&self, state_key: u128) -> Option<usize> {
        // The keys of a program are not always hashes, so the bits of the key are mixed here.
        let hash = ((state_key >> 64) as u64 ^ state_key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (u128::from(hash) * self.sets.len() as u128) >> 64;
        self.is_on().then_some(index as usize)
    }

    fn entries_of(&self, set: usize) -> MutexGuard<'_, Vec<Entry>> {
        self.sets[set].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ns(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.start))
    }
}

impl KnownState {
    /// Decides the hits on this state, as part of a request that is refused. Returns whether these hits refuse the
    /// request at every time from `now` to `latest`.
    fn decide(self, hits: &[Hit<'_>], now: Time, decisions: &mut [Decision]) -> bool {
        let positions: SmallVec<[usize; 4]> =
            (0..hits.len()).filter(|i| hits[*i].state_key() == self.state_key).collect();
        let own: SmallVec<[Hit<'_>; 4]> = positions.iter().map(|i| hits[*i]).collect();
        let mut states: SmallVec<[State; 4]> = SmallVec::new();
        states.push(self.state);
        let state_of: SmallVec<[usize; 4]> = smallvec![0; own.len()];
        let decided = decide_refused(&mut states, &state_of, &own, now);
        let late = Wait::After(self.latest.as_nanos().saturating_sub(now.as_nanos()));
        let mut refuses = false;
        for (i, decision) in positions.into_iter().zip(decided) {
            refuses |= hits[i].binding == Binding::Enforce && decision.retry_after > late;
            decisions[i] = decision;
        }
        refuses
    }
}

impl RequestGuard<'_, '_, '_> {
    /// Keeps the states that Redis showed when it refused the request.
    pub(crate) fn learn(&mut self, decisions: &[Decision], seen: Vec<ObservedStates>) {
        for ObservedStates { now, replied_at, states } in seen {
            for (state_key, state) in states {
                let replied_ns = self.cache.ns(replied_at);
                let Some(entry) = self.entry(state_key, state, decisions, now, replied_ns) else { continue };
                if self.generation(state_key).is_some_and(|generation| self.cache.insert(entry, generation)) {
                    self.learnt.push(state_key);
                }
            }
        }
    }

    /// Returns the generation that the state's set had when the request was sent.
    fn generation(&self, state_key: u128) -> Option<u32> {
        let (first, _) = on_state(self.hits, state_key).next()?;
        self.generations.get(first).copied()
    }

    /// Returns the entry for a state that Redis showed. `None` if the state is of no use later, or is too large.
    fn entry(
        &self,
        state_key: u128,
        state: State,
        decisions: &[Decision],
        now: Time,
        replied_ns: u64,
    ) -> Option<Entry> {
        let own = on_state(self.hits, state_key);
        let (_, hit) = own.clone().next()?;
        // A state is kept only if the refused request cannot have changed it. A hit that is not free (`is_free`) can
        // change its state even if the request is refused.
        let is_free = own.clone().all(|(_, hit)| is_free(hit));
        let waits = || own.clone().map(|(i, _)| decisions[i].retry_after);
        let max_used = match hit.quota.algorithm() {
            // Redis shows all permits as one lease, which ends when the last permit ends. A permit may become free
            // earlier, so a refusal is not kept.
            Algorithm::Concurrency if waits().any(|wait| wait != Wait::NONE) => return None,
            Algorithm::Concurrency => Some(max_used_alone(hit, self.hits)?),
            Algorithm::SlidingWindowLog => max_used_alone(hit, self.hits),
            Algorithm::TokenBucket
            | Algorithm::LeakyBucket
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindowCounter { .. } => None,
        };
        // A settlement is never refused, but its caller was refused by the state.
        let refuses = waits().any(|wait| matches!(wait, Wait::After(1..)))
            || own.clone().any(|(_, hit)| is_charged_if_allowed(hit));
        let lasts_ns = if refuses { state.expires_at(hit.quota).saturating_sub(now.as_nanos()) } else { 0 };
        let refuses_until_ns = self.sent_ns.saturating_add(lasts_ns.min(self.cache.max_age_ns));
        let fits = state.heap_bytes() <= STATE_BYTES_MAX;
        let entry = Entry { state_key, state, max_used, now, sent_ns: self.sent_ns, replied_ns, refuses_until_ns };
        (is_free && fits).then_some(entry)
    }
}

impl Drop for RequestGuard<'_, '_, '_> {
    fn drop(&mut self) {
        for hit in self.hits {
            let state_key = hit.state_key();
            if !self.learnt.contains(&state_key) {
                // A refusal stays true if more units are charged. What is left of a limit that does not refuse does not.
                let is_charged = on_state(self.hits, state_key).all(|(_, hit)| is_charged_if_allowed(hit));
                self.cache.remove(state_key, self.sent_ns, is_charged);
            }
        }
    }
}

/// Returns the hits on a state, each with its position in the request.
fn on_state<'h, 'q>(hits: &'h [Hit<'q>], state_key: u128) -> impl Iterator<Item = (usize, &'h Hit<'q>)> + Clone {
    hits.iter().enumerate().filter(move |(_, hit)| hit.state_key() == state_key)
}

/// Returns the greatest number of used units with which the hit still fits. `None` if the request has further hits on
/// the same state.
fn max_used_alone(hit: &Hit<'_>, hits: &[Hit<'_>]) -> Option<u64> {
    let cost = if let Op::Take { cost, .. } = hit.op { cost } else { 0 };
    (on_state(hits, hit.state_key()).count() == 1).then(|| max_used(hit, cost))
}

/// Returns whether the hit changes nothing if the request is refused.
fn is_free(hit: &Hit<'_>) -> bool {
    let takes_or_looks = matches!(hit.op.kind(), OpKind::Take | OpKind::Peek) || is_charged_if_allowed(hit);
    takes_or_looks && hit.quota.refusal_is_free()
}

/// Returns whether the hit charges units if the request is allowed, and does nothing otherwise. No refusal of its state
/// becomes wrong then.
fn is_charged_if_allowed(hit: &Hit<'_>) -> bool {
    matches!(hit.op, Op::Settle { change: 1.., .. }) && hit.quota.algorithm() != Algorithm::Concurrency
}

/// Returns whether all takes of the request on the hit's state would fit together if this state were empty.
fn may_fit(hit: &Hit<'_>, hits: &[Hit<'_>]) -> bool {
    Hit::cost_of_takes(on_state(hits, hit.state_key()).map(|(_, hit)| hit)) <= hit.quota.hard_capacity()
}

/// Converts a duration to nanoseconds. A duration of more than 584 years is cut to 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
