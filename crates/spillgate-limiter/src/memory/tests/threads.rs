//! Tests with many threads and many keys, while tables grow and expired entries are swept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;

const THREADS: u64 = 4;
const KEYS: u64 = 200_000;

fn each_thread(work: impl Fn(u64) -> u64 + Sync) -> u64 {
    let work = &work;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).sum()
    })
}

#[test]
fn no_unit_is_lost_while_tables_grow_under_threads() {
    let quota = Quota::fixed_window(100, SECOND).build().expect("the quota is valid");
    let store = store(1_000_000, OnFull::Deny);
    // For each key, two threads take one unit each. These two threads begin at different keys.
    let admitted = each_thread(|worker| {
        let keys = (0..KEYS).map(|i| (i + worker / 2 * (KEYS / 2)) % KEYS).filter(|key| key % 2 == worker % 2);
        keys.filter(|&key| hit(&store, key, &quota, at(1)).allowed).count() as u64
    });
    assert_eq!(admitted, 2 * KEYS);
    assert_eq!(store.len() as u64, KEYS);
    let wrong = (0..KEYS).find(|&key| hit(&store, key, &quota, at(1)).remaining != 97);
    assert_eq!(wrong, None, "two threads took one unit each, and this take counts the third unit: 100 - 3 = 97");
}

#[test]
fn max_keys_is_exact_over_all_shards_and_threads() {
    let quota = Quota::fixed_window(1, SECOND).build().expect("the quota is valid");
    let store = store(KEYS as usize, OnFull::Deny);
    let admitted = each_thread(|worker| {
        let keys = (0..KEYS).map(|i| worker * KEYS + i).take(KEYS as usize * 3 / 10);
        keys.filter(|&key| hit(&store, key, &quota, at(1)).allowed).count() as u64
    });
    assert_eq!((admitted, store.len() as u64), (KEYS, KEYS));
    assert_eq!(store.full_requests(), THREADS * (KEYS * 3 / 10) - KEYS);
}

#[test]
fn live_keys_admit_no_more_while_other_keys_come_and_expire() {
    const LASTING: u64 = 5_000;
    let day = Quota::fixed_window(1, Duration::from_secs(86_400)).build().expect("the quota is valid");
    let brief = [
        Quota::token_bucket(1, Duration::from_micros(20)).build().expect("the quota is valid"),
        Quota::sliding_window_counter(1, Duration::from_micros(20)).build().expect("the quota is valid"),
    ];
    let store = store(1_000_000, OnFull::Deny);
    let clock = AtomicU64::new(at(86_400).as_nanos());
    let admitted = each_thread(|worker| {
        let mut admitted = 0;
        for i in 0..10 * LASTING {
            let now = Time::from_nanos(clock.fetch_add(100, Ordering::Relaxed));
            let _ = hit(&store, LASTING + worker * 1_000_000 + i, &brief[i as usize % 2], now);
            let lasting = (i * 7 + worker) % LASTING;
            admitted += u64::from(hit(&store, lasting, &day, now).allowed);
        }
        admitted
    });
    assert_eq!(admitted, LASTING);
    assert!(store.len() < 2 * LASTING as usize, "there are {} states", store.len());
}
