//! Several who can answer, and one answer that is wanted.

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use crate::failure::{Failed, Failure};

/// So long an attempt goes on alone.
const HEAD_START: Duration = Duration::from_millis(50);

/// The first success. Attempts begin one after the other: the next one when one has failed, or takes long; so one that
/// hangs holds nobody up.
pub(crate) async fn first_of<A, T>(attempts: Vec<A>) -> Result<T, Failed>
where
    A: Future<Output = Result<T, Failed>>,
{
    let mut attempts = attempts.into_iter();
    let mut begun = FuturesUnordered::new();
    let mut last = Failed::new(Failure::Disconnected, "there is nobody to ask");
    loop {
        begun.extend(attempts.next());
        match timeout(HEAD_START, begun.next()).await {
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

    use super::first_of;
    use crate::failure::{Failed, Failure};

    type Attempt = Pin<Box<dyn Future<Output = Result<u32, Failed>>>>;

    fn fails(detail: &'static str) -> Attempt {
        Box::pin(ready(Err(Failed::new(Failure::Other, detail))))
    }

    #[tokio::test]
    async fn one_that_fails_or_hangs_is_followed_by_the_next() {
        let attempts: Vec<Attempt> =
            vec![fails("one"), Box::pin(pending()), Box::pin(ready(Ok(7))), Box::pin(ready(Ok(8)))];
        assert_eq!(first_of(attempts).await, Ok(7));
    }

    #[tokio::test]
    async fn if_all_fail_the_last_failure_is_told() {
        assert_eq!(first_of(vec![fails("one"), fails("two")]).await.expect_err("both fail").detail, "two");
        assert!(first_of(Vec::<Attempt>::new()).await.is_err());
    }
}
