//! What clients can make the server hold, for all clients together: each row of the table in sizing.md is driven to its
//! bound by hostile clients, while honest clients are served.
//!
//! Each test compares the growth of the process's memory with what the row allows. With `MEMORY_OF_CLIENTS=full`, the
//! rows have the defaults of the settings; otherwise they have smaller bounds, so that the tests take seconds.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::hostile::attack::Attack;
use crate::hostile::http2::{self, frame};
use crate::support::{eventually, http};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What a connection takes at most: its buffers, and what it has of its own in addition to the pools.
const CONNECTION: u64 = 128 * KIB;
/// What the allocator, the threads and the honest clients may take beside a row.
const SLACK: u64 = 16 * MIB;

fn is_full() -> bool {
    std::env::var("MEMORY_OF_CLIENTS").is_ok_and(|text| text == "full")
}

/// Sends `bytes` on a new connection. Of what follows, the client reads nothing.
fn send(server: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = super::connect(server);
    stream.write_all(bytes).unwrap();
    stream
}

/// Waits until the server has handled all that `clients` have sent: it answers a PING that came after it, or it has
/// closed the connection.
fn wait_read(clients: &mut [TcpStream]) {
    let mut ping = Vec::new();
    frame(&mut ping, http2::PING, 0, 0, b"allread!");
    for client in &mut *clients {
        let _ = client.write_all(&ping);
    }
    for client in clients {
        while let Ok(frame) = http2::read_frame(client)
            && (frame.kind != http2::PING || frame.payload != b"allread!")
        {}
    }
}

/// Prints the row, which `make show-memory-of-clients` shows, and asserts that it stays within its bound.
#[allow(clippy::print_stdout, reason = "the rows are what the show target shows")]
fn assert_row(attack: &Attack, row: &str, before: u64, computed: u64) {
    attack.wait_served(20);
    let grown = attack.spillgate.process.resident_bytes().saturating_sub(before);
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / MIB as f64);
    println!("| {row} | {} | {} | served |", mib(computed), mib(grown));
    assert!(grown <= computed + SLACK, "{row}: the memory grew by {grown} bytes, and {computed} are computed");
    // After the attack, the allocator keeps some of it.
    attack.permit_growth(computed + SLACK);
}

#[test]
fn connections_with_the_largest_unfinished_heads() {
    let count = if is_full() { 2000 } else { 200 };
    let bound = (count + 10).to_string();
    let head = [b"POST /v1/check HTTP/1.1\r\na: ".as_slice(), &[b'x'; 31_000]].concat();
    let mut frames = http2::greeting();
    let field = [b"\x00\x05x-big\x7f\x81\xff\x3f".as_slice(), &[b'x'; 16_384]].concat();
    frame(&mut frames, http2::HEADERS, 0, 1, &field[..16_384]);
    frames.extend_from_slice(&[0, 0x40, 0, http2::CONTINUATION, 0, 0, 0, 0, 1]);
    frames.extend_from_slice(&[b'x'; 16_000]);
    for (row, is_http, bytes) in [("connections, HTTP/1", true, head), ("connections, HTTP/2", false, frames)] {
        let attack = Attack::begin(&["--limits-connections", &bound, "--limits-receive", "60s"]);
        let server = if is_http { attack.spillgate.http() } else { attack.spillgate.grpc() };
        let before = attack.spillgate.process.resident_bytes();
        let clients: Vec<_> = (0..count).map(|_| send(server, &bytes)).collect();
        assert_row(&attack, row, before, count * CONNECTION);
        drop(clients);
        attack.end();
    }
}

/// Opens connections on which `stream` writes the frames of each stream, until the server has refused streams of each.
fn fill_in_flight(row: &str, path: &str, stream: impl Fn(&mut Vec<u8>, u32)) {
    let (pool, connections) = if is_full() { (256 * MIB, 400_u64) } else { (16 * MIB, 40) };
    let arguments = ["--limits-in-flight", &pool.to_string(), "--limits-receive", "60s", "--limits-unread", "64MiB"];
    let attack = Attack::begin(&arguments);
    let server = if path.starts_with("/v1/") { attack.spillgate.http() } else { attack.spillgate.grpc() };
    let before = attack.spillgate.process.resident_bytes();
    let mut clients = Vec::new();
    for _ in 0..connections {
        let mut bytes = http2::greeting();
        for id in (1..1000).step_by(2) {
            stream(&mut bytes, id);
        }
        // The server closes connections for which it has no memory, also while they send.
        let mut client = super::connect(server);
        let _ = client.write_all(&bytes);
        clients.push(client);
    }
    wait_read(&mut clients);
    // A request that has begun also counts toward the memory for its answer.
    let unread = attack.metric("spillgate_unread_bytes").unwrap_or(0);
    // The allocator keeps what closed connections had. An optimized server is measured without this margin.
    let unoptimized = if cfg!(debug_assertions) { 2 * pool } else { 0 };
    assert_row(&attack, row, before, pool + unread + connections * CONNECTION + unoptimized);
    let refused = attack.metric("spillgate_in_flight_refused_total").unwrap_or(0);
    let taken = attack.metric("spillgate_in_flight_bytes").unwrap_or(0);
    assert!(refused > 0 && taken <= pool, "{row}: {refused} refused, {taken} bytes taken");
    drop(clients);
    eventually("the pool has its bytes again", || {
        (attack.metric("spillgate_in_flight_bytes").unwrap_or(u64::MAX) < pool / 4).then_some(())
    });
    attack.end();
}

