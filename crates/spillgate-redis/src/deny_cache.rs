//! Refusals that are still true, kept to be repeated without asking the server.
//!
//! A refusal that costs nothing stays true until its retry time: what was used ends sooner only by a refund or a reset,
//! by a question of another quota on the same state (which converts debt, or cuts a log), or by a loss. Those that pass
//! through this cache end their entries at once. Those made elsewhere, and a server's clock that steps forward, are seen
//! when the entry is too old; so is a question of another quota that is under way beside one of the entry's, if it
//! overtakes that on the way there and again on the way back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use spillgate_core::{
    Algorithm, Binding, Decision, Denied, Hit, Op, OpKind, Quota, Reason, Source, Time, Verdict, Wait,
};
use tokio::time::Instant;

/// Places that a state may have an entry in.
const PLACES_A_SET: usize = 4;
/// In a cluster no refusal is repeated for longer, whatever the settings say: it may be due to what a request in several
/// slots took here before another slot refused it, and is about to give back.
pub(crate) const CLUSTER_MAX_AGE: Duration = Duration::from_millis(100);

/// A fixed number of places for refusals; where there is none left, one overwrites another.
pub(crate) struct DenyCache {
    start: Instant,
    max_age: Duration,
    sets: Box<[Mutex<Set>]>,
    places_a_set: usize,
    /// No entry is kept for longer: all that an empty cache looks at. In nanoseconds since `start`.
    latest_until_ns: AtomicU64,
    /// Grows with whatever is forgotten.
    generation: AtomicU64,
    answered: AtomicU64,
}

#[derive(Default)]
struct Set {
    /// Answers to questions that were asked before this generation come too late to be learnt.
    forgotten: u64,
    /// One a state; allocated when it is first needed.
    entries: Vec<Entry>,
}

/// A refusal of a take.
struct Entry {
    state_key: u128,
    quota: Quota,
    cost: u64,
    max_wait_ns: u64,
    decision: Decision,
    /// The decision's time by the store's clock.
    now: Time,
    /// When it came, and until when it is repeated.
    told_ns: u64,
    until_ns: u64,
}

/// Hits that the store is asked about. Once this ends, whatever became of it, what the hits may have given back is
/// forgotten.
pub(crate) struct Question<'c, 'h, 'q> {
    cache: &'c DenyCache,
    hits: &'h [Hit<'q>],
    sent_ns: u64,
    generation: u64,
}

impl DenyCache {
    /// With at most so many entries, none of which is repeated for longer.
    pub(crate) fn new(entries: usize, max_age: Duration) -> DenyCache {
        let places_a_set = entries.clamp(1, PLACES_A_SET);
        DenyCache {
            start: Instant::now(),
            max_age,
            sets: (0..entries / places_a_set).map(|_| Mutex::default()).collect(),
            places_a_set,
            latest_until_ns: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// Requests that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// The refusal of `hits`, if it is known and nothing else would come of asking.
    ///
    /// It says of each hit that is known to refuse what the store said, less the time since. The others are allowed
    /// and not asked: with the limit that they have and nothing left, since what is left is not known and nobody may
    /// count on more.
    pub(crate) fn answer(&self, hits: &[Hit<'_>], decisions: &mut [Decision], at: Instant) -> Option<Verdict> {
        let at_ns = self.ns(at);
        if self.latest_until_ns.load(Ordering::Relaxed) <= at_ns || !hits.iter().all(is_free) {
            return None;
        }
        let known: SmallVec<[Option<(Decision, Time)>; 4]> =
            hits.iter().map(|hit| self.refusal(hit, hits, at_ns)).collect();
        let now = known.iter().flatten().map(|(_, now)| *now).max()?;
        for ((hit, decision), known) in hits.iter().zip(&mut *decisions).zip(known) {
            let limit = hit.quota.capacity();
            let not_asked = Decision { reason: Reason::NotAsked, limit, ..Decision::default() };
            *decision = known.map_or(not_asked, |(refusal, _)| refusal);
        }
        self.answered.fetch_add(1, Ordering::Relaxed);
        Some(Verdict { source: Source::DenyCache, ..Verdict::of(hits, decisions, now) })
    }

    /// What is told of a hit that is known to refuse, and the store's time of it.
    fn refusal(&self, hit: &Hit<'_>, hits: &[Hit<'_>], at_ns: u64) -> Option<(Decision, Time)> {
        let (cost, max_wait_ns) = asked(hit, hits)?;
        let set = self.set(hit.state_key())?;
        let entry = set.entries.iter().find(|entry| entry.state_key == hit.state_key())?;
        // A higher cost is refused as well, but for longer.
        let is_same = entry.cost == cost && entry.max_wait_ns == max_wait_ns;
        if !is_same || at_ns >= entry.until_ns || entry.quota != *hit.quota {
            return None;
        }
        let since_ns = at_ns.saturating_sub(entry.told_ns);
        let Wait::After(wait_ns) = entry.decision.retry_after else { return None };
        let decision = Decision {
            retry_after: Wait::After(wait_ns.saturating_sub(since_ns)),
            reset_after_ns: entry.decision.reset_after_ns.saturating_sub(since_ns),
            ..entry.decision
        };
        Some((decision, entry.now.after(Duration::from_nanos(since_ns))))
    }

    /// To be made before the store is asked, and held until it has answered.
    pub(crate) fn question<'c, 'h, 'q>(&'c self, hits: &'h [Hit<'q>], sent: Instant) -> Question<'c, 'h, 'q> {
        let generation = self.generation.load(Ordering::Relaxed);
        Question { cache: self, hits, sent_ns: self.ns(sent), generation }
    }

    /// Ends the entry of the hit's state: if it gives something back in any case, else if it is one of another quota,
    /// which may have converted or cut what was used.
    fn forget(&self, hit: &Hit<'_>, gives_back: bool) {
        let Some(mut set) = self.set(hit.state_key()) else { return };
        let is_gone = |entry: &Entry| entry.state_key == hit.state_key() && (gives_back || entry.quota != *hit.quota);
        let gone = set.entries.iter().position(is_gone);
        if gives_back || gone.is_some() {
            set.forgotten = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        }
        if let Some(gone) = gone {
            set.entries.swap_remove(gone);
        }
    }

    fn keep(&self, entry: Entry, generation: u64) {
        let Some(mut set) = self.set(entry.state_key) else { return };
        if generation < set.forgotten {
            return;
        }
        self.latest_until_ns.fetch_max(entry.until_ns, Ordering::Relaxed);
        let own = set.entries.iter().position(|other| other.state_key == entry.state_key);
        if own.is_none() && set.entries.len() < self.places_a_set {
            let missing = self.places_a_set - set.entries.len();
            set.entries.reserve_exact(missing);
            set.entries.push(entry);
            return;
        }
        // That of the same state, or the one that ends first.
        let first = || (0..set.entries.len()).min_by_key(|place| set.entries[*place].until_ns);
        if let Some(place) = own.or_else(first) {
            set.entries[place] = entry;
        }
    }

    fn set(&self, state_key: u128) -> Option<MutexGuard<'_, Set>> {
        // Keys may be no hashes.
        let hash = ((state_key >> 64) as u64 ^ state_key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (u128::from(hash) * self.sets.len() as u128) >> 64;
        Some(self.sets.get(place as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ns(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.start))
    }
}

