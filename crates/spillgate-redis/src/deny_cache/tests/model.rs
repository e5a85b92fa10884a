//! A deny cache in front of a model of Redis, which decides with the kernel. The clocks of both are simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Hit, Op, Quota, QuotaBuilder, State, Time, Verdict, decide,
};
use tokio::time::Instant;

use crate::deny_cache::{DenyCache, ObservedStates, is_free, max_used_alone};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const LONG: Duration = Duration::from_secs(1000);
/// The time on the clock of the model when the local clock shows 0.
const START_NS: u64 = 1_790_000_000_000_000_000;

pub(super) fn build(builder: QuotaBuilder) -> Quota {
    builder.build().expect("valid")
}

/// Returns the builders of seven quotas: all algorithms except concurrency, because its refusals have no known end. The
/// fixed window and the counter are in the list twice, with different options.
pub(super) fn timed(limit: u64) -> [QuotaBuilder; 7] {
    [
        Quota::token_bucket(limit, SECOND),
        Quota::leaky_bucket(limit, SECOND),
        Quota::fixed_window(limit, SECOND),
        Quota::fixed_window(limit, SECOND).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(limit, SECOND),
        Quota::sliding_window_counter(limit, SECOND).segments(10),
        Quota::sliding_window_log(limit, SECOND),
    ]
}

/// The states of the model, each under its [key](Hit::state_key).
#[derive(Clone, Default)]
pub(super) struct Model(pub(super) BTreeMap<u128, State>);

impl Model {
    pub(super) fn decide(&mut self, now: Time, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
        let mut keys: Vec<u128> = hits.iter().map(Hit::state_key).collect();
        keys.sort_unstable();
        keys.dedup();
        let state_of: Vec<usize> = hits.iter().map(|hit| keys.partition_point(|key| *key < hit.state_key())).collect();
        let mut states: Vec<State> = keys.iter().map(|key| self.0.remove(key).unwrap_or_default()).collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = decide(&mut states, &state_of, hits, now, &mut decisions);
        self.0.extend(keys.into_iter().zip(states));
        (verdict, decisions)
    }
}

/// Returns the part of a log that a script on Redis shows when it refuses a take. The take fits if at most `max_used`
/// units are used. The part has two entries: the entry that has to expire before the take fits, and the newest entry.
/// Each of the two also gets the units of the entries that are left out before it.
fn digest(state: &State, max_used: u64, quota: &Quota, now: Time) -> State {
    let (mut words, mut none) = (Vec::new(), Vec::new());
    state.encode(&mut words);
    // An encoded state begins with words that do not depend on its entries. An empty state has only these words.
    State::default().encode(&mut none);
    let (head, entries) = words.split_at(none.len());
    let counts = |entry: &&[u64; 2]| entry[0] + quota.window_ns() > now.as_nanos();
    let entries: Vec<[u64; 2]> = entries.as_chunks::<2>().0.iter().filter(counts).copied().collect();
    let count: u64 = entries.iter().map(|[_, units]| units).sum();
    let (mut shown, mut known, mut rank) = (head.to_vec(), 0, 0);
    for (i, [at, units]) in entries.iter().enumerate() {
        rank += units;
        let frees = known < count.saturating_sub(max_used) && rank >= count.saturating_sub(max_used);
        if frees || i + 1 == entries.len() {
            shown.extend([*at, rank - known]);
            known = rank;
        }
    }
    if count == 0 { State::default() } else { State::decode(&shown).expect("the shown words are a state") }
}

pub(super) struct Fixture {
    pub(super) cache: Rc<DenyCache>,
    pub(super) model: Model,
    /// The local time in nanoseconds.
    pub(super) at_ns: u64,
    /// How much faster the clock of the model runs than the local clock, in millionths.
    pub(super) drift_ppm: i64,
    /// The keys of the states that the model has shown, that the cache has kept, and that have not changed since.
    pub(super) unchanged: BTreeSet<u128>,
}

impl Fixture {
    pub(super) fn new(max_age: Duration) -> Fixture {
        let (cache, model) = (Rc::new(DenyCache::new(1024, max_age, true)), Model::default());
        Fixture { cache, model, at_ns: 1, drift_ppm: 0, unchanged: BTreeSet::new() }
    }

    pub(super) fn at(&self) -> Instant {
        self.cache.start + Duration::from_nanos(self.at_ns)
    }

    pub(super) fn now(&self) -> Time {
        let drift = i128::from(self.at_ns) * i128::from(self.drift_ppm) / 1_000_000;
        Time::from_nanos(START_NS + self.at_ns.saturating_add_signed(drift as i64))
    }

    /// Returns the refusal from the cache, if the cache has one.
    pub(super) fn known(&self, hits: &[Hit<'_>]) -> Option<(Verdict, Vec<Decision>)> {
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = self.cache.refuse(hits, &mut decisions, self.at())?;
        Some((verdict, decisions))
    }

    /// Sends a request to the model, and keeps the states that the model shows.
    pub(super) fn request(&mut self, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
        let (verdict, decisions) = self.model.decide(self.now(), hits);
        let cache = Rc::clone(&self.cache);
        let mut guard = cache.guard(hits, self.at());
        let seen = self.seen(hits, &verdict, self.at());
        guard.learn(&decisions, seen.into_iter().collect());
        for hit in hits {
            self.unchanged.remove(&hit.state_key());
        }
        self.unchanged.extend(&guard.learnt);
        (verdict, decisions)
    }

    /// Returns the states that the model shows with this verdict. `None` if the request is allowed.
    pub(super) fn seen(&self, hits: &[Hit<'_>], verdict: &Verdict, replied_at: Instant) -> Option<ObservedStates> {
        let state = |hit: &Hit<'_>| {
            let state = &self.model.0[&hit.state_key()];
            let max_used = max_used_alone(hit, hits).filter(|_| is_free(hit) && is_log(hit));
            let shown =
                max_used.map_or_else(|| state.clone(), |max_used| digest(state, max_used, hit.quota, verdict.now));
            (hit.state_key(), shown)
        };
        (!verdict.allowed).then(|| ObservedStates {
            now: verdict.now,
            replied_at,
            states: hits.iter().map(state).collect(),
        })
    }

    /// Takes one unit at a time until a take is refused. Returns the refusal.
    pub(super) fn exhaust(&mut self, key: u128, quota: &Quota) -> Decision {
        let hits = [take(key, quota, 1)];
        loop {
            let (verdict, decisions) = self.request(&hits);
            if !verdict.allowed {
                return decisions[0];
            }
        }
    }

    pub(super) fn entries(&self) -> usize {
        self.cache.sets.iter().map(|set| set.lock().unwrap().len()).sum()
    }
}

pub(super) fn is_log(hit: &Hit<'_>) -> bool {
    hit.quota.algorithm() == Algorithm::SlidingWindowLog
}

pub(super) fn wait_ns(decision: &Decision) -> u64 {
    decision.retry_after.nanos().expect("the refusal has a known wait")
}

pub(super) fn take(key: u128, quota: &Quota, cost: u64) -> Hit<'_> {
    Hit::new(key, quota, Op::take(cost), Binding::Enforce)
}
