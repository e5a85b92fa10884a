//! One connection, from its handshake to its end.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{self, Poll};
use std::time::Duration;

use ::http::Request;
use axum::extract::ConnectInfo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use tower::ServiceExt;

use crate::metrics::{Closed, Metrics};
use crate::service::Peer;

use super::io::Transport;
use super::socket::Socket;
use super::unread::{Pool, Unread};
use super::worker::Context;
use super::{Accepted, App, grpc, http};

/// All header fields of a request, as HTTP/2 counts them; Envoy's and nginx's own are far below.
pub(super) const HEADER_LIST_BYTES: u32 = 16 * 1024;
/// Bytes of a body that are taken before the handler asks; messages are bounded on top of this.
pub(super) const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// The same for all streams of a connection together, so that no client makes us hold more.
pub(super) const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// Is the peer still there? Asked by PING when it has been silent this long.
pub(super) const PING_EVERY: Duration = Duration::from_secs(30);

/// How long a connection without a request in flight may take to go once the server drains, or has
/// closed its own side: an HTTP/2 client has to answer a PING, each has to close its side, and one
/// that never does may not hold the server up.
pub(super) const GOING: Duration = Duration::from_secs(2);
/// The same for one that is asked to go because it was idle.
const GOING_IDLE: Duration = Duration::from_secs(1);

/// What a protocol lets us ask of a connection.
pub(super) struct Manners {
    /// With fewer bytes, and without a request, the client has not even begun.
    pub(super) greeting_bytes: u64,
    /// How long a connection is still served while the server drains. An HTTP/1 client can only be
    /// told to go in an answer; closing before that would lose a request on its way.
    pub(super) farewell: Duration,
}

