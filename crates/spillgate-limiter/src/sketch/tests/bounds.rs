//! No key is admitted above its bound, whatever other keys do.
//!
//! Some tests compare the sketch with exact states, which count what the sketch admitted: a take that the sketch admits
//! has to fit the exact state too. The tests of the kernel show that exact states keep the bounds. The other tests
//! count the admitted units themselves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;
use spillgate_core::{Algorithm, Binding, Hit, Quota, Time};
use spillgate_testkit::Random;

use super::common::{Exact, SECOND, quotas, take};
use crate::sketch::Sketch;

fn admits(sketch: &Sketch, quota: &Quota, at: Time, key: u128, cost: u64) -> bool {
    sketch.hit_now(at, &Hit::new(key, quota, take(cost), Binding::Enforce)).allowed
}

/// Returns the key of the request in a step.
type Stream = fn(&mut Random, u64) -> u128;

const STREAMS: [(&str, Stream); 4] = [
    ("all keys equally often", |random, _| random.below(300).into()),
    ("a few keys very often", |random, _| {
        let bound = 1 + random.below(300);
        random.below(bound).into()
    }),
    ("keys that come once, between two others", |random, step| {
        if random.one_in(3) { random.below(2).into() } else { (1000 + step).into() }
    }),
    ("each key until it is refused", |_, step| (step / 7).into()),
];

#[test]
fn no_key_is_admitted_above_its_bound_while_all_keys_share_a_few_cells() {
    let mut random = Random(73);
    for quota in quotas(5, SECOND) {
        for (name, stream) in STREAMS {
            // A row has ten cells for a bucket, and three for the counts of a window.
            let sketch = Sketch::with_cells(&quota, 320);
            let mut exact: HashMap<u128, Exact> = HashMap::new();
            let (mut now, mut admitted, mut refused) = (1_000 * SECOND, 0, 0);
            for step in 0..40_000 {
                let pause = if random.one_in(100) { SECOND } else { SECOND / 50 };
                now += random.below(pause);
                let (at, key) = (Time::from_nanos(now), stream(&mut random, step));
                let cost = 1 + random.below(2);
                if admits(&sketch, &quota, at, key, cost) {
                    let expected = exact.entry(key).or_default().decide(&quota, take(cost), at);
                    assert!(expected.allowed, "{name}, step {step}, key {key}: {quota:?}");
                    admitted += 1;
                } else {
                    refused += 1;
                }
            }
            assert!(admitted > 100 && refused > 100, "{name}: {admitted} and {refused}");
        }
    }
}

#[test]
fn eight_threads_on_one_key_admit_exactly_the_limit() {
    for quota in quotas(50, 1_000 * SECOND) {
        let sketch = Sketch::with_cells(&quota, 1 << 16);
        let at = Time::from_nanos(5_000 * SECOND);
        let admitted = each_of_eight(|_| (0..500).filter(|_| admits(&sketch, &quota, at, 7, 1)).count() as u64);
        assert_eq!(admitted, quota.hard_capacity(), "{quota:?}");
    }
}

#[test]
fn eight_threads_on_many_keys_with_the_same_cells_keep_every_bound() {
    for quota in quotas(20, 1_000 * SECOND) {
        let sketch = Sketch::with_cells(&quota, 640);
        let admitted: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        let at = Time::from_nanos(5_000 * SECOND);
        each_of_eight(|worker| {
            let mut random = Random(worker + 1);
            for _ in 0..20_000 {
                let key = random.below(64);
                if admits(&sketch, &quota, at, key.into(), 1) {
                    admitted[key as usize].fetch_add(1, Ordering::Relaxed);
                }
            }
            0
        });
        let most = admitted.iter().map(|count| count.load(Ordering::Relaxed)).max();
        assert!(most <= Some(quota.hard_capacity()), "{most:?} were admitted: {quota:?}");
    }
}

/// Returns the most units that `quota` admits for a key in a time of `s_ns`. The tests of the kernel check these
/// bounds.
fn most(quota: &Quota, s_ns: u64) -> u64 {
    let capacity = quota.hard_capacity();
    match quota.algorithm() {
        Algorithm::FixedWindow(_) => capacity * (s_ns.div_ceil(quota.window_ns()) + 1),
        Algorithm::SlidingWindowCounter { .. } => capacity + capacity * s_ns / quota.window_ns(),
        _ => capacity + s_ns / quota.interval_ns(),
    }
}

/// The threads share a clock. A thread can be interrupted after it has read the clock, so some requests are late. A
/// request is decided at a time between its own time and the time after its decision. No request is late by a second,
/// because the threads wait for a thread that falls behind. A request that is late by more than a second would look as
/// if the clock had been set back.
#[test]
fn eight_threads_keep_every_bound_while_windows_change() {
    const KEYS: u64 = 16;
    for quota in quotas(5, SECOND) {
        let sketch = Sketch::with_cells(&quota, 640);
        let start = 1_000 * SECOND;
        let clock = AtomicU64::new(start);
        let times: [AtomicU64; 8] = std::array::from_fn(|_| AtomicU64::new(start));
        let is_far_ahead = |now| times.iter().any(|time| time.load(Ordering::Acquire) + SECOND / 2 < now);
        let admitted: Vec<Mutex<Vec<(u64, u64)>>> = (0..KEYS).map(|_| Mutex::default()).collect();
        each_of_eight(|worker| {
            let mut random = Random(worker + 1);
            for _ in 0..10_000 {
                let now = clock.fetch_add(random.below(SECOND / 200), Ordering::Relaxed);
                times[worker as usize].store(now, Ordering::Release);
                while is_far_ahead(now) {
                    thread::yield_now();
                }
                let key = random.below(KEYS);
                if admits(&sketch, &quota, Time::from_nanos(now), key.into(), 1) {
                    let after = clock.load(Ordering::Relaxed).max(now);
                    admitted[key as usize].lock().push((after, now));
                }
            }
            times[worker as usize].store(u64::MAX - SECOND, Ordering::Release);
            0
        });
        for times in admitted {
            let mut times = times.into_inner();
            times.sort_unstable();
            assert!(!times.is_empty());
            for (_, from) in times.iter().step_by(3) {
                for (units, (after, _)) in (1..).zip(times.iter().filter(|(_, now)| now >= from)) {
                    let bound = most(&quota, after - from);
                    assert!(units <= bound, "{units} of {bound} in {} ns: {quota:?}", after - from);
                }
            }
        }
    }
}

/// Runs `work` on eight threads, and returns the sum of their results.
fn each_of_eight(work: impl Fn(u64) -> u64 + Sync) -> u64 {
    let work = &work;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).sum()
    })
}

/// At the edge of two windows, a sketch admits no more than an exact sliding window counter.
#[test]
fn a_rotation_admits_nothing_again() {
    const LIMIT: u64 = 100;
    let quota = Quota::sliding_window_counter(LIMIT, std::time::Duration::from_secs(1)).build().expect("it is valid");
    let sketch = Sketch::with_cells(&quota, 1 << 16);
    let take = |ns| sketch.take_now(Time::from_nanos(ns), &quota, 7, 1).allowed;
    assert_eq!((0..200).filter(|_| take(10 * SECOND - 1)).count() as u64, LIMIT);
    assert_eq!((0..200).filter(|_| take(10 * SECOND)).count(), 0, "the previous window counts as a whole");
    assert_eq!((0..200).filter(|_| take(10 * SECOND + SECOND / 2)).count() as u64, LIMIT / 2);
}
