//! One connection, from its handshake to its end.
//!
//! A client that is slow, silent or gone must not keep memory. Such a client must not delay a drain either: a
//! draining server ends as soon as all requests in flight are answered. [`watch_over`] closes the connections of such
//! clients, for all protocols in the same way.

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{self, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_service::metrics::{Closed, Metrics};
use tokio::time::{Instant, sleep_until};

use super::Phase;
use super::activity::Activity;
use super::context::Context;

/// How long the server waits for a client to close its connection, in two cases:
///
/// * The server has asked the client to close the connection, because it ends or because the connection is old, and no
///   request is in flight. An HTTP/2 client also has to answer a PING in this time.
/// * The server has shut down its side of the socket.
///
/// A client that does not close its side must not delay the end of the server.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the server waits after it has asked a client to close its idle connection. After this time, the server
/// closes the connection itself.
const IDLE_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The limits of a connection that depend on its protocol.
pub(super) struct ProtocolLimits {
    /// The length of the client's greeting: what a client sends before its first request. A client that has sent no
    /// request, and fewer bytes than this, has not finished its greeting.
    pub(super) greeting_bytes: u64,
    /// How long the server still serves a connection after the drain begins. An HTTP/1 client learns only from an
    /// answer that it should close the connection. If the server closed the connection at once, a request that is on
    /// its way would be lost.
    pub(super) drain_grace: Duration,
}

/// The methods of a connection that [`watch_over`] needs.
pub(super) trait Connection {
    /// Serves the connection until it ends. Returns true if the connection ended without an error. Sets `active_at`
    /// to the time when the last request arrived.
    fn poll(&mut self, cx: &mut task::Context<'_>, active_at: &mut Instant) -> Poll<bool>;
    /// Returns whether a request is in flight.
    fn is_busy(&self) -> bool;
    /// Returns whether the connection is an HTTP/2 connection. Only then [`graceful_shutdown`](Self::graceful_shutdown)
    /// loses no request that is on its way.
    fn is_http2(&self) -> bool;
    /// Asks the client to close the connection. The connection ends as soon as all open requests are answered. An HTTP/1
    /// connection without an open request ends at once.
    fn graceful_shutdown(&mut self);
}

/// Serves a connection, and closes it if the client is slow, silent or gone.
///
/// The server closes the connection if:
///
/// * the client does not finish its first request in time,
/// * the client stops in the middle of a request's head,
/// * the client reads nothing of an answer, so that its socket takes no more,
/// * the client sends no request for a long time,
/// * the connection has reached its age, see [`Limits::age`](super::Limits::age),
/// * the server drains.
///
/// Returns why the server closed the connection. Returns `None` if the connection ended without an error before the
/// server asked the client to close it.
pub(super) async fn watch_over(
    mut connection: impl Connection,
    activity: &Activity,
    protocol: &ProtocolLimits,
    context: &Context,
) -> Option<Closed> {
    let (limits, mut phase) = (&context.limits, context.phase.clone());
    // A connection that begins while the server leaves is served until the server drains.
    let mut seen = Phase::Leaving.min(*phase.borrow());
    let mut check_every = (limits.receive.min(limits.idle) / 2).max(Duration::from_millis(10));
    let opened_at = Instant::now();
    // When the connection reaches its age, and after that, when it is cut.
    let (mut ages_at, mut cut_at) = (limits.age.map(|age| opened_at + spread(age)), None);
    let mut check_at = earlier(opened_at + check_every, ages_at);
    let (mut ends_soon, mut ask_at, mut head_at) = (false, None, None);
    // The number of writes before the one that waits for the client, and the first check that saw it wait.
    let mut blocked: Option<(u64, Instant)> = None;
    // `checked` is the number of requests at the last check. `active_at` is the last time when a request arrived or was
    // in flight.
    let (mut checked, mut active_at, mut asked_to_end, mut close_timeout) = (0, opened_at, None, IDLE_CLOSE_TIMEOUT);
    loop {
        tokio::select! {
            biased;
            without_error = poll_fn(|cx| {
                activity.turn.begin();
                connection.poll(cx, &mut active_at)
            }) => {
                let is_asked = asked_to_end.is_some() || cut_at.is_some();
                return if without_error { is_asked.then(|| reason(cut_at)) } else { Some(Closed::Broken) };
            }
            _ = phase.wait_for(move |phase| *phase > seen), if seen < Phase::Draining => {
                (seen, ends_soon, ages_at) = (*context.phase.borrow(), true, None);
                activity.ends_soon.store(true, Ordering::Relaxed);
                let now = Instant::now();
                // While the server leaves, an HTTP/1 client has time to send a request, and the answer asks it.
                let drains_at = (seen == Phase::Draining).then(|| now + protocol.drain_grace);
                ask_at = drains_at.or_else(|| connection.is_http2().then_some(now));
            }
            () = sleep_until(ask_at.unwrap_or(opened_at)), if ask_at.is_some() => {
                (ask_at, close_timeout, check_every) = (None, CLOSE_TIMEOUT, CLOSE_TIMEOUT / 4);
                let now = Instant::now();
                (asked_to_end, check_at) = (Some(now), earlier(now + check_every, cut_at));
                connection.graceful_shutdown();
            }
            () = sleep_until(check_at) => {
                let now = Instant::now();
                activity.unread.return_unused(0);
                activity.in_flight.return_unused();
                let busy = connection.is_busy() || activity.open.load(Ordering::Relaxed) > 0;
                let (bytes, begun) = (activity.turn.bytes(), activity.begun.load(Ordering::Relaxed));
                let in_head = !busy && bytes > activity.answered_bytes.load(Ordering::Relaxed);
                head_at = head_at.filter(|_| in_head && begun == checked).or(in_head.then_some(now));
                active_at = if busy { now } else { active_at };
                blocked = activity.turn.blocked_after().map(|writes| {
                    blocked.filter(|(before, _)| *before == writes).unwrap_or((writes, now))
                });
                if blocked.is_some_and(|(_, since)| now >= since + limits.receive) {
                    return Some(Closed::Slow);
                }
                if busy || begun != checked {
                    checked = begun;
                    asked_to_end = asked_to_end.filter(|_| ends_soon).map(|_| now);
                }
                let begun_at = if begun == 0 && bytes < protocol.greeting_bytes { Some(opened_at) } else { head_at };
                if !busy && begun_at.is_some_and(|since| now >= since + limits.receive) {
                    return Some(Closed::Slow);
                }
                if cut_at.is_some_and(|at| now >= at) {
                    return Some(Closed::Aged);
                }
                if ages_at.is_some_and(|at| now >= at) {
                    (ages_at, cut_at, ends_soon) = (None, Some(now + limits.age_grace), true);
                    activity.ends_soon.store(true, Ordering::Relaxed);
                    ask_at = connection.is_http2().then_some(now);
                }
                match asked_to_end {
                    // The client was asked to close the connection, and did not close it in time.
                    Some(asked) if now >= asked + close_timeout => return Some(reason(cut_at)),
                    None if now >= active_at + limits.idle => {
                        asked_to_end = Some(now);
                        connection.graceful_shutdown();
                    }
                    _ => {}
                }
                let ends_at = asked_to_end.map_or(active_at + limits.idle, |asked| asked + close_timeout);
                check_at = earlier((now + check_every).min(ends_at), ages_at.or(cut_at));
            }
        }
    }
}

fn earlier(at: Instant, other: Option<Instant>) -> Instant {
    other.map_or(at, |other| at.min(other))
}

/// Returns why the server asked a client to close its connection. `cut_at` is set if the connection has reached its age.
fn reason(cut_at: Option<Instant>) -> Closed {
    if cut_at.is_some() { Closed::Aged } else { Closed::Idle }
}

/// Returns 90 to 110 % of an age, at random. Without this, connections that began together would also end together, and
/// all of their clients would connect at the same time.
fn spread(age: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    age * u32::try_from(900_000 + random % 200_001).unwrap_or(1_000_000) / 1_000_000
}

/// While clients speak a protocol that their listener does not speak, the log says so at most once in this time.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Writes a warning, unless the last one, at the time in `last`, was written a short time ago.
#[cold]
pub(super) fn warn_at_times(last: &Mutex<Option<Instant>>, warning: &str) {
    let mut last = last.lock();
    if last.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
        *last = Some(Instant::now());
        drop(last);
        tracing::warn!("{warning}; this is logged at most once a minute");
    }
}

/// Returns the result of `answer`, or `None` if `answer` panics. The panic is counted. It ends only this request.
pub(super) async fn unless_panic<F: Future>(mut answer: Pin<&mut F>, metrics: &Metrics) -> Option<F::Output> {
    let outcome = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Some),
        Err(_) => Poll::Ready(None),
    });
    let outcome = outcome.await;
    if outcome.is_none() {
        metrics.panics.inc();
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_spread_by_ten_percent_to_both_sides() {
        let hour = Duration::from_secs(3600);
        let mut ages: Vec<_> = (0..10_000).map(|_| spread(hour)).collect();
        ages.sort_unstable();
        let (first, last) = (ages[0], ages[ages.len() - 1]);
        assert!(first >= hour * 9 / 10 && first < hour * 92 / 100, "{first:?}");
        assert!(last <= hour * 11 / 10 && last > hour * 108 / 100, "{last:?}");
        let before = ages.iter().filter(|age| **age < hour).count();
        assert!((4_000..6_000).contains(&before), "{before}");
    }
}
