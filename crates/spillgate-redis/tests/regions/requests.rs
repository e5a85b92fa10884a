//! The requests of a run, as the clients saw them, and what they say about bounds.

use std::collections::HashMap;
use std::time::Duration;

use spillgate_core::{Algorithm, Binding, Decision, Hit, Op, Quota, Span, State, Time, decide};

use crate::regions::fleet::{NODES, REGIONS};

/// One request that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The time in the receipt, or for a refusal that of the verdict, by a clock that all regions share.
    pub(crate) at: u64,
    pub(crate) key: u128,
    pub(crate) region: usize,
    pub(crate) node: usize,
    pub(crate) cost: u64,
    /// The span by the clock of the region's store.
    pub(crate) span: Span,
    pub(crate) is_admitted: bool,
}

/// Returns the requests that were admitted.
pub(crate) fn admitted(asked: &[Asked]) -> Vec<Asked> {
    asked.iter().filter(|one| one.is_admitted).copied().collect()
}

pub(crate) fn of_region(asked: &[Asked], region: usize) -> Vec<Asked> {
    asked.iter().filter(|one| one.region == region).copied().collect()
}

pub(crate) fn units(asked: &[Asked]) -> u64 {
    asked.iter().map(|one| one.cost).sum()
}

/// Returns the requests that a state of each region alone would have admitted.
pub(crate) fn admitted_alone(asked: &[Asked], quota: &Quota) -> Vec<Asked> {
    let mut states: HashMap<usize, State> = HashMap::new();
    let fits = |one: &&Asked| {
        let state = states.entry(one.region).or_default();
        let hit = Hit::new(one.key, quota, Op::take(one.cost), Binding::Enforce);
        let now = Time::from_nanos(one.at);
        decide(std::slice::from_mut(state), &[0], &[hit], now, &mut [Decision::default()]).allowed
    };
    asked.iter().filter(fits).copied().collect()
}

/// Returns by how many units the worst interval is above `s/T`, where `s` is its length and `T` the time of a unit.
pub(crate) fn most_above_rate(admitted: &[Asked], interval_ns: u64) -> u64 {
    // In nanoseconds: the units of all intervals that end here, less the time of the interval that begins best.
    let (mut least, mut units, mut most) = (i128::MAX, 0_i128, 0_i128);
    for one in admitted {
        least = least.min(units * i128::from(interval_ns) - i128::from(one.at));
        units += i128::from(one.cost);
        most = most.max(units * i128::from(interval_ns) - i128::from(one.at) - least);
    }
    u64::try_from(most / i128::from(interval_ns.max(1))).expect("not negative")
}

/// Returns the most units that were admitted within `time`.
pub(crate) fn most_within(admitted: &[Asked], time: Duration) -> u64 {
    let time_ns = u64::try_from(time.as_nanos()).expect("a short time");
    let (mut first, mut units, mut most) = (0, 0, 0);
    for one in admitted {
        units += one.cost;
        while admitted[first].at + time_ns < one.at {
            units -= admitted[first].cost;
            first += 1;
        }
        most = most.max(units);
    }
    most
}

/// The other servers of other regions, each of which may keep units untold.
const OTHERS: u64 = (REGIONS as u64 - 1) * NODES as u64;

/// Returns the units that a server may keep untold.
pub(crate) fn rest(quota: &Quota) -> u64 {
    (quota.capacity() / 20 / OTHERS).max(1) - 1
}

/// Returns the units that may stay untold, `u` in the guarantees.
pub(crate) fn untold(quota: &Quota) -> u64 {
    rest(quota) * OTHERS
}

/// Returns the most units that all regions but one admitted within the delay: `(R-1) * a(D)`.
pub(crate) fn not_known(admitted: &[Asked], delay: Duration) -> u64 {
    let mut each: Vec<u64> = (0..REGIONS).map(|region| most_within(&of_region(admitted, region), delay)).collect();
    each.sort_unstable();
    each[1..].iter().sum()
}

