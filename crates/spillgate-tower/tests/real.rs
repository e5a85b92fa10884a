//! The layer in real servers of axum and hyper, over real connections.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::ServiceBuilder;

use super::*;

const PER_CLIENT: Quota = Quota::per_second(5).constant();

/// Serves an app with two clones of one layer, and returns its address.
async fn serve() -> SocketAddr {
    let layer = RateLimitLayer::new(Limiter::in_memory()).limit("client", &PER_CLIENT, key::address());
    let app = Router::new()
        .route("/a", get(|| async { "a" }).layer(layer.clone()))
        .route("/b", get(|| async { "b" }).layer(layer));
    let (address, listener) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Opens `connections` over HTTP/2, and sends `requests` on each of them at once. Each request has another address in
/// X-Forwarded-For. Returns how many requests passed.
async fn passed(server: SocketAddr, connections: usize, requests: usize) -> usize {
    let mut answers = JoinSet::new();
    for connection in 0..connections {
        let stream = connect(server).await;
        let (sender, driver) = http2::handshake(TokioExecutor::new(), stream).await.expect("it speaks HTTP/2");
        tokio::spawn(driver);
        for request in 0..requests {
            let mut sender = sender.clone();
            let path = if request % 2 == 0 { "a" } else { "b" };
            let forged = format!("203.0.{connection}.{request}");
            let request = Request::get(format!("http://{server}/{path}"))
                .header("x-forwarded-for", forged)
                .body(Empty::<Bytes>::new())
                .expect("a request");
            answers.spawn(async move {
                sender.ready().await.expect("the connection is open");
                sender.send_request(request).await.expect("an answer").status()
            });
        }
    }
    answers.join_all().await.into_iter().filter(|status| *status == StatusCode::OK).count()
}

/// The bound of the token bucket: 5 requests at once, and one more for each 200 ms.
fn bound(elapsed: Duration) -> usize {
    5 + elapsed.as_millis() as usize / 200
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_routes_and_forged_addresses_share_one_limit() {
    for connections in [1, 16] {
        let server = serve().await;
        let started = Instant::now();
        let passed = passed(server, connections, 1_600 / connections).await;
        let bound = bound(started.elapsed());
        println!("1,600 requests on {connections} connections: {passed} passed, the bound is {bound}");
        assert!((5..=bound).contains(&passed), "{connections} connections: {passed} passed, the bound is {bound}");
    }
}

/// Listens on a free port. Returns the address and the listener.
async fn listen() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    (listener.local_addr().expect("an address"), listener)
}

async fn connect(server: SocketAddr) -> TokioIo<TcpStream> {
    TokioIo::new(TcpStream::connect(server).await.expect("the server listens"))
}

/// Sends one request to a host over HTTP/1.1, on a connection of its own.
async fn status_over_http1(server: SocketAddr, host: &str) -> u16 {
    let (mut sender, driver) = http1::handshake(connect(server).await).await.expect("it speaks HTTP/1.1");
    tokio::spawn(driver);
    let request = Request::get("/").header("host", host).body(Empty::<Bytes>::new()).expect("a request");
    sender.send_request(request).await.expect("an answer").status().as_u16()
}

/// Sends one request to a host over HTTP/2, on a connection of its own.
async fn status_over_http2(server: SocketAddr, host: &str) -> u16 {
    let (mut sender, driver) =
        http2::handshake(TokioExecutor::new(), connect(server).await).await.expect("it speaks HTTP/2");
    tokio::spawn(driver);
    let request = Request::get(format!("http://{host}/")).body(Empty::<Bytes>::new()).expect("a request");
    sender.send_request(request).await.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn a_key_by_the_host_works_over_both_versions_of_http() {
    let by_tenant = key::from_request(|request, key| {
        let host = request.uri.host().or_else(|| request.headers.get("host")?.to_str().ok())?;
        key.key(host.split('.').next()?);
        Some(())
    });
    let layer = RateLimitLayer::new(limiter()).limit("tenant", &TWO, by_tenant);
    let (server, listener) = listen().await;
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    tokio::spawn(async move { axum::serve(listener, app).await });
    assert_eq!(status_over_http2(server, "acme.example.com").await, 200);
    assert_eq!(status_over_http1(server, "acme.example.com").await, 200);
    assert_eq!(status_over_http2(server, "acme.example.com").await, 429);
    assert_eq!(status_over_http2(server, "other.example.com").await, 200);
}

#[tokio::test]
async fn a_service_of_hyper_is_limited_by_the_addresses_of_its_connections() {
    let layer = RateLimitLayer::new(limiter()).limit("client", &TWO, key::address());
    let (server, listener) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = ServiceBuilder::new()
                .map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(peer);
                    request
                })
                .layer(layer.clone())
                .service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))) });
            let builder = hyper::server::conn::http1::Builder::new();
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
        }
    });
    for expected in [200, 200, 429] {
        assert_eq!(status_over_http1(server, "example").await, expected);
    }
}
