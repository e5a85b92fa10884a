//! HTTP connections: HTTP/1.1 and HTTP/2 alike.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tower::BoxError;

use crate::metrics::Closed;

use super::batch::{Batch, Batched};
use super::connection::{
    Activity, CONNECTION_WINDOW_BYTES, HEADER_LIST_BYTES, Manners, PING_EVERY, STREAM_WINDOW_BYTES, unless_panic,
    watch_over,
};
use super::io::TimedBody;
use super::worker::Context;

/// Bytes of an HTTP/1 request's head.
const HTTP1_HEAD_BYTES: usize = 32 * 1024;

/// Whatever was sent, without a whole request it is not enough.
const MANNERS: Manners = Manners { greeting_bytes: u64::MAX, farewell: Duration::from_secs(1) };

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

/// Serves HTTP/1 or HTTP/2; `answer` makes a response of each request.
pub(super) async fn serve<I, A, F, B>(io: I, answer: A, activity: &Arc<Activity>, context: &Context) -> Option<Closed>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<TimedBody<Incoming>>) -> F,
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
    let connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    watch_over(Batched::new(batch, connection), activity, &MANNERS, context).await
}

/// What a request is answered whose handler panicked.
fn failure<B: Default>() -> Response<B> {
    let mut failure = Response::new(B::default());
    *failure.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    failure
}
