//! Answers that no client reads: how much memory they take, and how long their connection stays open.
//!
//! Each client here answers PINGs and has no window for DATA, so that every answer stays on the server's side.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use ::http::{Method, Request, StatusCode};
use bytes::Bytes;
use futures_util::future::join_all;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason};
use support::spillgate::Spillgate;
use support::{DEADLINE, http};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const RULES: &str = "domain: api\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n  \
     - key: nobody\n    rate_limit: {unit: hour, requests_per_unit: 0}\n";
const CHECK: &[u8] = br#"{"domain":"api","descriptors":[{"user":"7"}]}"#;
/// The same as a message of gRPC.
const CALL: &[u8] = b"\0\0\0\0\x14\x0a\x03api\x12\x0d\x0a\x0b\x0a\x04user\x12\x037.0";
const MIB: u64 = 1 << 20;
const AT_ONCE: usize = 100;

/// What is asked, and of whom.
#[derive(Clone, Copy)]
struct Target {
    server: SocketAddr,
    path: &'static str,
    body: &'static [u8],
}

fn serve(arguments: &[&str]) -> (Spillgate, [Target; 2]) {
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(rules.path(), RULES).unwrap();
    let spillgate = Spillgate::serve(rules.path(), arguments);
    let http = Target { server: spillgate.http(), path: "/v1/check", body: CHECK };
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let grpc = Target { server: spillgate.grpc(), path, body: CALL };
    (spillgate, [http, grpc])
}

/// A client that takes no DATA until it [listens](Deaf::listen).
struct Deaf {
    target: Target,
    client: SendRequest<Bytes>,
    pings: PingPong,
    answers: Vec<ResponseFuture>,
    listens: Option<oneshot::Sender<()>>,
    connection: JoinHandle<()>,
}

impl Drop for Deaf {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Deaf {
    async fn connect(target: &Target) -> Deaf {
        let stream = TcpStream::connect(target.server).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut builder = Builder::new();
        builder.initial_window_size(0).initial_connection_window_size(1 << 24).initial_max_send_streams(1024);
        let (client, mut connection) = builder.handshake(stream).await.unwrap();
        let pings = connection.ping_pong().unwrap();
        let (listens, mut listening) = oneshot::channel();
        let connection = tokio::spawn(async move {
            tokio::select! {
                listens = &mut listening => if listens.is_ok() {
                    connection.set_initial_window_size(1 << 20).unwrap();
                },
                _ = &mut connection => return,
            }
            drop(connection.await);
        });
        Deaf { target: *target, client, pings, answers: Vec::new(), listens: Some(listens), connection }
    }

    async fn ask(&mut self, requests: usize) {
        for _ in 0..requests {
            let request = Request::builder().method(Method::POST).uri(format!("http://test{}", self.target.path));
            let request = request.header("content-type", "application/grpc").header("te", "trailers");
            self.client = self.client.clone().ready().await.unwrap();
            let (answer, mut body) = self.client.send_request(request.body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(self.target.body), true).unwrap();
            self.answers.push(answer);
        }
    }

    /// Returns when the server has read all requests, and has answered all that it answers by now.
    async fn is_heard(&mut self) {
        for _ in 0..2 {
            tokio::time::timeout(DEADLINE, self.pings.ping(Ping::opaque())).await.unwrap().unwrap();
        }
    }

    /// Opens the window and takes all answers; returns their bytes, and how many requests were refused.
    async fn listen(&mut self) -> (usize, usize) {
        self.listens.take().unwrap().send(()).unwrap();
        let (mut bytes, mut refused) = (0, 0);
        for answer in self.answers.drain(..) {
            let answer = match tokio::time::timeout(DEADLINE, answer).await.unwrap() {
                Ok(answer) => answer,
                Err(error) => {
                    assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM), "{error}");
                    refused += 1;
                    continue;
                }
            };
            assert_eq!(answer.status(), StatusCode::OK);
            let mut body = answer.into_body();
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
                bytes += data.len();
            }
        }
        (bytes, refused)
    }
}

