//! HTTP/2 connections, built directly on the crate h2.
//!
//! gRPC and HTTP share this code. If several calls arrive together, the code sends all their answers in one write. The
//! code also bounds the memory of answers that clients do not read.
//!
//! In one pass, a connection reads all calls that have arrived, and answers them in the order of their arrival. Then it
//! writes all answers together. The calls that are answered in one pass are called a batch.
//!
//! Some calls have to wait for the rest of their message or for their decision. Such a call becomes a task, so that no
//! other call waits for it. When [`WAITING_MAX`] calls of a batch wait, the batch ends. Then all other tasks run, such
//! as the tasks that write to the store. After that, the remaining calls begin the next batch. A batch also ends after
//! [`TURN_REQUESTS`] calls, so that other connections have their turn.
//!
//! No call begins while unread answers use all the memory that the connection can have. If other connections have used
//! up the shared memory, at most [`WAITING_MAX`] calls of a connection wait for memory. Further calls of this
//! connection are refused. A call whose request does not fit into the memory for requests in flight is refused too.
//!
//! A connection pays for the largest number of streams that h2 ever kept at once, because the tables of h2 never shrink.
//! h2 keeps a stream until its answer is written, so a stream whose answer nobody reads counts too.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Handshake, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::{Request, Response};
use http_body::Body;
use parking_lot::Mutex;
use spillgate::Time;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::Limits;
use super::activity::Activity;
use super::connection::{Connection, unless_panic, warn_at_times};
use super::held_bytes::{HeldBytes, Piece};
use super::runner::Runner;
use super::turn::{TURN_REQUESTS, Turn, wake_after_others};

/// The largest size of all header fields of a request, in bytes as HTTP/2 counts them. Envoy and nginx send far less.
const HEADER_LIST_BYTES: u32 = 16 * 1024;
/// How many bytes of a body the server accepts before the handler reads them. The length of a whole message has
/// a limit of its own.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// For all bodies of one connection together: how many bytes the server accepts before handlers read them. A client
/// cannot make the server keep more bytes.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024;
/// For all DATA frames of one connection that handlers have not read: how many bytes of overhead h2 accepts. A frame of
/// one byte counts as 255. If a client exceeds this, h2 closes the connection.
const FRAME_OVERHEAD_BYTES: usize = 128 * 1024;
/// What the bodies that are not read take at most on one connection: those of calls that have not begun, or that of a call
/// whose task has stopped reading.
pub(super) const QUEUE_BYTES: usize =
    CONNECTION_WINDOW_BYTES as usize + FRAME_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES / 4;
/// The time between two checks of a client. A client that has sent nothing between two checks gets a PING.
const PING_EVERY: Duration = Duration::from_secs(30);

/// A batch ends when this many of its calls wait, for example for a shared store. If other connections use all the
/// shared memory, at most this many calls of a connection wait for memory.
const WAITING_MAX: usize = 32;

/// A further frame of an answer is given to h2 only while h2 keeps fewer unread bytes of the answer than this.
const AHEAD_BYTES: usize = 64 * 1024;

/// What h2 keeps for each stream of the largest number that it ever kept at once. Its tables grow and never shrink, so
/// the connection pays for them until its end.
const PEAK_BYTES: usize = 2560;
/// This many streams are a part of what every connection takes.
const PEAK_FREE: usize = 8;

type Stream = (Request<RecvStream>, SendResponse<Piece>);

/// A stream that was read and has not begun.
struct Read {
    stream: Stream,
    arrived: Instant,
    /// The memory of the request, as [`InFlight`](super::in_flight::InFlight) counts it.
    bytes: usize,
}

/// Answers the calls of one connection.
pub(super) trait Handler: Send + Sync + 'static {
    /// A call that is not answered yet. This type should be small, because the future that answers a call contains the
    /// call.
    type Call: Send;
    type Body: Body<Data = Bytes> + Send;
    /// Makes the call of a `request`, which arrived at the time `arrived`. All calls of its batch are decided with the
    /// same time `now`.
    fn call(&self, request: Request<RecvStream>, arrived: Instant, now: Option<Time>) -> Self::Call;
    fn answer(&self, call: Self::Call) -> impl Future<Output = Response<Self::Body>> + Send;
    /// Returns the answer to a call whose handler panicked.
    fn failure() -> Response<Self::Body>;
    /// Returns the time `now` with which all calls of the next batch are decided, or `None` if each call has a time of
    /// its own.
    fn now(&self) -> Option<Time> {
        None
    }
}

