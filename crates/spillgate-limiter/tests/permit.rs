//! Tests that a permit is renewed while it is held, and released when it is dropped.
//!
//! Most tests pause the time of tokio, so that the end of a lease of 30 s comes at once.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use spillgate_limiter::{
    FallbackStore, Limiter, ManualClock, MemoryOptions, MemoryStore, OnStoreFailure, Quota, StoreErrorKind, Time,
    TokioClock,
};
use spillgate_testkit::{Fault, Remote};

const ONE: Quota = Quota::concurrency(1).lease(Duration::from_secs(30)).constant();
const LEASE: Duration = Duration::from_secs(30);

fn limiter() -> Arc<Limiter<Remote<MemoryStore>, TokioClock>> {
    Arc::new(Limiter::with_clock(remote(), TokioClock::start()))
}

fn remote() -> Remote<MemoryStore> {
    Remote::new(MemoryStore::new(MemoryOptions::default()))
}

async fn free(limiter: &Limiter<Remote<MemoryStore>, TokioClock>) -> u64 {
    limiter.peek(&ONE, "job").await.expect("the store answers").remaining
}

#[tokio::test(start_paused = true)]
async fn a_permit_outlives_many_leases_and_is_free_after_the_drop() {
    let limiter = limiter();
    let (_, permit) = limiter.hold(&ONE, "job").await.expect("the store answers");
    let permit = permit.expect("the permit is free");
    for _ in 0..20 {
        tokio::time::sleep(LEASE * 3).await;
        assert_eq!(free(&limiter).await, 0, "it was renewed");
        let (decision, second) = limiter.hold(&ONE, "job").await.expect("the store answers");
        assert!(!decision.allowed && second.is_none() && permit.is_held());
    }
    drop(permit);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(free(&limiter).await, 1);
}