#[test]
fn half_sent_messages_take_no_more_than_the_pool() {
    fill_in_flight("requests in flight: half-sent messages", http2::SHOULD_RATE_LIMIT, |bytes, id| {
        frame(bytes, http2::HEADERS, http2::END_HEADERS, id, &http2::call_headers(http2::SHOULD_RATE_LIMIT));
        frame(bytes, http2::DATA, 0, id, b"\0\0\0\x10\0aaa");
    });
}

#[test]
fn half_sent_bodies_take_no_more_than_the_pool() {
    fill_in_flight("requests in flight: half-sent bodies", "/v1/check", |bytes, id| {
        frame(bytes, http2::HEADERS, http2::END_HEADERS, id, &http2::call_headers("/v1/check"));
        frame(bytes, http2::DATA, 0, id, &[b' '; 100]);
    });
}

#[test]
fn large_header_lists_take_no_more_than_the_pool() {
    // Each field is one byte: a reference to `accept: ` in the static table of HTTP/2.
    let mut head = http2::call_headers("/v1/check");
    head.extend_from_slice(&[0x80 | 19; 400]);
    fill_in_flight("requests in flight: header lists of references", "/v1/check", |bytes, id| {
        frame(bytes, http2::HEADERS, http2::END_HEADERS, id, &head);
    });
}

#[test]
fn half_sent_bodies_over_http_1_are_refused_with_503() {
    let count = if is_full() { 2000 } else { 300 };
    let (pool, bound) = (if is_full() { 256 * MIB } else { 4 * MIB }, (count + 10).to_string());
    let attack = Attack::begin(&[
        "--limits-in-flight",
        &pool.to_string(),
        "--limits-connections",
        &bound,
        "--limits-receive",
        "60s",
    ]);
    let before = attack.spillgate.process.resident_bytes();
    let head = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 65536\r\n\r\n";
    let bytes = [head.as_slice(), &[b' '; 65_000]].concat();
    let clients: Vec<_> = (0..count).map(|_| send(attack.spillgate.http(), &bytes)).collect();
    // A body takes four times its bytes. All but the bytes of its connection, 24 KiB, are blocks of the pool.
    let fit = pool / ((4 * 65_000 - 24 * KIB).next_multiple_of(16 * KIB));
    let refused = || attack.metric("spillgate_in_flight_refused_total").unwrap_or(0);
    eventually("all bodies that do not fit are refused", || (refused() >= count - fit).then_some(()));
    let taken = attack.metric("spillgate_in_flight_bytes").unwrap_or(0);
    assert!(taken <= pool && taken > pool / 2, "{taken} bytes are taken, and the pool has {pool}");
    assert_row(&attack, "requests in flight: half-sent bodies over HTTP/1", before, pool + count * CONNECTION);
    // Each refused request has its answer, and the others wait for the rest of their bodies.
    let is_refused = |client: &&TcpStream| {
        client.set_nonblocking(true).unwrap();
        let mut head = [0; 512];
        let Ok(length) = client.peek(&mut head) else { return false };
        let head = String::from_utf8_lossy(&head[..length]);
        assert!(head.starts_with("HTTP/1.1 503") && head.contains("retry-after: 1\r\n"), "{head}");
        true
    };
    eventually("each refused request has an answer", || {
        (clients.iter().filter(is_refused).count() as u64 == refused()).then_some(())
    });
    drop(clients);
    attack.end();
}

/// Waits for `count` frames of this kind. Fails if the server refuses a stream, or closes the connection.
fn wait_frames(client: &mut TcpStream, kind: u8, count: u32) -> io::Result<()> {
    let mut left = count;
    while left > 0 {
        let frame = http2::read_frame(client)?;
        if matches!(frame.kind, http2::GOAWAY | http2::RST_STREAM) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        left -= u32::from(frame.kind == kind);
    }
    Ok(())
}