/// Makes a connection of `io`. The client will send the HTTP/2 preface next.
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
        .data_frame_budget(FRAME_OVERHEAD_BYTES)
        .max_send_buffer_size(AHEAD_BYTES)
        .handshake(io);
    let calls = Arc::new(Calls { handler, activity: Arc::clone(activity) });
    let clock = Arc::clone(&calls);
    Streams {
        state: State::Greeting { handshake, shutdown_requested: false },
        read: VecDeque::new(),
        kept: 0,
        peak: PEAK_FREE,
        has_queue: false,
        runner: Runner::new(),
        answer: move |waiting, now| answer(Arc::clone(&calls), waiting, now),
        now: move || clock.handler.now(),
        activity,
        streams_max: limits.streams as usize,
        ping_timeout: limits.receive,
    }
}

/// The values that all calls of a connection share.
struct Calls<H> {
    handler: H,
    activity: Arc<Activity>,
}

/// A connection, with the streams that it has read but not begun to answer.
struct Streams<'a, I, A, N, F> {
    state: State<I>,
    /// The streams that were read and are not begun yet. There are at most twice `streams_max`, because a client that
    /// resets streams can open others.
    read: VecDeque<Read>,
    /// How many streams h2 had when the socket last took all that could be written, and how many have come since. h2 keeps
    /// even a stream that was reset until it is its turn to be written.
    kept: usize,
    /// The largest number of streams that h2 kept at once, and that are paid for: see [`PEAK_BYTES`].
    peak: usize,
    /// Whether [`QUEUE_BYTES`] are taken for the bodies of these streams.
    has_queue: bool,
    streams_max: usize,
    runner: Runner<F>,
    /// Makes the future that answers a stream. Its arguments are the stream and the time of its batch.
    answer: A,
    /// See [`Handler::now`].
    now: N,
    activity: &'a Activity,
    /// The time in which the client has to answer a PING.
    ping_timeout: Duration,
}

