//! A request of several hits on sketches.
//!
//! The hits can be on several sketches, because each limit has a sketch of its own. The locks of all keys are held
//! until the cells are raised, so other requests see all charges of the request or none.

use smallvec::SmallVec;
use spillgate_core::{Binding, Decision, Hit, Op, Quota, State, Time, Verdict, decide};

use super::Sketch;
use super::decide::Known;
use super::locks::Held;
use super::mixer::Mixed;

/// A limit that refuses everything.
const CLOSED: Quota = Quota::per_second(0).constant();

/// A request that has the locks of its keys.
pub(super) struct LockedRequest<'r, 's, 'q> {
    hits: &'r [Hit<'q>],
    /// The keys of the hits, each key once, with its sketch and the quota of its first hit.
    keys: SmallVec<[(&'s Sketch, Mixed, &'q Quota); 4]>,
    /// For each hit, the index of its key in `keys`.
    key_of: SmallVec<[usize; 4]>,
    known: SmallVec<[Known; 4]>,
    /// The time of the decision. It can be later than the time of the request, as [`load_all`] says.
    at: Time,
    _locks: SmallVec<[Held<'s>; 4]>,
}

impl<'r, 's, 'q> LockedRequest<'r, 's, 'q> {
    /// Takes the locks, and reads the cells. `sketches[i]` decides `hits[i]`, and has to support it.
    pub(super) fn new(sketches: &[&'s Sketch], now: Time, hits: &'r [Hit<'q>]) -> LockedRequest<'r, 's, 'q> {
        let mut seen: SmallVec<[(*const Sketch, u128); 4]> = SmallVec::new();
        let mut keys: SmallVec<[(&Sketch, Mixed, &Quota); 4]> = SmallVec::new();
        let mut key_of = SmallVec::new();
        for (hit, sketch) in hits.iter().zip(sketches) {
            let key = (std::ptr::from_ref(*sketch), hit.key);
            let known = seen.iter().position(|seen| *seen == key);
            key_of.push(known.unwrap_or(seen.len()));
            if known.is_none() {
                seen.push(key);
                keys.push((sketch, sketch.mixer.mix(hit.key), hit.quota));
            }
        }
        let locks = lock_all(&keys);
        let (known, at) = load_all(&keys, now);
        LockedRequest { hits, keys, key_of, known, at, _locks: locks }
    }

    /// Decides the hits, and returns the new states of the keys. If `rest_allowed` is false, the store has refused the
    /// request, so these hits take nothing.
    pub(super) fn decide(&self, rest_allowed: bool, decisions: &mut [Decision]) -> (Verdict, SmallVec<[State; 4]>) {
        let keys = self.keys.iter().zip(&self.known);
        let mut states: SmallVec<[State; 4]> = keys.map(|((_, _, quota), known)| known.state(quota)).collect();
        let verdict = if rest_allowed {
            decide(&mut states, &self.key_of, self.hits, self.at, decisions)
        } else {
            let mut hits: SmallVec<[Hit<'_>; 4]> = SmallVec::from_slice(self.hits);
            let mut key_of = self.key_of.clone();
            let mut answers: SmallVec<[Decision; 4]> = smallvec::smallvec![Decision::default(); hits.len() + 1];
            hits.push(refusing(0));
            key_of.push(states.len());
            states.push(State::default());
            let verdict = decide(&mut states, &key_of, &hits, self.at, &mut answers);
            decisions.copy_from_slice(&answers[..self.hits.len()]);
            verdict
        };
        decisions.iter_mut().for_each(|decision| *decision = decision.without_receipt());
        (verdict, states)
    }

    /// Raises the cells of the keys to the states that [`decide`](LockedRequest::decide) has returned.
    pub(super) fn store(&self, states: &[State]) {
        for (((sketch, key, quota), known), state) in self.keys.iter().zip(&self.known).zip(states) {
            sketch.store(*key, known, state, quota);
        }
    }
}

/// Returns a hit that refuses its request.
pub(super) const fn refusing(key: u128) -> Hit<'static> {
    Hit::new(key, &CLOSED, Op::take(1), Binding::Enforce)
}

/// Takes the locks of all keys, each lock once. All requests take locks in the same order, so that they cannot
/// deadlock.
fn lock_all<'s>(keys: &[(&'s Sketch, Mixed, &Quota)]) -> SmallVec<[Held<'s>; 4]> {
    let mut locks: SmallVec<[(*const Sketch, usize, &Sketch); 4]> = keys
        .iter()
        .map(|(sketch, key, _)| (std::ptr::from_ref(*sketch), sketch.locks.index_of(*key), *sketch))
        .collect();
    locks.sort_unstable_by_key(|(address, index, _)| (*address, *index));
    locks.dedup_by_key(|(address, index, _)| (*address, *index));
    locks.into_iter().map(|(_, index, sketch)| sketch.locks.lock(index)).collect()
}

/// Reads the cells of all keys, as they count at one common time, and returns this time. The time is later than `now`
/// if one of the sketches has begun a later window already.
fn load_all(keys: &[(&Sketch, Mixed, &Quota)], mut now: Time) -> (SmallVec<[Known; 4]>, Time) {
    loop {
        let known: SmallVec<[Known; 4]> = keys.iter().map(|(sketch, key, _)| sketch.load(*key, now)).collect();
        let latest = known.iter().map(|known| known.now(now)).max().unwrap_or(now);
        if latest == now {
            return (known, now);
        }
        now = latest;
    }
}
