//! Tests of crowded tables, of spill buckets, of tables that are replaced, and of the numbers that fit a slot.

use std::sync::Arc;

use proptest::prelude::*;

use crate::memory::shards::bucket::Bucket;
use crate::memory::shards::{Content, Fingerprint, LockedBuckets, Obstacle, Shards, Table, Width};

const LAST_TIME: u64 = u64::MAX >> 1;
/// A new entry gets a slot in its home bucket or in a bucket after it, within this many buckets.
const CHAIN: u64 = 128;

/// Makes a key. All keys with the same `high` have the same home bucket, however large the table is, because `low` does
/// not choose the bucket.
fn same_home(high: u64, number: u64) -> Fingerprint {
    Fingerprint { high, low: number << 40 }
}

fn insert(table: &Table, key: Fingerprint, number: u64) -> Result<(), Obstacle> {
    let mut locked = LockedBuckets::starting_at(table, table.home_bucket(key));
    assert_eq!(locked.find(key)?, None);
    let position = locked.claim(key)?;
    assert!(locked.write(key, position, Content::Inline { expires_at: LAST_TIME - 1, first: number, second: 0 }));
    Ok(())
}

fn number(table: &Table, key: Fingerprint) -> Option<u64> {
    let mut locked = LockedBuckets::starting_at(table, table.home_bucket(key));
    let position = locked.find(key).expect("the table has not moved")?;
    match locked.content(position) {
        Content::Inline { first, .. } => Some(first),
        Content::InSlab { .. } => None,
    }
}

#[test]
fn a_chain_can_reach_its_bound_and_no_further() {
    for width in [Width::Narrow, Width::Wide] {
        let table = Table::new(width, 0, 64);
        let most = CHAIN * width.slots() as u64;
        for i in 0..most {
            assert_eq!(insert(&table, same_home(1, i), i), Ok(()));
        }
        assert_eq!(insert(&table, same_home(1, most), most), Err(Obstacle::Crowded));
        assert!((0..most).all(|i| number(&table, same_home(1, i)) == Some(i)));
        assert_eq!(number(&table, same_home(1, most)), None);
    }
}

#[test]
fn entries_in_spill_buckets_are_found_and_move_to_any_table() {
    for width in [Width::Narrow, Width::Wide] {
        let table = Table::new(width, 0, 8);
        let keys = (0..1000).take_while(|&i| insert(&table, same_home(u64::MAX, i), i).is_ok()).count() as u64;
        assert!(keys > 3 * width.slots() as u64, "the table has space for only {keys} keys");
        for home_buckets in [1, 8, 9, 100] {
            let (from, mut to) = (Table::new(width, 0, 8), Table::new(width, 0, home_buckets));
            (0..keys).for_each(|i| assert_eq!(insert(&from, same_home(u64::MAX, i), i), Ok(())));
            from.move_entries_to(&mut to, 1, |content| panic!("{content:?} has not expired"));
            assert!(
                (0..keys).all(|i| number(&to, same_home(u64::MAX, i)) == Some(i)),
                "a key is missing in a new table of {home_buckets} home buckets"
            );
        }
        assert!((0..keys).all(|i| number(&table, same_home(u64::MAX, i)) == Some(i)));
    }
}

#[test]
fn the_rest_of_a_chain_is_found_after_entries_are_removed() {
    let table = Table::new(Width::Narrow, 0, 16);
    (0..60).for_each(|i| assert_eq!(insert(&table, same_home(1, i), i), Ok(())));
    for i in (0..60).step_by(2) {
        let mut locked = LockedBuckets::starting_at(&table, 0);
        let position = locked.find(same_home(1, i)).expect("the table has not moved").expect("the key was inserted");
        locked.remove(same_home(1, i), position);
    }
    assert!((0..60).all(|i| number(&table, same_home(1, i)) == (i % 2 == 1).then_some(i)));
    let mut removed = 0;
    let mut locked = LockedBuckets::starting_at(&table, 0);
    locked.remove_expired(LAST_TIME, |_| removed += 1).expect("the table has not moved");
    drop(locked);
    assert_eq!(removed, 30);
    assert!(table.overflows().iter().all(|&overflows| overflows == 0));
}

#[test]
fn a_sweep_does_not_replace_a_table_of_the_smallest_size() {
    const BITS: u32 = 7;
    let shards = Shards::new(Width::Narrow, BITS);
    for shard in 0..1 << BITS {
        assert!(shards.grow(shard, 0, |_| ()));
        let table = Arc::clone(&shards.load(shard));
        for _ in 0..3 {
            shards.sweep(shard, 1_000, 0, |_| ());
        }
        let same = Arc::ptr_eq(&table, &shards.load(shard));
        assert!(same, "a sweep replaced a table of {} home buckets in shard {shard}", table.home_buckets());
    }
}

proptest! {
    #[test]
    fn a_slot_stores_exactly_the_numbers_that_fit(
        high in 1u64.., low: u64, expires_at in 1u64..=LAST_TIME, first: u64, shift in 0u32..64, round in 0u32..4,
        second: u64,
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
                    prop_assert_eq!(bucket.fingerprint(width, 1).map(|stored| stored.high), Some(high));
                    prop_assert!(bucket.fingerprint(width, 0).is_none() && bucket.fingerprint(width, 2).is_none());
                    bucket.clear(width, 1);
                }
                prop_assert_eq!(bucket.fingerprint(width, 1), None);
            }
        }
    }
}
