//! Tests of the memory store: compared with the kernel, at its bounds, and with many threads.

mod changed_rates;
mod compared;
mod growth;
mod overflow;
mod threads;

use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, MAX_HITS, Op, Quota, Reason, Time, Wait};

use super::shards::{Fingerprint, Table, Width};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(secs: u64) -> Time {
    Time::from_nanos(secs * 1_000_000_000)
}

fn store(max_keys: usize, on_full: OnFull) -> MemoryStore {
    MemoryStore::new(MemoryOptions { max_keys, on_full, ..MemoryOptions::default() })
}

fn take(store: &MemoryStore, key: u128, quota: &Quota, now: Time) -> Decision {
    let mut decisions = [Decision::default()];
    let hit = Hit::new(key, quota, Op::take(1), Binding::Enforce);
    let verdict = store.decide_now(now, &[hit], &mut decisions).expect("the request is well formed");
    assert_eq!(verdict.allowed, decisions[0].allowed);
    decisions[0]
}

fn hit(store: &MemoryStore, key: u64, quota: &Quota, now: Time) -> Decision {
    store.hit_now(now, &Hit::new(u128::from(key), quota, Op::take(1), Binding::Enforce))
}

impl MemoryStore {
    fn slots(&self) -> usize {
        self.narrow.slots() + self.wide.slots()
    }
}

#[test]
fn a_full_store_refuses_new_keys_and_keeps_the_old_ones() {
    let quota = Quota::token_bucket(2, SECOND).build().expect("the quota is valid");
    let store = store(3, OnFull::Deny);
    for key in 0..3 {
        assert!(take(&store, key, &quota, at(1)).allowed);
    }
    let refused = take(&store, 3, &quota, at(1));
    assert!(!refused.allowed);
    assert_eq!((refused.reason, refused.retry_after), (Reason::StoreFull, Wait::Unknown));
    assert_eq!(store.full_requests(), 1);
    assert_eq!(take(&store, 0, &quota, at(1)).remaining, 0, "known keys are still counted");
    assert_eq!(store.len(), 3);
    assert!(take(&store, 3, &quota, at(3)).allowed, "expired states free capacity");
    assert!(store.len() <= 3);
}

#[test]
fn one_request_with_many_new_keys_cannot_exceed_the_bound() {
    let quota = Quota::fixed_window(2, SECOND).build().expect("the quota is valid");
    let store = store(3, OnFull::Deny);
    let hits = [0, 1, 2, 3].map(|key| Hit::new(key, &quota, Op::take(1), Binding::Enforce));
    let mut decisions = [Decision::default(); 4];
    assert!(!store.decide_now(at(1), &hits, &mut decisions).expect("the request is well formed").allowed);
    assert_eq!(decisions.iter().filter(|decision| decision.reason == Reason::StoreFull).count(), 1);
    assert!(store.decide_now(at(1), &hits[..3], &mut decisions[..3]).expect("the request is well formed").allowed);
    assert_eq!(store.len(), 3);
}

#[test]
fn a_full_store_that_allows_counts_nothing() {
    let quota = Quota::token_bucket(1, SECOND).build().expect("the quota is valid");
    let store = store(1, OnFull::Allow);
    assert!(take(&store, 0, &quota, at(1)).allowed);
    for _ in 0..5 {
        assert!(take(&store, 1, &quota, at(1)).allowed);
    }
    assert_eq!(store.full_requests(), 5);
    assert!(!take(&store, 0, &quota, at(1)).allowed, "known keys are still counted");
    assert_eq!(store.len(), 1);
}

#[test]
fn a_request_without_capacity_charges_none_of_its_limits() {
    let quota = Quota::fixed_window(2, SECOND).build().expect("the quota is valid");
    let store = store(1, OnFull::Deny);
    assert_eq!(take(&store, 0, &quota, at(1)).remaining, 1);
    let hits = [0, 1].map(|key| Hit::new(key, &quota, Op::take(1), Binding::Enforce));
    let mut decisions = [Decision::default(); 2];
    let verdict = store.decide_now(at(1), &hits, &mut decisions).expect("the request is well formed");
    assert!(!verdict.allowed);
    assert_eq!(verdict.binding, Some(1));
    assert_eq!(take(&store, 0, &quota, at(1)).remaining, 0, "the first limit had not been charged");
}

#[test]
fn the_bytes_of_logs_are_bounded() {
    let quota = Quota::sliding_window_log(60_000, SECOND).build().expect("the quota is valid");
    let store = MemoryStore::new(MemoryOptions { max_keys: 100, max_heap_bytes: 4096, on_full: OnFull::Deny });
    let refused = (0..60_000u64).find(|i| {
        let now = Time::from_nanos(1_000_000_000 + i);
        !take(&store, u128::from(i % 7) << 1, &quota, now).allowed
    });
    assert!(refused.is_some_and(|i| i > 50), "the first refused take is {refused:?}");
    let bytes = store.budget.heap_bytes();
    assert!(bytes <= 2 * 4096, "the logs use {bytes} bytes");
}

