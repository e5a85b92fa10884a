//! Tests that an estimate is taken before the work, and corrected at most once.
//!
//! The tests pause the time of tokio, so that the end of a life of ten minutes comes at once. Random reservations are
//! tested in the crate `spillgate-redis`, in `tests/sources/reservations.rs`.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use spillgate_limiter::{
    Limiter, MemoryOptions, MemoryStore, OnFull, OnStoreFailure, Quota, Reason, Reservations, Store, StoreErrorKind,
    TokioClock,
};
use spillgate_testkit::{Fault, Remote};

const MINUTE: Duration = Duration::from_secs(60);
const TOKENS: Quota = Quota::sliding_window_log(100, MINUTE).constant();
const PER_DAY: Quota = Quota::per_day(1_000).constant();

fn remote() -> Arc<Limiter<Remote<MemoryStore>, TokioClock>> {
    let store = Remote::new(MemoryStore::new(MemoryOptions::default()));
    Arc::new(Limiter::with_clock(store, TokioClock::start()))
}

fn local() -> Arc<Limiter<MemoryStore, TokioClock>> {
    Arc::new(Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), TokioClock::start()))
}

async fn left<S: Store>(limiter: &Limiter<S, TokioClock>) -> u64 {
    limiter.peek(&TOKENS, "red").await.expect("the store answers").remaining
}

#[tokio::test(start_paused = true)]
async fn a_commit_corrects_the_estimate_in_both_directions() {
    let limiter = local();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS).and(PER_DAY);
    for (estimate, used, expected) in [(60, 45, 55), (20, 30, 25), (10, 10, 15)] {
        let (decision, reservation) = tokens.reserve("red", estimate).await.expect("the store answers");
        assert!(decision.allowed);
        let settled = reservation.expect("the estimate fits").commit(used).await.expect("the store answers");
        assert_eq!(settled.map(|decision| decision.remaining), Some(expected));
        assert_eq!(left(&limiter).await, expected);
    }
    assert_eq!(limiter.peek(&PER_DAY, "red").await.expect("the store answers").remaining, 1_000 - 85);
}

#[tokio::test(start_paused = true)]
async fn an_estimate_that_one_quota_refuses_is_charged_to_none() {
    let limiter = local();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS).and(Quota::per_day(50).constant());
    let (decision, reservation) = tokens.reserve("red", 60).await.expect("the store answers");
    assert_eq!((decision.reason, reservation.is_none()), (Reason::CostAboveCapacity, true));
    assert_eq!((left(&limiter).await, limiter.store().len()), (100, 0), "neither units nor a record are kept");
}

#[tokio::test(start_paused = true)]
async fn only_the_first_settlement_changes_something() {
    let limiter = remote();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS);
    let mut reservation = tokens.reserve("red", 60).await.expect("the store answers").1.expect("it fits");
    assert!(reservation.commit(45).await.expect("the store answers").is_some());
    for _ in 0..3 {
        assert_eq!(reservation.commit(10).await, Ok(None));
        assert_eq!(reservation.commit(99).await, Ok(None));
        assert_eq!(reservation.cancel().await, Ok(None));
    }
    drop(reservation);
    tokio::task::yield_now().await;
    assert_eq!(left(&limiter).await, 55);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_is_gone_when_its_life_ends() {
    let limiter = remote();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS).life(MINUTE / 2);
    let reserve = async || tokens.reserve("red", 40).await.expect("the store answers").1.expect("it fits");
    let (mut in_time, mut late) = (reserve().await, reserve().await);
    tokio::time::advance(MINUTE / 2 - Duration::from_nanos(1)).await;
    assert!(in_time.cancel().await.expect("the store answers").is_some());
    tokio::time::advance(Duration::from_nanos(1)).await;
    assert_eq!(late.commit(0).await, Ok(None));
    assert_eq!(left(&limiter).await, 60, "the late one stays charged");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_reservation_is_cancelled_at_once_in_memory_even_without_a_runtime() {
    let limiter = local();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS);
    let reservation = tokens.reserve("red", 60).await.expect("the store answers").1;
    assert_eq!(left(&limiter).await, 40);
    tokio::time::advance(Duration::from_millis(1)).await;
    thread::spawn(move || drop(reservation)).join().expect("the thread ends");
    assert_eq!((left(&limiter).await, limiter.store().len()), (100, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_reservation_is_cancelled_by_its_runtime() {
    let limiter = remote();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS);
    let reservation = tokens.reserve("red", 60).await.expect("the store answers").1;
    thread::spawn(move || drop(reservation)).join().expect("the thread ends");
    tokio::task::yield_now().await;
    assert_eq!(left(&limiter).await, 100);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_is_dropped_gives_nothing_back() {
    let limiter = remote();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS);
    let mut reservation = tokens.reserve("red", 60).await.expect("the store answers").1.expect("it fits");
    limiter.store().set(Fault::Disconnected);
    let failed = reservation.commit(45).await.map_err(|error| error.kind());
    assert_eq!(failed, Err(StoreErrorKind::Disconnected));
    limiter.store().set(Fault::None);
    drop(reservation);
    tokio::task::yield_now().await;
    assert_eq!(left(&limiter).await, 40, "the work may have used the units");
}

#[tokio::test(start_paused = true)]
async fn a_settlement_can_be_repeated_after_an_error() {
    let limiter = remote();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS);
    let mut reservation = tokens.reserve("red", 60).await.expect("the store answers").1.expect("it fits");
    limiter.store().set(Fault::Disconnected);
    assert!(reservation.commit(45).await.is_err() && reservation.commit(45).await.is_err());
    limiter.store().set(Fault::None);
    assert!(reservation.commit(45).await.expect("the store answers").is_some());
    assert_eq!(left(&limiter).await, 55);
}

