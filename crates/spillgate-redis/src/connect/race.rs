//! Staggered attempts: asks several Redis servers, one after the other or a few at a time, and returns the first
//! answer.
//!
//! With only one attempt at a time, each server that is down would delay the answer. With all attempts at once, every
//! server would get a request, although one answer is enough.

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use spillgate_core::StoreErrorKind;
use tokio::time::timeout;

use crate::error::Error;

/// The longest wait before the next attempts start. The wait is shorter if the `time` of [`first_success`] is below a
/// second.
const HEAD_START: Duration = Duration::from_millis(50);
/// All attempts start within this many rounds. So twenty attempts start two at a time.
const ROUNDS: usize = 10;

/// Returns the first success. Attempts start one after the other, or several at a time if there are many. The next
/// attempts start when an attempt has failed, or after a short wait. All attempts have started after half of `time`, so
/// an attempt that hangs blocks no other attempt.
///
/// # Errors
/// The error of the attempt that failed last, as soon as all attempts have failed. As long as an attempt hangs, no
/// error is returned, so the caller must set a timeout.
pub(crate) async fn first_success<A, T>(attempts: Vec<A>, time: Duration) -> Result<T, Error>
where
    A: Future<Output = Result<T, Error>>,
{
    let (at_once, head_start) = (attempts.len().div_ceil(ROUNDS), HEAD_START.min(time / (2 * ROUNDS as u32)));
    let mut attempts = attempts.into_iter();
    let mut begun = FuturesUnordered::new();
    let mut last = Error::new(StoreErrorKind::Disconnected, "there is no address to try");
    loop {
        begun.extend(attempts.by_ref().take(at_once));
        match timeout(head_start, begun.next()).await {
            Ok(Some(Ok(output))) => return Ok(output),
            Ok(Some(Err(error))) => last = error,
            Ok(None) => return Err(last),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
