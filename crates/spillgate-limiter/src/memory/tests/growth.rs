//! Tests of a store that grows, shrinks and sweeps, and of keys that have the same home bucket in a table of any size.

use spillgate_testkit::Random;

use super::overflow::{most, quotas};
use super::*;

/// An entry is in its home bucket or in a bucket after it, within this many buckets.
const CHAIN: usize = 128;

#[test]
fn keys_that_no_table_can_separate_are_refused_in_bounded_memory() {
    let quota = Quota::fixed_window(2, SECOND).build().expect("the quota is valid");
    let store = store(1_000_000, OnFull::Deny);
    // All these keys agree in the 64 bits that choose the home bucket. Hashed keys do not agree in this many bits, but
    // a caller that does not hash its keys can make such keys.
    let key = |i: u128| {
        let low = (i << 40) as u64;
        (u128::from(low.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1 << 63) << 64 | u128::from(low)) ^ quota.identity()
    };
    let admitted: Vec<u128> = (0..1000).filter(|&i| take(&store, key(i), &quota, at(1)).allowed).collect();
    let most = CHAIN * Width::Narrow.slots();
    assert!((most - 10..=most).contains(&admitted.len()), "{} keys were admitted", admitted.len());
    assert!(admitted.iter().all(|&i| take(&store, key(i), &quota, at(1)).remaining == 0), "admitted keys are counted");
    assert_eq!(store.full_requests(), 1000 - admitted.len() as u64);
    assert!(store.slots() < 100 * most, "the table has {} slots", store.slots());
}

#[test]
fn a_store_shrinks_when_its_keys_have_expired() {
    let quotas = [
        Quota::token_bucket(1, SECOND).build().expect("the quota is valid"),
        Quota::sliding_window_counter(1, SECOND).build().expect("the quota is valid"),
    ];
    for quota in &quotas {
        let store = store(1_000_000, OnFull::Deny);
        (0..100_000).for_each(|key| assert!(hit(&store, key, quota, at(1)).allowed));
        let slots = store.slots();
        assert!((100_000..150_000).contains(&slots), "{slots} slots for 100,000 keys");
        // One key comes each millisecond. The state of a token bucket expires after 1 s, and the state of a counter
        // after at most 2 s. So at most 2,000 states are live at a time.
        for key in 100_000..250_000 {
            let now = Time::from_nanos(at(4).as_nanos() + key * 1_000_000);
            assert!(hit(&store, key, quota, now).allowed);
        }
        assert!(store.len() < 10_000, "there are {} states", store.len());
        assert!(store.slots() < slots / 4, "{} slots of {slots} are left", store.slots());
    }
}

/// After an attack nobody asks any more, so no decision removes the states.
#[test]
fn a_store_that_nobody_asks_forgets_expired_keys_and_shrinks_by_time() {
    let quotas = [
        Quota::token_bucket(1, SECOND).build().expect("the quota is valid"),
        Quota::sliding_window_counter(1, SECOND).build().expect("the quota is valid"),
        Quota::sliding_window_log(5, SECOND).build().expect("the quota is valid"),
    ];
    for quota in &quotas {
        let store = store(1_000_000, OnFull::Deny);
        (0..100_000).for_each(|key| assert!(hit(&store, key, quota, at(1)).allowed));
        let day = Quota::fixed_window(1, SECOND * 86_400).build().expect("the quota is valid");
        assert!(hit(&store, 1, &day, at(1)).allowed);
        let (slots, calls) = (store.slots(), 100);
        (0..calls).for_each(|_| store.sweep_part(at(1), 50));
        assert_eq!(store.len(), 100_001, "nothing has expired yet");
        // Each call does its part, so no call does all the work.
        store.sweep_part(at(4), 50);
        assert!(store.len() > 90_000, "{} are left after one of 50 calls", store.len());
        (0..calls).for_each(|_| store.sweep_part(at(4), 50));
        assert_eq!(store.len(), 1, "the state of a day is left");
        assert!(store.slots() < slots / 20, "{} slots of {slots} are left", store.slots());
        assert_eq!(store.budget.heap_bytes(), 0, "the states in slabs are gone too");
        assert!(!hit(&store, 1, &day, at(4)).allowed);
    }
}

