//! Tables that grow, shrink, are crowded and end; what a slot can hold.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::bucket::{Bucket, Content, Width};
use super::super::fingerprint::Fingerprint;
use super::super::table::{Locked, Obstacle, Table};
use super::*;

const LASTS: u64 = u64::MAX >> 1;
/// Buckets that an entry may lie in, from its home on.
const CHAIN: u64 = 128;

/// Keys of one home bucket, however large the table: only what does not choose the home differs.
fn twin(high: u64, number: u64) -> Fingerprint {
    Fingerprint { high, low: number << 40 }
}

/// Counts `number` for a new key.
fn insert(table: &Table, key: Fingerprint, number: u64) -> Result<(), Obstacle> {
    let mut locked = Locked::from(table, table.home(key));
    assert_eq!(locked.find(key)?, None);
    let at = locked.claim(key)?;
    assert!(locked.write(key, at, Content::Inline { expires_at: LASTS - 1, first: number, second: 0 }));
    Ok(())
}

fn number(table: &Table, key: Fingerprint) -> Option<u64> {
    let mut locked = Locked::from(table, table.home(key));
    let at = locked.find(key).expect("it has not moved")?;
    match locked.content(at) {
        Content::Inline { first, .. } => Some(first),
        Content::Boxed { .. } => None,
    }
}

#[test]
fn a_chain_is_as_long_as_it_may_be_and_no_longer() {
    for width in [Width::Narrow, Width::Wide] {
        let table = Table::new(width, 0, 64);
        let room = CHAIN * width.slots() as u64;
        for i in 0..room {
            assert_eq!(insert(&table, twin(1, i), i), Ok(()));
        }
        assert_eq!(insert(&table, twin(1, room), room), Err(Obstacle::Crowded));
        assert!((0..room).all(|i| number(&table, twin(1, i)) == Some(i)));
        assert_eq!(number(&table, twin(1, room)), None);
    }
}

#[test]
fn entries_behind_the_last_home_are_found_and_move_to_any_table() {
    for width in [Width::Narrow, Width::Wide] {
        let table = Table::new(width, 0, 8);
        let keys = (0..1000).take_while(|&i| insert(&table, twin(u64::MAX, i), i).is_ok()).count() as u64;
        assert!(keys > 3 * width.slots() as u64, "{keys} keys");
        for homes in [1, 8, 9, 100] {
            let (from, mut to) = (Table::new(width, 0, 8), Table::new(width, 0, homes));
            (0..keys).for_each(|i| assert_eq!(insert(&from, twin(u64::MAX, i), i), Ok(())));
            from.move_to(&mut to, 1, |gone| panic!("{gone:?} has not expired"));
            assert!((0..keys).all(|i| number(&to, twin(u64::MAX, i)) == Some(i)), "{homes} homes");
        }
        assert!((0..keys).all(|i| number(&table, twin(u64::MAX, i)) == Some(i)));
    }
}

#[test]
fn removed_entries_leave_the_rest_of_the_chain_in_reach() {
    let table = Table::new(Width::Narrow, 0, 16);
    (0..60).for_each(|i| assert_eq!(insert(&table, twin(1, i), i), Ok(())));
    for i in (0..60).step_by(2) {
        let mut locked = Locked::from(&table, 0);
        let at = locked.find(twin(1, i)).expect("it has not moved").expect("it is there");
        locked.remove(twin(1, i), at);
    }
    assert!((0..60).all(|i| number(&table, twin(1, i)) == (i % 2 == 1).then_some(i)));
    let mut gone = 0;
    Locked::from(&table, 0).forget_expired(LASTS, |_| gone += 1).expect("it has not moved");
    assert_eq!(gone, 30);
    assert!(table.passed().iter().all(|&passed| passed == 0));
}

#[test]
fn keys_that_no_table_can_tell_apart_are_refused_in_bounded_memory() {
    let quota = Quota::fixed_window(2, SECOND).build().expect("valid");
    let store = store(1_000_000, OnFull::Deny);
    // Of a hash, no two keys agree in these 64 bits; whoever numbers keys can have them all do so.
    let key = |i: u128| {
        let low = (i << 40) as u64;
        (u128::from(low.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1 << 63) << 64 | u128::from(low)) ^ quota.identity()
    };
    let admitted: Vec<u128> = (0..1000).filter(|&i| take(&store, key(i), &quota, at(1)).allowed).collect();
    let room = CHAIN as usize * Width::Narrow.slots();
    assert!((room - 10..=room).contains(&admitted.len()), "{} were admitted", admitted.len());
    assert!(admitted.iter().all(|&i| take(&store, key(i), &quota, at(1)).remaining == 0), "those are counted on");
    assert_eq!(store.full_requests(), 1000 - admitted.len() as u64);
    assert!(store.slots() < 100 * room, "{} slots", store.slots());
}

