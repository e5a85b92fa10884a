//! Staggered attempts: several servers can give an answer, and one answer is needed.
//!
//! An attempt at a time would wait for each server that is down. All attempts at once would load every server, although
//! one answer is enough.

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind};

/// The longest time before the next attempts start.
const HEAD_START: Duration = Duration::from_millis(50);
/// The number of rounds in which all attempts have started.
const ROUNDS: usize = 10;

/// The first success. Attempts start one after the other, or several at a time if there are many. The next ones start
/// when one has failed or takes long. All have started after half of `time`, so an attempt that hangs blocks no other.
pub(crate) async fn first_success<A, T>(attempts: Vec<A>, time: Duration) -> Result<T, Error>
where
    A: Future<Output = Result<T, Error>>,
{
    let (at_once, head_start) = (attempts.len().div_ceil(ROUNDS), HEAD_START.min(time / (2 * ROUNDS as u32)));
    let mut attempts = attempts.into_iter();
    let mut begun = FuturesUnordered::new();
    let mut last = Error::new(ErrorKind::Disconnected, "there is no address to try");
    loop {
        begun.extend(attempts.by_ref().take(at_once));
        match timeout(head_start, begun.next()).await {
            Ok(Some(Ok(answer))) => return Ok(answer),
            Ok(Some(Err(failed))) => last = failed,
            Ok(None) => return Err(last),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::first_success;
    use crate::error::{Error, ErrorKind};

    const TIME: Duration = Duration::from_secs(1);

    type Attempt = Pin<Box<dyn Future<Output = Result<u32, Error>>>>;

    fn fails(detail: &'static str) -> Attempt {
        Box::pin(ready(Err(Error::new(ErrorKind::Other, detail))))
    }

    #[tokio::test]
    async fn one_that_fails_or_hangs_is_followed_by_the_next() {
        let attempts: Vec<Attempt> =
            vec![fails("one"), Box::pin(pending()), Box::pin(ready(Ok(7))), Box::pin(ready(Ok(8)))];
        assert_eq!(first_success(attempts, TIME).await, Ok(7));
    }

    #[tokio::test]
    async fn after_many_that_hang_the_last_one_has_its_turn_in_time() {
        for hanging in [1, 20, 1000] {
            let mut attempts: Vec<Attempt> = (0..hanging).map(|_| Box::pin(pending()) as Attempt).collect();
            attempts.push(Box::pin(ready(Ok(7))));
            let first = timeout(10 * TIME, first_success(attempts, TIME)).await;
            assert_eq!(first, Ok(Ok(7)), "after {hanging}");
        }
    }

    #[tokio::test]
    async fn if_all_fail_the_last_error_is_returned() {
        assert_eq!(first_success(vec![fails("one"), fails("two")], TIME).await.expect_err("both fail").detail, "two");
        assert!(first_success(Vec::<Attempt>::new(), TIME).await.is_err());
    }
}
