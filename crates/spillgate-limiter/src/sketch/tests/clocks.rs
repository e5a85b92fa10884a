//! Tests with a clock that is set back, with a clock that was ahead once, and at the end of time.
//!
//! `docs/src/guarantees/clocks.md` says how many units a wrong clock can give to a key or take from it.

use spillgate_core::{Algorithm, Binding, Hit, Quota, Time};
use spillgate_testkit::Random;

use super::common::{SECOND, quotas, take};
use crate::sketch::Sketch;

const YEARS: u64 = 4 * 365 * 86_400 * SECOND;

fn is_window(quota: &Quota) -> bool {
    matches!(quota.algorithm(), Algorithm::FixedWindow(_) | Algorithm::SlidingWindowCounter { .. })
}

#[test]
fn a_clock_that_was_ahead_once_stops_no_key_for_longer_than_exact_states() {
    for quota in quotas(10, SECOND) {
        // All keys share one cell in each row.
        let sketch = Sketch::with_cells(&quota, 0);
        let start = 1_000 * SECOND;
        let take = |ns, key| sketch.take_now(Time::from_nanos(ns), &quota, key, 1).allowed;
        while take(start + YEARS, 7) {}
        assert!(!is_window(&quota) || take(start, 8), "a window counts from zero: {quota:?}");
        // The wrong time may refuse the key for some seconds, but not for years.
        let admitted = (0..3_600).filter(|i| take(start + i * SECOND, 8)).count();
        assert!(admitted >= 3_595, "{admitted} of 3600: {quota:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_gives_a_key_at_most_one_limit_more() {
    let mut random = Random(76);
    for quota in quotas(10, SECOND) {
        for _ in 0..300 {
            // Keys share cells, because a row has only 20 cells for a bucket, and 7 for the counts of a window.
            let sketch = Sketch::with_cells(&quota, 640);
            let from = (2_000 + random.below(20)) * SECOND + random.below(SECOND);
            let bound = if random.one_in(2) { 8 * SECOND } else { 1_000 * SECOND };
            let to = from - random.below(bound);
            let take =
                |ns: u64| (0..40).filter(|_| sketch.take_now(Time::from_nanos(ns), &quota, 7, 1).allowed).count();
            let before = take(from) as u64;
            assert_eq!(
                before,
                quota.hard_capacity().min(if quota.algorithm() == Algorithm::LeakyBucket { 1 } else { 40 })
            );
            // After the jump, other keys come first. They share cells with the key 7.
            for key in 100..110 {
                let _ = sketch.take_now(Time::from_nanos(to), &quota, key, 1);
            }
            let after = take(to) as u64;
            assert!(after <= quota.hard_capacity(), "{after} after a jump from {from} to {to}: {quota:?}");
            assert_eq!(take(to), 0, "a jump gives only one limit more: {quota:?}");
        }
    }
}

#[test]
fn a_request_that_is_late_by_a_second_does_not_set_the_windows_back() {
    let quota = Quota::fixed_window(3, std::time::Duration::from_millis(1)).build().expect("the quota is valid");
    let sketch = Sketch::with_cells(&quota, 1 << 16);
    let take = |ns| (0..5).filter(|_| sketch.take_now(Time::from_nanos(ns), &quota, 7, 1).allowed).count();
    assert_eq!(take(10 * SECOND), 3);
    assert_eq!(take(9 * SECOND), 0, "the units count in the newest window");
    assert_eq!(take(10 * SECOND), 0);
}

#[test]
fn at_the_end_of_time_a_sketch_still_limits() {
    for quota in quotas(10, SECOND) {
        let sketch = Sketch::with_cells(&quota, 1 << 16);
        // A later time is cut to `Time::MAX`.
        for (now, expected) in [(Time::MAX, quota.hard_capacity()), (Time::from_nanos(u64::MAX), 0)] {
            let hit = Hit::new(7, &quota, take(1), Binding::Enforce);
            let admitted = (0..100).filter(|_| sketch.hit_now(now, &hit).allowed).count() as u64;
            assert_eq!(admitted, expected, "{quota:?}");
        }
    }
}
