//! gRPC connections.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;

use crate::metrics::Closed;
use crate::protocol::grpc::{Grpc, GrpcConnection};

use super::batch::{Batch, Batched};
use super::connection::{
    Activity, CONNECTION_WINDOW_BYTES, HEADER_LIST_BYTES, Manners, PING_EVERY, STREAM_WINDOW_BYTES, unless_panic,
    watch_over,
};
use super::io::TimedBody;
use super::worker::Context;

/// Bytes of a client's first words: the preface and an empty SETTINGS frame.
const GREETING_BYTES: u64 = 24 + 9;

const MANNERS: Manners = Manners { greeting_bytes: GREETING_BYTES, farewell: Duration::ZERO };

pub(super) async fn serve<I>(io: I, grpc: &Grpc, activity: &Arc<Activity>, context: &Context) -> Option<Closed>
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
    watch_over(Batched::new(batch, connection), activity, &MANNERS, context).await
}
