//! The layer in a real server of axum, over real connections.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;

const PER_CLIENT: Quota = Quota::per_second(5).constant();

/// Serves an app with two clones of one layer, and returns its address.
async fn serve() -> SocketAddr {
    let layer = RateLimitLayer::new(Limiter::in_memory()).limit("client", &PER_CLIENT, key::address());
    let app = Router::new()
        .route("/a", get(|| async { "a" }).layer(layer.clone()))
        .route("/b", get(|| async { "b" }).layer(layer));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Opens `connections` over HTTP/2. Sends `requests` on each of them at once, and returns how many passed. Each request
/// has another address in X-Forwarded-For.
async fn passed(server: SocketAddr, connections: usize, requests: usize) -> usize {
    let mut answers = JoinSet::new();
    for connection in 0..connections {
        let stream = TokioIo::new(TcpStream::connect(server).await.expect("the server listens"));
        let (sender, driver) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.expect("it speaks HTTP/2");
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

/// The bound of the token bucket: 5 at once, and one more for each 200 ms.
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
