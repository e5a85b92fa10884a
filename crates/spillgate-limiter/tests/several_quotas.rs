//! Tests in which one key of the memory store is used with several quotas.
//!
//! A key gets another quota when rules are reloaded, or when the servers of a fleet have different limits. In some
//! tests, requests are also late (their time is before the newest time of the state), or the table of the store grows.
//! The debt of a token bucket is how much of it is used, stored as a time. A bug that forgives debt would admit too
//! many requests.

use std::time::Duration;

use crate::support::Requests as _;
use spillgate_limiter::{Binding, Decision, Hit, MemoryOptions, MemoryStore, Op, Quota, Time};
use spillgate_testkit::Random;

const NOW: u64 = 1_790_000_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

fn bucket(limit: u64, window_ns: u64, burst: u64) -> Quota {
    Quota::token_bucket(limit, Duration::from_nanos(window_ns)).burst(burst).build().expect("the quota is valid")
}

fn take(store: &MemoryStore, key: u128, quota: &Quota, cost: u64, now: u64) -> Decision {
    let hits = [Hit::new(key, quota, Op::take(cost), Binding::Enforce)];
    let mut decisions = [Decision::default()];
    store.decide_now(Time::from_nanos(now), &hits, &mut decisions).expect("the request is well formed");
    decisions[0]
}

/// Takes one unit. `path` selects the function: a request of one hit (0), a request of several hits (1), or
/// `hit_batch_now` (2).
fn take_by(store: &MemoryStore, path: usize, key: u128, quota: &Quota, now: u64) -> bool {
    let other = bucket(1_000_000, SECOND_NS, 1_000_000);
    let hits = [
        Hit::new(key, quota, Op::take(1), Binding::Enforce),
        Hit::new(key ^ 1 << 100, &other, Op::take(1), Binding::Enforce),
    ];
    let (hits, mut decisions) =
        if path == 1 { (&hits[..], vec![Decision::default(); 2]) } else { (&hits[..1], vec![Decision::default()]) };
    let now = Time::from_nanos(now);
    match path {
        2 => store.hit_batch_now(now, hits, &mut decisions).expect("the request is well formed"),
        _ => drop(store.decide_now(now, hits, &mut decisions).expect("the request is well formed")),
    }
    decisions[0].allowed
}

/// The test takes units for one key, in turn with a slow and with a fast quota. All takes with the slow quota have the
/// time `NOW`. All takes with the fast quota have this time or an earlier one. The two times are so close that all
/// takes together can admit only one burst, which is 10 units. If each change of the quota forgave a little debt, more
/// units would be admitted.
#[test]
fn late_requests_of_a_faster_quota_forgive_nothing() {
    let (slow, fast) = (bucket(1, 1_000_000, 10), bucket(1000, 1_000_000, 10));
    for path in 0..3 {
        for late_ns in [0, 1, 5_000, 9_000] {
            let store = MemoryStore::new(MemoryOptions::default());
            let mut admitted = 0;
            for i in 0..2000 {
                let (quota, at) = if i % 2 == 0 { (&slow, NOW) } else { (&fast, NOW - late_ns) };
                admitted += u64::from(take_by(&store, path, 7, quota, at));
            }
            assert!(
                (9..=10).contains(&admitted),
                "{admitted} takes were admitted on path {path}, where late takes were {late_ns} ns late"
            );
        }
    }
}