/// A thread reads the clock. Before this thread decides, another thread removes the expired state of the key.
#[test]
fn a_late_request_does_not_get_a_limit_again_whose_state_was_removed() {
    let brief = Quota::token_bucket(1, Duration::from_micros(1)).build().expect("the quota is valid");
    let generous = Quota::token_bucket(1_000, SECOND).build().expect("the quota is valid");
    let late = Time::from_nanos(at(1_000).as_nanos() + 100_000_000);
    let of_five = quotas().into_iter().filter(|quota| quota.limit() == 5);
    for (quota, second) in of_five.flat_map(|quota| [(quota.clone(), None), (quota, Some(&generous))]) {
        for end in [1_001, 1_002] {
            let store = store(1_000_000, OnFull::Deny);
            let take_all = |now| {
                let request = || {
                    let hits = [Some(&quota), second].map(|quota| {
                        quota.map(|quota| {
                            Hit::new(7, quota, Op::Take { cost: 1, max_wait_ns: u64::MAX }, Binding::Enforce)
                        })
                    });
                    let hits: Vec<Hit<'_>> = hits.into_iter().flatten().collect();
                    let mut decisions = vec![Decision::default(); hits.len()];
                    store.decide_now(now, &hits, &mut decisions).expect("the request is well formed").allowed
                };
                (0..100).filter(|_| request()).count() as u64
            };
            let mut admitted = take_all(at(1_000));
            (1_000..6_000).for_each(|key| assert!(hit(&store, key, &brief, at(end)).allowed));
            // A request is late by at most a second.
            let late = if end == 1_001 { late } else { at(end - 1) };
            admitted += take_all(late) + take_all(at(end));
            let bound = most(&quota, at(end).as_nanos() - at(1_000).as_nanos());
            assert!(admitted <= bound, "{admitted} of {bound} until {end}: {quota:?}");
        }
    }
}

/// Requests read the clock up to half a second before they are decided. Each bound holds for the time from the first
/// request's reading of the clock to the decision of the last request.
#[test]
fn late_requests_keep_every_bound_while_states_are_removed() {
    const KEYS: u64 = 16;
    let mut random = Random(77);
    for (quota, max_keys) in quotas().into_iter().flat_map(|quota| [(quota.clone(), 4), (quota, 1_000)]) {
        let store = store(max_keys, OnFull::Sketch { bytes: 1 << 14 });
        let (mut clock, mut admitted) = (1_000_000_000_000, vec![Vec::new(); KEYS as usize]);
        for _ in 0..4_000 {
            clock += random.below(20_000_000);
            let now = clock - random.below(500_000_000) * random.below(2);
            let key = random.below(KEYS);
            let op = Op::Take { cost: 1, max_wait_ns: u64::MAX };
            if store.hit_now(Time::from_nanos(now), &Hit::new(key.into(), &quota, op, Binding::Enforce)).allowed {
                admitted[key as usize].push((clock, now));
            }
        }
        for times in admitted {
            for (first, (_, from)) in times.iter().enumerate() {
                for (units, (until, _)) in (1..).zip(times[first..].iter().filter(|(_, now)| now >= from)) {
                    let bound = most(&quota, until - from);
                    assert!(units <= bound, "{units} of {bound} in {} ns: {quota:?}", until - from);
                }
            }
        }
    }
}

#[test]
fn requests_for_known_keys_sweep_all_others_of_both_widths() {
    let brief = Quota::token_bucket(1, SECOND).build().expect("the quota is valid");
    let brief_wide = Quota::sliding_window_counter(1, SECOND).build().expect("the quota is valid");
    let long = Quota::token_bucket(1_000_000, 1000 * SECOND).build().expect("the quota is valid");
    for hits in 1..=2 {
        let store = store(100_000, OnFull::Deny);
        for key in 0..10_000 {
            assert!(hit(&store, key, &brief, at(1)).allowed && hit(&store, key, &brief_wide, at(1)).allowed);
        }
        let slots = store.slots();
        for turn in 0..400_000 {
            let now = Time::from_nanos(at(4).as_nanos() + turn * 1_000);
            let keys = [turn % 50, turn % 50 + 50].map(u128::from);
            let request = keys.map(|key| Hit::new(key, &long, Op::take(1), Binding::Enforce));
            let mut decisions = [Decision::default(); 2];
            store.decide_now(now, &request[..hits], &mut decisions[..hits]).expect("the request is well formed");
        }
        assert!(store.len() <= 100, "there are {} states", store.len());
        assert!(store.slots() < slots / 4, "{} slots of {slots} are left", store.slots());
    }
}

