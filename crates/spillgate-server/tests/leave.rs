//! Tests of a server that leaves: it got SIGTERM, and `limits.drain_delay` is not over. It says that it is not ready, and asks
//! its clients to make new connections, but it still serves.
//!
//! A proxy learns late that a server ends. Without this time, its requests would fail until then.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};

use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::cli_support::{Folder, signal};
use crate::serve::HalfSent;
use crate::support::http::{get, request};
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, eventually};

const RULES: &str = "domain: api\ndescriptors: [{key: user_id, rate_limit: {unit: year, requests_per_unit: 1000}}]\n";
const ASK: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;

fn serve(arguments: &[&str]) -> (Folder, Spillgate) {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let arguments: Vec<_> = ["--health", "127.0.0.1:0"].into_iter().chain(arguments.iter().copied()).collect();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    (folder, server)
}

/// An HTTP/1 connection that stays open between requests.
struct KeepAlive(BufReader<TcpStream>);

impl KeepAlive {
    fn open(server: SocketAddr) -> KeepAlive {
        let stream = TcpStream::connect_timeout(&server, DEADLINE).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        KeepAlive(BufReader::new(stream))
    }

    /// Sends a request, and returns whether the answer asks the client to close the connection.
    fn is_asked_to_close(&mut self) -> bool {
        self.0.get_ref().write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let (mut head, mut line) = (String::new(), String::new());
        while self.0.read_line(&mut line).unwrap() > 2 {
            head.push_str(&line);
            line.clear();
        }
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        self.0.read_line(&mut line).unwrap();
        assert!(line.ends_with("ok\n"), "{line}");
        head.contains("connection: close")
    }
}

/// Returns what a new connection hears from the gRPC health service.
async fn grpc_health(server: SocketAddr) -> ServingStatus {
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap().timeout(DEADLINE).connect().await.unwrap();
    let answer = HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await.unwrap();
    answer.into_inner().status()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_leaves_is_not_ready_but_still_serves() {
    let (_folder, mut server) = serve(&["--limits-drain-delay", "10m"]);
    let mut kept = KeepAlive::open(server.http());
    assert!(!kept.is_asked_to_close());
    assert_eq!(grpc_health(server.grpc()).await, ServingStatus::Serving);
    let open = tokio::net::TcpStream::connect(server.grpc()).await.unwrap();
    let (mut client, connection) = h2::client::handshake(open).await.unwrap();
    let goes_away = tokio::spawn(connection);
    client = client.ready().await.unwrap();
    // With an answer, the connection is one of those that are open, and not one that a busy server accepts later.
    let (answer, _) = client.send_request(http::Request::post("http://spillgate/").body(()).unwrap(), true).unwrap();
    let _ = answer.await;
    client = client.ready().await.unwrap();

    signal(server.process.id(), "TERM");
    server.process.logged("leaving: not ready any more, new connections are still accepted");
    for listener in [server.http(), server.admin(), server.health()] {
        let (ready, alive) = (get(listener, "/readyz", &[]), get(listener, "/healthz", &[]));
        assert_eq!((ready.status, ready.body.as_str(), alive.status), (503, "draining\n", 200), "{listener}");
    }
    for listener in [server.http(), server.health()] {
        assert_eq!(get(listener, "/healthcheck", &[]).status, 500, "{listener}");
    }
    assert_eq!(grpc_health(server.grpc()).await, ServingStatus::NotServing);
    // The connections that were open are asked to end.
    tokio::time::timeout(DEADLINE, goes_away).await.expect("the server sends GOAWAY").unwrap().unwrap();
    assert!(client.ready().await.is_err(), "no request can be sent on this connection any more");
    assert!(kept.is_asked_to_close());
    // New ones are served as always.
    assert_eq!(request(server.http(), "POST", "/v1/check", &[], ASK).unwrap().status, 200);
    let mut new = KeepAlive::open(server.http());
    assert!(!new.is_asked_to_close() && !new.is_asked_to_close());
    assert!(server.process.is_running());

    signal(server.process.id(), "TERM");
    server.process.logged("draining: no new connections");
    assert!(new.is_asked_to_close(), "for one second, a drain still answers on connections that were open");
    assert_eq!(server.process.wait().code(), Some(0));
}

#[test]
fn the_delay_ends_by_itself() {
    let (_folder, mut server) = serve(&["--limits-drain-delay", "100ms"]);
    signal(server.process.id(), "TERM");
    assert_eq!(server.process.wait().code(), Some(0));
    let log = server.process.stderr().join("\n");
    let (leaves, drains) = (log.find("leaving:").unwrap(), log.find("draining:").unwrap());
    assert!(leaves < drains && log.contains("delay=100ms"), "{log}");
}

#[test]
fn rules_are_reloaded_during_the_delay_and_further_signals_end_it_and_then_the_server() {
    let (folder, mut server) = serve(&["--limits-drain-delay", "10m"]);
    signal(server.process.id(), "TERM");
    server.process.logged("leaving:");
    folder.write("rules.yaml", &RULES.replace("1000", "1"));
    signal(server.process.id(), "HUP");
    server.process.logged("rules reloaded");
    let _request = HalfSent::to(server.http());
    signal(server.process.id(), "TERM");
    server.process.logged("draining:");
    eventually("the port is closed", || TcpStream::connect_timeout(&server.http(), DEADLINE).err());
    assert!(server.process.is_running(), "the server waits for the request in flight");
    signal(server.process.id(), "TERM");
    assert_eq!(server.process.wait().code(), Some(3));
}