/// Opens a few streams at a time, and accepts no DATA, so that all of them stay in h2 after they are answered. Then it
/// reads all answers, so that only the tables of h2 stay.
fn grow_tables(mut client: TcpStream) -> io::Result<TcpStream> {
    const STREAMS: u32 = 1016;
    const AT_ONCE: u32 = 8;
    let get = b"\x82\x86\x04\x08/healthz\x01\x01a";
    let window = |bytes: u32| [&[0, 4], &bytes.to_be_bytes()[..]].concat();
    // Otherwise each of the many small writes waits for an acknowledgement.
    client.set_nodelay(true)?;
    let mut bytes = http2::greeting();
    frame(&mut bytes, http2::SETTINGS, 0, 0, &window(0));
    for first in (0..STREAMS).step_by(AT_ONCE as usize) {
        for number in first..first + AT_ONCE {
            frame(&mut bytes, http2::HEADERS, http2::END_HEADERS | http2::END_STREAM, 2 * number + 1, get);
        }
        client.write_all(&std::mem::take(&mut bytes))?;
        wait_frames(&mut client, http2::HEADERS, AT_ONCE)?;
    }
    frame(&mut bytes, http2::SETTINGS, 0, 0, &window(100));
    client.write_all(&bytes)?;
    wait_frames(&mut client, http2::DATA, STREAMS)?;
    Ok(client)
}

#[test]
fn tables_that_grow_slowly_take_no_more_than_the_pool() {
    // With 256 MiB, the clients need minutes until the pool is used up.
    let (pool, connections) = if is_full() { (64 * MIB, 120_u64) } else { (4 * MIB, 120) };
    let pool_text = pool.to_string();
    // The clients answer no PING and then send nothing, and must not be closed for that.
    let attack = Attack::begin(&["--limits-in-flight", &pool_text, "--limits-receive", "600s", "--limits-idle", "1h"]);
    let before = attack.spillgate.process.resident_bytes();
    let server = attack.spillgate.http();
    let (mut clients, mut refused) = (Vec::new(), 0);
    while refused < 10 && (clients.len() as u64) < connections {
        match grow_tables(super::connect(server)) {
            Ok(client) => clients.push(client),
            Err(_) => refused += 1,
        }
    }
    assert_row(&attack, "tables of HTTP/2 that grow slowly", before, pool + connections * CONNECTION);
    let (taken, open) = (attack.metric("spillgate_in_flight_bytes").unwrap_or(0), clients.len() as u64);
    assert!(taken <= pool && taken > open * 2 * MIB, "{open} tables are large, and {taken} bytes taken");
    assert!(open > 0 && refused > 0, "{open} large tables fit, and {refused} do not");
    drop(clients);
    eventually("the pool has its bytes again", || {
        (attack.metric("spillgate_in_flight_bytes").unwrap_or(u64::MAX) < pool / 4).then_some(())
    });
    attack.end();
}

