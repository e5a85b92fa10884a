//! HTTP connections: HTTP/1.1 with the crate hyper, HTTP/2 with the same code as gRPC.
//!
//! One port serves both versions. The first bytes that a client sends show which version it speaks.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll, ready};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use h2::RecvStream;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulConnection;
use parking_lot::Mutex;
use spillgate::{Clock, SystemClock, Time};
use spillgate_http::problem::Problem;
use spillgate_service::metrics::Closed;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tower::BoxError;

use super::activity::Activity;
use super::connection::{Connection, ProtocolLimits, unless_panic, warn_at_times, watch_over};
use super::context::Context;
use super::http2;
use super::io::{RequestBody, StreamBody, TimedBody, Transport};
use super::tls::HANDSHAKE;

/// The largest head of an HTTP/1 request, in bytes.
const HTTP1_HEAD_BYTES: usize = 32 * 1024;

/// The bytes that every HTTP/2 client sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A header map of an HTTP/2 answer has memory for at most this many fields. Some answers reuse the header map of the
/// request, and a request can have many fields. Such a map is replaced by a smaller one.
const FIELDS_MAX: usize = 64;

/// The greeting of an HTTP/1 client ends with its first whole request. A request can have any number of bytes, so
/// `greeting_bytes` has the largest value.
const LIMITS: ProtocolLimits = ProtocolLimits { greeting_bytes: u64::MAX, drain_grace: Duration::from_secs(1) };

pub(super) type HttpRequest = Request<TimedBody<RequestBody>>;

/// Serves HTTP/1 or HTTP/2. `answer` turns each request into a response.
pub(super) async fn serve<I, A, F, B>(
    io: Transport<I>,
    answer: A,
    activity: &Arc<Activity>,
    context: &Context,
) -> Option<Closed>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(HttpRequest) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Default + From<Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (receive, limits) = (context.limits.receive, &context.limits);
    let begin = |io, is_http2: bool| -> Box<dyn Connection + Send + '_> {
        if is_http2 {
            let (clock, activity_of_calls) = (Arc::clone(&context.clock), Arc::clone(activity));
            let calls = Calls { answer, receive, clock, activity: activity_of_calls };
            return Box::new(http2::connection(io, calls, activity, limits));
        }
        let mut builder = http1::Builder::new();
        // The timeout of hyper for heads is off, because hyper would start a timer for each request. `watch_over`
        // closes connections whose heads arrive too slowly. Answers are small, so copying a body behind its head is
        // cheaper than writing the two separately.
        builder.header_read_timeout(None).writev(false).max_buf_size(HTTP1_HEAD_BYTES);
        let for_requests = Arc::clone(activity);
        let service = service_fn(move |request: Request<Incoming>| {
            let (mut open, is_deferred) = (Open::begin(&for_requests, &request), for_requests.turn.defers_request());
            let begun = open
                .bytes
                .map(|_| answer(request.map(|body| TimedBody::new(RequestBody::Http1(body), receive, &for_requests))));
            async move {
                if is_deferred {
                    tokio::task::yield_now().await;
                }
                let mut answer = match begun {
                    Some(begun) => open.answer(pin!(begun)).await,
                    None => Problem::lacks_memory().response(),
                };
                if open.activity.ends_soon.load(Ordering::Relaxed) {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = Box::pin(builder.serve_connection(TokioIo::new(io), service));
        Box::new(Http1 { connection, activity, begun: 0 })
    };
    let opening = Opening {
        io: Some((io, begin)),
        preface: [0; PREFACE.len()],
        length: 0,
        begun: None,
        shutdown_requested: false,
    };
    watch_over(opening, activity, &LIMITS, context).await
}

/// The answer to a request whose handler panicked.
fn failure<B: Default>() -> Response<B> {
    let mut failure = Response::new(B::default());
    *failure.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    failure
}

/// A connection that first finds out its version of HTTP, and then serves that version.
struct Opening<'a, I, M> {
    /// The socket, and the function that begins a connection on this socket. `None` after the version is known. The
    /// second argument of the function is true for HTTP/2.
    io: Option<(Transport<I>, M)>,
    preface: [u8; PREFACE.len()],
    length: usize,
    begun: Option<Box<dyn Connection + Send + 'a>>,
    shutdown_requested: bool,
}

impl<'a, I, M> Connection for Opening<'a, I, M>
where
    I: AsyncRead + Unpin,
    M: FnOnce(Transport<I>, bool) -> Box<dyn Connection + Send + 'a>,
{
    fn poll(&mut self, cx: &mut task::Context<'_>, active_at: &mut Instant) -> Poll<bool> {
        while let Some((io, _)) = &mut self.io {
            let mut more = ReadBuf::new(&mut self.preface[self.length..]);
            if ready!(Pin::new(io).poll_read(cx, &mut more)).is_err() {
                return Poll::Ready(false);
            }
            let read = more.filled().len();
            self.length += read;
            let preface = &self.preface[..self.length];
            // A read of 0 bytes means that the client has closed its side. The code for HTTP/1 handles such an end.
            let is_http2 = read > 0 && PREFACE.starts_with(preface);
            if is_http2 && preface.len() < PREFACE.len() {
                continue;
            }
            if preface.first() == Some(&HANDSHAKE) {
                static WARNED_AT: Mutex<Option<Instant>> = Mutex::new(None);
                warn_at_times(
                    &WARNED_AT,
                    "a client speaks TLS to a listener without TLS (http, admin or health): use http:// there. The setting `tls.cert` gives \
                     TLS to http and admin",
                );
            }
            if let Some((mut io, begin)) = self.io.take() {
                io.read_again(preface);
                let mut connection = begin(io, is_http2);
                if self.shutdown_requested {
                    connection.graceful_shutdown();
                }
                self.begun = Some(connection);
            }
        }
        self.begun.as_mut().map_or(Poll::Pending, |connection| connection.poll(cx, active_at))
    }

    fn is_busy(&self) -> bool {
        self.begun.as_ref().is_some_and(|connection| connection.is_busy())
    }

    fn is_http2(&self) -> bool {
        self.begun.as_ref().is_some_and(|connection| connection.is_http2())
    }

    fn graceful_shutdown(&mut self) {
        self.shutdown_requested = true;
        if let Some(connection) = &mut self.begun {
            connection.graceful_shutdown();
        }
    }
}

/// An HTTP/1 connection of hyper.
struct Http1<'a, C> {
    connection: Pin<Box<C>>,
    activity: &'a Activity,
    /// The value of `Activity::begun` after the last poll.
    begun: u64,
}

