//! Limits new keys while the store is full, by a sketch of their debts.
//!
//! For each key, the sketch keeps the time at which the debt of the key is paid. A debt is the time that a bucket needs
//! to refill, so this sketch can count only for buckets and queues. Each limit is therefore decided by a substitute,
//! which never admits more than the limit itself:
//!
//! | limit | its substitute |
//! |---|---|
//! | token bucket, queue | the same bucket or queue, whose refusals cost nothing and start no penalty |
//! | window, log or counter: `L` units in `W` | a bucket with the burst `B = ceil(L/2)`, and one unit every `T = ceil(W/(floor(L/2) + 1))` |
//! | concurrency | none: a new key is refused |
//!
//! In a window that includes its start but not its end, a bucket admits at most `B + ceil(W/T) - 1` units. For the
//! substitute, this is at most `ceil(L/2) + floor(L/2) + 1 - 1 = L`. A bucket with the burst `L` and the rate `L/W`
//! would admit nearly `2 * L`.
//!
//! When the store has space again, a key gets a state that counts at least the units that the key has used. The sketch
//! knows only a bound of this number: if the debt is paid at the time `p`, at most `(p - t)/T` units were admitted
//! after the time `t`. So a key that has used nothing, but shares its cells with busy keys, can get a state in which
//! its whole limit is used.
//!
//! The cells are divided into parts, by the windows of the limits ([`PARTS`]). If all limits shared the same cells, one
//! unit of a daily limit would make its cells useless for limits of one second, for minutes. All quotas that count in
//! one state have the same window, so they use the same part.
//!
//! A debt is a time, so its number of units is known only for one `T`. If several limits of a request count in the same
//! state, but with different `T`, they have no substitute. A request that takes a permit of a concurrency limit has no
//! substitutes either: such a request can be a reservation, and the sketch could not correct the estimate later.
//!
//! This file needs no locks. A request has the lock of the bucket of the hash table in which its key would be, so no
//! other request decides on the same key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Hit, MAX_LATE_NS, Op, Quota, State, Time, Verdict, decide, decide_late,
};

use super::shards::Fingerprint;
use crate::sketch::{Debt, Debts, Mixer};

/// What the store lacks for a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// The state is in the store, but it cannot grow.
    Bytes,
    /// The key is not in the store, and gets no slot.
    Slot(Fingerprint),
}

/// The longest window of each part of the cells, in nanoseconds: 10 s, 10 min, 10 h, and any length. So limits of a
/// second, a minute, an hour and a day are in different parts. Each part has the same memory. More parts would separate
/// limits better, but each part would be smaller.
const PARTS: [u64; 4] = [10_000_000_000, 600_000_000_000, 36_000_000_000_000, u64::MAX];

/// The debts of keys that are not in the store.
pub(super) struct Overflow {
    mixer: Mixer,
    parts: [Debts; PARTS.len()],
    /// The time, in nanoseconds since the epoch, from which on no debt matters any more.
    matters_until: AtomicU64,
    /// The newest time at which a unit was admitted, in nanoseconds since the epoch. A late request counts at this
    /// time.
    newest: AtomicU64,
}

/// Returns the quota by which the sketch limits a new key, or `None` if a sketch cannot limit it.
pub(super) fn substitute(quota: &Quota) -> Option<Quota> {
    match quota.algorithm() {
        _ if quota.limit() == 0 => None,
        Algorithm::Concurrency => None,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => Some(quota.clone().with_free_refusals()),
        _ => {
            let limit = quota.hard_capacity();
            let interval_ns = quota.window_ns().div_ceil(limit / 2 + 1);
            Quota::token_bucket(1, Duration::from_nanos(interval_ns)).burst(limit.div_ceil(2)).build().ok()
        }
    }
}

impl Overflow {
    pub(super) fn with_bytes(bytes: usize) -> Overflow {
        let parts = PARTS.map(|_| Debts::with_bytes(bytes / PARTS.len()));
        Overflow { mixer: Mixer::random(), parts, matters_until: AtomicU64::new(0), newest: AtomicU64::new(0) }
    }

    /// Returns the part of the cells for states of `quota`.
    fn part(&self, quota: &Quota) -> &Debts {
        let shorter = PARTS.partition_point(|longest| *longest < quota.window_ns());
        &self.parts[shorter.min(PARTS.len() - 1)]
    }

    fn debt(&self, key: Fingerprint, quota: &Quota, now: Time) -> Debt {
        let key = self.mixer.mix(u128::from(key.high) << 64 | u128::from(key.low));
        self.part(quota).of(key, now)
    }

    /// Returns the newest time at which a unit was admitted, or `now_ns` if that is later. A time that is later than
    /// `now_ns` by more than [`MAX_LATE_NS`] is ignored, because it means that the clock was set back.
    fn newest_ns(&self, now_ns: u64) -> u64 {
        let newest = self.newest.load(Ordering::Relaxed);
        if newest > now_ns + MAX_LATE_NS { now_ns } else { newest.max(now_ns) }
    }

