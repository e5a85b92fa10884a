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

/// The longest time before the next attempts start. It is shorter if `time` is below a second.
const HEAD_START: Duration = Duration::from_millis(50);
/// The number of rounds in which all attempts have started. Twenty attempts therefore start two at a time.
const ROUNDS: usize = 10;

/// The first success. Attempts start one after the other, or several at a time if there are many. The next ones start
/// when one has failed or takes long. All have started after half of `time`, so an attempt that hangs blocks no other.
///
/// # Errors
/// The error of the attempt that failed last, once all have failed. An attempt that hangs is never an error here, so the
/// caller sets a timeout.
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
            Ok(Some(Ok(output))) => return Ok(output),
            Ok(Some(Err(error))) => last = error,
            Ok(None) => return Err(last),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