#[test]
fn messages_of_reflection_that_wait_count_as_requests_in_flight() {
    let connections = if is_full() { 512 } else { 300 };
    // What h2 keeps of the messages of a call: see `QUEUE_BYTES` of the listener.
    let queue = 224 * KIB;
    let attack = Attack::begin(&["--limits-receive", "60s"]);
    let before = attack.spillgate.process.resident_bytes();
    let list = http2::message(b"\x3a\x01*");
    let mut call = http2::greeting();
    frame(&mut call, http2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    frame(&mut call, http2::HEADERS, http2::END_HEADERS, 1, &http2::call_headers(path));
    frame(&mut call, http2::DATA, 0, 1, &list.repeat(3));
    let mut clients: Vec<_> = (0..connections).map(|_| send(attack.spillgate.grpc(), &call)).collect();
    wait_read(&mut clients);
    // The client reads no answer, so the server reads no further message. Small frames take far more than their bytes.
    let mut more = Vec::new();
    for _ in 0..3 {
        frame(&mut more, http2::DATA, 0, 1, &list.repeat(2048));
    }
    frame(&mut more, http2::DATA, 0, 1, &list.repeat(1860));
    for _ in 0..400 {
        frame(&mut more, http2::DATA, 0, 1, b"\0");
    }
    for client in &mut clients {
        client.write_all(&more).unwrap();
    }
    wait_read(&mut clients);
    assert_eq!(attack.metric("spillgate_grpc_open_calls "), Some(connections));
    let taken = attack.metric("spillgate_in_flight_bytes").unwrap_or(0);
    assert!(taken >= connections * (queue - 24 * KIB), "{connections} calls have taken {taken} bytes");
    assert_row(&attack, "messages of reflection", before, taken + connections * (16 * KIB + CONNECTION));
    drop(clients);
    eventually("all calls have ended", || (attack.metric("spillgate_grpc_open_calls ") == Some(0)).then_some(()));
    attack.end();
}

#[test]
fn health_watches_take_what_their_bound_allows() {
    const WATCHES: u64 = 512;
    let attack = Attack::begin(&[]);
    let before = attack.spillgate.process.resident_bytes();
    let watch = |id: u32| {
        let mut bytes = Vec::new();
        frame(&mut bytes, http2::HEADERS, http2::END_HEADERS, id, &http2::call_headers("/grpc.health.v1.Health/Watch"));
        frame(&mut bytes, http2::DATA, http2::END_STREAM, id, &http2::message(b""));
        bytes
    };
    let streams: Vec<u8> = (0..6).flat_map(|number| watch(2 * number + 1)).collect();
    let connections = WATCHES / 4 + 20;
    let mut clients: Vec<_> = (0..connections)
        .map(|_| send(attack.spillgate.grpc(), &[http2::greeting(), streams.clone()].concat()))
        .collect();
    wait_read(&mut clients);
    assert_eq!(attack.metric("spillgate_grpc_open_calls "), Some(WATCHES));
    assert_row(&attack, "health watches", before, WATCHES * 16 * KIB + connections * CONNECTION);
    drop(clients);
    eventually("all places are free again", || (attack.metric("spillgate_grpc_open_calls ") == Some(0)).then_some(()));
    attack.end();
}

/// Sends requests for `path` from 80 connections of ten addresses, and reads only the beginning of each answer. Returns
/// the connections, and the status of each answer.
fn readers_that_stop(admin: SocketAddr, path: &str) -> (Vec<TcpStream>, Vec<String>) {
    let reader = |number: usize| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        // On Linux, all addresses of 127.0.0.0/8 are loopback.
        let own: SocketAddr = format!("127.0.1.{}:0", number % 10 + 1).parse().unwrap();
        socket.bind(&own.into()).unwrap();
        socket.connect(&admin.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8_lossy(&status[9..]).into_owned())
    };
    (0..80).map(reader).unzip()
}

#[test]
fn pages_with_readings_take_what_their_bounds_allow() {
    const READINGS: &str = "/insight?readings=true";
    let attack = Attack::begin(&["--limits-receive", "60s"]);
    // The sample of the limit is full.
    for begin in (0..6_000).step_by(30) {
        let users: Vec<_> = (begin..begin + 30).map(|user| format!(r#"{{"user":"{user}"}}"#)).collect();
        let body = format!(r#"{{"domain":"attack","descriptors":[{}]}}"#, users.join(","));
        let answer = http::request(attack.spillgate.http(), "POST", "/v1/check", &[], &body).unwrap();
        assert_eq!(answer.status, 200);
    }
    let page = http::get(attack.spillgate.admin(), READINGS, &[]);
    assert!((2 * MIB..8 * MIB).contains(&(page.body.len() as u64)), "{} bytes", page.body.len());
    let before = attack.spillgate.process.resident_bytes();
    let (clients, statuses) = readers_that_stop(attack.spillgate.admin(), READINGS);
    assert_eq!(statuses, [vec!["200"; 3], vec!["503"; 77]].concat(), "the first three have a place");
    assert_row(&attack, "pages with the readings of insight", before, 3 * 8 * MIB + 80 * CONNECTION);
    drop(clients);
    eventually("the places are free again", || {
        (http::get(attack.spillgate.admin(), READINGS, &[]).status == 200).then_some(())
    });
    attack.end();
}

#[test]
fn pages_and_event_streams_take_what_their_bounds_allow() {
    // A page has to be longer than what the socket takes, so that its client keeps its place.
    for (row, path, rules) in [("pages of the admin listener", "/metrics", 20_000), ("event streams", "/events", 0)] {
        let attack = Attack::with_rules(rules, &["--limits-receive", "60s"]);
        http::get(attack.spillgate.admin(), "/metrics", &[]);
        let before = attack.spillgate.process.resident_bytes();
        // Each caller may have eight.
        let (clients, statuses) = readers_that_stop(attack.spillgate.admin(), path);
        let places = [vec!["200"; 64], vec!["503"; 16]].concat();
        assert_eq!(statuses, places, "{row}: the first 64 have a place, and the others are refused");
        assert_row(&attack, row, before, 64 * 128 * KIB + 80 * CONNECTION);
        drop(clients);
        eventually("the places are free again", || {
            (http::get(attack.spillgate.admin(), "/metrics", &[]).status == 200).then_some(())
        });
        attack.end();
    }
}
