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
//! A limit can change its rate, by a reload or from call to call, and a key keeps the units that it has used. So a cell
//! has two numbers, the time at which a debt is paid and the time in which one unit of it is paid: see `overflow/cells.rs`.
//!
//! When the store has space again, a key gets a state that counts at least the units that the key has used:
//!
//! * A bucket or a queue gets the debt of the cells, in the time for one unit that the cells have.
//! * All other limits count units of the past. If the debt is paid at the time `p`, at most `(p - t)/T` units were
//!   admitted after the time `t`. So a key that has used nothing, but shares its cells with busy keys, can get a state
//!   in which its whole limit is used.
//! * If units with a shorter `T` were mixed into the cells of such a limit since `t`, this number can be too small. The
//!   key then [stays](Overflow::keeps) in the sketch until these units are forgotten, although the store has space.
//!
//! The cells are divided into parts, by the windows of the limits ([`PARTS`]). If all limits shared the same cells, one
//! unit of a daily limit would make its cells useless for limits of one second, for minutes. All quotas that count in
//! one state have the same window, so they use the same part.
//!
//! A request that takes a permit of a concurrency limit has no substitutes: such a request can be a reservation, and the
//! sketch could not correct the estimate later.
//!
//! A request has the lock of the bucket of the hash table in which its key would be, so no other request decides on the
//! same key. The locks of cells are only for keys that share a cell.

mod cells;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Hit, MAX_LATE_NS, Op, Quota, State, Time, Verdict, Wait, decide, decide_late,
};

use super::shards::Fingerprint;
use crate::sketch::Mixer;
use cells::{Cells, Debt, Line, interval, interval_above};

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
    parts: [Cells; PARTS.len()],
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
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            quota.clone().with_free_refusals().with_longer_interval(interval_above(quota.interval_ns()))
        }
        _ => {
            let limit = quota.hard_capacity();
            let interval_ns = interval_above(quota.window_ns().div_ceil(limit / 2 + 1));
            Quota::token_bucket(1, Duration::from_nanos(interval_ns)).burst(limit.div_ceil(2)).build().ok()
        }
    }
}

impl Overflow {
    pub(super) fn with_bytes(bytes: usize) -> Overflow {
        let parts = PARTS.map(|_| Cells::with_bytes(bytes / PARTS.len()));
        Overflow { mixer: Mixer::random(), parts, matters_until: AtomicU64::new(0), newest: AtomicU64::new(0) }
    }

    /// Returns the part of the cells for states of `quota`.
    fn part(&self, quota: &Quota) -> &Cells {
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

    /// Returns whether the sketch still counts something.
    fn matters(&self, now: Time) -> bool {
        self.matters_until.load(Ordering::Relaxed) > now.as_nanos()
    }

    /// Returns whether a key that is not in the store has to stay in the sketch, although the store has space. This is
    /// so if its cells do not show how many units it has used in the past, or if `quota` cannot count so many units.
    pub(super) fn keeps(&self, key: Fingerprint, quota: &Quota, now: Time) -> bool {
        self.matters(now) && self.units(key, quota, now).is_some_and(|units| !units.are_complete)
    }

    /// Returns a state for a key that is not in the store. The state counts at least the units that the key has used
    /// while the store was full, unless the sketch [keeps](Overflow::keeps) the key.
    pub(super) fn state(&self, key: Fingerprint, quota: &Quota, now: Time) -> State {
        if !self.matters(now) {
            return State::default();
        }
        if matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            let line = self.debt(key, quota, now).line(now);
            if line.paid_at <= now.as_nanos() {
                return State::default();
            }
            // The substitute has a slightly longer `T`. The units that it counts are never fewer than those of its limit.
            let is_own = substitute(quota).is_some_and(|own| line.interval == own.interval_ns() as f32);
            return match is_own {
                true => State::owing_until(quota, now.as_nanos() + line.debt_in(quota.interval_ns(), now.as_nanos())),
                false => State::owing_in(quota, line.paid_at, line.interval as u64, now),
            };
        }
        let Some(Units { line, start_ns, now_ns, segments, .. }) = self.units(key, quota, now) else {
            return State::default();
        };
        let mut state = State::default();
        // Forces have used more than the limit. So the state counts one unit more than the limit, so that even a take
        // of cost 0 is refused.
        if owes_more_than(line, substitute(quota).map_or(0, |quota| quota.capacity()), now_ns) {
            force(&mut state, quota, quota.hard_capacity() + 1, Time::from_nanos(now_ns));
            return state;
        }
        let units_since = |start: u64| line.units_since(start);
        // The segments are filled in order, the oldest first. As many units as possible are kept for the later
        // segments, where they count longer.
        for segment in (0..=segments).rev() {
            let at = start_ns.saturating_sub(segment * quota.interval_ns());
            let later = if segment == 0 { 0 } else { units_since(at + quota.interval_ns()) };
            let time = if segment == 0 { now_ns } else { at };
            force(&mut state, quota, units_since(at) - later, Time::from_nanos(time));
        }
        state
    }

