//! HTTP/2 connections, directly on the crate h2.
//!
//! gRPC and HTTP share it, so that both answer calls that arrive together in one write, and both bound the memory of
//! answers that no client reads.
//!
//! A connection reads everything that has arrived, answers these calls in a row, and then writes once. The calls of a row
//! are decided in order.
//!
//! A call that has to wait, for the rest of its message or for its decision, becomes a task and holds up no other call.
//! A row ends early when [`WAITING_MAX`] of its calls wait. Then all other tasks get a turn before the rest is answered,
//! among them the tasks that write to the store.
//!
//! No call begins while unread answers use all the memory that the connection may have. If other connections have used
//! up the shared memory, at most [`WAITING_MAX`] calls wait for capacity, and further calls are refused.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{self, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Handshake, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::{Request, Response};
use http_body::Body;
use spillgate::Time;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};

use crate::settings::Limits;

use super::activity::Activity;
use super::connection::{Connection, unless_panic};
use super::hold::{Hold, Piece};
use super::runner::Runner;

/// All header fields of a request, in bytes as HTTP/2 counts them. Those of Envoy and nginx are far smaller.
const HEADER_LIST_BYTES: u32 = 16 * 1024;
/// Bytes of a body that are accepted before the handler reads it. Messages have a limit of their own.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// The same for all streams of a connection together: the most that a client can make us keep.
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// A client that has been silent for this long is checked with a PING.
const PING_EVERY: Duration = Duration::from_secs(30);

/// The most calls of a row that have to wait: a remote store decides them while the connection goes on. Also the most
/// calls that wait for capacity while other connections use all of it.
const WAITING_MAX: usize = 32;

/// An answer of several frames is sent at most this far ahead of what the client has read.
const AHEAD_BYTES: usize = 64 * 1024;

type Stream = (Request<RecvStream>, SendResponse<Piece>);

/// Answers the calls of one connection.
pub(super) trait Handler: Send + Sync + 'static {
    /// A call before it is answered. It should be small, since the future that answers it stores it.
    type Call: Send;
    type Body: Body<Data = Bytes> + Send;
    /// The call of a `request` that arrived at this time. `now` is the time at which its row is decided.
    fn call(&self, request: Request<RecvStream>, arrived: Instant, now: Option<Time>) -> Self::Call;
    fn answer(&self, call: Self::Call) -> impl Future<Output = Response<Self::Body>> + Send;
    /// The answer to a call whose handler panicked.
    fn failure() -> Response<Self::Body>;
    /// The time at which all calls of the next row are decided. `None` if each call has its own time.
    fn now(&self) -> Option<Time> {
        None
    }
}

/// A connection whose client is about to send the HTTP/2 preface.
pub(super) fn connection<'a, I, H>(
    io: I,
    handler: H,
    activity: &'a Arc<Activity>,
    limits: &Limits,
) -> impl Connection + Send + use<'a, I, H>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'a,
    H: Handler,
{
    let handshake = Builder::new()
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(HEADER_LIST_BYTES)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(AHEAD_BYTES)
        .handshake(io);
    let calls = Arc::new(Calls { handler, activity: Arc::clone(activity) });
    let clock = Arc::clone(&calls);
    Streams {
        state: State::Greeting { handshake, shutdown_requested: false },
        read: VecDeque::new(),
        runner: Runner::new(),
        answer: move |stream, arrived, now| answer(Arc::clone(&calls), stream, arrived, now),
        now: move || clock.handler.now(),
        activity,
        streams_max: limits.streams as usize,
        ping_timeout: limits.receive,
    }
}

/// What all calls of a connection share.
struct Calls<H> {
    handler: H,
    activity: Arc<Activity>,
}

/// A connection, and the streams that it has read and not begun to answer.
struct Streams<'a, I, A, N, F> {
    state: State<I>,
    /// The streams and the times when they arrived, `streams_max` at most.
    read: VecDeque<(Stream, Instant)>,
    streams_max: usize,
    runner: Runner<F>,
    /// Makes the future that answers a stream that arrived at this time.
    answer: A,
    /// See [`Handler::now`].
    now: N,
    activity: &'a Activity,
    /// How long the client may take to answer a PING.
    ping_timeout: Duration,
}

impl<I, A, N, F> Streams<'_, I, A, N, F> {
    /// Refuses all but [`WAITING_MAX`] waiting calls if other connections have used up the pool: the waiting requests
    /// need memory too. Nothing was decided for a refused call, so the client may send it again.
    #[cold]
    fn refuse(&mut self) {
        if self.read.len() > WAITING_MAX && self.activity.unread.is_starved() {
            for ((_, mut respond), _) in self.read.drain(WAITING_MAX..) {
                respond.send_reset(Reason::REFUSED_STREAM);
            }
        }
    }
}