#[test]
fn the_bytes_of_token_buckets_that_fit_no_slot_are_bounded() {
    let share = compared::unpacked();
    let store = MemoryStore::new(MemoryOptions { max_heap_bytes: 1, ..MemoryOptions::default() });
    assert!(hit(&store, 1, &share, at(1)).allowed);
    assert_eq!(hit(&store, 2, &share, at(1)).reason, Reason::StoreFull);
    assert!(
        hit(&store, 1, &share, at(1)).allowed,
        "the bytes of this state were counted before, and the state does not grow"
    );
    let daily = Quota::per_day(7).build().expect("the quota is valid");
    assert!(
        hit(&store, 2, &daily, at(1)).allowed,
        "a state that fits its slot in the table needs no bytes outside the table"
    );
}

#[test]
fn a_counter_that_has_its_segments_needs_no_more_bytes() {
    let counter = Quota::sliding_window_counter(10, SECOND).segments(100).build().expect("the quota is valid");
    let store = MemoryStore::new(MemoryOptions { max_keys: 100, max_heap_bytes: 1, on_full: OnFull::Deny });
    assert!(take(&store, 0, &counter, at(1)).allowed);
    assert_eq!(take(&store, 1, &counter, at(1)).reason, Reason::StoreFull, "a new key needs bytes");
    assert_eq!(take(&store, 0, &counter, at(1)).remaining, 8, "the old key is still counted");
}

#[test]
fn expired_states_are_swept_as_new_keys_come() {
    let quota = Quota::token_bucket(1, SECOND).build().expect("the quota is valid");
    let store = store(1_000_000, OnFull::Deny);
    for key in 0..10_000u128 {
        take(&store, key << 60, &quota, Time::from_nanos(key as u64 * 10_000_000));
    }
    assert!(store.len() < 2_000, "there are {} states after 10,000 keys, 100 of them live", store.len());
}

#[test]
fn threads_on_one_key_admit_exactly_the_limit() {
    let quotas = [
        Quota::token_bucket(1000, Duration::from_secs(3600)).build().expect("the quota is valid"),
        Quota::fixed_window(1000, Duration::from_secs(3600)).build().expect("the quota is valid"),
        Quota::sliding_window_log(1000, Duration::from_secs(3600)).build().expect("the quota is valid"),
        Quota::sliding_window_counter(1000, Duration::from_secs(3600)).segments(6).build().expect("the quota is valid"),
        Quota::concurrency(1000).build().expect("the quota is valid"),
    ];
    for quota in &quotas {
        let store = store(100_000, OnFull::Deny);
        let admitted: usize = std::thread::scope(|scope| {
            let worker = || (0..1000).filter(|_| take(&store, 42, quota, at(7200)).allowed).count();
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().map(|w| w.join().expect("no worker panics")).sum()
        });
        assert_eq!(admitted, 1000, "{:?}", quota.algorithm());
    }
}

#[test]
fn requests_that_lock_the_same_shards_in_any_order_do_not_deadlock() {
    let quota = Quota::fixed_window(1_000_000, SECOND).build().expect("the quota is valid");
    let store = store(1_000_000, OnFull::Deny);
    std::thread::scope(|scope| {
        for worker in 0..4u128 {
            let (store, quota) = (&store, &quota);
            scope.spawn(move || {
                for round in 0..2000u128 {
                    let key = |i: u128| ((i * 7 + worker * round) % 64) << 64;
                    let hits = [3, 1, 2, 0].map(|i| Hit::new(key(i), quota, Op::take(1), Binding::Enforce));
                    let mut decisions = [Decision::default(); 4];
                    store.decide_now(at(1), &hits, &mut decisions).expect("the request is well formed");
                }
            });
        }
    });
    let mut total = 0;
    for key in 0..64u128 {
        total += 1_000_000 - take(&store, key << 64, &quota, at(1)).remaining - 1;
    }
    assert_eq!(total, 4 * 2000 * 4, "every unit was counted once");
}

#[test]
fn malformed_requests_are_errors() {
    let quota = Quota::per_second(1).build().expect("the quota is valid");
    let store = store(10, OnFull::Deny);
    let hits = vec![Hit::new(1, &quota, Op::take(1), Binding::Enforce); MAX_HITS + 1];
    assert!(store.decide_now(at(1), &hits, &mut vec![Decision::default(); MAX_HITS + 1]).is_err());
    assert!(store.decide_now(at(1), &hits[..2], &mut [Decision::default()]).is_err());
    assert!(store.decide_now(at(1), &[], &mut []).expect("a request without hits is well formed").allowed);
}
