//! Tests of the event stream over real sockets: its figures, its bounds, clients that do not read or go away, and the drain.
//!
//! A stream is the only answer of the server that does not end soon. Without bounds, streams could fill the memory, use
//! up the connections, and delay the end of the server.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::cli_support::{Folder, signal};
use crate::support::events::EventStream;
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, eventually, http};
use bytes::Bytes;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use spillgate::rules::{Rules, RulesFile};
use spillgate::{Limiter, MemoryOptions, MemoryStore};
use spillgate_admin::{self as admin, Access, AdminState};
use spillgate_http::{HttpOptions, HttpState};
use spillgate_server::listener::{App, Limits, Listen, Running, Server};
use spillgate_server::settings::{Sources, resolve};
use spillgate_service::metrics::{Closed, Metrics};
use spillgate_service::{Backend, Readiness, Service, ServiceOptions};

const RULES: &str = "domain: api
descriptors:
  - key: user
    rate_limits: [{name: few, unit: year, limit: 3}, {name: many, unit: day, limit: 50}]
  - {key: shadowed, shadow_mode: true, rate_limit: {unit: year, limit: 1}}
";

/// A server in this process, so that a test can choose the time between two ticks.
struct InProcess {
    service: Arc<Service>,
    http: SocketAddr,
    admin: SocketAddr,
    running: Option<Running>,
}

impl InProcess {
    fn start(rules: &str, tick: Duration, change: impl FnOnce(&mut Limits)) -> InProcess {
        let settings = resolve(&Sources::default()).unwrap().settings;
        let mut limits = settings.limits.clients;
        change(&mut limits);
        let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: rules.into() }]).unwrap();
        let limiter = Limiter::new(Backend::Memory(MemoryStore::new(MemoryOptions::default())));
        let metrics = Arc::new(Metrics::new());
        let service = Arc::new(Service::new(rules, limiter, ServiceOptions::default(), Arc::clone(&metrics)));
        let mut server = Server::new(limits, Some(1), metrics);
        let mut bind = |app| {
            let any: SocketAddr = ([127, 0, 0, 1], 0).into();
            match server.bind(&Listen::Tcp(any), app).unwrap() {
                Listen::Tcp(address) => address,
                Listen::Unix(path) => panic!("{} is not a network address", path.display()),
            }
        };
        let http = HttpState::new(Arc::clone(&service), HttpOptions::from(&settings)).unwrap();
        let state = AdminState::new(Arc::clone(&service), Access::default()).with_tick(tick);
        let (http, admin) = (bind(App::Http(http)), bind(App::Admin(admin::router(state))));
        InProcess { service, http, admin, running: Some(server.start().unwrap()) }
    }

    fn until_streams(&self, streams: i64) {
        eventually(&format!("{streams} streams are open"), || {
            (self.service.metrics().event_streams.get() == streams).then_some(())
        });
    }

    /// Waits until this many connections were closed as idle. The server counts a connection after closing it, so the
    /// client can notice the close before the count changes.
    fn until_closed(&self, connections: u64) {
        let closed = || self.service.metrics().closed(Closed::Idle).get();
        eventually(&format!("{connections} connections were idle"), || (closed() >= connections).then_some(()));
        assert_eq!(closed(), connections);
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.service.set_readiness(Readiness::Draining);
        if let Some(running) = self.running.take() {
            running.handle().drain();
            drop(running.wait());
        }
    }
}

fn check(server: SocketAddr, key: &str) -> u16 {
    let body = json!({"domain": "api", "descriptors": [{ key: "7" }]}).to_string();
    http::request(server, "POST", "/v1/check", &[], &body).unwrap().status
}

fn gauge(server: SocketAddr) -> u64 {
    let page = http::get(server, "/metrics", &[]).body;
    page.lines().find_map(|line| line.strip_prefix("spillgate_event_streams ")).unwrap().parse().unwrap()
}

/// Rules with this many limits, so that a tick with all limits is long.
fn many_limits(limits: usize) -> String {
    let rule = |at| format!("  - {{key: k{at}, rate_limit: {{unit: hour, limit: 5}}}}\n");
    format!("domain: api\ndescriptors:\n{}", (0..limits).map(rule).collect::<String>())
}

/// The idle time of a connection in tests of clients that do not read. On a busy machine, a client that reads may pause
/// for this time and one second more before the server closes its connection.
const IDLE: Duration = Duration::from_secs(2);

/// Makes ticks long: a thread counts failed reloads all the time, and the first tick after a counted reload has all
/// limits.
struct Changing(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Changing {
    fn start(service: &Arc<Service>) -> Changing {
        let (ends, service) = (Arc::new(AtomicBool::new(false)), Arc::clone(service));
        let seen = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                service.metrics().reload_failures.inc();
                thread::park_timeout(Duration::from_millis(5));
            }
        });
        Changing(ends, Some(thread))
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        drop(self.1.take().map(JoinHandle::join));
    }
}