enum State<I> {
    Greeting { handshake: Handshake<I, Piece>, shutdown_requested: bool },
    Serving { connection: h2::server::Connection<I, Piece>, keep_alive: Option<KeepAlive> },
}

impl<I, A, N, F> Connection for Streams<'_, I, A, N, F>
where
    I: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Stream, Instant, Option<Time>) -> F,
    N: Fn() -> Option<Time>,
    F: Future<Output = ()> + Send + 'static,
{
    fn poll(&mut self, cx: &mut task::Context<'_>, active_at: &mut Instant) -> Poll<bool> {
        if let State::Greeting { handshake, shutdown_requested } = &mut self.state {
            let Ok(mut connection) = ready!(Pin::new(handshake).poll(cx)) else { return Poll::Ready(false) };
            if *shutdown_requested {
                connection.graceful_shutdown();
            }
            let ping_timeout = self.ping_timeout;
            let keep_alive = connection.ping_pong().map(|pings| KeepAlive::new(pings, self.activity, ping_timeout));
            self.state = State::Serving { connection, keep_alive };
        }
        let State::Serving { connection, keep_alive } = &mut self.state else { return Poll::Pending };
        if keep_alive.as_mut().is_some_and(|keep_alive| keep_alive.has_failed(cx)) {
            return Poll::Ready(false);
        }
        loop {
            let before = self.read.len();
            let (mut arrived, mut left_over) = (None, before);
            // By resetting streams, a client can have more of them read than it may have open: `streams_max` bounds these.
            while self.read.len() < self.streams_max
                && let Poll::Ready(stream) = connection.poll_accept(cx)
            {
                // When the connection ends, its unanswered streams are dropped: their client is gone.
                match stream {
                    Some(Ok(stream)) => self.read.push_back((stream, *arrived.get_or_insert_with(Instant::now))),
                    Some(Err(_)) => return Poll::Ready(false),
                    None => return Poll::Ready(true),
                }
            }
            if self.read.len() >= self.streams_max
                && let Poll::Ready(ended) = connection.poll_closed(cx)
            {
                return Poll::Ready(ended.is_ok());
            }
            if self.read.is_empty() {
                return Poll::Pending;
            }
            *active_at = arrived.unwrap_or(*active_at);
            self.activity.begun.fetch_add((self.read.len() - before) as u64, Ordering::Relaxed);
            if !self.activity.unread.has_capacity() {
                self.refuse();
                // An answer that is written, or a call that ends, frees capacity and has this polled again.
                return Poll::Pending;
            }
            let enough = self.runner.waiting() + WAITING_MAX;
            let now = (self.now)();
            while self.runner.waiting() < enough
                && self.activity.unread.has_capacity()
                && let Some((mut stream, arrived)) = self.read.pop_front()
            {
                // The client may have reset a stream of an earlier poll meanwhile.
                let is_left_over = left_over > 0;
                left_over = left_over.saturating_sub(1);
                if !is_left_over || stream.1.poll_reset(cx).is_pending() {
                    self.runner.run((self.answer)(stream, arrived, now));
                }
            }
            if self.runner.waiting() >= enough && !self.read.is_empty() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Calls that wait only for their client to read do not count. Otherwise a client that reads nothing could hold up
    /// the end of the server for as long as it likes.
    fn is_busy(&self) -> bool {
        let stalled = self.activity.stalled.load(Ordering::Relaxed);
        self.runner.waiting() > stalled || !self.read.is_empty() && self.activity.unread.has_capacity()
    }

    fn graceful_shutdown(&mut self) {
        match &mut self.state {
            State::Greeting { shutdown_requested, .. } => *shutdown_requested = true,
            State::Serving { connection, .. } => connection.graceful_shutdown(),
        }
    }
}

/// Answers one call that arrived at this time, unless the client resets it.
fn answer<H: Handler>(
    calls: Arc<Calls<H>>,
    (request, mut respond): Stream,
    arrived: Instant,
    now: Option<Time>,
) -> impl Future<Output = ()> + Send + use<H> {
    let (call, hold) = (calls.handler.call(request, arrived, now), Hold::of_call(&calls.activity));
    async move {
        let answered = {
            let answer = pin!(calls.handler.answer(call));
            let mut answer = pin!(unless_panic(answer, &calls.activity.metrics));
            let answered = poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(Some(answer.unwrap_or_else(H::failure))),
                Poll::Pending => respond.poll_reset(cx).map(|_| None),
            });
            answered.await
        };
        if let Some(answer) = answered {
            send_answer(answer, &mut respond, hold, &calls.activity).await;
        }
    }
}