fn metric(spillgate: &Spillgate, name: &str) -> usize {
    let metrics = http::get(spillgate.admin(), "/metrics", &[]).body;
    metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

fn decided(spillgate: &Spillgate) -> usize {
    metric(spillgate, "spillgate_requests_allowed_total ")
}

/// Connections that ask `requests` each, after as many have asked a little: what a server takes at its start, and for
/// its first connections, is no connection's.
async fn deaf(target: &Target, connections: usize, requests: usize, spillgate: &Spillgate) -> (Vec<Deaf>, u64) {
    let (mut clients, mut before) = (Vec::new(), 0);
    for requests in [1, requests] {
        before = spillgate.process.resident_bytes();
        clients.clear();
        for _ in 0..connections {
            let mut client = Deaf::connect(target).await;
            // What is measured is answers: few requests are on their way at a time.
            for at in (0..requests).step_by(AT_ONCE) {
                client.ask(AT_ONCE.min(requests - at)).await;
                client.is_heard().await;
            }
            clients.push(client);
        }
    }
    (clients, spillgate.process.resident_bytes().saturating_sub(before))
}

#[tokio::test]
async fn answers_that_nobody_reads_take_at_most_4_mib_a_connection() {
    const CONNECTIONS: usize = 20;
    for port in 0..2 {
        let (spillgate, targets) = serve(&[]);
        let (clients, grown) = deaf(&targets[port], CONNECTIONS, 1000, &spillgate).await;
        assert!(grown <= CONNECTIONS as u64 * 4 * MIB, "{}: {grown} bytes", targets[port].path);
        for mut client in clients {
            let (bytes, refused) = client.listen().await;
            assert!(bytes > 1000 && refused == 0, "every answer comes in the end, not {refused}");
        }
    }
}

/// A list of checks that are all refused.
fn long_check() -> &'static [u8] {
    let check = r#"{"domain":"api","descriptors":[{"nobody":"7"}]}"#;
    format!("[{}]", [check; 256].join(",")).leak().as_bytes()
}

#[tokio::test]
async fn long_answers_that_nobody_reads_count_among_what_all_may_hold() {
    const CONNECTIONS: usize = 60;
    let (spillgate, [http, _]) = serve(&["--limits-unread", "1MiB"]);
    let target = Target { body: long_check(), ..http };
    let (clients, grown) = deaf(&target, CONNECTIONS, 14, &spillgate).await;
    assert!(grown <= 6 * MIB, "{grown} bytes");
    drop(clients);
    let gone = async {
        // The one left is the one that asks.
        while metric(&spillgate, "spillgate_connections ") > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("the server sees that they have gone");
    // Those that read have room for one long answer after the other.
    for _ in 0..CONNECTIONS {
        let mut client = Deaf::connect(&target).await;
        client.ask(1).await;
        client.is_heard().await;
        let (bytes, refused) = client.listen().await;
        assert!(bytes > 30_000 && refused == 0, "{bytes} bytes");
    }
}

#[tokio::test]
async fn few_requests_wait_when_others_have_used_up_what_all_may_hold() {
    let (spillgate, targets) = serve(&["--limits-unread", "1MiB"]);
    let (_clients, _) = deaf(&targets[0], 10, 1000, &spillgate).await;
    for target in targets {
        let mut client = Deaf::connect(&target).await;
        client.ask(200).await;
        let last = client.answers.pop().unwrap();
        let refused = tokio::time::timeout(DEADLINE, last).await.expect("the server refuses it").unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::REFUSED_STREAM));
        let (bytes, refused) = client.listen().await;
        assert!(bytes > 0 && (150..199).contains(&refused), "{refused} refused");
    }
}

#[tokio::test]
async fn who_reads_is_answered_when_others_have_used_up_what_all_may_hold() {
    let (spillgate, targets) = serve(&["--limits-unread", "1MiB"]);
    for target in targets {
        let before = decided(&spillgate);
        let (clients, _) = deaf(&target, 10, 1000, &spillgate).await;
        assert!(decided(&spillgate) - before < 1000, "most requests wait");
        let mut honest = Deaf::connect(&target).await;
        honest.ask(40).await;
        honest.is_heard().await;
        let (bytes, refused) = honest.listen().await;
        assert!(bytes > 40 && refused == 0, "{refused} refused");
        for mut client in clients {
            let (bytes, refused) = client.listen().await;
            assert!(bytes > 40 && refused < 1000, "what was not refused comes in the end");
        }
    }
}

#[tokio::test]
async fn a_client_that_answers_pings_and_reads_nothing_is_idle() {
    // Much longer than the second that an idle connection has to go.
    const IDLE: Duration = Duration::from_secs(3);
    let (_spillgate, targets) = serve(&["--limits-idle", "3s"]);
    let idle = targets.map(async |target| {
        let mut client = Deaf::connect(&target).await;
        // All answers come later than this.
        let asked_at = Instant::now();
        client.ask(10).await;
        client.is_heard().await;
        tokio::time::timeout(DEADLINE, &mut client.connection).await.expect("the server closes it").unwrap();
        assert!(asked_at.elapsed() >= IDLE, "{}: it was not idle yet", target.path);
    });
    join_all(idle).await;
}
