//! HTTP connections: HTTP/1.1 and HTTP/2 alike.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto;
use tower::ServiceExt;

use crate::metrics::Closed;
use crate::service::Peer;

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
struct Open(Arc<Activity>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) async fn serve<I>(
    io: I,
    peer: Peer,
    router: &axum::Router,
    activity: &Arc<Activity>,
    context: &Context,
) -> Option<Closed>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (batch, limits) = (Batch::default(), &context.limits);
    let (router, seen, receive) = (router.clone(), Arc::clone(activity), limits.receive);
    let service = service_fn(move |request: Request<Incoming>| {
        seen.begun.fetch_add(1, Ordering::Relaxed);
        seen.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(Arc::clone(&seen));
        let mut request = request.map(|body| TimedBody::new(body, receive));
        request.extensions_mut().insert(ConnectInfo(peer));
        let can_be_told = request.version() <= Version::HTTP_11;
        let answer = router.clone().oneshot(request);
        async move {
            let answered = unless_panic(pin!(answer), &open.0.metrics).await;
            let mut answer = match answered {
                Some(Ok(answer)) => answer,
                None => failure(),
            };
            if can_be_told && open.0.draining.load(Ordering::Relaxed) {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            drop(open);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = auto::Builder::new(batch.clone());
    // The timer of HTTP/1 also runs while a kept connection waits for its next request, so it only
    // stands behind the watch, which ends such a connection in peace.
    let last_resort = limits.idle.saturating_add(limits.receive);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(last_resort).max_buf_size(HTTP1_HEAD_BYTES);
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
    watch_over(Batched::new(batch, connection), activity, &MANNERS, context).await
}

/// What a request is answered whose handler panicked.
fn failure() -> Response<axum::body::Body> {
    let mut failure = Response::new(axum::body::Body::empty());
    *failure.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    failure
}
