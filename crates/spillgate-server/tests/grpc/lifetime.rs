//! Tests of how connections begin and end: their maximum number, their maximum idle time, and draining.
//!
//! A server drains before it ends: it accepts no new connections, and closes the open connections. It must still answer
//! every request that it has decided. A client that hangs must not delay the end of the server.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::routing::get;
use spillgate_server::listener::{App, Limits, Listen, Server};
use spillgate_service::metrics::{Closed, Metrics};
use spillgate_service::{Peer, Readiness};

use crate::grpc::support::*;

const RULES: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 4000000}
";

fn closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[tokio::test]
async fn a_connection_over_the_bound_is_closed_at_once_until_another_one_ends() {
    let setup = Setup { limits: Limits { connections: 2, ..limits() }, ..Setup::default() };
    let server = TestServer::start_with(&[RULES], setup);
    let mut client = server.client().await;
    let other = server.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    eventually("two connections are open", || server.metrics.connections.get() == 2).await;
    for _ in 0..20 {
        let mut excess = server.send(b"");
        eventually("the excess connection is closed", || closed(&mut excess)).await;
    }
    assert_eq!(server.metrics.closed(Closed::Bound).get(), 20);
    ask(&mut client, "api", &[descriptor(&[("user", "7")])]).await.expect("the first connection is still served");

    drop(other);
    eventually("one connection has ended", || server.metrics.connections.get() == 1).await;
    let mut second = server.client().await;
    ask(&mut second, "api", &[descriptor(&[("user", "7")])]).await.expect("a new connection is accepted");
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_its_client_connects_again() {
    let setup = Setup { limits: Limits { idle: Duration::from_secs(1), ..limits() }, ..Setup::default() };
    let server = TestServer::start_with(&[RULES], setup);
    let mut client = server.client().await;
    ask(&mut client, "api", &[descriptor(&[("user", "7")])]).await.unwrap();
    eventually("the connection is closed", || server.metrics.connections.get() == 0).await;
    assert_eq!(server.metrics.closed(Closed::Idle).get(), 1);
    ask(&mut client, "api", &[descriptor(&[("user", "7")])]).await.expect("the channel connects again");
}

/// Begins a drain while many clients send requests. Each request that the server has decided must still be answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_loses_no_request() {
    for round in 0..5 {
        // No other program gets this port. So after the server has ended, a connection to the port fails.
        let listen = Listen::Tcp(([127, 0, 0, 1], spillgate_testkit::free_port()).into());
        let mut server = TestServer::start_with(&[RULES], Setup { listen, ..Setup::default() });
        let (answered, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut askers = Vec::new();
        for _ in 0..4 {
            let client = server.client().await;
            for _ in 0..16 {
                let (mut client, answered, stop) = (client.clone(), Arc::clone(&answered), Arc::clone(&stop));
                askers.push(tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        match ask(&mut client, "api", &[descriptor(&[("user", "7")])]).await {
                            Ok(_) => answered.fetch_add(1, Ordering::Relaxed),
                            // The server has not decided this request. The draining server closes the connection and
                            // accepts no new one.
                            Err(_) => break,
                        };
                    }
                }));
            }
        }
        eventually("requests are flowing", || answered.load(Ordering::Relaxed) > 100 * round).await;
        server.service.set_readiness(Readiness::Draining);
        server.handle.drain();
        let running = server.running.take().unwrap();
        let drained = tokio::task::spawn_blocking(|| running.wait()).await.unwrap().unwrap();
        stop.store(true, Ordering::Relaxed);
        for asker in askers {
            asker.await.unwrap();
        }
        assert_eq!(drained.connections_cut, 0);
        assert_eq!(server.metrics.requests(true), answered.load(Ordering::Relaxed), "round {round}");
        assert_eq!(TcpStream::connect(server.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

/// Starts an HTTP server with three handlers. `/wait` waits until `release` is true, `/boom` panics, and `/who` returns the
/// address of the client.
pub(super) fn http_server(limits: Limits, release: Arc<AtomicBool>) -> (std::net::SocketAddr, Server, Arc<Metrics>) {
    let wait = async move || {
        while !release.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        "waited"
    };
    let boom = async || -> &'static str { panic!("this handler panics on purpose") };
    let who = async |ConnectInfo(peer): ConnectInfo<Peer>| match peer {
        Peer::Tcp(address) => address.ip().to_string(),
        Peer::Unix => "unix".to_owned(),
    };
    let router = axum::Router::new().route("/wait", get(wait)).route("/boom", get(boom)).route("/who", get(who));
    let metrics = Arc::new(Metrics::new());
    let mut server = Server::new(limits, Some(1), Arc::clone(&metrics));
    let any = Listen::Tcp(([127, 0, 0, 1], 0).into());
    let Listen::Tcp(address) = server.bind(&any, App::Admin(router)).unwrap() else { panic!("the address is not TCP") };
    (address, server, metrics)
}

async fn get_once(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_is_answered_before_the_server_ends() {
    let release = Arc::new(AtomicBool::new(false));
    let (address, server, metrics) = http_server(limits(), Arc::clone(&release));
    let running = server.start().unwrap();
    let waiting = tokio::spawn(get_once(address, "/wait"));
    eventually("the client is connected", || metrics.connections.get() == 1).await;
    let handle = running.handle();
    let ended = tokio::task::spawn_blocking(|| running.wait());
    handle.drain();
    eventually("new connections are refused", || TcpStream::connect(address).is_err()).await;
    assert!(!ended.is_finished(), "the server runs until the request in flight is answered");
    release.store(true, Ordering::Relaxed);
    assert!(waiting.await.unwrap().ends_with("waited"));
    assert_eq!(ended.await.unwrap().unwrap().connections_cut, 0);
}

/// Sends requests on one keep-alive connection until an answer has `connection: close`. Returns the number of answers.
pub(super) async fn ask_until_connection_close(address: std::net::SocketAddr, answered: Arc<AtomicU64>) -> u64 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut own, mut buffer) = (0, [0; 1024]);
    loop {
        stream
            .write_all(b"GET /who HTTP/1.1\r\nhost: test\r\n\r\n")
            .await
            .expect("the connection is open, because no answer had `connection: close`");
        let mut answer = String::new();
        while !answer.ends_with("127.0.0.1") {
            let read = stream.read(&mut buffer).await.expect("the connection is open");
            assert!(read > 0, "answer {own} was lost");
            answer.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
        own += 1;
        answered.fetch_add(1, Ordering::Relaxed);
        if answer.contains("connection: close") {
            return own;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_loses_no_request_on_keep_alive_http_connections() {
    let (address, server, _) = http_server(limits(), Arc::default());
    let running = server.start().unwrap();
    let answered = Arc::new(AtomicU64::new(0));
    let ask = || tokio::spawn(ask_until_connection_close(address, Arc::clone(&answered)));
    let askers: Vec<_> = (0..32).map(|_| ask()).collect();
    eventually("requests are flowing", || answered.load(Ordering::Relaxed) > 1000).await;
    running.handle().drain();
    for asker in askers {
        assert!(asker.await.unwrap() > 0);
    }
    let drained = tokio::task::spawn_blocking(|| running.wait()).await.unwrap().unwrap();
    assert_eq!(drained.connections_cut, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_never_ends_is_cut_at_the_drain_deadline() {
    let limits = Limits { drain: Duration::from_millis(50), ..limits() };
    let (address, server, metrics) = http_server(limits, Arc::default());
    let running = server.start().unwrap();
    let waiting = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /wait HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        // When the server closes the connection, the client reads no more bytes, or gets an error because of a TCP reset.
        stream.read(&mut [0; 64]).await.unwrap_or(0)
    });
    eventually("the client is connected", || metrics.connections.get() == 1).await;
    running.handle().drain();
    let drained = tokio::task::spawn_blocking(|| running.wait()).await.unwrap().unwrap();
    assert_eq!(drained.connections_cut, 1);
    assert_eq!(waiting.await.unwrap(), 0);
    assert_eq!(metrics.closed(Closed::Drained).get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_answers_does_not_delay_the_drain() {
    let limits = Limits { drain: Duration::from_secs(3600), ..limits() };
    let mut server = TestServer::start_with(&[RULES], Setup { limits, ..Setup::default() });
    // The client sends the preface and an empty SETTINGS frame. Then the client sends nothing, not even an answer to a
    // PING.
    let mute = server.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    eventually("the client is connected", || server.metrics.connections.get() == 1).await;
    server.handle.drain();
    let running = server.running.take().unwrap();
    let drained = tokio::task::spawn_blocking(|| running.wait()).await.unwrap().unwrap();
    assert_eq!(drained.connections_cut, 0);
    drop(mute);
}

#[tokio::test]
async fn a_panic_ends_one_request_and_is_counted() {
    let (address, server, metrics) = http_server(limits(), Arc::default());
    let running = server.start().unwrap();
    let answer = get_once(address, "/boom").await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert_eq!(metrics.panics.get(), 1);
    assert!(get_once(address, "/who").await.ends_with("127.0.0.1"));
    running.handle().drain();
}

#[tokio::test]
async fn http_connections_that_never_complete_a_request_are_closed() {
    let limits = Limits { receive: Duration::from_secs(1), ..limits() };
    let (address, server, metrics) = http_server(limits, Arc::default());
    let running = server.start().unwrap();
    let mut slow = Vec::new();
    for sent in [&b""[..], b"P", b"PRI * HT", b"GET /who HTTP/1.1\r\nhost: te"] {
        use std::io::Write as _;
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(sent).unwrap();
        slow.push(stream);
    }
    for stream in &mut slow {
        eventually("the slow connection is closed", || closed(stream)).await;
    }
    assert!(get_once(address, "/who").await.ends_with("127.0.0.1"));
    assert_eq!(metrics.closed(Closed::Slow).get(), 4);
    running.handle().drain();
}
