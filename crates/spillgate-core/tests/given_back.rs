//! What a token bucket gives back when an estimate is corrected after the work.
//!
//! A bucket also gets units back with time. If a correction gave back the same units once more, a bucket could admit
//! any number of units at once.

use std::cmp::Ordering;
use std::time::Duration;

use crate::support::{ask, cases, take};
use proptest::prelude::*;
use spillgate_core::{Op, Quota, Receipt, State};

/// In units.
const BURST: u64 = 100;
/// The time between two units, in nanoseconds.
const INTERVAL_NS: u64 = 10;
/// The time in which an empty bucket becomes full.
const FULL_NS: u64 = BURST * INTERVAL_NS;

fn bucket() -> Quota {
    Quota::token_bucket(BURST, Duration::from_nanos(FULL_NS)).build().expect("the quota is valid")
}

fn reserve(state: &mut State, units: u64, now: u64) -> Option<Receipt> {
    ask(state, &bucket(), take(units), now).receipt
}

/// Corrects an estimate, and returns the units that are then left.
fn settle(state: &mut State, (estimate, receipt): (u64, Receipt), used: u64, now: u64) -> u64 {
    ask(state, &bucket(), Op::settle(estimate, used, receipt), now).remaining
}

#[test]
fn a_busy_bucket_gets_the_whole_difference_back() {
    let mut state = State::default();
    let mut now = 1_000;
    assert!(reserve(&mut state, BURST - 10, now).is_some());
    for _ in 0..50 {
        let receipt = reserve(&mut state, 10, now).expect("10 units are left");
        now += FULL_NS / 2;
        let left = settle(&mut state, (10, receipt), 3, now);
        assert_eq!(left, BURST / 2 + 7, "time gives back one half, and the settlement 7 units");
        assert!(reserve(&mut state, left - 10, now).is_some());
    }
}

#[test]
fn time_and_a_settlement_never_give_back_the_same_units() {
    let mut state = State::default();
    let mut open = vec![reserve(&mut state, BURST, 1_000).expect("the bucket is full")];
    for step in 1..20 {
        let now = 1_000 + step * (FULL_NS + 5);
        let mut made = vec![reserve(&mut state, BURST, now).expect("the bucket is full again")];
        for receipt in open {
            assert_eq!(settle(&mut state, (BURST, receipt), 0, now), 0);
            made.extend(reserve(&mut state, BURST, now));
        }
        assert_eq!(made.len(), 1, "one burst is open");
        open = made;
    }
}

/// A reservation of the property test.
struct Made {
    at: u64,
    /// The number of the step in which it was made.
    step: usize,
    estimate: u64,
    /// The step in which it was settled, and the units that were used.
    settled: Option<(usize, u64)>,
}

