//! Tests of clients that do not read their answers: how much memory the answers use, and how long the connections stay open.
//!
//! Without bounds, such clients could fill the server's memory. Each client here answers PING frames, but accepts no DATA frame
//! of HTTP/2. So all answers stay in the server.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, http};
use ::http::{Method, Request, StatusCode};
use bytes::Bytes;
use futures_util::future::join_all;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const RULES: &str = "domain: api\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n  \
     - key: refused\n    rate_limit: {unit: hour, requests_per_unit: 0}\n";
const CHECK: &[u8] = br#"{"domain":"api","descriptors":[{"user":"7"}]}"#;
/// The request of [`CHECK`] as a gRPC message.
const CALL: &[u8] = b"\0\0\0\0\x14\x0a\x03api\x12\x0d\x0a\x0b\x0a\x04user\x12\x037.0";
const MIB: u64 = 1 << 20;
const AT_ONCE: usize = 100;

/// A request, and the server that gets it.
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

/// A client that accepts no DATA until [`Client::read_all`].
struct Client {
    target: Target,
    client: SendRequest<Bytes>,
    pings: PingPong,
    answers: Vec<ResponseFuture>,
    open_window: Option<oneshot::Sender<()>>,
    connection: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Client {
    async fn connect(target: &Target) -> Client {
        let stream = TcpStream::connect(target.server).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut builder = Builder::new();
        builder.initial_window_size(0).initial_connection_window_size(1 << 24).initial_max_send_streams(1024);
        let (client, mut connection) = builder.handshake(stream).await.unwrap();
        let pings = connection.ping_pong().unwrap();
        let (open_window, mut opened) = oneshot::channel();
        let connection = tokio::spawn(async move {
            tokio::select! {
                result = &mut opened => if result.is_ok() {
                    connection.set_initial_window_size(1 << 20).unwrap();
                },
                _ = &mut connection => return,
            }
            drop(connection.await);
        });
        Client { target: *target, client, pings, answers: Vec::new(), open_window: Some(open_window), connection }
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

    /// Waits until the server has read all requests, and has made as many answers as its bounds allow.
    async fn wait_answered(&mut self) {
        for _ in 0..2 {
            tokio::time::timeout(DEADLINE, self.pings.ping(Ping::opaque())).await.unwrap().unwrap();
        }
    }

    /// Accepts DATA from now on, and reads all answers. Returns the bytes of the answers, and how many requests were refused.
    async fn read_all(&mut self) -> (usize, usize) {
        self.open_window.take().unwrap().send(()).unwrap();
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
    let metrics = http::get(spillgate.admin(), "/metrics", &[]).body;
    let allowed = metrics.lines().filter(|line| line.starts_with("spillgate_requests_total{"));
    let allowed = allowed.filter_map(|line| line.split_once("outcome=\"allowed\"} ")?.1.parse::<usize>().ok());
    allowed.sum()
}

/// Opens `connections` clients. Each client sends `requests` requests and reads no answer. Returns the clients, and the growth
/// of the server's memory.
///
/// Before that, the same number of clients send one request each and are closed. So the growth does not include the memory that
/// the server needs for its first connections.
async fn clients_that_do_not_read(
    target: &Target,
    connections: usize,
    requests: usize,
    spillgate: &Spillgate,
) -> (Vec<Client>, u64) {
    let (mut clients, mut before) = (Vec::new(), 0);
    for requests in [1, requests] {
        before = spillgate.process.resident_bytes();
        clients.clear();
        for _ in 0..connections {
            let mut client = Client::connect(target).await;
            // The test measures the memory of answers, but requests in flight need memory too. So at most `AT_ONCE` of
            // them are in flight at a time.
            for at in (0..requests).step_by(AT_ONCE) {
                client.ask(AT_ONCE.min(requests - at)).await;
                client.wait_answered().await;
            }
            clients.push(client);
        }
    }
    (clients, spillgate.process.resident_bytes().saturating_sub(before))
}

#[tokio::test]
async fn unread_answers_take_at_most_4_mib_a_connection() {
    const CONNECTIONS: usize = 20;
    for port in 0..2 {
        let (spillgate, targets) = serve(&[]);
        let (clients, grown) = clients_that_do_not_read(&targets[port], CONNECTIONS, 1000, &spillgate).await;
        assert!(grown <= CONNECTIONS as u64 * 4 * MIB, "{}: the memory grew by {grown} bytes", targets[port].path);
        for mut client in clients {
            let (bytes, refused) = client.read_all().await;
            assert!(bytes > 1000 && refused == 0, "every request is answered in the end, but {refused} were refused");
        }
    }
}

/// Returns a list of checks that are all refused.
fn long_check() -> &'static [u8] {
    let check = r#"{"domain":"api","descriptors":[{"refused":"7"}]}"#;
    format!("[{}]", [check; 256].join(",")).leak().as_bytes()
}

#[tokio::test]
async fn long_unread_answers_count_toward_limits_unread() {
    const CONNECTIONS: usize = 60;
    let (spillgate, [http, _]) = serve(&["--limits-unread", "1MiB"]);
    let target = Target { body: long_check(), ..http };
    let (clients, grown) = clients_that_do_not_read(&target, CONNECTIONS, 14, &spillgate).await;
    // The answers use 1 MiB in all and 8 KiB for each connection, which is 1.5 MiB together. The bodies of the requests
    // that wait use up to 10 MiB. If the answers did not count toward `limits.unread`, they would use 120 MiB.
    assert!(grown <= 32 * MIB, "the memory grew by {grown} bytes");
    drop(clients);
    let gone = async {
        // One connection always remains: the test opens a connection to read this metric.
        while metric(&spillgate, "spillgate_connections ") > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("the server notices that the clients are closed");
    // These clients read their answers, so each of them gets its long answer, one client after the other.
    for _ in 0..CONNECTIONS {
        let mut client = Client::connect(&target).await;
        client.ask(1).await;
        client.wait_answered().await;
        let (bytes, refused) = client.read_all().await;
        assert!(bytes > 30_000 && refused == 0, "{bytes} bytes of answers, {refused} requests refused");
    }
}

#[tokio::test]
async fn few_requests_wait_when_others_have_used_up_limits_unread() {
    let (spillgate, targets) = serve(&["--limits-unread", "1MiB"]);
    let (_clients, _) = clients_that_do_not_read(&targets[0], 10, 1000, &spillgate).await;
    for target in targets {
        let before = metric(&spillgate, "spillgate_unread_refused_total ");
        let mut client = Client::connect(&target).await;
        client.ask(200).await;
        let last = client.answers.pop().unwrap();
        let refused =
            tokio::time::timeout(DEADLINE, last).await.expect("the server answers the last request").unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::REFUSED_STREAM));
        let (bytes, refused) = client.read_all().await;
        assert!(bytes > 0 && (150..199).contains(&refused), "{refused} of 199 requests were refused");
        let counted = metric(&spillgate, "spillgate_unread_refused_total ") - before;
        assert_eq!(counted, refused + 1, "each refusal is counted");
    }
}

#[tokio::test]
async fn a_client_that_reads_is_answered_when_others_have_used_up_limits_unread() {
    let (spillgate, targets) = serve(&["--limits-unread", "1MiB"]);
    for target in targets {
        let before = decided(&spillgate);
        let (clients, _) = clients_that_do_not_read(&target, 10, 1000, &spillgate).await;
        assert!(decided(&spillgate) - before < 1000, "most requests must wait");
        let mut honest = Client::connect(&target).await;
        honest.ask(30).await;
        honest.wait_answered().await;
        let (bytes, refused) = honest.read_all().await;
        assert!(bytes > 30 && refused == 0, "{refused} of 30 requests were refused");
        for mut client in clients {
            let (bytes, refused) = client.read_all().await;
            assert!(bytes > 40 && refused < 1000, "requests that were not refused are answered in the end");
        }
    }
}

#[tokio::test]
async fn a_client_that_answers_pings_and_reads_nothing_is_idle() {
    // After the idle time, the server asks the client to close the connection. At most one second later, the server
    // closes the connection itself. IDLE is longer than this second. So if the server did not wait for the idle time,
    // the connection would end before IDLE, and the test would fail.
    const IDLE: Duration = Duration::from_secs(3);
    let (_spillgate, targets) = serve(&["--limits-idle", "3s"]);
    let idle = targets.map(async |target| {
        let mut client = Client::connect(&target).await;
        // The connection becomes idle after its last answer, so later than `asked_at`.
        let asked_at = Instant::now();
        client.ask(10).await;
        client.wait_answered().await;
        tokio::time::timeout(DEADLINE, &mut client.connection)
            .await
            .expect("the server closes the connection")
            .unwrap();
        assert!(
            asked_at.elapsed() >= IDLE,
            "{}: the server closed the connection before it was idle for 3 s",
            target.path
        );
    });
    join_all(idle).await;
}
