//! Tests of a full store with a sketch, while limits change their rates: by a reload, or from call to call.
//!
//! Whatever the rates are, a key is never admitted above the bound of the largest quota that has charged it. The kernel
//! is the exact model: it gets the same takes.

use std::collections::HashMap;
use std::slice;

use spillgate_core::{Algorithm, Anchor, State, decide};
use spillgate_testkit::Random;

use super::overflow::{build, full_store, make_space, most, units_in};
use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const KEYS: u64 = 24;

fn ask(store: &MemoryStore, key: u64, quota: &Quota, cost: u64, now: u64) -> Decision {
    let op = Op::Take { cost, max_wait_ns: u64::MAX };
    store.hit_now(Time::from_nanos(now), &Hit::new(key.into(), quota, op, Binding::Enforce))
}

/// Asks the kernel whether the take fits the state, which stays as it is.
fn fits(state: &State, quota: &Quota, cost: u64, now: u64) -> bool {
    kernel(&mut state.clone(), quota, Op::Take { cost, max_wait_ns: u64::MAX }, now)
}

fn kernel(state: &mut State, quota: &Quota, op: Op, now: u64) -> bool {
    let hits = [Hit::new(0, quota, op, Binding::Enforce)];
    decide(slice::from_mut(state), &[0], &hits, Time::from_nanos(now), &mut [Decision::default()]).allowed
}

/// Returns three quotas of one algorithm that count in the same state, with very different limits.
fn changing(algorithm: usize) -> [Quota; 3] {
    let limits = [(2, 30), (12, 4), (300, 60)];
    limits.map(|(limit, burst)| {
        build(match algorithm {
            0 => Quota::token_bucket(limit, SECOND).burst(burst),
            1 => Quota::leaky_bucket(20, SECOND).queue(burst),
            2 => Quota::fixed_window(limit, SECOND),
            3 => Quota::fixed_window(limit, SECOND).anchor(Anchor::FirstHit),
            4 => Quota::sliding_window_log(limit, SECOND),
            5 => Quota::sliding_window_counter(limit, SECOND),
            _ => Quota::sliding_window_counter(limit, SECOND).segments(4),
        })
    })
}

/// A take that was admitted.
struct Taken {
    at: u64,
    cost: u64,
    quota: usize,
}

/// Checks every interval. Its bound is that of the largest of the quotas that have charged in it. For a bucket, the
/// largest burst and the shortest time between two units can be those of two quotas.
fn check_all(quotas: &[Quota], taken: &[Taken]) -> u64 {
    let mut nearest = u64::MAX;
    for (i, first) in taken.iter().enumerate() {
        let (mut units, mut depth, mut interval, mut largest) = (0, 0, u64::MAX, &quotas[first.quota]);
        for take in &taken[i..] {
            let (quota, s) = (&quotas[take.quota], take.at - first.at);
            units += take.cost;
            (depth, interval) = (depth.max(quota.hard_capacity()), interval.min(quota.interval_ns()));
            largest = if quota.limit() > largest.limit() { quota } else { largest };
            let bound = match quota.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => depth + s / interval,
                _ => most(largest, s),
            };
            assert!(units <= bound, "{units} of {bound} in {s} ns: {quotas:?}");
            nearest = nearest.min(bound - units);
        }
    }
    nearest
}

/// How limits change in a trace.
#[derive(Clone, Copy, Debug)]
enum Changes {
    /// Each call has some limit.
    EachCall,
    /// All calls have the same limit, until a reload changes it.
    Reloads,
    /// A key uses all that it can get under one limit, and then all that it can get under another one.
    Greedy,
}

/// Makes a trace of random takes on a store that is full again and again. Returns how many requests were allowed and
/// refused, and how near the bound a key came.
fn trace(algorithm: usize, changes: Changes, bytes: usize, random: &mut Random) -> (u64, u64, u64) {
    let (quotas, steps) = (changing(algorithm), 3_000);
    let is_bucket = algorithm < 2;
    let store = full_store(4, bytes);
    let mut taken: HashMap<u64, Vec<Taken>> = HashMap::new();
    let mut exact: HashMap<u64, State> = HashMap::new();
    let (mut now, mut refused, mut quota, mut key) = (1_000_000_000_000, 0, 0, 0);
    for _ in 0..steps {
        now += match random.below(60) {
            0 => random.below(3_000_000_000),
            1..=9 => random.below(100_000_000),
            _ => random.below(5_000_000),
        };
        let is_changed = match changes {
            Changes::EachCall => true,
            Changes::Reloads => random.one_in(150),
            Changes::Greedy => random.one_in(8),
        };
        if is_changed {
            quota = random.below(3) as usize;
        }
        if !matches!(changes, Changes::Greedy) || random.one_in(10) {
            key = random.below(KEYS);
        }
        let cost = if random.one_in(4) { 1 + random.below(12) } else { 1 };
        let state = exact.entry(key).or_default();
        if !ask(&store, key, &quotas[quota], cost, now).allowed {
            refused += 1;
            continue;
        }
        // The sketch of a bucket or a queue never owes less than the exact model.
        let op = Op::Take { cost, max_wait_ns: u64::MAX };
        assert!(kernel(state, &quotas[quota], op, now) || !is_bucket, "{changes:?}: the model refuses: {quotas:?}");
        taken.entry(key).or_default().push(Taken { at: now, cost, quota });
    }
    let allowed = taken.values().map(|taken| taken.len() as u64).sum();
    assert!(store.full_requests() > 50 && allowed > 100, "{allowed} allowed, {changes:?}: {quotas:?}");
    let nearest = taken.values().map(|taken| check_all(&quotas, taken)).min();
    (allowed, refused, nearest.expect("a key was admitted"))
}

