//! One connection, from its handshake to its end.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, interval, sleep_until};
use tower::{BoxError, ServiceExt};

use crate::metrics::{Closed, Metrics};
use crate::protocol::grpc::{Grpc, GrpcConnection};
use crate::service::Peer;

use super::batch::Batch;
use super::io::{Counted, TimedBody};
use super::socket::Socket;
use super::worker::Context;
use super::{Accepted, App};

/// Bytes of a client's first HTTP/2 words: the preface and an empty SETTINGS frame.
const HTTP2_GREETING_BYTES: u64 = 24 + 9;
/// All header fields of a request, as HTTP/2 counts them; Envoy's and nginx's own are far below.
const HEADER_LIST_BYTES: u32 = 16 * 1024;
/// Bytes of a body that are taken before the handler asks; messages are bounded on top of this.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// The same for all streams of a connection together, so that no client makes us hold more.
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// Bytes of an HTTP/1 request's head.
const HTTP1_HEAD_BYTES: usize = 32 * 1024;
/// Is the peer still there? Asked by PING when it has been silent this long.
const PING_EVERY: Duration = Duration::from_secs(30);

/// How long a connection without a request in flight may take to go once the server drains: an
/// HTTP/2 client has to answer a PING, and one that never does may not hold the server up.
const GOING: Duration = Duration::from_secs(2);

/// What a protocol lets us ask of a connection.
struct Manners {
    /// With fewer bytes, and without a request, the client has not even begun.
    greeting_bytes: u64,
    /// How long a connection is still served while the server drains. An HTTP/1 client can only be
    /// told to go in an answer; closing before that would lose a request on its way.
    farewell: Duration,
}

const GRPC: Manners = Manners { greeting_bytes: HTTP2_GREETING_BYTES, farewell: Duration::ZERO };
/// Whatever was sent, without a whole request it is not enough.
const HTTP: Manners = Manners { greeting_bytes: u64::MAX, farewell: Duration::from_secs(1) };

/// What the watch over a connection sees of it. One for each connection, so that counting
/// references to it costs no word with other cores.
struct Activity {
    metrics: Arc<Metrics>,
    bytes: Arc<AtomicU64>,
    /// Requests that began.
    begun: AtomicU64,
    /// HTTP requests in the handler; HTTP/2 streams are counted by their [`Batch`] as well.
    open: AtomicUsize,
    /// `bytes` when the last HTTP/1 request was answered: what came since then is the head of another.
    answered_bytes: AtomicU64,
    /// The server wants to end: HTTP/1 answers tell the client to come back elsewhere.
    draining: AtomicBool,
}

/// An HTTP request in the handler.
struct Open {
    activity: Arc<Activity>,
    http1: bool,
}