/// Returns a hashed key. Two hashed keys are likely to be in different buckets of the table.
fn hashed(key: u64) -> u128 {
    u128::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// Returns a store of 2000 keys. Its table is so large that two hashed keys are likely to be in different buckets.
fn filled() -> MemoryStore {
    let (store, wide) = (MemoryStore::new(MemoryOptions::default()), bucket(1, 3600 * SECOND_NS, 10));
    for key in 1000..3000 {
        take(&store, hashed(key), &wide, 1, NOW - 60 * SECOND_NS);
    }
    store
}

/// Each request for the keys 7 and 8 is late for key 8, which was charged at a newer time, and not for key 7. Between
/// these requests, takes for key 7 use another quota. However often the quota of key 7 changes, the key must keep its
/// bound.
#[test]
fn a_request_that_is_late_for_one_of_its_states_forgives_nothing_in_the_other() {
    let (fast, slow) = (bucket(1000, SECOND_NS, 1000), bucket(10, SECOND_NS, 2000));
    let (store, wide) = (filled(), bucket(1000, SECOND_NS, 10_000));
    let mut admitted = u64::from(take(&store, hashed(7), &fast, 1000, NOW).allowed) * 1000;
    assert!(take(&store, hashed(8), &wide, 1, NOW + SECOND_NS - 1).allowed);
    for _ in 0..20 {
        let hits =
            [(7, &slow), (8, &wide)].map(|(key, quota)| Hit::new(hashed(key), quota, Op::take(1), Binding::Enforce));
        let verdict = store.decide_now(Time::from_nanos(NOW), &hits, &mut [Decision::default(); 2]);
        admitted += u64::from(verdict.expect("the request is well formed").allowed);
        admitted += u64::from(take(&store, hashed(7), &fast, 980, NOW).allowed) * 980;
    }
    // All takes for key 7 have the time `NOW`. But after a request for both keys, the store remembers the newer time of
    // key 8 for key 7 too. So the takes for key 7 are late by at most `d` = 1 s, and their bound is `B + 2 * d * R`.
    // Here `B` = 2000 is the larger burst, and `R` = 1000 is the larger number of tokens per second.
    assert!(admitted <= 2000 + 2 * 1000, "{admitted} units were admitted");
}

/// A request uses a token bucket and a queue, and is late for the token bucket. The queue must compute the delay from
/// the time of the request, not from the newer time of the token bucket.
#[test]
fn a_late_request_has_its_turn_in_a_queue_by_its_own_time() {
    let (slow, fast) = (bucket(1, SECOND_NS, 5), bucket(10, SECOND_NS, 5));
    let queue = Quota::leaky_bucket(1, Duration::from_secs(1)).queue(3).build().expect("the quota is valid");
    for (max_wait_ns, expected) in [(299, (false, 0)), (300, (true, 300))] {
        let store = MemoryStore::new(MemoryOptions::default());
        assert!(take(&store, 7, &slow, 2, NOW).allowed && take(&store, 8, &queue, 1, NOW - SECOND_NS).allowed);
        let wait = Op::Take { cost: 1, max_wait_ns };
        let hits = [(7, &fast, Op::take(1)), (8, &queue, wait)];
        let hits = hits.map(|(key, quota, op)| Hit::new(key, quota, op, Binding::Enforce));
        let mut decisions = [Decision::default(); 2];
        let verdict =
            store.decide_now(Time::from_nanos(NOW - 300), &hits, &mut decisions).expect("the request is well formed");
        assert_eq!((verdict.allowed, verdict.delay_ns), expected, "{decisions:?}");
    }
}

/// The table of the store consists of buckets. For each bucket, the store remembers the newest time at which an entry
/// was charged. When the table grows, its entries move to a new table. The newest times must move too.
#[test]
fn a_table_that_grows_keeps_the_newest_time() {
    // The capacity of these two token buckets is so large that each request is admitted. If debt were forgiven, too
    // many tokens would be left at the end.
    let (slow, fast) = (bucket(1, 1_000_000, 1000), bucket(1000, 1_000_000, 1000));
    // Other keys are in the same buckets of the table. Some of these keys were charged long before, and some note no
    // time.
    let old = bucket(1, 10 * SECOND_NS, 10);
    let window = Quota::fixed_window(10, Duration::from_secs(3600)).build().expect("the quota is valid");
    let (store, mut random, mut admitted, mut keys) = (MemoryStore::new(MemoryOptions::default()), Random(3), 0, 0u32);
    let key = |random: &mut Random| u128::from(random.below(u64::MAX)) << 64 | u128::from(random.below(u64::MAX));
    for _ in 0..20_000 {
        keys += u32::from(take(&store, key(&mut random), &old, 1, NOW - 3 * SECOND_NS).allowed);
    }
    for i in 0..400u32 {
        let (quota, at) = if i % 2 == 0 { (&slow, NOW) } else { (&fast, NOW - 9_000) };
        admitted += u64::from(take(&store, 7, quota, 1, at).allowed);
        for _ in 0..200 {
            let quota = if random.below(2) == 0 { &slow } else { &window };
            keys += u32::from(take(&store, key(&mut random), quota, 1, NOW - 20_000).allowed);
        }
    }
    assert_eq!((store.len(), keys), (100_001, 100_000), "the table has grown");
    let hits = [Hit::new(7, &slow, Op::Peek, Binding::Enforce)];
    let mut peeked = [Decision::default()];
    store.decide_now(Time::from_nanos(NOW), &hits, &mut peeked).expect("the request is well formed");
    assert!(
        admitted == 400 && 1000 - peeked[0].remaining >= admitted,
        "{admitted} units were admitted, and {} units are left",
        peeked[0].remaining
    );
}

/// Random requests use three quotas for one key. Each request is late by at most `d`. In an interval of `s` ns, the
/// store must admit at most (largest capacity) + (`s + 2 * d`) * (largest rate) requests.
#[test]
fn late_requests_under_several_quotas_keep_the_bound() {
    let mut random = Random(11);
    for round in 0..300 {
        let quotas: Vec<Quota> =
            (0..3).map(|_| bucket(random.one_of(&[1, 3, 10, 500, 1000]), 1_000_000, 1 + random.below(12))).collect();
        let store = MemoryStore::new(MemoryOptions::default());
        let (mut now, late_most_ns, mut events) = (NOW, random.one_of(&[0, 50, 3_000, 1_000_000]), Vec::new());
        for _ in 0..150 {
            now += random.one_of(&[0, 0, 0, 1, 70, 4_000]);
            let quota = &quotas[random.below(3) as usize];
            let some_ns = random.below(late_most_ns + 1);
            let late_ns = random.one_of(&[0, late_most_ns, some_ns]);
            if take(&store, 7, quota, 1, now - late_ns).allowed {
                events.push((now, quota));
            }
        }
        for (i, (first, _)) in events.iter().enumerate() {
            let (mut depth, mut interval_ns) = (0, u64::MAX);
            for (j, (at, quota)) in events[i..].iter().enumerate() {
                depth = depth.max(quota.capacity());
                interval_ns = interval_ns.min(quota.interval_ns());
                let most = depth + (at - first + 2 * late_most_ns) / interval_ns;
                assert!((j as u64) < most, "{} takes admitted in round {round}, at most {most} expected", j + 1);
            }
        }
    }
}

/// Threads use two limits for one key of a store. The same happens if one server of a fleet has another limit than the
/// others, or if a reload lowers a limit and another reload raises it again.
#[test]
fn threads_of_two_limits_admit_the_larger_one() {
    let (large, small) = (bucket(1000, 3600 * SECOND_NS, 1000), bucket(10, 3600 * SECOND_NS, 10));
    let store = MemoryStore::new(MemoryOptions::default());
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (store, large, small) = (&store, &large, &small);
                scope.spawn(move || {
                    let quota = |i: usize| if thread == 3 || i.is_multiple_of(40) { small } else { large };
                    (0..5000).filter(|&i| take(store, 7, quota(i), 1, NOW).allowed).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
    });
    assert_eq!(admitted, 1000);
}

/// The state of each of these token buckets fits a slot of the table, even if the time for one unit is long and not a
/// whole number of microseconds. The test writes a state with one quota and reads it with another quota.
#[test]
fn token_buckets_of_any_limit_are_read_under_any_other() {
    let limits: Vec<u64> = (1..60).chain([70, 100, 101, 997, 3600, 10_007, 86_400, 100_003]).collect();
    for window_ns in [60, 3600, 86_400, 30 * 86_400].map(|seconds| seconds * SECOND_NS) {
        let quotas: Vec<Quota> = limits.iter().map(|limit| bucket(*limit, window_ns, 100)).collect();
        for (i, quota) in quotas.iter().enumerate() {
            assert!(quota.packs());
            let store = MemoryStore::new(MemoryOptions { max_heap_bytes: 0, ..MemoryOptions::default() });
            let other = &quotas[(i * 7 + 3) % quotas.len()];
            assert_eq!(take(&store, 1, quota, 3, NOW).remaining, 97);
            assert_eq!(take(&store, 1, other, 4, NOW).remaining, 93, "{other:?} after {quota:?}");
            assert_eq!(store.full_requests(), 0, "the state needed no memory outside its slot");
        }
    }
}
