//! Tests of staggered attempts.

use std::future::{pending, ready};
use std::pin::Pin;
use std::time::Duration;

use spillgate_core::StoreErrorKind;
use tokio::time::timeout;

use super::first_success;
use crate::error::Error;

const TIME: Duration = Duration::from_secs(1);

type Attempt = Pin<Box<dyn Future<Output = Result<u32, Error>>>>;

fn fails(detail: &'static str) -> Attempt {
    Box::pin(ready(Err(Error::new(StoreErrorKind::Other, detail))))
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_or_hangs_is_followed_by_the_next() {
    let attempts: Vec<Attempt> =
        vec![fails("one"), Box::pin(pending()), Box::pin(ready(Ok(7))), Box::pin(ready(Ok(8)))];
    assert_eq!(first_success(attempts, TIME).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn after_many_that_hang_the_last_one_has_its_turn_in_time() {
    for hanging in [1, 20, 1000] {
        let mut attempts: Vec<Attempt> = (0..hanging).map(|_| Box::pin(pending()) as Attempt).collect();
        attempts.push(Box::pin(ready(Ok(7))));
        let first = timeout(10 * TIME, first_success(attempts, TIME)).await;
        assert_eq!(first, Ok(Ok(7)), "the first result after {hanging} attempts that hang");
    }
}

#[tokio::test]
async fn if_all_fail_the_last_error_is_returned() {
    assert_eq!(first_success(vec![fails("one"), fails("two")], TIME).await.expect_err("both fail").detail, "two");
    assert!(first_success(Vec::<Attempt>::new(), TIME).await.is_err());
}