impl<I, A, N, F> Streams<'_, I, A, N, F> {
    /// Ends a turn. If streams are left for the next turn, their bodies take memory too. If it does not fit, all of these
    /// streams are refused.
    fn end_turn(&mut self) {
        if self.has_queue == self.read.is_empty() {
            self.change_queue();
        }
        self.activity.in_flight.end_turn();
    }

    #[cold]
    fn change_queue(&mut self) {
        if self.has_queue {
            self.activity.in_flight.end(QUEUE_BYTES);
            self.has_queue = false;
        } else if self.activity.in_flight.take(QUEUE_BYTES) {
            self.has_queue = true;
        } else {
            self.activity.in_flight.refused(self.read.len());
            for mut read in self.read.drain(..) {
                read.stream.1.send_reset(Reason::REFUSED_STREAM);
                self.activity.in_flight.end(read.bytes);
            }
        }
    }

    /// If other connections have used up the pool (the shared memory for unread answers), refuses all waiting calls
    /// except the first [`WAITING_MAX`], because waiting calls need memory too. Nothing was decided for a refused call,
    /// so the client can send it again.
    #[cold]
    fn refuse(&mut self) {
        if self.read.len() > WAITING_MAX && self.activity.unread.is_starved() {
            self.activity.metrics.unread_refused.inc_by((self.read.len() - WAITING_MAX) as u64);
            for mut read in self.read.drain(WAITING_MAX..) {
                read.stream.1.send_reset(Reason::REFUSED_STREAM);
                self.activity.in_flight.end(read.bytes);
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
    A: Fn(Read, Option<Time>) -> F,
    N: Fn() -> Option<Time>,
    F: Future<Output = ()> + Send + 'static,
{
    fn poll(&mut self, cx: &mut task::Context<'_>, active_at: &mut Instant) -> Poll<bool> {
        if let State::Greeting { handshake, shutdown_requested } = &mut self.state {
            let mut connection = match ready!(Pin::new(handshake).poll(cx)) {
                Ok(connection) => connection,
                Err(error) => {
                    note_failed_greeting(&error);
                    return Poll::Ready(false);
                }
            };
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
        let mut begun = 0;
        loop {
            let (mut arrived, mut left_over, mut came) = (None, self.read.len(), 0);
            while let Poll::Ready(stream) = connection.poll_accept(cx) {
                // When the connection ends, its unanswered streams are dropped, because their client is gone.
                // The stream is only moved into the list: each further move would copy it.
                let bytes = match &stream {
                    Some(Ok((request, _))) => self.activity.in_flight.begin(request),
                    Some(Err(_)) => return Poll::Ready(false),
                    None => return Poll::Ready(true),
                };
                self.kept += 1;
                if self.read.len() >= 2 * self.streams_max {
                    left_over = drop_reset(&mut self.read, self.activity, cx);
                }
                match (bytes, stream) {
                    (Some(bytes), Some(Ok(stream))) => {
                        let arrived = *arrived.get_or_insert_with(Instant::now);
                        self.read.push_back(Read { stream, arrived, bytes });
                        came += 1;
                    }
                    (_, Some(Ok((_, mut respond)))) => respond.send_reset(Reason::REFUSED_STREAM),
                    _ => {}
                }
            }
            if !pays_for(self.kept, &mut self.peak, self.activity) {
                // Only the end of the connection frees these tables. Its calls are lost with it.
                self.activity.in_flight.refused(self.read.len() + self.runner.waiting());
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                let _ = connection.poll_closed(cx);
                return Poll::Ready(false);
            }
            if !self.activity.turn.is_blocked() {
                self.kept =
                    self.read.len() + self.runner.waiting() + self.activity.unread_pieces.load(Ordering::Relaxed);
            }
            if self.read.is_empty() {
                self.end_turn();
                return Poll::Pending;
            }
            *active_at = arrived.unwrap_or(*active_at);
            self.activity.begun.fetch_add(came, Ordering::Relaxed);
            if !self.activity.unread.has_capacity() {
                self.refuse();
                self.end_turn();
                // When an answer is written or a call ends, capacity becomes free, and this function is polled again.
                return Poll::Pending;
            }
            let enough = self.runner.waiting() + WAITING_MAX;
            let now = (self.now)();
            while self.runner.waiting() < enough
                && begun < TURN_REQUESTS
                && self.activity.unread.has_capacity()
                && let Some(mut read) = self.read.pop_front()
            {
                // The client can have reset a stream that was read in an earlier poll.
                let is_left_over = left_over > 0;
                left_over = left_over.saturating_sub(1);
                if !is_left_over || read.stream.1.poll_reset(cx).is_pending() {
                    begun += 1;
                    self.runner.run((self.answer)(read, now));
                } else {
                    self.activity.in_flight.end(read.bytes);
                }
            }
            if (self.runner.waiting() >= enough || begun >= TURN_REQUESTS) && !self.read.is_empty() {
                self.end_turn();
                wake_after_others(cx);
                return Poll::Pending;
            }
        }
    }

    /// Returns whether a request is in flight. A call that only waits until its client reads the answer does not count,
    /// so that a client that reads nothing cannot delay the end of the server.
    fn is_busy(&self) -> bool {
        let stalled = self.activity.stalled.load(Ordering::Relaxed);
        self.runner.waiting() > stalled || !self.read.is_empty() && self.activity.unread.has_capacity()
    }

    fn is_http2(&self) -> bool {
        true
    }

    fn graceful_shutdown(&mut self) {
        match &mut self.state {
            State::Greeting { shutdown_requested, .. } => *shutdown_requested = true,
            State::Serving { connection, .. } => connection.graceful_shutdown(),
        }
    }
}

/// Warns if a client has not begun with HTTP/2. The other listeners find this out before they choose a version of HTTP.
#[cold]
fn note_failed_greeting(error: &h2::Error) {
    if error.reason() == Some(Reason::PROTOCOL_ERROR) {
        static WARNED_AT: Mutex<Option<Instant>> = Mutex::new(None);
        warn_at_times(
            &WARNED_AT,
            "a client of the gRPC listener does not speak HTTP/2: it speaks TLS to a listener without TLS (set `tls.cert`, or use no TLS \
             there), or HTTP/1",
        );
    }
}

/// Drops the streams that clients have reset before they began, and returns how many are left. h2 bounds those that are
/// not reset, so at least half of twice `streams_max` end here, and each new stream pays for few of these checks.
#[cold]
fn drop_reset(read: &mut VecDeque<Read>, activity: &Activity, cx: &mut task::Context<'_>) -> usize {
    read.retain_mut(|read| {
        let is_open = read.stream.1.poll_reset(cx).is_pending();
        if !is_open {
            activity.in_flight.end(read.bytes);
        }
        is_open
    });
    read.len()
}

/// Takes the bytes for the tables of h2, if h2 has `kept` more streams than the `peak`. Returns whether they fit.
#[inline]
fn pays_for(kept: usize, peak: &mut usize, activity: &Activity) -> bool {
    let more = kept.saturating_sub(*peak);
    *peak = kept.max(*peak);
    more == 0 || activity.in_flight.take_for_tables(more * PEAK_BYTES)
}

/// Answers one call, unless the client resets it.
fn answer<H: Handler>(
    calls: Arc<Calls<H>>,
    Read { stream: (request, mut respond), arrived, bytes }: Read,
    now: Option<Time>,
) -> impl Future<Output = ()> + Send + use<H> {
    let (call, mut hold) = (calls.handler.call(request, arrived, now), HeldBytes::of_call(&calls.activity, bytes));
    async move {
        let answered = {
            let answer = pin!(calls.handler.answer(call));
            let mut answer = pin!(unless_panic(answer, &calls.activity.metrics));
            let answered = poll_fn(|cx| {
                hold.begin_poll();
                let answered = answer.as_mut().poll(cx);
                if !hold.end_poll() {
                    // The body did not fit, so nothing was decided, and the client can send the call again.
                    respond.send_reset(Reason::REFUSED_STREAM);
                    return Poll::Ready(None);
                }
                match answered {
                    Poll::Ready(answer) => Poll::Ready(Some(answer.unwrap_or_else(H::failure))),
                    Poll::Pending => respond.poll_reset(cx).map(|_| None),
                }
            });
            answered.await
        };
        if let Some(answer) = answered {
            hold.end_request();
            send_answer(answer, &mut respond, hold, &calls.activity).await;
        }
    }
}

/// Sends an answer. If the body panics, only this call ends.
async fn send_answer<B>(
    answer: Response<B>,
    respond: &mut SendResponse<Piece>,
    hold: HeldBytes,
    activity: &Arc<Activity>,
) where
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

/// Sends a body as fast as the client reads it. The window of a stream is the number of bytes that its client accepts.
/// This function sends at most one frame more than the window allows. Fails with the reason why the rest of the body
/// cannot be sent.
async fn send_body<B>(
    stream: &mut SendStream<Piece>,
    body: B,
    hold: HeldBytes,
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
            // If `send_data` or `send_trailers` fails, the client is gone.
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
        let hold = hold.take().unwrap_or_else(|| HeldBytes::of_frame(activity));
        let piece = hold.with(data).ok_or(Reason::ENHANCE_YOUR_CALM)?;
        // The first frame does not wait for the window, because most answers have only one frame.
        if !is_first && !has_window(stream, activity).await {
            return Ok(());
        }
        let ends = body.is_end_stream();
        if stream.send_data(piece, ends).is_err() || ends {
            return Ok(());
        }
    }
}

/// Waits until the client accepts more bytes of this stream. Returns false if the stream has ended, or if the client
/// reads nothing for too long. Then an answer of many frames, such as a page, must not keep what it uses.
async fn has_window(stream: &mut SendStream<Piece>, activity: &Activity) -> bool {
    stream.reserve_capacity(1);
    let _stalled = Stalled::new(activity);
    while stream.capacity() == 0 {
        let more = timeout(activity.patience, poll_fn(|cx| stream.poll_capacity(cx))).await;
        let Ok(more) = more else {
            stream.send_reset(Reason::CANCEL);
            return false;
        };
        if more.is_none_or(|more| more.is_err()) {
            return false;
        }
    }
    true
}

/// Counts one call that waits for its client to read. The call is counted until this value is dropped.
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

/// Checks with a PING whether a silent client is still there.
struct KeepAlive {
    pings: PingPong,
    turn: Arc<Turn>,
    /// The number of bytes that were read before the last check.
    seen: u64,
    /// Whether the last check sent a PING.
    pinged: bool,
    ping_timeout: Duration,
    next_check: Pin<Box<Sleep>>,
}

impl KeepAlive {
    fn new(pings: PingPong, activity: &Activity, ping_timeout: Duration) -> KeepAlive {
        let (turn, next_check) = (Arc::clone(&activity.turn), Box::pin(sleep(PING_EVERY)));
        KeepAlive { pings, turn, seen: 0, pinged: false, ping_timeout, next_check }
    }

    /// Does all checks that are due. A check sends a PING if the client has sent nothing since the check before.
    /// Returns true if a check sent a PING, and the client has then sent nothing until the next check, not even the
    /// answer to the PING.
    fn has_failed(&mut self, cx: &mut task::Context<'_>) -> bool {
        while self.next_check.as_mut().poll(cx).is_ready() {
            let bytes = self.turn.bytes();
            let silent = bytes == self.seen;
            if silent && self.pinged {
                return true;
            }
            (self.seen, self.pinged) = (bytes, silent);
            if silent {
                // h2 sends no further PING until `poll_pong` has returned the answer to the last one.
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