/// Sends an answer. A panic in its body ends this call and no other.
async fn send_answer<B>(answer: Response<B>, respond: &mut SendResponse<Piece>, hold: Hold, activity: &Arc<Activity>)
where
    B: Body<Data = Bytes>,
{
    let (head, body) = answer.into_parts();
    let ends = body.is_end_stream();
    // If sending fails, the client is gone.
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), ends) else { return };
    if ends {
        return;
    }
    let sent = unless_panic(pin!(send_body(&mut stream, body, hold, activity)), &activity.metrics).await;
    match sent {
        Some(Ok(())) => {}
        Some(Err(reason)) => stream.send_reset(reason),
        None => stream.send_reset(Reason::INTERNAL_ERROR),
    }
}

/// Sends a body as fast as the client reads it. For each stream this keeps at most one frame more than the client has
/// window for. Fails with the reason why the rest of the body cannot be sent.
async fn send_body<B>(
    stream: &mut SendStream<Piece>,
    body: B,
    hold: Hold,
    activity: &Arc<Activity>,
) -> Result<(), Reason>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let mut hold = Some(hold);
    loop {
        let frame = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Pending => stream.poll_reset(cx).map(|_| None),
            ready => ready,
        });
        let frame = match frame.await {
            Some(frame) => frame.map_err(|_| Reason::INTERNAL_ERROR)?,
            // If sending fails, here and below, the client is gone.
            None => {
                let _ = stream.send_data(Piece::END, true);
                return Ok(());
            }
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let _ = frame.into_trailers().map(|trailers| stream.send_trailers(trailers));
                return Ok(());
            }
        };
        let is_first = hold.is_some();
        let hold = hold.take().unwrap_or_else(|| Hold::of_frame(activity));
        let piece = hold.with(data).ok_or(Reason::ENHANCE_YOUR_CALM)?;
        // Most answers are one frame, which goes to h2 without waiting for the window.
        if !is_first && !has_window(stream, activity).await {
            return Ok(());
        }
        let ends = body.is_end_stream();
        if stream.send_data(piece, ends).is_err() || ends {
            return Ok(());
        }
    }
}

/// Waits until the client has window for more. Returns false if the stream is over.
async fn has_window(stream: &mut SendStream<Piece>, activity: &Activity) -> bool {
    stream.reserve_capacity(1);
    let _stalled = Stalled::new(activity);
    while stream.capacity() == 0 {
        let more = poll_fn(|cx| stream.poll_capacity(cx)).await;
        if more.is_none_or(|more| more.is_err()) {
            return false;
        }
    }
    true
}

/// A call that waits for its client to read, counted until it is dropped.
struct Stalled<'a>(&'a Activity);

impl Stalled<'_> {
    fn new(activity: &Activity) -> Stalled<'_> {
        activity.stalled.fetch_add(1, Ordering::Relaxed);
        Stalled(activity)
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        self.0.stalled.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Checks by PING whether a silent client is still there.
struct KeepAlive {
    pings: PingPong,
    bytes: Arc<AtomicU64>,
    /// The value of `bytes` at the last check.
    seen: u64,
    /// Whether a PING was sent at the last check.
    pinged: bool,
    ping_timeout: Duration,
    next_check: Pin<Box<Sleep>>,
}

impl KeepAlive {
    fn new(pings: PingPong, activity: &Activity, ping_timeout: Duration) -> KeepAlive {
        let (bytes, next_check) = (Arc::clone(&activity.bytes), Box::pin(sleep(PING_EVERY)));
        KeepAlive { pings, bytes, seen: 0, pinged: false, ping_timeout, next_check }
    }

    /// Whether the client has neither answered the last PING nor sent anything else.
    fn has_failed(&mut self, cx: &mut task::Context<'_>) -> bool {
        while self.next_check.as_mut().poll(cx).is_ready() {
            let bytes = self.bytes.load(Ordering::Relaxed);
            let silent = bytes == self.seen;
            if silent && self.pinged {
                return true;
            }
            (self.seen, self.pinged) = (bytes, silent);
            if silent {
                // h2 sends the next PING only after the answer to the last one was taken.
                let _ = self.pings.poll_pong(cx);
                let _ = self.pings.send_ping(Ping::opaque());
            }
            let pause = if silent { self.ping_timeout } else { PING_EVERY };
            self.next_check.as_mut().reset(Instant::now() + pause);
        }
        false
    }
}

#[cfg(test)]
mod tests;