#[tokio::test(start_paused = true)]
async fn release_waits_until_the_permit_is_free() {
    let limiter = limiter();
    let (_, permit) = limiter.hold(&ONE, "job").await.expect("the store answers");
    let decision = permit.expect("the permit is free").release().await.expect("the store answers");
    assert_eq!(decision.map(|decision| decision.remaining), Some(1));
    assert_eq!(free(&limiter).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_permit_survives_a_failure_that_is_shorter_than_its_lease() {
    let limiter = limiter();
    let (_, permit) = limiter.hold(&ONE, "job").await.expect("the store answers");
    tokio::time::sleep(LEASE * 2).await;
    limiter.store().set(Fault::Disconnected);
    tokio::time::sleep(LEASE / 3 * 2 - Duration::from_secs(3)).await;
    limiter.store().set(Fault::None);
    tokio::time::sleep(LEASE * 2).await;
    assert!(permit.as_ref().is_some_and(spillgate::Permit::is_held));
    assert_eq!(free(&limiter).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_lost_with_its_lease_and_says_so() {
    let limiter = limiter();
    let (_, permit) = limiter.hold(&ONE, "job").await.expect("the store answers");
    let permit = permit.expect("the permit is free");
    limiter.store().set(Fault::Disconnected);
    tokio::time::sleep(LEASE * 2).await;
    assert!(!permit.is_held());
    limiter.store().set(Fault::None);
    let (_, second) = limiter.hold(&ONE, "job").await.expect("the store answers");
    let second = second.expect("the first permit is free again");
    assert_eq!(permit.release().await, Ok(None));
    assert_eq!(free(&limiter).await, 0, "the release of a lost permit releases no other permit");
    assert!(second.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_lost_when_the_clock_of_the_limiter_passes_its_lease() {
    // The timers of tokio stand still while a machine is suspended.
    let clock = ManualClock::at(Time::from_nanos(1_800_000_000_000_000_000));
    let limiter = Arc::new(Limiter::with_clock(remote(), clock.clone()));
    let (_, permit) = limiter.hold(&ONE, "job").await.expect("the store answers");
    let permit = permit.expect("the permit is free");
    clock.advance(LEASE - Duration::from_nanos(1));
    assert!(permit.is_held());
    tokio::time::sleep(LEASE / 2).await;
    clock.advance(LEASE - Duration::from_nanos(1));
    assert!(permit.is_held(), "it was renewed");
    clock.advance(Duration::from_nanos(1));
    assert!(!permit.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_lost_with_its_lease_while_the_store_does_not_answer() {
    let limiter = limiter();
    let (_, permit) = limiter.hold(&ONE, "job").await.expect("the store answers");
    limiter.store().set(Fault::Hangs);
    tokio::time::sleep(LEASE + Duration::from_millis(1)).await;
    assert!(permit.is_some_and(|permit| !permit.is_held()));
}

#[tokio::test(start_paused = true)]
async fn a_permit_ends_with_its_lease_while_the_store_fails_at_once() {
    let limiter = limiter();
    let (_, permit) = limiter.hold(&ONE, "job").await.expect("the store answers");
    limiter.store().set(Fault::Disconnected);
    tokio::time::sleep(LEASE + Duration::from_millis(1)).await;
    assert!(permit.is_some_and(|permit| !permit.is_held()));
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_whose_policy_allows_gives_permits_that_are_not_counted() {
    const ALLOW: Quota = Quota::concurrency(1).on_store_failure(OnStoreFailure::Allow).constant();
    let shared = remote().with(Fault::Disconnected);
    let local = MemoryStore::new(MemoryOptions::default());
    let limiter =
        Arc::new(Limiter::with_clock(FallbackStore::new(shared, local, NonZeroU32::MIN), TokioClock::start()));
    for _ in 0..3 {
        let (decision, permit) = limiter.hold(&ALLOW, "job").await.expect("the policy answers");
        let permit = permit.expect("the policy allows it");
        tokio::time::sleep(LEASE * 2).await;
        assert!(decision.allowed && permit.is_held());
        assert_eq!(permit.release().await, Ok(None), "nothing is counted, so nothing is given back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_reset_is_lost() {
    let limiter = limiter();
    let (_, permit) = limiter.hold(&ONE, "job").await.expect("the store answers");
    limiter.reset(&ONE, "job").await.expect("the store answers");
    tokio::time::sleep(LEASE).await;
    assert!(permit.is_some_and(|permit| !permit.is_held()));
}

#[tokio::test(start_paused = true)]
async fn only_a_concurrency_limit_has_permits() {
    const RATE: Quota = Quota::per_second(1).constant();
    let limiter = limiter();
    let error = limiter.hold(&RATE, "job").await.expect_err("a rate has no permits");
    assert_eq!(error.kind(), StoreErrorKind::Malformed);
    assert_eq!(limiter.peek(&RATE, "job").await.expect("the store answers").remaining, 1, "nothing was taken");
}

#[test]
fn a_runtime_without_timers_takes_no_permit() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts");
    let limiter = Arc::new(Limiter::in_memory());
    let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(limiter.hold(&ONE, "job"))));
    assert!(held.is_err(), "without timers, no permit is taken, because nothing could renew it");
    assert_eq!(limiter.peek_now(&ONE, "job").remaining, 1);
}

#[test]
fn a_permit_can_be_dropped_on_a_thread_without_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let runtime = runtime.expect("a runtime starts");
    let limiter = Arc::new(Limiter::in_memory());
    let (_, permit) = runtime.block_on(limiter.hold(&ONE, "job")).expect("the store answers");
    thread::spawn(move || drop(permit)).join().expect("the drop does not panic");
    while limiter.peek_now(&ONE, "job").remaining == 0 {
        thread::yield_now();
    }
}

#[test]
fn a_permit_that_outlives_its_runtime_is_free_when_its_lease_ends() {
    const SHORT: Quota = Quota::concurrency(1).lease(Duration::from_millis(50)).constant();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime starts");
    let limiter = Arc::new(Limiter::in_memory());
    let (_, permit) = runtime.block_on(limiter.hold(&SHORT, "job")).expect("the store answers");
    drop(runtime);
    assert!(permit.as_ref().is_some_and(|permit| !permit.is_held()), "nothing renews it");
    drop(permit);
    while limiter.peek_now(&SHORT, "job").remaining == 0 {
        thread::yield_now();
    }
}
