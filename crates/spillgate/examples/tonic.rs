//! A gRPC server of tonic in which each client has a limit.
//!
//! Run it with `cargo run -p spillgate --features tonic --example tonic`. The server has the standard health check. A
//! client that calls too often gets RESOURCE_EXHAUSTED, with the time to wait.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use spillgate::tower::{RateLimitLayer, key};
use spillgate::{Limiter, Quota};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

/// Three calls at once, then one every ten seconds.
const PER_CLIENT: Quota = Quota::per_minute(6).burst(3).constant();

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:50051".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let limits = RateLimitLayer::new(Limiter::in_memory()).limit("client", &PER_CLIENT, key::address());
    let (_, health) = tonic_health::server::health_reporter();
    Server::builder().layer(limits).add_service(health).serve_with_incoming(TcpListenerStream::new(listener)).await?;
    Ok(())
}