#[test]
fn figures_at_rest_are_those_of_the_metrics() {
    let server = InProcess::start(RULES, Duration::from_millis(5), |_| {});
    let mut stream = EventStream::open(server.admin, &[]);
    assert_eq!(stream.status, 200);
    assert!(stream.head.contains("content-type: text/event-stream\r\n"), "{}", stream.head);
    let load: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                (0..40).for_each(|_| assert!(["user", "shadowed"].map(|key| check(server.http, key))[1] == 200))
            })
        })
        .collect();
    // The totals of each limit, from all ticks.
    let mut totals: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut next = || {
        let tick = stream.tick();
        for row in tick["limits"].as_array().unwrap() {
            let row: Vec<u64> = row.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect();
            let before = totals.insert(row[0], row[1..].to_vec());
            let grows = before.is_none_or(|before| before.iter().zip(&row[1..]).all(|(before, now)| before <= now));
            assert!(grows, "a total never gets smaller: {tick}");
        }
        tick
    };
    // A tick can count a request, but not yet its hits on the limits. These hits are in the next tick.
    let last = loop {
        let requests = &next()["requests"];
        if requests["allowed"].as_u64().unwrap() + requests["refused"].as_u64().unwrap() == 320 {
            break next();
        }
    };
    load.into_iter().for_each(|thread| thread.join().unwrap());
    let overview: Value = serde_json::from_str(&http::get(server.admin, "/overview", &[]).body).unwrap();
    for (name, count) in last["requests"].as_object().unwrap() {
        assert_eq!(overview["requests"][name], *count, "{name}");
    }
    let columns = ["allowed", "refused", "near", "shadow_refused", "soft_over"];
    for limit in overview["limits"].as_array().unwrap() {
        let figures = columns.map(|name| limit[name].as_u64().unwrap());
        assert_eq!(totals[&limit["id"].as_u64().unwrap()], figures, "{limit}");
    }
    let page = http::get(server.admin, "/metrics", &[]).body;
    let few = r#"spillgate_limit_hits_total{domain="api",rule="user",limit="few",outcome="refused"} 157"#;
    assert!(page.lines().any(|line| line == few) && totals[&0][1] == 157, "{totals:?}");
    let shadowed =
        r#"spillgate_limit_hits_total{domain="api",rule="shadowed",limit="1 per year",outcome="shadow_refused"} 159"#;
    assert!(page.lines().any(|line| line == shadowed) && totals[&2][3] == 159, "{totals:?}");
}

#[test]
fn a_thousand_further_streams_are_refused_and_take_no_memory() {
    let folder = Folder::new(&[("rules.yaml", &many_limits(1000))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--admin", "127.0.0.1:0"]);
    let from = |last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
    let mut streams = Vec::new();
    for client in 1..=8 {
        streams.extend((0..8).map(|_| EventStream::open_from(from(client), server.admin(), &[])));
    }
    assert!(streams.iter().all(|stream| stream.status == 200));
    assert_eq!(gauge(server.admin()), 64);
    let before = server.process.resident_bytes();
    let mut refused = Vec::new();
    for attempt in 0..1000 {
        let refusal = EventStream::open_from(from(9 + (attempt % 50) as u8), server.admin(), &[]);
        assert!(refusal.status == 503 && refusal.head.contains("retry-after: 1\r\n"), "{}", refusal.head);
        // Some refused clients keep their connections open. The admin listener accepts 256 in all.
        if attempt % 8 == 0 {
            refused.push(refusal);
        }
    }
    let grown = server.process.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "the memory grew by {grown} bytes");
    for stream in &mut streams {
        assert_eq!(stream.tick()["limits"].as_array().map(Vec::len), Some(1000));
        assert_eq!(stream.tick()["limits"], json!([]));
    }
    let ninth = EventStream::open_from(from(1), server.admin(), &[]);
    assert_eq!(ninth.status, 503);
    streams.truncate(60);
    eventually("the streams of clients that are gone end", || (gauge(server.admin()) == 60).then_some(()));
    assert_eq!(EventStream::open_from(from(60), server.admin(), &[]).status, 200);
    drop(refused);
}

/// Opens a stream whose client reads only the first bytes.
fn unread(server: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&server.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    write!(stream, "GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    stream
}

#[test]
fn a_client_that_does_not_read_is_closed_and_one_that_reads_is_not() {
    let server = InProcess::start(&many_limits(1000), Duration::from_millis(20), |limits| limits.idle = IDLE);
    let _changing = Changing::start(&server.service);
    let mut honest = EventStream::open(server.admin, &[]);
    let stalled: Vec<_> = (0..3).map(|_| unread(server.admin)).collect();
    server.until_streams(4);
    let reads = Arc::new(AtomicBool::new(true));
    let goes_on = Arc::clone(&reads);
    let reader = thread::spawn(move || {
        while goes_on.load(Ordering::Relaxed) {
            honest.tick();
        }
        honest
    });
    server.until_streams(1);
    server.until_closed(3);
    reads.store(false, Ordering::Relaxed);
    let mut honest = reader.join().unwrap();
    assert!(honest.tick()["at_ms"].is_u64());
    drop(stalled);
}

#[test]
fn a_stream_lives_longer_than_the_idle_time_of_a_connection() {
    let idle = Duration::from_millis(300);
    let server = InProcess::start(RULES, 2 * idle, |limits| limits.idle = idle);
    let mut stream = EventStream::open(server.admin, &[]);
    for _ in 0..3 {
        stream.tick();
    }
    assert_eq!(server.service.metrics().closed(Closed::Idle).get(), 0);
}

#[test]
fn a_client_that_is_gone_frees_its_stream() {
    // No tick comes in the time of this test, so no write fails. The server has to notice in another way that a client
    // is gone.
    let server = InProcess::start(RULES, Duration::from_secs(3600), |_| {});
    let streams: Vec<_> = (0..8).map(|_| EventStream::open(server.admin, &[])).collect();
    server.until_streams(8);
    drop(streams);
    server.until_streams(0);
    assert_eq!(EventStream::open(server.admin, &[]).status, 200);
}

#[test]
fn streams_end_when_the_server_drains() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    // If a stream did not end, the server would run for another hour, and the test would fail.
    let mut server = Spillgate::serve(&folder.path("rules.yaml"), &["--limits-drain", "1h"]);
    let mut streams: Vec<_> = (0..3).map(|_| EventStream::open(server.admin(), &[])).collect();
    streams.iter_mut().for_each(|stream| drop(stream.tick()));
    server.process.terminate();
    for stream in &mut streams {
        while stream.next().is_some() {}
    }
    assert!(server.process.wait().success());
}

#[test]
fn a_reload_is_an_event_of_each_stream() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let mut streams: Vec<_> = (0..2).map(|_| EventStream::open(server.admin(), &[])).collect();
    for (text, rows) in [(RULES.replace("limit: 3", "limit: 4"), 3), ("domain: api\ndescriptors: 7\n".to_owned(), 3)] {
        let before: Vec<_> = streams.iter_mut().map(|stream| stream.tick()["changes"].clone()).collect();
        folder.write("rules.yaml", &text);
        signal(server.process.id(), "HUP");
        for (stream, before) in streams.iter_mut().zip(before) {
            let changes = loop {
                let (name, data) = stream.next().unwrap();
                if name == "changed" {
                    break data["changes"].clone();
                }
                assert_eq!(data["changes"], before, "an event comes before the first tick with another number");
            };
            let tick = stream.tick();
            assert_eq!((&tick["changes"], tick["limits"].as_array().map(Vec::len)), (&changes, Some(rows)));
        }
    }
}

