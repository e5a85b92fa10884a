//! Tests of a full store that limits new keys by a sketch.

use std::collections::HashMap;

use spillgate_core::{Algorithm, Anchor, Denied, QuotaBuilder};
use spillgate_testkit::Random;

use super::*;
use crate::memory::overflow::substitute;

fn full_store(max_keys: usize, bytes: usize) -> MemoryStore {
    store(max_keys, OnFull::Sketch { bytes })
}

fn build(builder: QuotaBuilder) -> Quota {
    builder.build().expect("the quota is valid")
}

/// Returns limits of all algorithms for which a sketch has a substitute.
fn quotas() -> Vec<Quota> {
    let limits = [1, 2, 5, 12];
    let of = |limit| {
        [
            Quota::token_bucket(limit, SECOND),
            Quota::token_bucket(limit, SECOND).burst(3).soft_ppm(400_000),
            Quota::token_bucket(limit, SECOND).penalty(SECOND * 2),
            Quota::token_bucket(limit, SECOND).denied(Denied::Charged),
            Quota::leaky_bucket(limit, SECOND).queue(3),
            Quota::fixed_window(limit, SECOND),
            Quota::fixed_window(limit, SECOND).anchor(Anchor::FirstHit),
            Quota::fixed_window(limit, SECOND).penalty(SECOND),
            Quota::sliding_window_log(limit, SECOND),
            Quota::sliding_window_counter(limit, SECOND),
            Quota::sliding_window_counter(limit, SECOND).segments(4),
        ]
    };
    limits.into_iter().flat_map(of).map(build).collect()
}

/// Returns the most units that are admitted in a time of `s` that includes both its ends. `Algorithm` has the formulas.
fn most(quota: &Quota, s: u64) -> u64 {
    let (limit, window, interval) = (quota.hard_capacity(), quota.window_ns(), quota.interval_ns());
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => limit + s / interval,
        Algorithm::FixedWindow(Anchor::Epoch) => limit * (s.div_ceil(window) + 1),
        Algorithm::FixedWindow(Anchor::FirstHit) if s.is_multiple_of(window) => limit * (s / window + 1),
        Algorithm::FixedWindow(Anchor::FirstHit) => limit * (s / window + 1) + limit - 1,
        Algorithm::SlidingWindowLog => limit * (s / window + 1),
        Algorithm::SlidingWindowCounter { segments: 1 } => limit + limit * s / window,
        Algorithm::SlidingWindowCounter { .. } => {
            limit * (1 + s / window) + limit * (s % window + interval).saturating_sub(window) / interval
        }
        Algorithm::Concurrency => 0,
    }
}

/// Checks the bound of every interval between two admitted takes.
fn check(quota: &Quota, admitted: &[(u64, u64)]) {
    let mut windows: HashMap<u64, u64> = HashMap::new();
    for (at, cost) in admitted {
        *windows.entry(at / quota.window_ns()).or_default() += cost;
    }
    if quota.algorithm() == Algorithm::FixedWindow(Anchor::Epoch) {
        assert!(windows.values().all(|units| *units <= quota.hard_capacity()), "a window admits too much: {quota:?}");
    }
    for (first, (from, _)) in admitted.iter().enumerate() {
        let mut units = 0;
        for (at, cost) in &admitted[first..] {
            units += cost;
            assert!(units <= most(quota, at - from), "{units} in {} ns: {quota:?}", at - from);
        }
    }
}

#[test]
fn no_key_is_admitted_above_its_bound_while_the_store_is_full_again_and_again() {
    const KEYS: u64 = 24;
    let mut random = Random(81);
    for quota in quotas() {
        // Some keys have states, and some are in the sketch. With 2 KiB, keys share few cells.
        let store = full_store(6, 2048);
        let mut admitted: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
        let (mut now, mut refused) = (1_000_000_000_000, 0);
        for _ in 0..3_000 {
            let longest = if random.one_in(60) { 3_000_000_000 } else { 60_000_000 / quota.hard_capacity() };
            now += random.below(longest);
            let (key, cost) = (random.below(KEYS), 1 + random.below(2));
            let hit = Hit::new(key.into(), &quota, Op::Take { cost, max_wait_ns: u64::MAX }, Binding::Enforce);
            if store.hit_now(Time::from_nanos(now), &hit).allowed {
                admitted.entry(key).or_default().push((now, cost));
            } else {
                refused += 1;
            }
        }
        assert!(store.full_requests() > 100 && refused > 10 && admitted.len() as u64 == KEYS, "{quota:?}");
        admitted.values().for_each(|admitted| check(&quota, admitted));
    }
}

