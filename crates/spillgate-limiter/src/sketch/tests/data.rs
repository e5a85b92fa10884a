//! Compares the Bloom filter and the Count-Min sketch with their formulas.

use std::collections::HashMap;

use spillgate_testkit::Random;

use crate::sketch::data::wrong_hits;
use crate::sketch::{BloomFilter, CountMin, SketchError};

#[test]
fn a_filter_finds_every_key_that_it_has() {
    let filter = BloomFilter::with_bytes(1 << 12).expect("there is memory");
    for key in 0..20_000_u128 {
        filter.insert(key << 60);
        assert!(filter.contains(key << 60));
    }
    assert!((0..20_000).all(|key| filter.contains(key << 60)));
}

#[test]
fn a_filter_finds_as_many_other_keys_as_its_formula_says() {
    for (keys, error) in [(20_000, 0.01), (50_000, 0.001), (300_000, 0.1)] {
        let filter = BloomFilter::for_keys(keys, error).expect("there is memory");
        (0..u128::from(keys)).for_each(|key| filter.insert(key));
        let expected = filter.wrong_hits(keys);
        assert!(expected <= error && expected > error * 0.7, "{expected} of {error}");
        let tries = 1_000_000_u32;
        let found = (0..tries).filter(|key| filter.contains(u128::from(*key) + (1 << 90))).count() as f64;
        let mean = expected * f64::from(tries);
        // The number of found keys is random, so it may differ from the mean by five standard deviations. The secret of
        // the filter is random too. For the secret, 5 % of the mean are added.
        let allowed = 5.0 * mean.sqrt() + 0.05 * mean;
        assert!((found - mean).abs() < allowed, "{found} found, {mean} expected");
    }
}

#[test]
fn the_sizes_of_filters_and_counts_have_bounds() {
    assert_eq!(BloomFilter::for_keys(0, 0.01).expect("there is memory").bytes(), 64);
    assert_eq!(BloomFilter::for_keys(10, 1.0).expect("there is memory").bytes(), 64);
    assert!(BloomFilter::for_keys(10, f64::NAN).expect("there is memory").bytes() < 1 << 20);
    assert_eq!(BloomFilter::for_keys(u64::MAX, 0.01).err(), Some(SketchError::Memory));
    assert_eq!(BloomFilter::with_bytes(usize::MAX).err(), Some(SketchError::Memory));
    assert_eq!(CountMin::with_bytes(usize::MAX).err(), Some(SketchError::Memory));
    assert!((wrong_hits(1_000_000, 1) - 1.0).abs() < 1e-9);
    assert!(wrong_hits(800, 1) > 0.99);
    let shares: Vec<f64> = (1..900).map(|keys| wrong_hits(keys, 1)).collect();
    assert!(shares.is_sorted() && shares.iter().all(|share| (0.0..=1.0).contains(share)), "more keys, more wrong hits");
    assert!(
        CountMin::for_error(f64::NAN, 1.0).expect("there is memory").bytes() < 1 << 26,
        "the smallest error is 10^-6"
    );
}

#[test]
fn an_estimate_is_never_too_low_and_rarely_far_too_high() {
    let (error, probability) = (0.001, 0.01);
    let counts = CountMin::for_error(error, probability).expect("there is memory");
    let (mut random, mut exact, mut sum) = (Random(75), HashMap::new(), 0);
    for _ in 0..200_000 {
        let bound = 1 + random.below(20_000);
        let (key, units) = (u128::from(random.below(bound)), 1 + random.below(5));
        counts.add(key, units as u32);
        *exact.entry(key).or_insert(0) += units;
        sum += units;
    }
    assert!(exact.iter().all(|(key, count)| counts.estimate(*key) >= *count));
    let far = |(key, count): (&u128, &u64)| counts.estimate(*key) > count + (error * sum as f64) as u64;
    let share = exact.iter().filter(|entry| far(*entry)).count() as f64 / exact.len() as f64;
    assert!(share <= probability, "{share} of the keys are more than {error} * N too high");
}

#[test]
fn counts_stop_at_their_highest_value() {
    let counts = CountMin::with_bytes(0).expect("there is memory");
    assert_eq!(counts.width(), 1);
    for _ in 0..3 {
        assert_eq!(counts.add(7, u32::MAX), u64::from(u32::MAX));
        assert_eq!(counts.estimate(7), u64::from(u32::MAX));
    }
    assert_eq!(counts.add(7, 1), u64::from(u32::MAX), "what is returned is the estimate");
}

#[test]
fn threads_lose_no_count() {
    let counts = CountMin::with_bytes(64).expect("there is memory");
    std::thread::scope(|scope| {
        for worker in 0..8_u32 {
            let counts = &counts;
            scope.spawn(move || {
                for i in 0..10_000 {
                    let _ = counts.add((i % 3 + worker % 2).into(), 1);
                }
            });
        }
    });
    // All threads count the keys 1 and 2. Four threads count the key 0, and the other four the key 3.
    for (key, least) in [(0, 13_336), (1, 26_600), (2, 26_600), (3, 13_332)] {
        assert!(counts.estimate(key) >= least, "{key}: {}", counts.estimate(key));
    }
}