impl Made {
    fn used(&self) -> u64 {
        self.settled.map_or(self.estimate, |(_, used)| used)
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// The rate of a bucket changes once between a take and its settlement. The settlement then leaves at least the debt
    /// that the bucket would have if the take had been smaller from the start.
    #[test]
    fn a_settlement_after_a_changed_rate_forgives_no_debt_of_other_takes(
        (old_ns, changed_ns) in (1..2_000u64, prop_oneof![Just(None), (1..2_000u64).prop_map(Some)]),
        (before, estimate, used) in (0..BURST / 2, 1..=BURST / 2, 0..BURST / 2),
        (changed, after) in (prop_oneof![Just(10), 10..100_000u64], prop_oneof![Just(0), 0..50_000u64]),
        others in 0..20u64,
    ) {
        let (used, new_ns) = (used.min(estimate), changed_ns.unwrap_or(old_ns));
        let [old, new] = [old_ns, new_ns].map(|interval_ns| {
            Quota::token_bucket(1_000_000, Duration::from_nanos(1_000_000 * interval_ns)).burst(BURST).build().unwrap()
        });
        let [mut state, mut smaller] = [State::default(), State::default()];
        let (start, changed) = (1_000_000, 1_000_000 + changed);
        for (state, taken) in [(&mut state, estimate), (&mut smaller, used)] {
            ask(state, &old, take(before), start);
            ask(state, &old, take(taken), start + 10);
            ask(state, &new, Op::Force { cost: 1 + others }, changed);
        }
        let mut again = State::default();
        ask(&mut again, &old, take(before), start);
        let receipt = ask(&mut again, &old, take(estimate), start + 10).receipt.expect("it fits");
        let now = changed + after;
        ask(&mut state, &old, Op::settle(estimate, used, receipt), now);
        let debt = |state: &State| state.debt().map_or(0, |(paid_at, _)| paid_at.saturating_sub(now));
        // Each conversion rounds up, by less than a nanosecond.
        prop_assert!(debt(&state) + 2 >= debt(&smaller), "{} of {}", debt(&state), debt(&smaller));
        // Time that has paid a part of the take is not given back. If there is no such time, and the rate was raised right
        // after the take, or lowered right before the settlement, it is exact.
        let before_ns = (before * old_ns).saturating_sub(10);
        let is_exact = match new_ns.cmp(&old_ns) {
            Ordering::Equal => now <= start + 10 + before_ns,
            Ordering::Less => changed == start + 10 && after <= before_ns * new_ns / old_ns,
            Ordering::Greater => after == 0 && now <= start + 10 + before_ns,
        };
        prop_assert!(!is_exact || debt(&state) <= debt(&smaller) + new_ns / old_ns + 2);
    }

    /// In every interval of length `s`, at most `BURST + s/INTERVAL_NS` units are used, plus the units that earlier
    /// reservations give back after the start of the interval.
    #[test]
    fn reservations_of_a_bucket_keep_its_bound(
        steps in prop::collection::vec((0..FULL_NS / 4, any::<bool>(), 1..=BURST, any::<prop::sample::Index>()), 1..80),
    ) {
        let (mut state, mut now) = (State::default(), 1_000);
        let (mut made, mut open): (Vec<Made>, Vec<(usize, Receipt)>) = (Vec::new(), Vec::new());
        for (step, (gap, reserves, units, which)) in steps.into_iter().enumerate() {
            // Half of the steps come at the same time as the step before.
            now += if units % 2 == 0 { 0 } else { gap };
            if reserves || open.is_empty() {
                if let Some(receipt) = reserve(&mut state, units, now) {
                    open.push((made.len(), receipt));
                    made.push(Made { at: now, step, estimate: units, settled: None });
                }
            } else {
                let (index, receipt) = open.swap_remove(which.index(open.len()));
                let Made { estimate, settled, .. } = &mut made[index];
                let used = units % (*estimate + 1);
                *settled = Some((step, used));
                settle(&mut state, (*estimate, receipt), used, now);
            }
        }
        for first in 0..made.len() {
            let begins = &made[first];
            let is_open = |it: &&Made| it.settled.is_some_and(|(step, _)| step > begins.step);
            let given_back: u64 = made[..first].iter().filter(is_open).map(|it| it.estimate - it.used()).sum();
            let mut sum = 0;
            for it in &made[first..] {
                sum += it.used();
                let bound = BURST + (it.at - begins.at) / INTERVAL_NS + given_back;
                prop_assert!(sum <= bound, "{sum} units, at most {bound} are allowed");
            }
        }
    }

    /// If each reservation is settled before the next one is made, at most `BURST + s/INTERVAL_NS` units are used in
    /// any interval of length `s`. This is true even while other callers take units from the bucket.
    #[test]
    fn reservations_one_after_another_keep_the_bound_of_the_bucket(
        steps in prop::collection::vec((0..FULL_NS / 2, 0..FULL_NS, 1..=BURST, 0..=BURST, 0..=BURST), 1..40),
    ) {
        let (mut state, mut now) = (State::default(), 1_000);
        let mut used: Vec<(u64, u64)> = Vec::new();
        for (pause, work, estimate, units, other) in steps {
            now += pause;
            let receipt = reserve(&mut state, estimate, now);
            if receipt.is_some() {
                used.push((now, units % (estimate + 1)));
            }
            now += work;
            if other > 0 && reserve(&mut state, other, now).is_some() {
                used.push((now, other));
            }
            if let Some(receipt) = receipt {
                settle(&mut state, (estimate, receipt), units % (estimate + 1), now);
            }
        }
        for first in 0..used.len() {
            let mut sum = 0;
            for (at, units) in &used[first..] {
                sum += units;
                prop_assert!(sum <= BURST + (at - used[first].0) / INTERVAL_NS);
            }
        }
    }
}