/// Returns the burst of the guaranteed share of all regions: `R*F`, for requests of at most `largest` units.
pub(crate) fn shares(quota: &Quota, largest: u64) -> u64 {
    REGIONS as u64 * quota.guaranteed(largest).map_or(0, |share| share.capacity())
}

/// What a run of one key shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excess {
    /// The units of the worst interval above `s/T`, or for windows those of the worst window.
    pub(crate) found: u64,
    /// How many there may be.
    pub(crate) bound: u64,
    /// Without messages, so many could be admitted: `R * f(s)` of the whole run, less `s/T`.
    pub(crate) alone: u64,
    /// `s/T` of the whole run, or for windows 0.
    by_rate: u64,
}

impl Excess {
    /// The bound is so far below what the regions would admit alone that a run without messages has to break it.
    pub(crate) fn counts(&self) -> bool {
        10 * (self.by_rate + self.bound) <= 7 * (self.by_rate + self.alone)
    }
}

/// Compares what all regions admitted of one key with the bound in every interval. `more` units are added to it, for
/// what a fault may cost.
pub(crate) fn excess(admitted: &[Asked], quota: &Quota, delay: Duration, more: u64) -> Excess {
    let (capacity, regions) = (quota.capacity(), REGIONS as u64);
    let not_known = not_known(admitted, delay) + more;
    if quota.algorithm() != Algorithm::TokenBucket {
        let parts = if quota.algorithm() == (Algorithm::SlidingWindowCounter { segments: 1 }) { 2 } else { 1 };
        let bound = capacity + parts * untold(quota) + not_known;
        return Excess { found: most_in_a_window(admitted), bound, alone: regions * capacity, by_rate: 0 };
    }
    let largest = admitted.iter().map(|one| one.cost).max().unwrap_or(1);
    let mut spans: Vec<Span> = admitted.iter().map(|one| one.span).collect();
    spans.sort_unstable();
    spans.dedup();
    let bound = |spans: u64| capacity + spans * untold(quota) + not_known + shares(quota, largest);
    let (mut worst, mut least) = ((0, bound(spans.len() as u64)), i128::MAX);
    for first in 0..spans.len() {
        for last in first..spans.len() {
            let inside = admitted.iter().filter(|one| spans[first..=last].contains(&one.span)).copied();
            let found = most_above_rate(&inside.collect::<Vec<_>>(), quota.interval_ns());
            let bound = bound((last - first + 1) as u64);
            if i128::from(bound) - i128::from(found) < least {
                (worst, least) = ((found, bound), i128::from(bound) - i128::from(found));
            }
        }
    }
    let lasted = admitted.last().map_or(0, |one| one.at) - admitted.first().map_or(0, |one| one.at);
    let by_rate = lasted / quota.interval_ns();
    let alone = regions * capacity + (regions - 1) * by_rate;
    Excess { found: worst.0, bound: worst.1, alone, by_rate }
}

/// Returns the units of the window that has most of them.
pub(crate) fn most_in_a_window(admitted: &[Asked]) -> u64 {
    let mut windows = HashMap::new();
    for one in admitted {
        *windows.entry(one.span).or_insert(0) += one.cost;
    }
    windows.into_values().max().unwrap_or(0)
}

/// Asserts what holds for each region whatever happens: it admits at most `f(s) + F`. `more` units are added for what a
/// fault may cost.
pub(crate) fn each_keeps_its_own_bound(admitted: &[Asked], quota: &Quota, more: u64) {
    let largest = admitted.iter().map(|one| one.cost).max().unwrap_or(1);
    let share = quota.guaranteed(largest).map_or(0, |share| share.capacity());
    for region in 0..REGIONS {
        let own = of_region(admitted, region);
        let (found, bound) = match quota.algorithm() {
            Algorithm::TokenBucket => (most_above_rate(&own, quota.interval_ns()), quota.capacity() + share + more),
            _ => (most_in_a_window(&own), quota.capacity() + more),
        };
        assert!(found <= bound, "region {region} alone admitted {found} units, and {bound} may be");
    }
}
