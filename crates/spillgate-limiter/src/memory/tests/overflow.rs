//! Tests of a full store that limits new keys by a sketch.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_core::{Algorithm, Anchor, Denied, QuotaBuilder};
use spillgate_testkit::Random;

use super::*;
use crate::memory::overflow::substitute;

pub(super) fn full_store(max_keys: usize, bytes: usize) -> MemoryStore {
    store(max_keys, OnFull::Sketch { bytes })
}

pub(super) fn build(builder: QuotaBuilder) -> Quota {
    builder.build().expect("the quota is valid")
}

/// Returns limits of all algorithms for which a sketch has a substitute.
pub(super) fn quotas() -> Vec<Quota> {
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

/// Returns the most units that are admitted in an interval of `s` ns, including both ends. The documentation of
/// `Algorithm` has the formulas.
pub(super) fn most(quota: &Quota, s: u64) -> u64 {
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

/// Checks the bound of every interval between two admitted takes. `admitted` has their times and costs.
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
        // Some keys have states, and some are in the sketch. The sketch has only 2 KiB, so the keys share cells.
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
        // Until the time 2 s, the only state of the store belongs to another key.
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
    let refused = hit(&store, 1, &closed, at(1));
    assert_eq!(refused.reason, Reason::CostAboveCapacity, "a limit of 0 needs no space");
}

#[test]
fn a_key_that_gets_a_state_keeps_nearly_half_of_its_limit_if_its_cells_have_few_units() {
    let second = Quota::fixed_window(1, SECOND);
    let windows = [
        Quota::fixed_window(100, SECOND * 60),
        Quota::sliding_window_log(100, SECOND * 60),
        Quota::sliding_window_counter(100, SECOND * 60),
        Quota::sliding_window_counter(100, SECOND * 60).segments(4),
    ];
    for quota in windows.map(build) {
        let store = full_store(1, 16_384);
        assert!(hit(&store, 1, &build(second), at(119)).allowed);
        // The sketch has only 4 KiB for windows of up to 10 minutes, so these keys raise all cells of this part.
        assert!((2..300).all(|key| hit(&store, key, &quota, at(119)).allowed));
        let left = (0..200).filter(|_| hit(&store, 5_000, &quota, at(120)).allowed).count();
        assert_eq!(store.len(), 1);
        assert!((45..=100).contains(&left), "{left} of 100: {quota:?}");
    }
}

#[test]
fn units_of_the_sketch_count_in_the_window_in_which_they_were_admitted() {
    let (quota, minute) = (build(Quota::fixed_window(10, SECOND)), build(Quota::fixed_window(1, SECOND * 60)));
    let store = full_store(1, 1 << 20);
    assert!(hit(&store, 1, &minute, at(9)).allowed);
    let take = |now| (0..20).filter(|_| hit(&store, 7, &quota, Time::from_nanos(now)).allowed).count();
    let after_the_edge = take(10_000_000_000);
    let reset = Hit::new(1, &minute, Op::Reset, Binding::Enforce);
    assert!(store.hit_now(at(10), &reset).allowed);
    // These late requests read the clock before the window began. The first of these requests makes a state for the
    // key.
    let late = take(9_999_900_000);
    assert_eq!((after_the_edge, late, take(10_000_000_001)), (5, 5, 0));
}

/// A caller charges its work later: it sends a take of cost 0 before the work, and a force after the work.
#[test]
fn work_that_is_charged_later_is_limited_in_a_full_store_too() {
    let builders = [Quota::fixed_window(10, SECOND * 60), Quota::token_bucket(10, SECOND * 60)];
    for quota in builders.map(build) {
        for (units, most) in [(1, 11), (10, 2), (1_000, 1)] {
            let store = full_store(1, 1 << 20);
            assert!(hit(&store, 0, &quota, at(60)).allowed);
            let ask = |now| store.hit_now(now, &Hit::new(7, &quota, Op::take(0), Binding::Enforce));
            let work = || {
                let begins = ask(at(60)).allowed;
                let _ = store.hit_now(at(60), &Hit::new(7, &quota, Op::Force { cost: units }, Binding::Enforce));
                begins
            };
            let begun = (0..50).filter(|_| work()).count();
            assert!((1..=most).contains(&begun), "{begun} of {most}: {quota:?}");
            let reset = Hit::new(0, &quota, Op::Reset, Binding::Enforce);
            assert!(store.hit_now(at(60), &reset).allowed);
            assert!(!ask(at(60)).allowed, "with a state of its own, the key is over its limit too: {quota:?}");
        }
        let store = store(1, OnFull::Deny);
        assert!(hit(&store, 0, &quota, at(60)).allowed);
        let ask = store.hit_now(at(60), &Hit::new(7, &quota, Op::take(0), Binding::Enforce));
        assert_eq!(ask.reason, Reason::StoreFull, "the units could not be counted later");
        assert!(store.hit_now(at(60), &Hit::new(7, &quota, Op::Peek, Binding::Enforce)).allowed);
    }
}

#[test]
fn a_key_in_the_sketch_gets_nothing_back_and_the_caller_knows_it() {
    let quota = build(Quota::token_bucket(10, SECOND));
    let store = full_store(1, 1 << 20);
    assert!(hit(&store, 0, &quota, at(1)).allowed && hit(&store, 7, &quota, at(1)).allowed);
    for op in [Op::Reset, Op::Refund { cost: 1, receipt: None }] {
        let back = |key| Hit::new(key, &quota, op, Binding::Enforce);
        assert_eq!(store.hit_now(at(1), &back(7)).reason, Reason::Unsupported);
        assert!(store.hit_now(at(1), &back(0)).allowed && store.hit_now(at(1), &back(8)).allowed);
        let mut decisions = [Decision::default(); 2];
        let _ = store.decide_now(at(1), &[back(0), back(7)], &mut decisions).expect("the request is well formed");
        assert_eq!(decisions.map(|decision| decision.allowed), [true, false]);
    }
}

#[test]
fn a_queue_with_a_penalty_still_delays_and_a_soft_limit_has_no_more_left_than_it_is() {
    let store = full_store(1, 1 << 20);
    let queue = build(Quota::leaky_bucket(10, SECOND).queue(3).penalty(SECOND));
    assert!(hit(&store, 0, &queue, at(1)).allowed);
    let take = |quota: &Quota, key| {
        store.hit_now(at(1), &Hit::new(key, quota, Op::Take { cost: 1, max_wait_ns: u64::MAX }, Binding::Enforce))
    };
    let delays: Vec<_> = (0..3).map(|_| take(&queue, 1).delay_ns).collect();
    assert!(delays.is_sorted() && delays[0] < delays[2], "{delays:?}");
    let soft = build(Quota::token_bucket(10, SECOND).soft_ppm(500_000).penalty(SECOND));
    let window = build(Quota::fixed_window(2, SECOND).soft_ppm(4_000_000));
    for (key, quota) in [(2, &soft), (3, &window)] {
        let first = take(quota, key);
        assert!(first.allowed && first.remaining <= first.limit, "{first:?}");
    }
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

fn hundred_in(window: Duration) -> Vec<Quota> {
    units_in(100, window)
}

/// Returns limits of all algorithms: so many units in a window.
pub(super) fn units_in(units: u64, window: Duration) -> Vec<Quota> {
    let builders = [
        Quota::token_bucket(units, window),
        Quota::fixed_window(units, window),
        Quota::fixed_window(units, window).anchor(Anchor::FirstHit),
        Quota::sliding_window_log(units, window),
        Quota::sliding_window_counter(units, window),
        Quota::sliding_window_counter(units, window).segments(4),
    ];
    builders.into_iter().map(build).collect()
}

/// Removes the state of the key 0, so that the store has space for another key.
pub(super) fn make_space(store: &MemoryStore, quota: &Quota, now: Time) {
    let reset = Hit::new(0, quota, Op::Reset, Binding::Enforce);
    assert!(store.hit_now(now, &reset).allowed && store.is_empty());
}

#[test]
fn a_limit_of_a_day_does_not_disturb_shorter_limits_in_the_sketch() {
    let (day, holder) = (build(Quota::fixed_window(100, SECOND * 86_400)), build(Quota::fixed_window(1, SECOND * 900)));
    let shorter = [1, 60, 3_600].map(|seconds| hundred_in(SECOND * seconds)).concat();
    for quota in shorter {
        let (store, now) = (full_store(1, 1 << 18), at(200_000));
        assert!(hit(&store, 0, &holder, now).allowed);
        let admitted = (1..=10_000).filter(|key| hit(&store, *key, &day, now).allowed).count();
        assert!(admitted > 9_000, "the cells of the limit of a day are full, and it refuses some: {admitted}");
        assert!((20_000..20_100).all(|key| hit(&store, key, &quota, now).allowed), "{quota:?}");
        make_space(&store, &holder, now);
        let left = (0..200).filter(|_| hit(&store, 30_000, &quota, now).allowed).count();
        assert!(store.len() == 1 && left >= 95, "a new key starts with {left} of 100: {quota:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_gives_no_key_of_the_sketch_a_second_limit_in_a_window() {
    for quota in hundred_in(SECOND * 60) {
        let (store, holder) = (full_store(1, 1 << 20), build(Quota::fixed_window(1, SECOND * 5)));
        assert!(hit(&store, 0, &holder, at(3_700)).allowed);
        assert!(hit(&store, 1, &quota, at(3_700)).allowed, "another key is in the sketch");
        make_space(&store, &holder, at(3_700));
        // The times are so far apart that all states expire between them.
        for start in [120, 300, 480] {
            let take = |now| (0..300).filter(|_| hit(&store, 7 + start, &quota, now).allowed).count();
            assert!(hit(&store, 0, &holder, at(start)).allowed);
            let in_the_sketch = take(at(start));
            make_space(&store, &holder, at(start));
            let more = take(Time::from_nanos(start * 1_000_000_000 + 1_000));
            assert!(in_the_sketch >= 50 && in_the_sketch + more <= 100, "{in_the_sketch} and {more}: {quota:?}");
        }
    }
}

/// For 60 units in 60 s, the debt of an exact state is at most 2^37 ns (138 s), as `docs/src/guarantees/clocks.md`
/// says.
#[test]
fn a_clock_that_was_ahead_once_refuses_keys_of_the_sketch_only_for_a_short_time() {
    let (quota, holder) = (build(Quota::token_bucket(60, SECOND * 60)), build(Quota::fixed_window(1, SECOND * 86_400)));
    let (store, years) = (full_store(1, 1 << 16), at(1_000_000 + 4 * 365 * 86_400));
    // The only state of the store belongs to another key. This key was charged at the wrong time too, so its state does
    // not expire during the test.
    assert!(hit(&store, 0, &holder, years).allowed);
    assert!((0..60).all(|_| hit(&store, 7, &quota, years).allowed), "a key uses its limit at a wrong time");
    assert!(!hit(&store, 7, &quota, at(1_000_000)).allowed);
    let admitted: Vec<u64> = (1_000_000..1_000_400).filter(|now| hit(&store, 7, &quota, at(*now)).allowed).collect();
    assert!(admitted[0] <= 1_000_000 + 138 && admitted.len() >= 260, "{} from {}", admitted.len(), admitted[0]);
    let exact: Vec<(u64, u64)> = admitted.iter().map(|now| (now * 1_000_000_000, 1)).collect();
    check(&quota, &exact);
}

#[test]
fn at_the_end_of_time_a_new_key_of_a_full_store_is_still_limited() {
    let (quota, store) = (build(Quota::token_bucket(10, SECOND)), full_store(1, 1 << 16));
    assert!(hit(&store, 0, &quota, Time::MAX).allowed);
    assert_eq!((0..100).filter(|_| hit(&store, 7, &quota, Time::MAX).allowed).count(), 10);
}

#[test]
fn a_reset_that_the_sketch_would_undo_is_refused() {
    for quota in hundred_in(SECOND * 60) {
        let store = full_store(1, 1 << 20);
        let take = |times: usize| (0..times).filter(|_| hit(&store, 7, &quota, at(60)).allowed).count();
        let one = |op| store.hit_now(at(60), &Hit::new(7, &quota, op, Binding::Enforce));
        assert!(hit(&store, 0, &quota, at(60)).allowed);
        let in_the_sketch = take(40);
        make_space(&store, &quota, at(60));
        let last = one(Op::take(1));
        assert_eq!(store.len(), 1, "the key has a state now");
        for op in [Op::Reset, Op::Refund { cost: 100, receipt: None }] {
            assert_eq!(one(op).reason, Reason::Unsupported, "{quota:?}");
            let hits = [Hit::new(7, &quota, op, Binding::Enforce), Hit::new(8, &quota, Op::Reset, Binding::Enforce)];
            let mut decisions = [Decision::default(); 2];
            let _ = store.decide_now(at(60), &hits, &mut decisions).expect("the request is well formed");
            assert_eq!(decisions.map(|decision| decision.allowed), [false, true]);
        }
        assert_eq!(one(Op::Peek).remaining, last.remaining, "nothing was given back: {quota:?}");
        if last.allowed {
            let refund = one(Op::Refund { cost: 1, receipt: last.receipt });
            assert_eq!((refund.allowed, refund.remaining), (true, last.remaining + 1), "units of the state: {quota:?}");
        }
        assert!(in_the_sketch + take(200) <= 100);
        let reset = store.hit_now(at(500), &Hit::new(7, &quota, Op::Reset, Binding::Enforce));
        assert!(reset.allowed, "the sketch counts nothing any more: {quota:?}");
    }
}

/// A reservation also takes a permit, and its units in the sketch could not be corrected later.
#[test]
fn a_request_that_takes_a_permit_is_refused_in_place_of_being_limited_by_the_sketch() {
    let (quota, permits) = (build(Quota::token_bucket(10, SECOND * 60)), build(Quota::concurrency(3)));
    for max_keys in [1, 2] {
        let store = full_store(max_keys, 1 << 16);
        assert!(hit(&store, 0, &quota, at(60)).allowed);
        let request = |op| {
            let hits =
                [Hit::new(7, &quota, op, Binding::Enforce), Hit::new(8, &permits, Op::take(1), Binding::Enforce)];
            let mut decisions = [Decision::default(); 2];
            let verdict = store.decide_now(at(60), &hits, &mut decisions).expect("the request is well formed");
            (verdict.allowed, decisions.iter().any(|decision| decision.reason == Reason::StoreFull))
        };
        assert_eq!(request(Op::take(1)), (false, true), "{max_keys} keys");
        assert_eq!((store.len(), hit(&store, 7, &quota, at(60)).remaining), (1, 9), "nothing was taken");
    }
}

/// The threads share a clock. A thread that is far ahead waits for the others, so no request is late by a second.
#[test]
fn eight_threads_keep_every_bound_while_keys_get_and_lose_states() {
    const KEYS: u64 = 16;
    for quota in quotas().into_iter().filter(|quota| quota.limit() == 5) {
        let (store, start) = (full_store(4, 1 << 14), 1_000_000_000_000);
        let clock = AtomicU64::new(start);
        let times: [AtomicU64; 8] = std::array::from_fn(|_| AtomicU64::new(start));
        let is_far_ahead = |now| times.iter().any(|time| time.load(Ordering::Acquire) + 500_000_000 < now);
        let admitted: Vec<Mutex<Vec<(u64, u64)>>> = (0..KEYS).map(|_| Mutex::default()).collect();
        std::thread::scope(|scope| {
            for (worker, time) in (1..).zip(&times) {
                let (store, quota, clock, admitted, is_far_ahead) = (&store, &quota, &clock, &admitted, &is_far_ahead);
                scope.spawn(move || {
                    let mut random = Random(worker);
                    for _ in 0..2_000 {
                        let now = clock.fetch_add(random.below(10_000_000), Ordering::Relaxed);
                        time.store(now, Ordering::Release);
                        while is_far_ahead(now) {
                            std::thread::yield_now();
                        }
                        let key = random.below(KEYS);
                        let op = Op::Take { cost: 1, max_wait_ns: u64::MAX };
                        let hit = Hit::new(key.into(), quota, op, Binding::Enforce);
                        if store.hit_now(Time::from_nanos(now), &hit).allowed {
                            let after = clock.load(Ordering::Relaxed).max(now);
                            admitted[key as usize].lock().push((after, now));
                        }
                    }
                    time.store(u64::MAX / 2, Ordering::Release);
                });
            }
        });
        assert!(store.full_requests() > 100, "{quota:?}");
        for times in admitted {
            let mut times = times.into_inner();
            times.sort_unstable();
            for (_, from) in times.iter().step_by(3) {
                for (units, (after, _)) in (1..).zip(times.iter().filter(|(_, now)| now >= from)) {
                    let bound = most(&quota, after - from);
                    assert!(units <= bound, "{units} of {bound} in {} ns: {quota:?}", after - from);
                }
            }
        }
    }
}