#[tokio::test(start_paused = true)]
async fn settled_reservations_leave_no_records() {
    let limiter = local();
    let quota = Quota::token_bucket(1_000, MINUTE).constant();
    let tokens = Reservations::new(Arc::clone(&limiter), quota);
    for round in 0..1_000 {
        let reservation = tokens.reserve(7, 1 + round % 5).await.expect("the store answers").1;
        tokio::time::advance(Duration::from_millis(1)).await;
        if let Some(mut reservation) = reservation
            && round % 3 > 0
        {
            reservation.commit(round % 2).await.expect("the store answers");
        }
    }
    assert_eq!(limiter.store().len(), 1, "only the bucket is left");
}

#[tokio::test(start_paused = true)]
async fn an_estimate_has_at_least_one_unit() {
    let error = Reservations::new(local(), TOKENS).reserve("red", 0).await.map(drop).expect_err("it is refused");
    assert_eq!(error.kind(), StoreErrorKind::Malformed);
}

#[test]
fn quotas_without_units_to_give_back_are_refused() {
    let panics = |quota: Quota| {
        std::panic::catch_unwind(|| Reservations::new(Limiter::in_memory(), quota)).map(drop).expect_err("it panics")
    };
    for quota in [Quota::concurrency(1).constant(), Quota::leaky_bucket(1, MINUTE).constant()] {
        let text = panics(quota).downcast_ref::<&str>().copied().unwrap_or_default().to_owned();
        assert!(text.contains("use Limiter::hold") || text.contains("use pace::Pacer"), "{text}");
    }
    let twice = std::panic::catch_unwind(|| Reservations::new(Limiter::in_memory(), TOKENS).and(TOKENS));
    assert!(twice.is_err(), "each estimate would be taken twice from one state");
    let zero = std::panic::catch_unwind(|| Reservations::new(Limiter::in_memory(), TOKENS).life(Duration::ZERO));
    assert!(zero.is_err(), "a life of 0 would settle nothing");
}

#[tokio::test(start_paused = true)]
async fn while_the_shared_store_fails_reservations_follow_the_policies() {
    let nodes = std::num::NonZeroU32::new(2).expect("2 is not 0");
    let shared = Remote::new(MemoryStore::new(MemoryOptions::default())).with(Fault::Disconnected);
    let store = spillgate::FallbackStore::new(shared, MemoryStore::new(MemoryOptions::default()), nodes);
    let limiter = Arc::new(Limiter::with_clock(store, TokioClock::start()));
    let allows = Quota::per_day(1_000).on_store_failure(OnStoreFailure::Allow).constant();
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS).and(allows);
    assert!(tokens.reserve("red", 60).await.expect("the policies answer").1.is_none(), "the share is 50");
    let mut reservation = tokens.reserve("red", 40).await.expect("the policies answer").1.expect("it fits the share");
    limiter.store().shared().set(Fault::None);
    assert!(reservation.commit(10).await.expect("the local store answers").is_some());
    assert_eq!(reservation.commit(0).await, Ok(None));
    limiter.store().shared().set(Fault::Disconnected);
    assert!(tokens.reserve("red", 41).await.expect("the policies answer").1.is_none());
    assert!(tokens.reserve("red", 40).await.expect("the policies answer").0.allowed, "10 of the share of 50 are used");
}

fn full(on_full: OnFull) -> Arc<Limiter<MemoryStore, TokioClock>> {
    let options = MemoryOptions { max_keys: 1, on_full, ..MemoryOptions::default() };
    Arc::new(Limiter::with_clock(MemoryStore::new(options), TokioClock::start()))
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_a_reservation_as_its_quota() {
    let limiter = full(OnFull::Deny);
    limiter.take(&TOKENS, "red", 51).await.expect("the store answers");
    let (decision, reservation) =
        Reservations::new(Arc::clone(&limiter), TOKENS).reserve("red", 20).await.expect("it answers");
    assert!(reservation.is_none());
    assert_eq!((decision.allowed, decision.reason, decision.limit), (false, Reason::StoreFull, 100));
    assert_eq!(left(&limiter).await, 49);
}

#[tokio::test(start_paused = true)]
async fn without_a_record_nothing_can_be_settled() {
    let limiter = full(OnFull::Allow);
    limiter.take(&TOKENS, "red", 51).await.expect("the store answers");
    let tokens = Reservations::new(Arc::clone(&limiter), TOKENS);
    let mut reservation = tokens.reserve("red", 20).await.expect("the store answers").1.expect("a full store allows");
    assert_eq!((reservation.commit(5).await, reservation.cancel().await), (Ok(None), Ok(None)));
    drop(tokens.reserve("red", 9).await.expect("the store answers").1.expect("a full store allows"));
    assert_eq!(left(&limiter).await, 100 - 51 - 20 - 9, "the estimates stay charged");
}

#[tokio::test(start_paused = true)]
async fn a_commit_above_the_estimate_counts_at_most_two_bursts_of_a_bucket() {
    let (limiter, bucket) = (local(), Quota::token_bucket(100, MINUTE).constant());
    let tokens = Reservations::new(Arc::clone(&limiter), bucket.clone());
    let mut reservation = tokens.reserve("red", 10).await.expect("the store answers").1.expect("it fits");
    reservation.commit(1_000).await.expect("the store answers");
    let used = limiter.peek(&bucket, "red").await.expect("the store answers").reset_after_ns;
    assert_eq!(used, 2 * MINUTE.as_nanos() as u64);
}