/// `FULL_STORE_TRACES` sets another number of traces.
#[test]
fn no_key_of_a_full_store_is_admitted_above_the_bound_of_the_larger_quota_while_rates_change() {
    let traces = std::env::var("FULL_STORE_TRACES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let names = ["token_bucket", "leaky_bucket", "fixed_window", "fixed_window, first hit", "sliding_window_log"];
    let names = [&names[..], &["sliding_window_counter", "sliding_window_counter, 4 segments"]].concat();
    let mut random = Random(37);
    println!("algorithm: takes allowed, takes refused, units below the bound at the nearest");
    for (algorithm, name) in names.into_iter().enumerate() {
        let mut sums = (0, 0, u64::MAX);
        for _ in 0..traces {
            // With 2 KiB, the keys share all cells. With 1 MiB, each key has cells of its own.
            for (changes, bytes) in [Changes::EachCall, Changes::Reloads, Changes::Greedy]
                .into_iter()
                .flat_map(|changes| [(changes, 2048), (changes, 1 << 20)])
            {
                let (allowed, refused, nearest) = trace(algorithm, changes, bytes, &mut random);
                sums = (sums.0 + allowed, sums.1 + refused, sums.2.min(nearest));
            }
        }
        println!("{name}: {}, {}, {}", sums.0, sums.1, sums.2);
    }
}

/// Each unit of the lower rate is 100 times as long as one of the higher rate.
#[test]
fn a_changed_rate_gives_no_units_of_the_sketch_back() {
    let quotas = [1000, 10].map(|limit| build(Quota::token_bucket(limit, HOUR).burst(1000)));
    let holder = build(Quota::fixed_window(1, HOUR * 24 * 365));
    let start = at(1_000_000).as_nanos();
    for (first, second) in [(0, 1), (1, 0)] {
        for has_space in [false, true] {
            let store = full_store(1, 1 << 20);
            assert!(hit(&store, 0, &holder, Time::from_nanos(start)).allowed);
            assert!(ask(&store, 7, &quotas[first], 1000, start).allowed, "a key uses its whole burst");
            if has_space {
                make_space(&store, &holder, Time::from_nanos(start));
            }
            let refused = ask(&store, 7, &quotas[second], 990, start);
            assert!(!refused.allowed, "{first} {second}");
            // In the exact model, the debt is paid at the rate of the take too. The sketch rounds its time between two
            // units up, by less than a millionth.
            let exact_ns = 990 * quotas[first].interval_ns();
            let wait_ns = refused.retry_after.nanos().expect("a wait");
            assert!((exact_ns..exact_ns + exact_ns / 1_000_000).contains(&wait_ns), "{first} {second}: {wait_ns}");
            assert!(!ask(&store, 7, &quotas[second], 990, start + exact_ns - 1).allowed);
            assert!(ask(&store, 7, &quotas[second], 990, start + wait_ns).allowed);
            assert_eq!(store.len(), 1);
        }
    }
    // By call: each call has another limit.
    let store = full_store(1, 1 << 20);
    assert!(hit(&store, 0, &holder, Time::from_nanos(start)).allowed);
    let allowed = (0..3000).filter(|i| ask(&store, 7, &quotas[i % 2], 1, start).allowed).count();
    assert!((995..=1000).contains(&allowed), "{allowed}: each change of the rate rounds up a little");
}

/// After a limit was raised, its old debt is not forgotten. But it refuses no more than the old rate would refuse. From
/// the time on at which the old debt would have been paid, it refuses no more than a bucket with the new rate that was
/// empty then.
#[test]
fn a_raised_rate_refuses_nothing_that_the_old_rate_would_allow() {
    let mut random = Random(5);
    let holder = build(Quota::fixed_window(1, HOUR * 24 * 365));
    for round in 0..60 {
        let burst = 1 + random.below(50);
        let old_rate = 1 + random.below(20);
        let [old, new] = [old_rate, old_rate * (2 + random.below(100))]
            .map(|limit| build(Quota::token_bucket(limit, SECOND * 60).burst(burst)));
        let store = full_store(1, 1 << 20);
        let start = at(40_000_000).as_nanos();
        assert!(hit(&store, 0, &holder, Time::from_nanos(start)).allowed);
        let used = 1 + random.below(burst);
        assert!(ask(&store, 7, &old, used, start).allowed);
        // All models get the takes that the store admits: one pays all units at the old rate, the other at the new one.
        let (mut slow, mut exact, mut empty) = (State::default(), State::default(), State::default());
        for state in [&mut slow, &mut exact] {
            assert!(kernel(state, &old, Op::take(used), start));
        }
        let (paid_at, mut now, mut taken) = (start + used * old.interval_ns(), start, 0);
        assert!(kernel(&mut empty, &new, Op::take(burst), paid_at));
        while now < paid_at + 20 * new.interval_ns() {
            now += 1 + random.below(old.interval_ns() / 3);
            let allowed = ask(&store, 7, &new, 1, now).allowed;
            assert!(allowed || !fits(&slow, &old, 1, now), "{round}: refused, and the old rate allows it");
            assert!(!allowed || fits(&exact, &new, 1, now), "{round}: allowed, and the model refuses it");
            assert!(allowed || !fits(&empty, &new, 1, now) || now < paid_at, "{round}: the old debt is paid");
            if allowed {
                taken += 1;
                kernel(&mut slow, &old, Op::Force { cost: 1 }, now);
                kernel(&mut exact, &new, Op::Force { cost: 1 }, now);
            }
            if allowed && now >= paid_at {
                kernel(&mut empty, &new, Op::Force { cost: 1 }, now);
            }
        }
        assert!(taken > 0);
    }
}

/// Before the limit is lowered, the key uses units of the window that are paid soon. After it, there is space again.
/// A state can count the units of the past only when the cells show all of them.
#[test]
fn a_key_whose_past_the_cells_do_not_show_stays_in_the_sketch_until_it_is_forgotten() {
    let quotas = units_in(100, SECOND * 60).into_iter().zip(units_in(1_000, SECOND * 60));
    for (small, large) in quotas.filter(|(quota, _)| quota.algorithm() != Algorithm::TokenBucket) {
        let (store, holder) = (full_store(1, 1 << 20), build(Quota::fixed_window(1, HOUR * 24 * 365)));
        let (mut now, mut taken) = (at(1_200).as_nanos(), 0);
        assert!(hit(&store, 0, &holder, Time::from_nanos(now)).allowed);
        let take = |quota: &Quota, now| (0..1_000).filter(|_| ask(&store, 7, quota, 1, now).allowed).count();
        taken += take(&large, now);
        now += 58_000_000_000;
        taken += take(&small, now);
        make_space(&store, &holder, Time::from_nanos(now));
        taken += take(&small, now + 1_000_000_000) + take(&large, now + 1_500_000_000);
        assert!((500..=1_000).contains(&taken), "{taken} in a window: {small:?}");
        // The time of the last faster unit is noted in steps of 2.1 s.
        let forgotten = now + 2 * small.window_ns() + small.interval_ns() + 5_000_000_000;
        assert_eq!(take(&small, forgotten), 100, "a state counts exactly: {small:?}");
        assert_eq!(store.len(), 1);
    }
}

/// One request can have several limits of one state. They are decided as by the kernel.
#[test]
fn limits_of_one_state_with_different_rates_are_decided_together() {
    let store = full_store(1, 1 << 20);
    let [slow, fast] = [1, 10].map(|limit| build(Quota::token_bucket(limit, SECOND).burst(20)));
    assert!(hit(&store, 0, &slow, at(1)).allowed);
    let mut exact = State::default();
    let start = at(1).as_nanos();
    assert!(ask(&store, 1, &slow, 10, start).allowed && kernel(&mut exact, &slow, Op::take(10), start));
    let hits = [(&slow, 2), (&fast, 3)].map(|(quota, cost)| Hit::new(1, quota, Op::take(cost), Binding::Enforce));
    let (mut decisions, mut expected) = ([Decision::default(); 2], [Decision::default(); 2]);
    let verdict = store.decide_now(at(2), &hits, &mut decisions).expect("the request is well formed");
    let model = decide(slice::from_mut(&mut exact), &[0, 0], &hits, at(2), &mut expected);
    assert!(verdict.allowed && model.allowed);
    assert_eq!(decisions.map(|it| it.remaining), expected.map(|it| it.remaining));
    assert_eq!(decisions[0].remaining, 20 - 9 - 5);
    // A shadow hit that the sketch cannot decide must not clear the units of the other hits.
    let [window, large] = [10, 100].map(|limit| build(Quota::fixed_window(limit, SECOND)));
    assert!(ask(&store, 2, &window, 5, start).allowed);
    let shadow = Hit::new(2, &large, Op::take(60), Binding::Shadow);
    let hits = [shadow, Hit::new(2, &window, Op::take(5), Binding::Enforce)];
    let verdict = store.decide_now(at(1), &hits, &mut decisions).expect("the request is well formed");
    assert!(!verdict.allowed, "{decisions:?}");
}