impl<C: GracefulConnection> Connection for Http1<'_, C> {
    fn poll(&mut self, cx: &mut task::Context<'_>, active_at: &mut Instant) -> Poll<bool> {
        let polled = self.connection.as_mut().poll(cx);
        let begun = self.activity.begun.load(Ordering::Relaxed);
        if begun != self.begun {
            (self.begun, *active_at) = (begun, Instant::now());
        }
        polled.map(|ended| ended.is_ok())
    }

    /// Returns false, because [`Open`] counts the requests in flight.
    fn is_busy(&self) -> bool {
        false
    }

    fn is_http2(&self) -> bool {
        false
    }

    fn graceful_shutdown(&mut self) {
        self.connection.as_mut().graceful_shutdown();
    }
}

/// Counts an HTTP/1 request until its answer is ready.
struct Open {
    activity: Arc<Activity>,
    /// The memory of the request. `None` if it does not fit.
    bytes: Option<usize>,
}

impl Open {
    fn begin<B>(activity: &Arc<Activity>, request: &Request<B>) -> Open {
        activity.begun.fetch_add(1, Ordering::Relaxed);
        activity.open.fetch_add(1, Ordering::Relaxed);
        Open { activity: Arc::clone(activity), bytes: activity.in_flight.begin(request) }
    }

    /// Returns the answer of `begun`, or another one if `begun` panics.
    async fn answer<F, B>(&mut self, begun: Pin<&mut F>) -> Response<B>
    where
        F: Future<Output = Response<B>>,
        B: Default,
    {
        let Open { activity, bytes } = self;
        let (mut answer, bytes) = (pin!(unless_panic(begun, &activity.metrics)), bytes.get_or_insert(0));
        // If the body did not fit, the handler got an error for it, and its answer says so.
        let answered = poll_fn(|cx| {
            activity.in_flight.begin_poll();
            let answered = answer.as_mut().poll(cx);
            activity.in_flight.end_poll(bytes);
            answered
        });
        answered.await.unwrap_or_else(failure)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.activity.answered_bytes.store(self.activity.turn.bytes(), Ordering::Relaxed);
        self.activity.open.fetch_sub(1, Ordering::Relaxed);
        self.activity.in_flight.end(self.bytes.unwrap_or(0));
        self.activity.in_flight.end_turn();
    }
}

/// The requests of an HTTP/2 connection.
struct Calls<A> {
    answer: A,
    /// The time in which a body has to arrive.
    receive: Duration,
    clock: Arc<SystemClock>,
    activity: Arc<Activity>,
}

impl<A, F, B> http2::Handler for Calls<A>
where
    A: Fn(HttpRequest) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Default + Send + 'static,
{
    type Call = F;
    type Body = B;

    fn call(&self, request: Request<RecvStream>, _: Instant, _: Option<Time>) -> F {
        let body = |stream| TimedBody::new(RequestBody::Http2(StreamBody::new(stream)), self.receive, &self.activity);
        (self.answer)(request.map(body))
    }

    async fn answer(&self, call: F) -> Response<B> {
        let mut response = call.await;
        let length = response.body().size_hint().exact();
        complete(response.headers_mut(), length, &self.clock);
        response
    }

    fn failure() -> Response<B> {
        failure()
    }
}

/// Adds the header fields that hyper adds over HTTP/1: `content-length` and `date`.
fn complete(headers: &mut HeaderMap, length: Option<u64>, clock: &SystemClock) {
    if headers.capacity() > FIELDS_MAX {
        *headers = mem::take(headers).into_iter().filter_map(|(name, value)| Some((name?, value))).collect();
    }
    if let Some(length) = length {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    headers.entry(DATE).or_insert_with(|| date(clock));
}

thread_local! {
    /// The second for which the last date was formatted, and the formatted date.
    static DATE_OF: RefCell<(u64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
}

/// Returns the current date as a header value. Each thread formats the date at most once a second.
fn date(clock: &SystemClock) -> HeaderValue {
    let now = Duration::from_nanos(clock.now().as_nanos());
    DATE_OF.with_borrow_mut(|(second, date)| {
        if *second != now.as_secs() {
            let text = httpdate::fmt_http_date(UNIX_EPOCH + now);
            (*second, *date) = (now.as_secs(), HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")));
        }
        date.clone()
    })
}
