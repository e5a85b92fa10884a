//! HTTP/2 connections, on h2 alone: gRPC's and HTTP's.
//!
//! A connection reads all that is there, then answers the calls that it read in a row, and only then writes: a row is
//! decided at one time, in order, and leaves in one write. A call that has to wait, for the rest of its message or for
//! its decision, goes on as a task of its own and holds up no other. The row ends when it has a number of these: all
//! other tasks have a turn then, among them those that write to the store, before the rest is answered.
//!
//! No call begins while the answers that the client has not read take all the memory that the connection may have. What
//! other connections hold may leave it little: then [`WAITING_MAX`] calls wait for room, and further ones are refused.

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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};

use crate::settings::Limits;

use super::connection::{
    Activity, CONNECTION_WINDOW_BYTES, Connection, HEADER_LIST_BYTES, PING_EVERY, STREAM_WINDOW_BYTES, unless_panic,
};
use super::runner::Runner;
use super::unread::{Hold, Piece};

/// Calls of a row that have to wait, at most: a store elsewhere decides these while we get to the next ones. Also those
/// that wait for room when other connections have it all.
const WAITING_MAX: usize = 32;

/// What is sent of a stream, at most, ahead of what the client has read of it, if it comes in several frames.
const AHEAD_BYTES: usize = 64 * 1024;

type Stream = (Request<RecvStream>, SendResponse<Piece>);

/// What answers the calls of one connection.
pub(super) trait Handler: Send + Sync + 'static {
    /// A call, as small as it can be: the future that answers it carries it around.
    type Call: Send;
    type Body: Body<Data = Bytes> + Send;
    /// What `request` asks, which came then.
    fn call(&self, request: Request<RecvStream>, came: Instant) -> Self::Call;
    fn answer(&self, call: Self::Call) -> impl Future<Output = Response<Self::Body>> + Send;
    /// What a call is answered whose handler panicked.
    fn failure() -> Response<Self::Body>;
    /// Runs `row`, which answers calls that were read together.
    fn at_one_time(&self, row: &mut dyn FnMut()) {
        row();
    }
}

/// The connection of a client that is about to send the preface.
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
    let rows = Arc::clone(&calls);
    Streams {
        state: State::Greeting { handshake, told_to_go: false },
        read: VecDeque::new(),
        runner: Runner::new(),
        answer: move |stream, came| answer(Arc::clone(&calls), stream, came),
        at_one_time: move |row: &mut dyn FnMut()| rows.handler.at_one_time(row),
        activity,
        streams_max: limits.streams as usize,
        patience: limits.receive,
    }
}

/// What the calls of a connection share.
struct Calls<H> {
    handler: H,
    activity: Arc<Activity>,
}

/// A connection, and the streams that it has read and not answered.
struct Streams<'a, I, A, R, F> {
    state: State<I>,
    /// Those with the time when they came, `streams_max` at most.
    read: VecDeque<(Stream, Instant)>,
    streams_max: usize,
    runner: Runner<F>,
    /// Makes the future that answers a stream, which came then.
    answer: A,
    /// Runs what answers a row of streams.
    at_one_time: R,
    activity: &'a Activity,
    /// How long the client may take to answer a PING.
    patience: Duration,
}

impl<I, A, R, F> Streams<'_, I, A, R, F> {
    /// Refuses most of what waits when other connections have used up the pool: what a call asks is memory too.
    /// A client may send again what was refused so, since nothing was decided.
    #[cold]
    fn refuse(&mut self) {
        if self.read.len() > WAITING_MAX && self.activity.unread.is_short() {
            for ((_, mut respond), _) in self.read.drain(WAITING_MAX..) {
                respond.send_reset(Reason::REFUSED_STREAM);
            }
        }
    }
}

enum State<I> {
    Greeting { handshake: Handshake<I, Piece>, told_to_go: bool },
    Serving { connection: h2::server::Connection<I, Piece>, pulse: Option<Pulse> },
}