#[test]
fn a_store_shrinks_when_its_keys_have_expired() {
    let quotas = [
        Quota::token_bucket(1, SECOND).build().expect("valid"),
        Quota::sliding_window_counter(1, SECOND).build().expect("valid"),
    ];
    for quota in &quotas {
        let store = store(1_000_000, OnFull::Deny);
        (0..100_000).for_each(|key| assert!(hit(&store, key, quota, at(1)).allowed));
        let slots = store.slots();
        assert!((100_000..150_000).contains(&slots), "{slots} slots for 100,000 keys");
        // Each key lives for a thousand others, or two thousand.
        for key in 100_000..250_000 {
            let now = Time::from_nanos(at(4).as_nanos() + key * 1_000_000);
            assert!(hit(&store, key, quota, now).allowed);
        }
        assert!(store.len() < 10_000, "{} states are held", store.len());
        assert!(store.slots() < slots / 4, "{} slots of {slots} are left", store.slots());
    }
}

#[test]
fn known_keys_alone_have_the_rest_forgotten_whatever_the_request_and_the_width() {
    let brief = Quota::token_bucket(1, SECOND).build().expect("valid");
    let brief_wide = Quota::sliding_window_counter(1, SECOND).build().expect("valid");
    let long = Quota::token_bucket(1_000_000, 1000 * SECOND).build().expect("valid");
    for hits in 1..=2 {
        let store = store(100_000, OnFull::Deny);
        for key in 0..10_000 {
            assert!(hit(&store, key, &brief, at(1)).allowed && hit(&store, key, &brief_wide, at(1)).allowed);
        }
        let slots = store.slots();
        for turn in 0..400_000 {
            let now = Time::from_nanos(at(4).as_nanos() + turn * 1_000);
            let keys = [turn % 50, turn % 50 + 50].map(u128::from);
            let asked = keys.map(|key| Hit::new(key, &long, Op::take(1), Binding::Enforce));
            let mut decisions = [Decision::default(); 2];
            store.decide_now(now, &asked[..hits], &mut decisions[..hits]).expect("it is well formed");
        }
        assert!(store.len() <= 100, "{} states are held", store.len());
        assert!(store.slots() < slots / 4, "{} slots of {slots} are left", store.slots());
    }
}

#[test]
fn a_call_looks_at_few_entries_unless_it_replaces_the_table() {
    let brief = Quota::token_bucket(1, SECOND).build().expect("valid");
    let long = Quota::token_bucket(1_000_000, 1000 * SECOND).build().expect("valid");
    let store = store(100_000, OnFull::Deny);
    (0..50_000).for_each(|key| assert!(hit(&store, key, &brief, at(1)).allowed));
    let mut replaced = 0;
    let mut held = (store.len(), store.slots());
    for turn in 0..400_000 {
        let now = Time::from_nanos(at(4).as_nanos() + turn * 1_000);
        assert!(hit(&store, turn % 50, &long, now).allowed);
        let holds = (store.len(), store.slots());
        if holds.1 == held.1 {
            // Eight homes of five slots, and what lies behind them.
            assert!(held.0.saturating_sub(holds.0) <= 80, "{} were forgotten in one call", held.0 - holds.0);
        } else {
            replaced += 1;
        }
        held = holds;
    }
    assert!(held.0 <= 50, "{} states are held", held.0);
    assert!((1..10).contains(&replaced), "{replaced} tables");
}

#[test]
fn a_table_that_is_as_small_as_can_be_stays_as_it_is() {
    const BITS: u32 = 7;
    let shards = Shards::new(Width::Narrow, BITS);
    for shard in 0..1 << BITS {
        assert!(shards.grow(shard, 0, |_| ()));
        let table = Arc::clone(&shards.load(shard));
        for _ in 0..3 {
            shards.tend(shard, 1_000, 0, |_| ());
        }
        assert!(Arc::ptr_eq(&table, &shards.load(shard)), "{} homes in shard {shard}", table.homes());
    }
}

