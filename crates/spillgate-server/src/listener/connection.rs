//! One connection, from its handshake to its end.
//!
//! A client that is slow, silent or gone must not keep memory. Such a client must not delay a drain either: a
//! draining server ends as soon as all requests in flight are answered. [`watch_over`] closes the connections of such
//! clients, for all protocols in the same way.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{self, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_service::metrics::{Closed, Metrics};
use tokio::time::{Instant, sleep_until};

use super::activity::Activity;
use super::context::Context;

/// How long the server waits for a client to close its connection, in two cases:
///
/// * The server drains and has asked the client to close the connection, and no request is in flight. An HTTP/2 client
///   also has to answer a PING in this time.
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
    /// Asks the client to close the connection. The connection ends as soon as all open requests are answered.
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
    let (limits, mut drain) = (&context.limits, context.drain.clone());
    let mut check_every = (limits.receive.min(limits.idle) / 2).max(Duration::from_millis(10));
    let opened_at = Instant::now();
    let mut check_at = opened_at + check_every;
    let (mut draining, mut drain_at, mut head_at) = (false, None, None);
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
                return if without_error { asked_to_end.map(|_| Closed::Idle) } else { Some(Closed::Broken) };
            }
            _ = drain.wait_for(|drain| *drain), if !draining => {
                draining = true;
                activity.draining.store(true, Ordering::Relaxed);
                drain_at = Some(Instant::now() + protocol.drain_grace);
            }
            () = sleep_until(drain_at.unwrap_or(opened_at)), if drain_at.is_some() => {
                (drain_at, close_timeout, check_every) = (None, CLOSE_TIMEOUT, CLOSE_TIMEOUT / 4);
                let now = Instant::now();
                (asked_to_end, check_at) = (Some(now), now + check_every);
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
                    asked_to_end = asked_to_end.filter(|_| draining).map(|_| now);
                }
                let begun_at = if begun == 0 && bytes < protocol.greeting_bytes { Some(opened_at) } else { head_at };
                if !busy && begun_at.is_some_and(|since| now >= since + limits.receive) {
                    return Some(Closed::Slow);
                }
                match asked_to_end {
                    // The client was asked to close the connection, and did not close it in time.
                    Some(asked) if now >= asked + close_timeout => return Some(Closed::Idle),
                    None if now >= active_at + limits.idle => {
                        asked_to_end = Some(now);
                        connection.graceful_shutdown();
                    }
                    _ => {}
                }
                let ends_at = asked_to_end.map_or(active_at + limits.idle, |asked| asked + close_timeout);
                check_at = (now + check_every).min(ends_at);
            }
        }
    }
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
