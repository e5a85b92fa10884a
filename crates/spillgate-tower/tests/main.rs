//! The layer in front of a service: which requests pass, which are refused, and what clients see.

mod answers;
mod by_rules;
mod charges;
mod cors;
mod edges;
mod keys;
mod real;
mod stores;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use prost::Message as _;
use spillgate_limiter::headers::HeaderStyle;
use spillgate_limiter::{
    Decision, Hit, Limiter, ManualClock, MemoryOptions, MemoryStore, OnStoreFailure, OpKind, Quota, Store, StoreError,
    StoreErrorKind, Time, Timing, Verdict,
};
use spillgate_rules::{Rules, RulesFile};
use spillgate_tower::{Charge, LimitedBody, Outcome, RateLimitLayer, key};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

const TWO: Quota = Quota::per_minute(2).constant();

/// A limiter whose clock stands still.
fn limiter() -> Limiter<MemoryStore, ManualClock> {
    limiter_on(MemoryStore::new(MemoryOptions::default()))
}

fn limiter_on<S: Store>(store: S) -> Limiter<S, ManualClock> {
    Limiter::with_clock(store, ManualClock::at(Time::from_nanos(1_790_000_000_000_000_000)))
}

fn request() -> Request<Empty<Bytes>> {
    from("198.51.100.7")
}

fn from(address: &str) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    request.extensions_mut().insert(SocketAddr::new(address.parse().expect("an address"), 4711));
    request
}

fn with(mut request: Request<Empty<Bytes>>, fields: &[(&'static str, &str)]) -> Request<Empty<Bytes>> {
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().expect("a value"));
    }
    request
}

/// A service that answers with the status of the request's field `answer`, or 200.
async fn answer(request: Request<Empty<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let status = request
        .headers()
        .get("answer")
        .map_or(StatusCode::OK, |status| StatusCode::from_bytes(status.as_bytes()).expect("a status"));
    let mut response = Response::new(Full::from("hello"));
    *response.status_mut() = status;
    Ok(response)
}

type Answer = Response<LimitedBody<Full<Bytes>>>;

async fn ask<S: Store + 'static>(layer: &RateLimitLayer<S, ManualClock>, request: Request<Empty<Bytes>>) -> Answer {
    layer.layer(service_fn(answer)).oneshot(request).await.expect("the service does not fail")
}

async fn status<S: Store + 'static>(layer: &RateLimitLayer<S, ManualClock>, request: Request<Empty<Bytes>>) -> u16 {
    ask(layer, request).await.status().as_u16()
}

async fn body(response: Answer) -> Bytes {
    response.into_body().collect().await.expect("the body is whole").to_bytes()
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().expect("a text"))
}
