//! Tests of exact deadlines, with real and with paused time.

use std::future::{pending, ready};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, advance, sleep};

use super::{after, wait_until};

#[tokio::test(start_paused = true)]
async fn a_future_without_an_output_ends_at_its_deadline_and_not_at_the_next_tick() {
    for step in 0..40 {
        advance(Duration::from_micros(37)).await;
        let deadline = Instant::now() + Duration::from_micros(100 + 333 * step);
        assert_eq!(wait_until(deadline, pin!(pending::<()>())).await, None);
        assert!(Instant::now() <= deadline, "{step}: {:?} late", Instant::now() - deadline);
    }
}

#[tokio::test]
async fn until_the_deadline_the_output_is_awaited() {
    let begun = Instant::now();
    let deadline = begun + Duration::from_millis(7);
    assert_eq!(wait_until(deadline, pin!(pending::<()>())).await, None);
    assert!(Instant::now() >= deadline, "the call ended before its deadline");
    // The deadline has long passed, but a value that is ready is still returned.
    assert_eq!(wait_until(begun, pin!(ready(7))).await, Some(7));
    assert_eq!(wait_until(begun, pin!(pending::<()>())).await, None);
    let hour = Instant::now() + Duration::from_secs(3600);
    assert_eq!(wait_until(hour, pin!(sleep(Duration::from_millis(1)))).await, Some(()));
}

#[tokio::test]
async fn each_of_many_is_woken() {
    let now = Instant::now();
    let waits: Vec<_> = (0..1000_u64)
        .rev()
        .map(|i| now + Duration::from_micros(i / 2 * 2))
        .map(|deadline| tokio::spawn(async move { wait_until(deadline, pin!(pending::<()>())).await }))
        .collect();
    for wait in waits {
        assert_eq!(wait.await.expect("the task does not panic"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn some_of_the_time_is_for_waking_the_caller() {
    let given = |timeout| after(timeout) - Instant::now();
    assert_eq!(given(Duration::from_millis(10)), Duration::from_micros(9750));
    assert_eq!(given(Duration::from_micros(1600)), Duration::from_micros(1500));
    assert_eq!(given(Duration::ZERO), Duration::ZERO);
}