/// A connection as the watch over it sees it.
pub(super) trait Connection {
    /// Serves until the connection has ended; says whether in peace. `active_at` becomes the time when the last request
    /// came.
    fn poll(&mut self, cx: &mut task::Context<'_>, active_at: &mut Instant) -> Poll<bool>;
    /// Whether an answer is being made.
    fn is_busy(&self) -> bool;
    /// Tells the client to go, and ends once what is open is answered.
    fn graceful_shutdown(&mut self);
}

/// What the watch over a connection sees of it. One for each connection, so that counting
/// references to it costs no word with other cores.
pub(super) struct Activity {
    pub(super) metrics: Arc<Metrics>,
    pub(super) bytes: Arc<AtomicU64>,
    /// Requests that were read.
    pub(super) begun: AtomicU64,
    /// HTTP/1 requests in the handler.
    pub(super) open: AtomicUsize,
    /// HTTP/2 calls that wait for their client to read.
    pub(super) stalled: AtomicUsize,
    /// What is held of HTTP/2 answers.
    pub(super) unread: Unread,
    /// `bytes` when the last HTTP/1 request was answered: what came since then is the head of another.
    pub(super) answered_bytes: AtomicU64,
    /// The server wants to end: HTTP/1 answers tell the client to come back elsewhere.
    pub(super) draining: AtomicBool,
}

impl Activity {
    pub(super) fn new(metrics: &Arc<Metrics>, pool: &Arc<Pool>) -> Activity {
        Activity {
            metrics: Arc::clone(metrics),
            bytes: Arc::default(),
            begun: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            stalled: AtomicUsize::new(0),
            unread: Unread::new(pool),
            answered_bytes: AtomicU64::new(u64::MAX),
            draining: AtomicBool::new(false),
        }
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve(accepted: Accepted, context: Context) {
    let Accepted { socket, peer, app, place } = accepted;
    let closed = match socket {
        Socket::Tcp(stream) => {
            // Answers are small and wait for nobody; where the system refuses, they are only slower.
            let _ = stream.set_nodelay(true);
            match tokio::net::TcpStream::from_std(stream) {
                Ok(stream) => serve_stream(stream, peer, &app, &context).await,
                Err(_) => Some(Closed::Broken),
            }
        }
        Socket::Unix(stream) => match tokio::net::UnixStream::from_std(stream) {
            Ok(stream) => serve_stream(stream, peer, &app, &context).await,
            Err(_) => Some(Closed::Broken),
        },
    };
    if let Some(reason) = closed {
        context.metrics.closed(reason).inc();
    }
    drop(place);
}

async fn serve_stream<T>(stream: T, peer: Peer, app: &App, context: &Context) -> Option<Closed>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Arc::new(Activity::new(&context.metrics, &context.pool));
    let io = Transport::new(stream, Arc::clone(&activity.bytes));
    match app {
        App::Grpc(grpc) => grpc::serve(io, grpc, &activity, context).await,
        App::Http(state) => {
            let state = state.clone();
            let answer = move |request| {
                let state = state.clone();
                async move { state.answer(peer, request).await }
            };
            http::serve(io, answer, &activity, context).await
        }
        App::Admin(router) => {
            let router = router.clone();
            let answer = move |mut request: Request<_>| {
                request.extensions_mut().insert(ConnectInfo(peer));
                let answered = router.clone().oneshot(request);
                async move { answered.await.unwrap_or_else(|never| match never {}) }
            };
            http::serve(io, answer, &activity, context).await
        }
    }
}

/// Runs a connection and ends it in time: one that never gets to its first request, one that
/// stops in the middle of a later one's head, one that asks nothing for long, and all when the
/// server drains. Says why the server closed it, if it did.
pub(super) async fn watch_over(
    mut connection: impl Connection,
    activity: &Activity,
    manners: &Manners,
    context: &Context,
) -> Option<Closed> {
    let (limits, mut drain) = (&context.limits, context.drain.clone());
    let mut look_every = (limits.receive.min(limits.idle) / 2).max(Duration::from_millis(10));
    let born = Instant::now();
    let mut look_at = born + look_every;
    let (mut draining, mut drain_at, mut head_at) = (false, None, None);
    // Requests at the last look; when there was one.
    let (mut looked, mut active_at, mut asked_to_end, mut going) = (0, born, None, GOING_IDLE);
    loop {
        tokio::select! {
            biased;
            in_peace = poll_fn(|cx| connection.poll(cx, &mut active_at)) => {
                return if in_peace { asked_to_end.map(|_| Closed::Idle) } else { Some(Closed::Broken) };
            }
            _ = drain.wait_for(|drain| *drain), if !draining => {
                draining = true;
                activity.draining.store(true, Ordering::Relaxed);
                drain_at = Some(Instant::now() + manners.farewell);
            }
            () = sleep_until(drain_at.unwrap_or(born)), if drain_at.is_some() => {
                (drain_at, going, look_every) = (None, GOING, GOING / 4);
                let now = Instant::now();
                (asked_to_end, look_at) = (Some(now), now + look_every);
                connection.graceful_shutdown();
            }
            () = sleep_until(look_at) => {
                let now = Instant::now();
                activity.unread.give_back();
                let busy = connection.is_busy() || activity.open.load(Ordering::Relaxed) > 0;
                let (bytes, begun) = (activity.bytes.load(Ordering::Relaxed), activity.begun.load(Ordering::Relaxed));
                let in_head = !busy && bytes > activity.answered_bytes.load(Ordering::Relaxed);
                head_at = head_at.filter(|_| in_head && begun == looked).or(in_head.then_some(now));
                active_at = if busy { now } else { active_at };
                if busy || begun != looked {
                    looked = begun;
                    asked_to_end = asked_to_end.filter(|_| draining).map(|_| now);
                }
                let begun_at = if begun == 0 && bytes < manners.greeting_bytes { Some(born) } else { head_at };
                if !busy && begun_at.is_some_and(|since| now >= since + limits.receive) {
                    return Some(Closed::Slow);
                }
                match asked_to_end {
                    // It was told to go and has nothing left to wait for.
                    Some(asked) if now >= asked + going => return Some(Closed::Idle),
                    None if now >= active_at + limits.idle => {
                        asked_to_end = Some(now);
                        connection.graceful_shutdown();
                    }
                    _ => {}
                }
                let ends_at = asked_to_end.map_or(active_at + limits.idle, |asked| asked + going);
                look_at = (now + look_every).min(ends_at);
            }
        }
    }
}

/// What `answer` becomes; `None`, counted, if it panics. A panic ends one request and no other.
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