    /// Returns a state for a key that is not in the store. The state counts at least the units that the key has used
    /// while the store was full.
    pub(super) fn state(&self, key: Fingerprint, quota: &Quota, now: Time) -> State {
        let now_ns = now.as_nanos();
        if self.matters_until.load(Ordering::Relaxed) <= now_ns {
            return State::default();
        }
        let paid_at = self.debt(key, quota, now).paid_at;
        let now_ns = self.newest_ns(now_ns);
        let window_ns = quota.window_ns();
        let (start, segments) = match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket if paid_at > now.as_nanos() => {
                return State::owing_until(quota, paid_at);
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Concurrency => return State::default(),
            Algorithm::FixedWindow(Anchor::Epoch) => (now_ns - now_ns % window_ns, 0),
            Algorithm::SlidingWindowCounter { segments } => (now_ns - now_ns % quota.interval_ns(), segments.into()),
            // In a log, or in a window that begins at the first hit, a unit counts for at most one window after it was
            // admitted.
            _ => (now_ns.saturating_sub(window_ns), 0),
        };
        let Some(substitute) = substitute(quota) else { return State::default() };
        let units_since = |start: u64| paid_at.saturating_sub(start) / substitute.interval_ns();
        // Forces have used more than the limit. So the state counts one unit more than the limit, so that even a take
        // of cost 0 is refused.
        if paid_at.saturating_sub(now_ns) > substitute.capacity() * substitute.interval_ns() {
            let mut state = State::default();
            force(&mut state, quota, quota.hard_capacity() + 1, Time::from_nanos(now_ns));
            return state;
        }
        let mut state = State::default();
        // The segments are filled in order, the oldest first. As many units as possible are kept for the later
        // segments, where they count longer.
        for segment in (0..=segments).rev() {
            let at = start.saturating_sub(segment * quota.interval_ns());
            let later = if segment == 0 { 0 } else { units_since(at + quota.interval_ns()) };
            let time = if segment == 0 { now_ns } else { at };
            force(&mut state, quota, units_since(at) - later, Time::from_nanos(time));
        }
        state
    }

    /// Decides a request. `lacks[j]` says what the store lacks for `states[j]`. `substitutes[i]` is the quota by which
    /// the sketch decides `hits[i]`, or `None` if the hit is decided on its state.
    pub(super) fn decide(
        &self,
        (now, newest): (Time, Time),
        (hits, substitutes): (&[Hit<'_>], &[Option<Quota>]),
        (states, state_of): (&mut [State], &[usize]),
        lacks: &[Lack],
        decisions: &mut [Decision],
    ) -> Verdict {
        let replaced: SmallVec<[Hit<'_>; 4]> = hits
            .iter()
            .zip(substitutes)
            .map(|(hit, substitute)| substitute.as_ref().map_or(*hit, |quota| hit.with_quota(quota)))
            .collect();
        let first_hit = |state: usize| {
            let hit = (0..hits.len()).find(|&i| state_of[i] == state && substitutes[i].is_some())?;
            Some((hits[hit].quota, substitutes[hit].as_ref()?))
        };
        let mut debts: SmallVec<[Option<Debt>; 4]> = SmallVec::new();
        for (j, lack) in lacks.iter().enumerate() {
            debts.push(match (lack, first_hit(j)) {
                (Lack::Slot(key), Some((quota, substitute))) => {
                    let debt = self.debt(*key, quota, now);
                    states[j] = State::owing_until(substitute, debt.paid_at);
                    Some(debt)
                }
                _ => None,
            });
        }
        let verdict = decide_late(states, state_of, &replaced, now, newest, decisions);
        for (j, debt) in debts.iter().enumerate() {
            if let (Some(debt), Some((quota, substitute))) = (debt, first_hit(j)) {
                self.raise(debt, states[j].expires_at(substitute), (quota, substitute), now);
            }
        }
        for ((decision, hit), substitute) in decisions.iter_mut().zip(hits).zip(substitutes) {
            if substitute.is_some() {
                // The client sees its own limit, and not the substitute. The units cannot be given back, so there is no
                // receipt.
                *decision = decision.without_receipt();
                decision.limit = hit.quota.capacity();
                decision.remaining = decision.remaining.min(decision.limit);
            }
        }
        verdict
    }

    fn raise(&self, debt: &Debt, paid_at: u64, (quota, substitute): (&Quota, &Quota), now: Time) {
        if paid_at <= debt.paid_at {
            return;
        }
        // A counter forgets a unit one window and one segment after it was admitted. Other limits forget it earlier.
        let forgotten_after = quota.window_ns() + quota.interval_ns();
        let now_ns = now.as_nanos();
        let is_other = |newest| newest < now_ns || newest > now_ns + MAX_LATE_NS;
        let newer = |newest| is_other(newest).then_some(now_ns);
        let _ = self.newest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, newer);
        self.matters_until.fetch_max(paid_at.saturating_add(forgotten_after), Ordering::Relaxed);
        self.part(quota).raise(debt, paid_at, substitute);
    }
}

/// Adds `units` units to a state, but at most one more than the limit.
fn force(state: &mut State, quota: &Quota, units: u64, now: Time) {
    if units > 0 {
        let cost = units.min(quota.hard_capacity() + 1);
        let hit = Hit::new(0, quota, Op::Force { cost }, Binding::Shadow);
        let _ = decide(std::slice::from_mut(state), &[0], &[hit], now, &mut [Decision::default()]);
    }
}

/// Removes the substitutes of hits that count in the same state, but at different rates.
pub(super) fn keep_one_rate(substitutes: &mut [Option<Quota>], state_of: &[usize]) {
    for i in 1..substitutes.len() {
        let rate = |i: usize| substitutes[i].as_ref().map(Quota::interval_ns);
        if (0..i).any(|other| state_of[other] == state_of[i] && rate(other) != rate(i)) {
            let mixed = state_of[i];
            substitutes.iter_mut().zip(state_of).filter(|(_, j)| **j == mixed).for_each(|(quota, _)| *quota = None);
        }
    }
}