impl Question<'_, '_, '_> {
    /// Keeps what refused the request, which came `told` and was decided at `now`.
    pub(crate) fn learn(&self, decisions: &[Decision], now: Time, told: Instant) {
        let max_age_ns = nanos(self.cache.max_age);
        for (hit, decision) in self.hits.iter().zip(decisions) {
            let (Some((cost, max_wait_ns)), false) = (asked(hit, self.hits), decision.allowed) else { continue };
            let Wait::After(wait_ns) = decision.retry_after else { continue };
            // The clocks may differ by a thousandth.
            let until_ns = self.sent_ns.saturating_add((wait_ns - wait_ns.div_ceil(1000)).min(max_age_ns));
            let told_ns = self.cache.ns(told);
            if until_ns <= told_ns {
                continue;
            }
            let (state_key, quota, decision) = (hit.state_key(), hit.quota.clone(), *decision);
            let entry = Entry { state_key, quota, cost, max_wait_ns, decision, now, told_ns, until_ns };
            self.cache.keep(entry, self.generation);
        }
    }
}

impl Drop for Question<'_, '_, '_> {
    fn drop(&mut self) {
        let may_hold = self.cache.latest_until_ns.load(Ordering::Relaxed) > self.sent_ns;
        for hit in self.hits {
            let gives_back = matches!(hit.op.kind(), OpKind::Refund | OpKind::Reset);
            if gives_back || may_hold {
                self.cache.forget(hit, gives_back);
            }
        }
    }
}

/// Cost and longest wait of a take whose refusal an entry can be, or repeat. Of several hits on one state each is judged
/// by what all of them take, and told what the others have changed: none of them.
fn asked(hit: &Hit<'_>, hits: &[Hit<'_>]) -> Option<(u64, u64)> {
    let Op::Take { cost: cost @ 1.., max_wait_ns } = hit.op else { return None };
    let is_timed = hit.quota.algorithm() != Algorithm::Concurrency;
    let is_alone = || hits.iter().filter(|other| other.state_key() == hit.state_key()).count() == 1;
    (hit.binding == Binding::Enforce && is_timed && is_free(hit) && is_alone()).then_some((cost, max_wait_ns))
}

/// Whether the hit does nothing in a request that is refused.
fn is_free(hit: &Hit<'_>) -> bool {
    let takes_or_looks = matches!(hit.op.kind(), OpKind::Take | OpKind::Look);
    takes_or_looks && hit.quota.denied() == Denied::Free && hit.quota.penalty_ns() == 0
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