impl Open {
    fn begin(activity: &Arc<Activity>, http1: bool) -> Open {
        activity.begun.fetch_add(1, Ordering::Relaxed);
        activity.open.fetch_add(1, Ordering::Relaxed);
        Open { activity: Arc::clone(activity), http1 }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.http1 {
            self.activity.answered_bytes.store(self.activity.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.activity.open.fetch_sub(1, Ordering::Relaxed);
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
    let activity = Arc::new(Activity {
        metrics: Arc::clone(&context.metrics),
        bytes: Arc::default(),
        begun: AtomicU64::new(0),
        open: AtomicUsize::new(0),
        answered_bytes: AtomicU64::new(u64::MAX),
        draining: AtomicBool::new(false),
    });
    let io = TokioIo::new(Counted::new(stream, Arc::clone(&activity.bytes)));
    match app {
        App::Grpc(grpc) => serve_grpc(io, grpc, &activity, context).await,
        App::Http(state) => {
            let state = state.clone();
            let answer = move |request| {
                let state = state.clone();
                async move { state.answer(peer, request).await }
            };
            serve_http(io, answer, &activity, context).await
        }
        App::Admin(router) => {
            let router = router.clone();
            let answer = move |mut request: Request<TimedBody>| {
                request.extensions_mut().insert(ConnectInfo(peer));
                let answered = router.clone().oneshot(request);
                async move { answered.await.unwrap_or_else(|never| match never {}) }
            };
            serve_http(io, answer, &activity, context).await
        }
    }
}

async fn serve_grpc<I>(io: I, grpc: &Grpc, activity: &Arc<Activity>, context: &Context) -> Option<Closed>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (batch, limits) = (Batch::default(), &context.limits);
    let (calls, seen, receive) = (Arc::new(grpc.connection()), Arc::clone(activity), limits.receive);
    let service = service_fn(move |request: Request<Incoming>| {
        seen.begun.fetch_add(1, Ordering::Relaxed);
        let (calls, seen) = (Arc::clone(&calls), Arc::clone(&seen));
        async move {
            let answer = pin!(calls.call(request.map(|body| TimedBody::new(body, receive))));
            Ok::<_, Infallible>(unless_panic(answer, &seen.metrics).await.unwrap_or_else(GrpcConnection::failure))
        }
    });
    let mut builder = http2::Builder::new(batch.clone());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(HEADER_LIST_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(limits.receive);
    let connection = pin!(builder.serve_connection(io, service));
    watch_over(connection, &batch, activity, &GRPC, context).await
}

/// Serves HTTP/1 or HTTP/2; `answer` makes a response of each request.
async fn serve_http<I, A, F, B>(io: I, answer: A, activity: &Arc<Activity>, context: &Context) -> Option<Closed>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    A: Fn(Request<TimedBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Default + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (batch, limits) = (Batch::default(), &context.limits);
    let (seen, receive) = (Arc::clone(activity), limits.receive);
    let service = service_fn(move |request: Request<Incoming>| {
        let open = Open::begin(&seen, request.version() <= Version::HTTP_11);
        let answer = answer(request.map(|body| TimedBody::new(body, receive)));
        async move {
            let answered = unless_panic(pin!(answer), &open.activity.metrics).await;
            let mut answer = answered.unwrap_or_else(failure);
            if open.http1 && open.activity.draining.load(Ordering::Relaxed) {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = auto::Builder::new(batch.clone());
    // The watch sees to heads that come too slowly: a timer for each would cost every request one.
    // Answers are small: copying one behind its head is cheaper than writing two pieces.
    builder.http1().header_read_timeout(None).writev(false).max_buf_size(HTTP1_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(HEADER_LIST_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(limits.receive);
    let connection = pin!(builder.serve_connection(io, service));
    watch_over(connection, &batch, activity, &HTTP, context).await
}

/// What a request is answered whose handler panicked.
fn failure<B: Default>() -> Response<B> {
    let mut failure = Response::new(B::default());
    *failure.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    failure
}

/// Runs a connection and ends it in time: one that never gets to its first request, one that
/// stops in the middle of a later one's head, one that asks nothing for long, and all when the server drains. Says why the server closed it, if it did.
async fn watch_over<C>(
    mut connection: Pin<&mut C>,
    batch: &Batch,
    activity: &Activity,
    manners: &Manners,
    context: &Context,
) -> Option<Closed>
where
    C: GracefulConnection,
{
    let (limits, mut drain) = (&context.limits, context.drain.clone());
    let mut looks = interval((limits.receive.min(limits.idle) / 2).max(Duration::from_millis(10)));
    let born = Instant::now();
    let (mut draining, mut drain_at, mut head_at) = (false, None, None);
    let (mut begun, mut active_at, mut asked_to_end, mut going) = (0, born, None, limits.receive);
    loop {
        tokio::select! {
            biased;
            ended = poll_fn(|cx| batch.poll(connection.as_mut(), cx)) => {
                return if ended.is_ok() { asked_to_end.map(|_| Closed::Idle) } else { Some(Closed::Broken) };
            }
            _ = drain.wait_for(|drain| *drain), if !draining => {
                draining = true;
                activity.draining.store(true, Ordering::Relaxed);
                drain_at = Some(Instant::now() + manners.farewell);
            }
            () = sleep_until(drain_at.unwrap_or(born)), if drain_at.is_some() => {
                drain_at = None;
                going = GOING;
                looks = interval(GOING / 4);
                asked_to_end = Some(Instant::now());
                connection.as_mut().graceful_shutdown();
            }
            now = looks.tick() => {
                let requests = activity.begun.load(Ordering::Relaxed);
                let open = batch.open() + activity.open.load(Ordering::Relaxed);
                let bytes = activity.bytes.load(Ordering::Relaxed);
                let in_head = open == 0 && bytes > activity.answered_bytes.load(Ordering::Relaxed);
                head_at = head_at.filter(|_| in_head && requests == begun).or(in_head.then_some(now));
                if open > 0 || requests != begun {
                    (begun, active_at) = (requests, now);
                    asked_to_end = asked_to_end.filter(|_| draining).map(|_| now);
                }
                let begun_at = if requests == 0 && bytes < manners.greeting_bytes { Some(born) } else { head_at };
                if open == 0 && begun_at.is_some_and(|since| now >= since + limits.receive) {
                    return Some(Closed::Slow);
                }
                match asked_to_end {
                    // It was told to go and has nothing left to wait for.
                    Some(asked) if now >= asked + going => return Some(Closed::Idle),
                    None if now >= active_at + limits.idle => {
                        asked_to_end = Some(now);
                        connection.as_mut().graceful_shutdown();
                    }
                    _ => {}
                }
            }
        }
    }
}

/// What `answer` becomes; `None`, counted, if it panics. A panic ends one request and no other.
async fn unless_panic<F: Future>(mut answer: Pin<&mut F>, metrics: &Metrics) -> Option<F::Output> {
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