#[test]
fn a_new_key_is_limited_and_other_keys_are_not_affected() {
    let quota = build(Quota::token_bucket(10, SECOND));
    let store = full_store(1, 1 << 20);
    assert!(hit(&store, 0, &quota, at(1)).allowed);
    for key in 1..100 {
        let allowed = (0..30).filter(|_| hit(&store, key, &quota, at(1)).allowed).count();
        assert_eq!(allowed, 10, "key {key}");
    }
    assert_eq!((store.len(), store.full_requests()), (1, 99 * 30));
    let refused = hit(&store, 1, &quota, at(1));
    assert_eq!((refused.reason, refused.limit, refused.remaining), (Reason::Exceeded, 10, 0));
    assert_eq!(refused.retry_after, Wait::After(100_000_000));
    assert_eq!(hit(&store, 0, &quota, at(1)).remaining, 8, "a key with a state is counted exactly");
}

#[test]
fn a_key_that_gets_a_state_starts_with_what_it_has_used() {
    let second = build(Quota::fixed_window(1, SECOND));
    for quota in quotas().into_iter().filter(|quota| quota.hard_capacity() == 12 && quota.refusal_is_free()) {
        let store = full_store(1, 1 << 20);
        let taken = |now| (0..20).filter(|_| hit(&store, 7, &quota, now).allowed).count() as u64;
        // The one state belongs to another key until the time 2 s.
        assert!(hit(&store, 1, &second, at(1)).allowed);
        let now = Time::from_nanos(1_990_000_000);
        let first = taken(now);
        assert!(first == substitute(&quota).map_or(0, |quota| quota.capacity()) && first >= 6, "{first}: {quota:?}");
        let later = Time::from_nanos(2_000_000_000);
        let more = taken(later);
        assert_eq!(store.len(), 1, "the key has a state now");
        check(&quota, &[(now.as_nanos(), first), (later.as_nanos(), more)]);
    }
}

#[test]
fn a_request_of_several_keys_is_all_or_nothing_in_the_sketch_too() {
    let quota = build(Quota::token_bucket(4, SECOND));
    let store = full_store(1, 1 << 20);
    assert!(hit(&store, 0, &quota, at(1)).allowed);
    let take = |costs: [u64; 3]| {
        // A key with a state, and two keys in the sketch.
        let hits = [0, 1, 2].map(|key| Hit::new(key, &quota, Op::take(costs[key as usize]), Binding::Enforce));
        let mut decisions = [Decision::default(); 3];
        let verdict = store.decide_now(at(1), &hits, &mut decisions).expect("the request is well formed");
        (verdict.allowed, decisions.map(|decision| decision.remaining))
    };
    assert_eq!(take([1, 2, 3]), (true, [2, 2, 1]));
    assert_eq!(take([1, 2, 2]), (false, [2, 2, 1]), "the key 2 has too little left, so nothing is taken");
    assert_eq!(take([3, 2, 1]), (false, [2, 2, 1]), "the key with a state has too little left");
    assert_eq!(take([2, 2, 1]), (true, [0, 0, 0]));
}

#[test]
fn what_has_no_substitute_is_refused_as_without_a_sketch() {
    let store = full_store(1, 1 << 20);
    let window = build(Quota::fixed_window(10, SECOND));
    assert!(hit(&store, 0, &window, at(1)).allowed);
    let permits = build(Quota::concurrency(3));
    assert_eq!(hit(&store, 1, &permits, at(1)).reason, Reason::StoreFull);
    let take = |cost| store.hit_now(at(1), &Hit::new(1, &window, Op::take(cost), Binding::Enforce)).reason;
    assert_eq!(take(6), Reason::StoreFull, "the substitute admits five units at once");
    assert_eq!(take(11), Reason::CostAboveCapacity);
    assert_eq!(take(5), Reason::Fits);
    let closed = build(Quota::fixed_window(0, SECOND));
    assert_eq!(hit(&store, 1, &closed, at(1)).reason, Reason::StoreFull);
}

#[test]
fn the_sketch_is_a_part_of_the_bytes_of_the_store() {
    let options = MemoryOptions { max_keys: 10, max_heap_bytes: 1 << 20, on_full: OnFull::Sketch { bytes: 2 << 20 } };
    let store = MemoryStore::new(options);
    let log = build(Quota::sliding_window_log(5, SECOND));
    assert!(hit(&store, 1, &log, at(1)).allowed, "the sketch has all bytes, so the log is limited by the sketch");
    assert_eq!((store.len(), store.full_requests()), (0, 1));
}

#[test]
fn threads_on_new_keys_of_a_full_store_admit_exactly_the_limit() {
    let quota = build(Quota::token_bucket(50, SECOND * 1000));
    let store = full_store(1, 1 << 16);
    assert!(hit(&store, 0, &quota, at(1)).allowed);
    let admitted: usize = std::thread::scope(|scope| {
        let take = || (0..300).filter(|i| hit(&store, 1 + i % 2, &quota, at(1)).allowed).count();
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).sum()
    });
    assert_eq!(admitted, 100);
}