#[test]
fn keys_that_agree_in_all_that_a_slot_keeps_are_one_key() {
    let quota = Quota::token_bucket(3, SECOND).build().expect("valid");
    let key = |number: u128| {
        let own = Hit::new(number, &quota, Op::take(1), Binding::Enforce);
        (own, Fingerprint::of(&own, Width::Narrow))
    };
    // Alike but for the lowest bit of 128, with what that bit adds to the others taken away again.
    let mixed = |low: u64| u128::from(low.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64;
    let low = quota.identity() as u64;
    let ((one, kept), (other, also_kept)) = (key(0), key(1 ^ mixed(low) ^ mixed(low ^ 1)));
    assert_eq!(kept, also_kept);
    let store = store(10, OnFull::Deny);
    let mut decisions = [Decision::default(); 2];
    for (now, remaining) in [(at(1), 1), (at(9), 1)] {
        store.decide_now(now, &[one, other], &mut decisions).expect("it is well formed");
        assert_eq!(decisions.map(|decision| decision.remaining), [remaining; 2]);
        assert_eq!(store.len(), 1);
    }
}

#[test]
fn room_is_made_of_expired_states_of_the_other_width() {
    let narrow = Quota::token_bucket(1, SECOND).build().expect("valid");
    let wide = Quota::sliding_window_counter(1, SECOND).build().expect("valid");
    for (first, second) in [(&narrow, &wide), (&wide, &narrow)] {
        let store = store(100, OnFull::Deny);
        assert!((0..100).all(|key| hit(&store, key, first, at(1)).allowed));
        assert_eq!(hit(&store, 200, second, at(1)).reason, Reason::StoreFull);
        assert!((0..100).all(|key| hit(&store, key, second, at(10)).allowed), "all others have expired");
    }
}

proptest! {
    #[test]
    fn a_slot_keeps_exactly_what_it_says_it_can(
        high in 1u64.., low: u64, expires_at in 1u64..=LASTS, first: u64, shift in 0u32..64, round in 0u32..4, second: u64,
    ) {
        let (key, scale) = (Fingerprint { high, low }, 1000u64.pow(round));
        let first = first >> shift;
        for first in [first, first / scale * scale] {
            for (width, second) in [(Width::Narrow, 0), (Width::Narrow, second), (Width::Wide, second)] {
                let (bucket, content) = (Bucket::default(), Content::Inline { expires_at, first, second });
                let few_digits = (0..4).any(|thousands| {
                    first.is_multiple_of(1000u64.pow(thousands)) && first / 1000u64.pow(thousands) < 1 << 38
                });
                let fits = width == Width::Wide || second == 0 && few_digits;
                prop_assert_eq!(bucket.write(width, 1, key, content), fits);
                prop_assert_eq!(bucket.find(width, key), fits.then_some(1));
                if fits {
                    prop_assert_eq!(bucket.content(width, 1), content);
                    prop_assert_eq!(bucket.fingerprint(width, 1).map(|kept| kept.high), Some(high));
                    prop_assert!(bucket.fingerprint(width, 0).is_none() && bucket.fingerprint(width, 2).is_none());
                    bucket.clear(width, 1);
                }
                prop_assert_eq!(bucket.fingerprint(width, 1), None);
            }
        }
    }
}

#[test]
fn a_request_of_as_many_new_keys_as_there_may_be_finds_room_in_an_empty_store() {
    let quota = Quota::fixed_window(2, SECOND).build().expect("valid");
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
        assert!(store.decide_now(at(1), &hits, &mut decisions).expect("well formed").allowed, "seed {seed}");
    }
}

#[test]
fn a_key_that_finds_the_store_full_and_then_its_place_crowded_gets_a_larger_table() {
    let quota = Quota::fixed_window(2, SECOND * 3600).build().expect("valid");
    let brief = Quota::sliding_window_counter(1, SECOND).build().expect("valid");
    // Of the smallest table, these keys belong to the last home: there are six buckets of five slots behind it.
    let last = |&key: &u64| {
        let key = Fingerprint::of(&Hit::new(u128::from(key), &quota, Op::take(1), Binding::Enforce), Width::Narrow);
        Table::new(Width::Narrow, 0, 56).home(key) == 57
    };
    let crowd: Vec<u64> = (0..).filter(last).take(36).collect();
    let store = store(36, OnFull::Deny);
    assert!(crowd[..35].iter().all(|&key| hit(&store, key, &quota, at(1)).allowed));
    assert!(hit(&store, 0, &brief, at(1)).allowed);
    assert_eq!(hit(&store, crowd[35], &quota, at(1)).reason, Reason::StoreFull);
    assert!(hit(&store, crowd[35], &quota, at(9)).allowed, "there is room, and a larger table would have a place");
    assert_eq!(store.len(), 36);
}