    /// Returns the units that a key has used under a limit that is no bucket. Returns `None` for limits that have no
    /// substitute.
    fn units(&self, key: Fingerprint, quota: &Quota, now: Time) -> Option<Units> {
        let now_ns = self.newest_ns(now.as_nanos());
        let window_ns = quota.window_ns();
        let (start_ns, segments) = match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Concurrency => return None,
            Algorithm::FixedWindow(Anchor::Epoch) => (now_ns - now_ns % window_ns, 0),
            Algorithm::SlidingWindowCounter { segments } => (now_ns - now_ns % quota.interval_ns(), segments.into()),
            // In a log, or in a window that begins at the first hit, a unit counts for at most one window after it was
            // admitted.
            _ => (now_ns.saturating_sub(window_ns), 0),
        };
        let first_ns = start_ns.saturating_sub(segments * quota.interval_ns());
        let substitute = substitute(quota)?;
        let debt = self.debt(key, quota, now);
        let shown = debt.units_since(first_ns);
        // Without a line that shows the past, this one is good enough for a report.
        let guess = || Line { interval: interval(substitute.interval_ns() as f64), ..debt.line(now) };
        let line = shown.unwrap_or_else(guess);
        // A state counts at most one unit more than its limit at a time. Limits that pay units more slowly than the
        // substitute are smaller, so they have not used more.
        let fits = f64::from(line.interval) >= substitute.interval_ns() as f64
            || line.units_since(first_ns) <= quota.hard_capacity() + 1;
        let are_complete = shown.is_some() && fits;
        Some(Units { line, start_ns, now_ns, segments, are_complete })
    }

    /// Decides a request. `lacks[j]` says what the store lacks for `states[j]`. `substitutes[i]` is the quota by which
    /// the sketch decides `hits[i]`, or `None` if the hit is decided on its state.
    pub(super) fn decide(
        &self,
        (now, newest): (Time, Time),
        (hits, substitutes): (&[Hit<'_>], &[Option<Quota>]),
        (stored, stored_of): (&mut [State], &[usize]),
        lacks: &[Lack],
        decisions: &mut [Decision],
    ) -> Verdict {
        let replaced: SmallVec<[Hit<'_>; 4]> = hits
            .iter()
            .zip(substitutes)
            .map(|(hit, substitute)| substitute.as_ref().map_or(*hit, |quota| hit.with_quota(quota)))
            .collect();
        let first_hit = |state: usize| {
            let hit = (0..hits.len()).find(|&i| stored_of[i] == state && substitutes[i].is_some())?;
            Some((hits[hit].quota, substitutes[hit].as_ref()?))
        };
        // A shadow hit can have no substitute although another hit on its state has one. Its quota cannot use the state of
        // a substitute, and must not clear it, so it gets an empty state of its own.
        let mut states: SmallVec<[State; 4]> = stored.iter_mut().map(std::mem::take).collect();
        let mut state_of: SmallVec<[usize; 4]> = SmallVec::from_slice(stored_of);
        for i in 0..hits.len() {
            if substitutes[i].is_none() && first_hit(stored_of[i]).is_some() {
                state_of[i] = states.len();
                states.push(State::default());
            }
        }
        // A state counts in the `T` of the substitute of its first hit, because a line of other limits can have a `T` that
        // is no integer.
        let mut debts: SmallVec<[Option<Debt>; 4]> = SmallVec::new();
        for (j, lack) in lacks.iter().enumerate() {
            debts.push(match (lack, first_hit(j)) {
                (Lack::Slot(key), Some((quota, substitute))) => {
                    let debt = self.debt(*key, quota, now);
                    let owed_ns = debt.line(now).debt_in(substitute.interval_ns(), now.as_nanos());
                    states[j] = State::owing_until(substitute, now.as_nanos().saturating_add(owed_ns));
                    Some(debt)
                }
                _ => None,
            });
        }
        let before: SmallVec<[Option<(u64, u64)>; 4]> = states.iter().map(State::debt).collect();
        let verdict = decide_late(&mut states, &state_of, &replaced, now, newest, decisions);
        for (j, debt) in debts.iter().enumerate() {
            if let (Some(debt), Some((quota, substitute))) = (debt, first_hit(j))
                && let Some(after @ (paid_at, interval_ns)) = states[j].debt()
                && before[j] != Some(after)
            {
                self.add(debt, (paid_at, interval_ns), (quota, substitute), now);
            }
        }
        for (((decision, hit), substitute), j) in decisions.iter_mut().zip(hits).zip(substitutes).zip(stored_of) {
            if substitute.is_some() {
                // The client sees its own limit, and not the substitute. The units cannot be given back, so there is no
                // receipt.
                *decision = decision.without_receipt();
                decision.limit = hit.quota.capacity();
                decision.remaining = decision.remaining.min(decision.limit);
                // The state counts in one `T`, but the units of the cells are perhaps paid in another one.
                if let (Some(debt), Some((_, first)), Wait::After(wait_ns)) =
                    (&debts[*j], first_hit(*j), decision.retry_after)
                    && !decision.allowed
                {
                    decision.retry_after = Wait::After(debt.line(now).time_for(wait_ns, first.interval_ns()));
                }
            }
        }
        stored.iter_mut().zip(states).for_each(|(stored, state)| *stored = state);
        verdict
    }

    fn add(&self, debt: &Debt, (paid_at, interval_ns): (u64, u64), (quota, substitute): (&Quota, &Quota), now: Time) {
        let now_ns = now.as_nanos();
        if paid_at <= now_ns {
            return;
        }
        // A counter forgets a unit one window and one segment after it was admitted. Other limits forget it earlier.
        let forgotten_after = quota.window_ns() + quota.interval_ns();
        let is_other = |newest| newest < now_ns || newest > now_ns + MAX_LATE_NS;
        let newer = |newest| is_other(newest).then_some(now_ns);
        let _ = self.newest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, newer);
        self.matters_until.fetch_max(paid_at.saturating_add(forgotten_after), Ordering::Relaxed);
        let line = Line { paid_at, interval: interval(interval_ns as f64) };
        self.part(quota).add(debt, line, now, (1 << substitute.debt_bits(), forgotten_after));
    }
}

/// The units of a limit that counts units of the past.
struct Units {
    /// At least as many units as this line owes at a time were admitted after this time, if `are_complete`.
    line: Line,
    /// The start of the current window or segment.
    start_ns: u64,
    /// The newest time at which a unit was admitted, or the time of the request if that is later.
    now_ns: u64,
    /// The number of older segments that still count.
    segments: u64,
    are_complete: bool,
}

fn owes_more_than(line: Line, units: u64, now_ns: u64) -> bool {
    line.paid_at.saturating_sub(now_ns) as f64 > units as f64 * f64::from(line.interval)
}

/// Adds `units` units to a state, but at most one more than the limit.
fn force(state: &mut State, quota: &Quota, units: u64, now: Time) {
    if units > 0 {
        let cost = units.min(quota.hard_capacity() + 1);
        let hit = Hit::new(0, quota, Op::Force { cost }, Binding::Shadow);
        let _ = decide(std::slice::from_mut(state), &[0], &[hit], now, &mut [Decision::default()]);
    }
}