#[test]
fn a_call_removes_few_entries_unless_it_replaces_the_table() {
    let brief = Quota::token_bucket(1, SECOND).build().expect("the quota is valid");
    let long = Quota::token_bucket(1_000_000, 1000 * SECOND).build().expect("the quota is valid");
    let store = store(100_000, OnFull::Deny);
    (0..50_000).for_each(|key| assert!(hit(&store, key, &brief, at(1)).allowed));
    let mut replaced = 0;
    let mut before = (store.len(), store.slots());
    for turn in 0..400_000 {
        let now = Time::from_nanos(at(4).as_nanos() + turn * 1_000);
        assert!(hit(&store, turn % 50, &long, now).allowed);
        let after = (store.len(), store.slots());
        if after.1 == before.1 {
            // One call sweeps eight home buckets, which have 40 slots together. Entries of these home buckets can also
            // be in later buckets, so one call can remove more than 40 entries.
            assert!(before.0.saturating_sub(after.0) <= 80, "one call removed {} entries", before.0 - after.0);
        } else {
            replaced += 1;
        }
        before = after;
    }
    assert!(before.0 <= 50, "there are {} states", before.0);
    assert!((1..10).contains(&replaced), "the table was replaced {replaced} times");
}

#[test]
fn keys_that_agree_in_all_stored_bits_are_one_key() {
    let quota = Quota::token_bucket(3, SECOND).build().expect("the quota is valid");
    let key = |number: u128| {
        let own = Hit::new(number, &quota, Op::take(1), Binding::Enforce);
        (own, Fingerprint::of(own.state_key(), Width::Narrow))
    };
    // The two keys differ in the lowest of their 128 bits. A fingerprint (the stored part of a key) does not have this
    // bit, but the bit changes other bits of the fingerprint. The second key reverses these changes in advance, so both
    // fingerprints are equal.
    let mixed = |low: u64| u128::from(low.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64;
    let low = quota.identity() as u64;
    let ((one, stored), (other, also_stored)) = (key(0), key(1 ^ mixed(low) ^ mixed(low ^ 1)));
    assert_eq!(stored, also_stored);
    let store = store(10, OnFull::Deny);
    let mut decisions = [Decision::default(); 2];
    for (now, remaining) in [(at(1), 1), (at(9), 1)] {
        store.decide_now(now, &[one, other], &mut decisions).expect("the request is well formed");
        assert_eq!(decisions.map(|decision| decision.remaining), [remaining; 2]);
        assert_eq!(store.len(), 1);
    }
}

#[test]
fn expired_states_of_one_width_free_capacity_for_the_other() {
    let narrow = Quota::token_bucket(1, SECOND).build().expect("the quota is valid");
    let wide = Quota::sliding_window_counter(1, SECOND).build().expect("the quota is valid");
    for (first, second) in [(&narrow, &wide), (&wide, &narrow)] {
        let store = store(100, OnFull::Deny);
        assert!((0..100).all(|key| hit(&store, key, first, at(1)).allowed));
        assert_eq!(hit(&store, 200, second, at(1)).reason, Reason::StoreFull);
        assert!(
            (0..100).all(|key| hit(&store, key, second, at(10)).allowed),
            "all states of the first quota have expired"
        );
    }
}

#[test]
fn a_request_with_the_highest_number_of_new_keys_fits_an_empty_store() {
    let quota = Quota::fixed_window(2, SECOND).build().expect("the quota is valid");
    for seed in 0..200 {
        let store = store(1_000_000, OnFull::Deny);
        let hits: Vec<_> = (0..MAX_HITS as u128)
            .map(|i| {
                Hit::new(
                    (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
                    &quota,
                    Op::take(1),
                    Binding::Enforce,
                )
            })
            .collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        assert!(
            store.decide_now(at(1), &hits, &mut decisions).expect("the request is well formed").allowed,
            "seed {seed}"
        );
    }
}

#[test]
fn a_key_that_finds_a_full_store_and_then_a_crowded_table_gets_a_larger_table() {
    let quota = Quota::fixed_window(2, SECOND * 3600).build().expect("the quota is valid");
    let brief = Quota::sliding_window_counter(1, SECOND).build().expect("the quota is valid");
    // The smallest table with several buckets has 58 home buckets. The last one is the home bucket of all these keys.
    // After this bucket come six spill buckets, which store entries that do not fit their home bucket. A bucket has
    // five slots, so (1 + 6) * 5 = 35 of these keys fit.
    let last = |&key: &u64| {
        let hit = Hit::new(u128::from(key), &quota, Op::take(1), Binding::Enforce);
        let key = Fingerprint::of(hit.state_key(), Width::Narrow);
        Table::new(Width::Narrow, 0, 56).home_bucket(key) == 57
    };
    let crowd: Vec<u64> = (0..).filter(last).take(36).collect();
    let store = store(36, OnFull::Deny);
    assert!(crowd[..35].iter().all(|&key| hit(&store, key, &quota, at(1)).allowed));
    assert!(hit(&store, 0, &brief, at(1)).allowed);
    assert_eq!(hit(&store, crowd[35], &quota, at(1)).reason, Reason::StoreFull);
    assert!(hit(&store, crowd[35], &quota, at(9)).allowed, "there is capacity, and a larger table has a free slot");
    assert_eq!(store.len(), 36);
}