#[test]
fn streams_need_a_token_if_there_is_one() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("write", "write"), ("read", "read")]);
    let [write, read] = ["write", "read"].map(|name| folder.path(name).display().to_string());
    let tokens = ["--admin-token-file", &write, "--admin-read-token-file", &read];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &tokens);
    let status = |token: &str| EventStream::open(server.admin(), &[("authorization", token)]).status;
    assert_eq!(["Bearer read", "Bearer write", "Bearer wrong", "read"].map(status), [200, 200, 401, 401]);
    assert_eq!(EventStream::open(server.admin(), &[]).status, 401);
    let page = [("authorization", "Bearer read"), ("origin", "http://evil.example")];
    assert_eq!(EventStream::open(server.admin(), &page).status, 403);
    let post = http::request(server.admin(), "POST", "/events", &[("authorization", "Bearer write")], "").unwrap();
    assert_eq!(post.status, 405);
}

/// Opens a stream over HTTP/2. The client accepts `window` bytes that it has not read.
async fn open_http2(server: SocketAddr, window: u32) -> (h2::RecvStream, tokio::task::JoinHandle<()>) {
    let stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let (client, connection) = builder.initial_window_size(window).handshake::<_, Bytes>(stream).await.unwrap();
    let connection = tokio::spawn(async move { drop(connection.await) });
    let request = ::http::Request::get(format!("http://{server}/events")).body(()).unwrap();
    let (answer, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 200);
    (answer.into_body(), connection)
}

#[tokio::test]
async fn a_stream_over_http2_goes_on_while_its_client_reads() {
    let server = InProcess::start(&many_limits(1000), Duration::from_millis(50), |limits| limits.idle = IDLE);
    let _changing = Changing::start(&server.service);
    let (mut body, _connection) = open_http2(server.admin, 1 << 16).await;
    let (ticks, mut seen) = tokio::sync::watch::channel(0);
    let reader = tokio::spawn(async move {
        let mut text = String::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            text.push_str(std::str::from_utf8(&data).unwrap());
            assert!(text.starts_with("retry: 2000\n\nevent: tick\n"), "{}", &text[..100]);
            ticks.send_replace(text.matches("event: tick\n").count());
        }
    });
    let (_unread, connection) = open_http2(server.admin, 0).await;
    let closed = tokio::time::timeout(DEADLINE, connection).await;
    closed.expect("the server closes the connection of a client that does not read").unwrap();
    server.until_closed(1);
    let before = *seen.borrow_and_update();
    let more = tokio::time::timeout(DEADLINE, seen.wait_for(|ticks| *ticks > before + 20)).await;
    assert!(more.is_ok_and(|more| more.is_ok()), "the client that reads still gets ticks");
    reader.abort();
}
