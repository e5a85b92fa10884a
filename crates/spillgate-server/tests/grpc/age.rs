//! Tests of connections that reach their age (`limits.connection_age`): their clients make new connections, and lose no
//! request.
//!
//! Without an age, a client that never closes its connections never reaches a server that is new.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use prost::Message as _;
use spillgate_server::listener::Limits;
use spillgate_service::metrics::Closed;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::lifetime::{ask_until_connection_close, http_server};
use crate::grpc::support::*;

const RULES: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 4000000}
";
const CALL: &str = "http://test/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// A time that never ends within a test.
const HOUR: Duration = Duration::from_secs(3600);

fn aging(age: Duration, age_grace: Duration) -> Limits {
    Limits { age: Some(age), age_grace, ..limits() }
}

/// Sends calls one after the other until the connection takes no more. Panics if a call that the server may have judged is
/// not answered.
async fn call_until_goaway(mut client: SendRequest<Bytes>, answered: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let message = request("api", &[descriptor(&[("user", "7")])]).encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let call = Bytes::from([&[0], &length[..], &message[..]].concat());
    while !stop.load(Ordering::Relaxed) {
        let Ok(ready) = client.ready().await else { return };
        client = ready;
        let head = Request::post(CALL).header("content-type", "application/grpc").header("te", "trailers");
        let Ok((answer, mut body)) = client.send_request(head.body(()).unwrap(), false) else { return };
        body.send_data(call.clone(), true).expect("the stream is open");
        let answer = match answer.await {
            Ok(answer) => answer,
            // This call left the client after the answer to the server's PING. GOAWAY says that it was not judged, so gRPC
            // clients send it again.
            Err(error) if error.is_go_away() && error.is_remote() => return,
            Err(error) => panic!("a call has no answer: {error}"),
        };
        let mut body = answer.into_body();
        while let Some(data) = body.data().await {
            let length = data.expect("the whole answer arrives").len();
            body.flow_control().release_capacity(length).unwrap();
        }
        let trailers = body.trailers().await.expect("the whole answer arrives").expect("gRPC has trailers");
        assert_eq!(trailers["grpc-status"], "0");
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_connections_that_reach_their_age_are_all_answered() {
    let setup = Setup { limits: aging(Duration::from_millis(50), HOUR), ..Setup::default() };
    let server = TestServer::start_with(&[RULES], setup);
    let (address, answered, stop) = (server.address(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut clients = Vec::new();
    for _ in 0..4 {
        let (answered, stop) = (Arc::clone(&answered), Arc::clone(&stop));
        clients.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let stream = TcpStream::connect(address).await.unwrap();
                let (client, connection) = h2::client::handshake(stream).await.unwrap();
                tokio::spawn(connection);
                let call = || tokio::spawn(call_until_goaway(client.clone(), Arc::clone(&answered), Arc::clone(&stop)));
                let calls: Vec<_> = (0..8).map(|_| call()).collect();
                drop(client);
                for call in calls {
                    call.await.unwrap();
                }
            }
        }));
    }
    let is_enough = || server.metrics.closed(Closed::Aged).get() >= 20 && answered.load(Ordering::Relaxed) >= 1000;
    eventually("many connections have reached their age", is_enough).await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(
        server.metrics.requests(true),
        answered.load(Ordering::Relaxed),
        "every call that was judged is answered"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_1_connection_ends_with_the_first_answer_after_its_age() {
    let (address, server, metrics) = http_server(aging(Duration::from_millis(50), HOUR), Arc::default());
    let running = server.start().unwrap();
    let ask = || tokio::spawn(ask_until_connection_close(address, Arc::default()));
    let askers: Vec<_> = (0..16).map(|_| ask()).collect();
    for asker in askers {
        assert!(asker.await.unwrap() > 0);
    }
    eventually("the connections are closed", || metrics.closed(Closed::Aged).get() == 16).await;
    running.handle().drain();
}

/// Nothing answers these requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_cut_when_the_grace_after_its_age_is_over() {
    let soon = Duration::from_millis(50);
    let (address, server, metrics) = http_server(aging(soon, soon), Arc::default());
    let running = server.start().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /wait HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    assert_eq!(stream.read(&mut [0; 64]).await.unwrap_or(0), 0);

    let (client, connection) = h2::client::handshake(TcpStream::connect(address).await.unwrap()).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let (answer, _) = client.send_request(Request::get("http://test/wait").body(()).unwrap(), true).unwrap();
    answer.await.expect_err("the connection is cut");
    eventually("both are counted", || metrics.closed(Closed::Aged).get() == 2).await;
    running.handle().drain();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_age_a_connection_stays_open() {
    let server = TestServer::start(&[RULES]);
    let mut client = server.client().await;
    for _ in 0..100 {
        ask(&mut client, "api", &[descriptor(&[("user", "7")])]).await.unwrap();
    }
    assert_eq!((server.metrics.connections_accepted.get(), server.metrics.closed(Closed::Aged).get()), (1, 0));
}

/// The servers that clients connect to, one after the other, as a load balancer for connections chooses them.
#[derive(Default)]
struct Balancer {
    servers: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
}

impl Balancer {
    fn next(&self) -> SocketAddr {
        let servers = self.servers.lock().unwrap();
        servers[self.next.fetch_add(1, Ordering::Relaxed) % servers.len()]
    }
}

/// `make show-replaced` sets the two variables: the number of connections, and their age in seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_spread_over_a_new_server_as_they_reach_their_age() {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("it is a number"));
    let count = variable("AGED_CONNECTIONS").unwrap_or(40);
    let age = variable("AGED_AGE_S").map_or(Duration::from_millis(200), Duration::from_secs);
    let start = || {
        let limits = Limits { connections: 10_000, ..aging(age, HOUR) };
        TestServer::start_with(&[RULES], Setup { limits, ..Setup::default() })
    };
    let (old, balancer) = (start(), Arc::new(Balancer::default()));
    balancer.servers.lock().unwrap().push(old.address());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..count {
        let balancer = Arc::clone(&balancer);
        clients.spawn(async move {
            loop {
                let stream = TcpStream::connect(balancer.next()).await.unwrap();
                let (_client, connection) = h2::client::handshake(stream).await.unwrap();
                // The connection ends after GOAWAY, because it has no call.
                let _ = connection.await;
            }
        });
    }
    let connections = |server: &TestServer| u64::try_from(server.metrics.connections.get()).unwrap();
    eventually("all clients are connected", || connections(&old) >= count * 9 / 10).await;
    let (new, began) = (start(), Instant::now());
    balancer.servers.lock().unwrap().push(new.address());
    eventually("the new server has two fifths of them", || connections(&new) >= count * 2 / 5).await;
    let took = began.elapsed();
    println!("{} of {count} connections of age {age:?} were on the new server after {took:?}", connections(&new));
    if variable("AGED_AGE_S").is_some() {
        assert!(took <= 2 * age, "{took:?}");
    }
    clients.shutdown().await;
}
