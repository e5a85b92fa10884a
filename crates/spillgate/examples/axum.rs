//! A web service of axum in which each client has a limit.
//!
//! Run it with `cargo run -p spillgate --features axum --example axum`, and then send it several requests: `for i in 1
//! 2 3 4 5 6 7; do curl -si localhost:3000 | head -5; done`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::sync::Arc;

use axum::routing::{get, post};
use axum::{Extension, Router};
use spillgate::tower::{Outcome, RateLimitLayer, key};
use spillgate::{Limiter, Quota};
use tokio::net::TcpListener;

/// Five requests at once, then one each second.
const PER_CLIENT: Quota = Quota::per_second(1).burst(5).constant();
/// An export is expensive: two a day for each client.
const EXPORTS: Quota = Quota::per_day(2).constant();

fn app() -> Router {
    let limiter = Arc::new(Limiter::in_memory());
    let limits = RateLimitLayer::new(Arc::clone(&limiter))
        .limit("client", &PER_CLIENT, key::address())
        .outcome_in_extensions(true);
    let exports = RateLimitLayer::new(limiter).limit("exports", &EXPORTS, key::address());
    Router::new()
        .route("/", get(hello))
        .route("/export", post(|| async { "here is everything\n" }).layer(exports))
        .layer(limits)
}

/// A handler can read the decision of the layer.
async fn hello(Extension(outcome): Extension<Outcome>) -> String {
    let left = outcome.limits().first().map_or(0, |limit| limit.decision.remaining);
    format!("hello, you have {left} requests left\n")
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    // The layer counts by the client's address. axum adds this address to a request only with connect info.
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await
}