impl<I, A, R, F> Connection for Streams<'_, I, A, R, F>
where
    I: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Stream, Instant) -> F,
    R: Fn(&mut dyn FnMut()),
    F: Future<Output = ()> + Send + 'static,
{
    fn poll(&mut self, cx: &mut task::Context<'_>, active_at: &mut Instant) -> Poll<bool> {
        if let State::Greeting { handshake, told_to_go } = &mut self.state {
            let Ok(mut connection) = ready!(Pin::new(handshake).poll(cx)) else { return Poll::Ready(false) };
            if *told_to_go {
                connection.graceful_shutdown();
            }
            let pulse = connection.ping_pong().map(|pings| Pulse::new(pings, self.activity, self.patience));
            self.state = State::Serving { connection, pulse };
        }
        let State::Serving { connection, pulse } = &mut self.state else { return Poll::Pending };
        if pulse.as_mut().is_some_and(|pulse| pulse.has_stopped(cx)) {
            return Poll::Ready(false);
        }
        loop {
            let before = self.read.len();
            let (mut came, mut left_over) = (None, before);
            // A client can have more accepted than it may have open: it takes them back.
            while self.read.len() < self.streams_max
                && let Poll::Ready(stream) = connection.poll_accept(cx)
            {
                // What is not answered when the connection ends is dropped: nobody waits for it any more.
                match stream {
                    Some(Ok(stream)) => self.read.push_back((stream, *came.get_or_insert_with(Instant::now))),
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
            *active_at = came.unwrap_or(*active_at);
            self.activity.begun.fetch_add((self.read.len() - before) as u64, Ordering::Relaxed);
            if !self.activity.unread.has_room() {
                self.refuse();
                // What makes room, an answer that is written or a call that ends, has this called again.
                return Poll::Pending;
            }
            let enough = self.runner.waiting() + WAITING_MAX;
            (self.at_one_time)(&mut || {
                while self.runner.waiting() < enough
                    && self.activity.unread.has_room()
                    && let Some((mut stream, came)) = self.read.pop_front()
                {
                    // Those of an earlier turn may have been taken back meanwhile.
                    let is_left_over = left_over > 0;
                    left_over = left_over.saturating_sub(1);
                    if !is_left_over || stream.1.poll_reset(cx).is_pending() {
                        self.runner.run((self.answer)(stream, came));
                    }
                }
            });
            if self.runner.waiting() >= enough && !self.read.is_empty() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Answers that lie here because the client does not read them are no work of ours: else it could hold them,
    /// and the end of the server, for as long as it liked.
    fn is_busy(&self) -> bool {
        let stalled = self.activity.stalled.load(Ordering::Relaxed);
        self.runner.waiting() > stalled || !self.read.is_empty() && self.activity.unread.has_room()
    }

    fn graceful_shutdown(&mut self) {
        match &mut self.state {
            State::Greeting { told_to_go, .. } => *told_to_go = true,
            State::Serving { connection, .. } => connection.graceful_shutdown(),
        }
    }
}

/// Answers one call, which came then, unless the client takes it back.
fn answer<H: Handler>(
    calls: Arc<Calls<H>>,
    (request, mut respond): Stream,
    came: Instant,
) -> impl Future<Output = ()> + Send + use<H> {
    let (call, hold) = (calls.handler.call(request, came), Hold::of_call(&calls.activity));
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
            give(answer, &mut respond, hold, &calls.activity).await;
        }
    }
}

/// Sends an answer; a panic in its body ends this call and no other.
async fn give<B>(answer: Response<B>, respond: &mut SendResponse<Piece>, hold: Hold, activity: &Arc<Activity>)
where
    B: Body<Data = Bytes>,
{
    let (head, body) = answer.into_parts();
    let ends = body.is_end_stream();
    // Where sending fails, the client has gone.
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), ends) else { return };
    if ends {
        return;
    }
    let sent = unless_panic(pin!(send(&mut stream, body, hold, activity)), &activity.metrics).await;
    match sent {
        Some(Ok(())) => {}
        Some(Err(reason)) => stream.send_reset(reason),
        None => stream.send_reset(Reason::INTERNAL_ERROR),
    }
}

/// Sends a body as fast as the client takes it: of each stream no more is held than it has room for, and one frame.
/// Fails with the reason why the rest of it cannot be sent.
async fn send<B>(stream: &mut SendStream<Piece>, body: B, hold: Hold, activity: &Arc<Activity>) -> Result<(), Reason>
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
            // Where sending fails, here and below, the client has gone.
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
        // What an answer usually is, one frame, is left to h2 without asking.
        if !is_first && !has_room(stream, activity).await {
            return Ok(());
        }
        let ends = body.is_end_stream();
        if stream.send_data(piece, ends).is_err() || ends {
            return Ok(());
        }
    }
}

/// Waits until the client takes more than was sent; false if it never will.
async fn has_room(stream: &mut SendStream<Piece>, activity: &Activity) -> bool {
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

/// A call that waits for its client to read.
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

/// Whether the client is still there: one that is silent for long is asked by PING.
struct Pulse {
    pings: PingPong,
    bytes: Arc<AtomicU64>,
    /// How many there were at the last look.
    seen: u64,
    asked: bool,
    patience: Duration,
    next_look: Pin<Box<Sleep>>,
}

impl Pulse {
    fn new(pings: PingPong, activity: &Activity, patience: Duration) -> Pulse {
        let (bytes, next_look) = (Arc::clone(&activity.bytes), Box::pin(sleep(PING_EVERY)));
        Pulse { pings, bytes, seen: 0, asked: false, patience, next_look }
    }

    fn has_stopped(&mut self, cx: &mut task::Context<'_>) -> bool {
        while self.next_look.as_mut().poll(cx).is_ready() {
            let bytes = self.bytes.load(Ordering::Relaxed);
            let silent = bytes == self.seen;
            if silent && self.asked {
                return true;
            }
            (self.seen, self.asked) = (bytes, silent);
            if silent {
                // The last answer has to be taken before there can be another question.
                let _ = self.pings.poll_pong(cx);
                let _ = self.pings.send_ping(Ping::opaque());
            }
            let pause = if silent { self.patience } else { PING_EVERY };
            self.next_look.as_mut().reset(Instant::now() + pause);
        }
        false
    }
}

#[cfg(test)]
mod tests;
