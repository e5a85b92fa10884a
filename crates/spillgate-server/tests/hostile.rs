//! Whatever a client sends, honest clients are served, the process lives, and its memory is bounded.
//!
//! Every test attacks the real binary while an honest client asks over HTTP and gRPC all the time. Random input is
//! drawn from fixed seeds for a second or two; `HOSTILE_SECONDS=600` makes each storm as long as one likes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a storm has an end, and a client's patience too")]

mod support;

#[path = "hostile/http2.rs"]
mod http2;
#[path = "hostile/siege.rs"]
mod siege;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use http2::frame;
use siege::{CHECK, Dice, Siege, post};
use support::{DEADLINE, eventually, http};

const BOUNDS: [&str; 4] = ["--limits-connections", "500", "--limits-receive", "1s"];

fn connect(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&server, DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends what the server will take, and reads what it says until it closes or is silent for a moment.
fn throw(server: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(server);
    // The server may close in the middle of it: that is one of its rights.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut said = Vec::new();
    let _ = stream.take(1 << 20).read_to_end(&mut said);
    said
}

/// Reads until the server closes; fails if it does not within the deadline.
fn is_closed_by_server(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the server keeps the connection open after {DEADLINE:?}: {said:?}")
        }
        // A reset is a close as well.
        _ => said,
    }
}

/// Writes until the server stops it; how many bytes it took.
fn pour(stream: &mut TcpStream, chunk: &[u8], total: usize) -> usize {
    let mut sent = 0;
    while sent < total {
        match stream.write(chunk) {
            Ok(n) => sent += n,
            Err(_) => break,
        }
    }
    sent
}

fn status_of(said: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(said);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

#[test]
fn random_bytes_at_every_port() {
    let siege = Siege::begin(&BOUNDS);
    let ports = [siege.spillgate.http(), siege.spillgate.grpc(), siege.spillgate.admin()];
    let mut dice = Dice::new(1);
    siege.storm(|round| {
        let start: &[u8] = dice.one_of(&[
            b"".as_slice(),
            http2::PREFACE,
            b"GET /",
            b"POST /json HTTP/1.1\r\n",
            b"\x16\x03\x01",
            b"*1\r\n$4\r\n",
        ]);
        let bytes = [start, &dice.bytes(2000)].concat();
        throw(ports[round as usize % ports.len()], &bytes);
    });
    siege.end();
}

#[test]
fn random_frames_of_http2() {
    let siege = Siege::begin(&BOUNDS);
    let ports = [siege.spillgate.grpc(), siege.spillgate.http()];
    let mut dice = Dice::new(2);
    siege.storm(|round| {
        let mut bytes = http2::greeting();
        for _ in 0..dice.below(30) {
            let (kind, flags) = (dice.byte() % 12, dice.byte() & dice.byte());
            let stream = dice.below(8) as u32;
            let payload = match dice.below(4) {
                0 => http2::call_headers(http2::SHOULD_RATE_LIMIT),
                1 => http2::message(&dice.bytes(100)),
                2 => dice.bytes(9),
                _ => dice.bytes(300),
            };
            frame(&mut bytes, kind, flags, stream, &payload);
        }
        if dice.below(3) == 0 {
            bytes = dice.mutated(&bytes);
        }
        throw(ports[round as usize % ports.len()], &bytes);
    });
    siege.end();
}

#[test]
fn streams_opened_and_reset_at_once() {
    let siege = Siege::begin(&BOUNDS);
    siege.storm(|_| {
        let mut bytes = http2::greeting();
        for id in (1..4000).step_by(2) {
            frame(&mut bytes, http2::HEADERS, http2::END_HEADERS, id, &http2::call_headers(http2::SHOULD_RATE_LIMIT));
            frame(&mut bytes, http2::RST_STREAM, 0, id, &[0, 0, 0, 8]);
        }
        throw(siege.spillgate.grpc(), &bytes);
    });
    let closed = r#"spillgate_connections_closed_total{reason="broken"}"#;
    assert!(siege.metric(closed).is_some_and(|closed| closed > 0), "the server closes such connections");
    let said = siege.spillgate.process.stderr();
    assert!(said.is_empty(), "a client writes no log at will: {said:?}");
    siege.end();
}

#[test]
fn malformed_calls_of_grpc_are_answered() {
    let siege = Siege::begin(&BOUNDS);
    let mut dice = Dice::new(3);
    let good = http2::message(&http2::rate_limit_request("siege", "user", "a", 3));
    let mut connection = http2::Connection::open(siege.spillgate.grpc()).unwrap();
    siege.storm(|_| {
        let path = dice.one_of(&[
            http2::SHOULD_RATE_LIMIT,
            http2::SHOULD_RATE_LIMIT,
            "/grpc.health.v1.Health/Check",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/no.such.Service/Method",
        ]);
        let data = match dice.below(4) {
            0 => dice.bytes(200),
            1 => http2::message(&dice.bytes(200)),
            2 => http2::message(&dice.mutated(&good[5..])),
            _ => dice.mutated(&good),
        };
        // Every call ends; a connection that the server gave up on is replaced.
        if !matches!(connection.call(path, &data), Ok(Some(_))) {
            connection = http2::Connection::open(siege.spillgate.grpc()).unwrap();
        }
    });
    drop(connection);
    siege.end();
}

#[test]
fn malformed_bodies_of_json_are_refused_with_a_reason() {
    let siege = Siege::begin(&BOUNDS);
    let mut dice = Dice::new(4);
    let seeds = [
        CHECK,
        r#"[{"domain":"siege","descriptors":[[["user","1"]],{"user":"2"}],"cost":2}]"#,
        r#"{"bucket":"b","key":"k","limit":5,"window_ms":1000,"cost":1,"algorithm":"token_bucket","burst":3}"#,
        r#"{"domain":"siege","descriptors":[{"entries":[{"key":"user","value":"1"}],"hitsAddend":"2"}],"hitsAddend":1}"#,
        r#"{"lease_id":"AAAA"}"#,
    ];
    let paths = ["/v1/check", "/v1/hit", "/json", "/v1/release", "/v1/renew", "/v1/forward-auth", "/v1/check?wait=9s"];
    let mut stream = connect(siege.spillgate.http());
    siege.storm(|_| {
        let path = dice.one_of(&paths);
        let seed = dice.one_of(&seeds);
        let body = dice.mutated(seed.as_bytes());
        match post(&mut stream, path, &body) {
            Ok((status, said)) => {
                let body = String::from_utf8_lossy(&body);
                assert!(status < 500, "{path} answers {status} to {body:?}: {}", String::from_utf8_lossy(&said));
                assert!(status < 400 || !said.is_empty(), "{path} gives no reason for {status} to {body:?}");
            }
            // It may close after a refusal; the next connection has to do.
            Err(_) => stream = connect(siege.spillgate.http()),
        }
    });
    siege.end();
}

#[test]
fn clients_that_dawdle_are_closed() {
    let siege = Siege::begin(&BOUNDS);
    let (http, grpc) = (siege.spillgate.http(), siege.spillgate.grpc());
    let mut halves = Vec::new();
    let starts: [(SocketAddr, &[u8]); 6] = [
        (http, b""),
        (http, b"POST /v1/check HTTP/1.1\r\nhost: a\r\nx-slow:"),
        (http, b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"),
        (http, b"POST /v1/check HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"),
        (grpc, b""),
        (grpc, &http2::PREFACE[..20]),
    ];
    for (server, start) in starts {
        for _ in 0..20 {
            let mut stream = connect(server);
            stream.write_all(start).unwrap();
            halves.push(stream);
        }
    }
    for _ in 0..20 {
        let mut kept = connect(http);
        kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut answer = [0; 256];
        let mut read = 0;
        while !answer[..read].ends_with(b"ok\n") {
            read += kept.read(&mut answer[read..]).unwrap();
        }
        kept.write_all(b"GET /healthz HTTP/1.1\r\nhost:").unwrap();
        halves.push(kept);
    }
    siege.serves_on(20);
    for stream in halves {
        is_closed_by_server(stream);
    }
    siege.end();
}

#[test]
fn a_client_that_never_reads_is_not_buffered_for() {
    let siege = Siege::begin(&BOUNDS);
    let asking = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{CHECK}",
        CHECK.len()
    );
    let mut deaf = Vec::new();
    for _ in 0..4 {
        // Small buffers on this side, so that it is the server's own that fill.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.set_send_buffer_size(1 << 16).unwrap();
        socket.connect(&siege.spillgate.http().into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        // Ends when the server has stopped reading for so long.
        let sent = pour(&mut stream, asking.repeat(100).as_bytes(), 64 << 20);
        assert!(sent < 64 << 20, "the server took {sent} bytes of requests from a client that reads no answer");
        deaf.push(stream);
    }
    siege.serves_on(20);
    siege.is_bounded();
    drop(deaf);
    siege.end();
}

#[test]
fn a_header_of_a_mebibyte() {
    let siege = Siege::begin(&BOUNDS);
    let value = "x".repeat(1 << 20);
    for (name, server) in [("http", siege.spillgate.http()), ("admin", siege.spillgate.admin())] {
        let mut stream = connect(server);
        let _ = stream.write_all(format!("GET /healthz HTTP/1.1\r\nhost: a\r\nx-big: {value}\r\n\r\n").as_bytes());
        let said = is_closed_by_server(stream);
        assert!(matches!(status_of(&said), 0 | 400 | 431), "{name}: {}", String::from_utf8_lossy(&said));
    }
    for server in [siege.spillgate.http(), siege.spillgate.grpc()] {
        let mut bytes = http2::greeting();
        frame(&mut bytes, http2::HEADERS, 0, 1, &http2::call_headers(http2::SHOULD_RATE_LIMIT));
        // A literal whose length, in seven bits and then some, is about a mebibyte.
        let block = [b"\x00\x05x-big\x7f\x81\xff\x3f".as_slice(), value.as_bytes()].concat();
        for chunk in block.chunks(16_384) {
            frame(&mut bytes, http2::CONTINUATION, 0, 1, chunk);
        }
        let mut stream = connect(server);
        let _ = stream.write_all(&bytes);
        is_closed_by_server(stream);
    }
    siege.end();
}

#[test]
fn ten_thousand_descriptors() {
    let siege = Siege::begin(&["--limits-body", "4MiB"]);
    let list = vec![r#"{"user":"a"}"#; 10_000].join(",");
    let entries = vec![r#"["user","a"]"#; 10_000].join(",");
    for body in [
        format!(r#"{{"domain":"siege","descriptors":[{list}]}}"#),
        format!(r#"{{"domain":"siege","descriptors":[[{entries}]]}}"#),
    ] {
        let answer =
            http::request(siege.spillgate.http(), "POST", "/v1/check", &[("content-type", "application/json")], &body)
                .unwrap();
        assert!((400..500).contains(&answer.status), "{answer:?}");
        assert!(answer.body.len() < 1000 && !answer.body.is_empty(), "{answer:?}");
    }
    let mut connection = http2::Connection::open(siege.spillgate.grpc()).unwrap();
    let message = http2::message(&http2::rate_limit_request("siege", "user", "a", 10_000));
    for _ in 0..5 {
        let answer = connection.call(http2::SHOULD_RATE_LIMIT, &message).unwrap();
        assert_eq!(answer.as_deref(), Some(&[][..]), "a status without a message");
    }
    drop(connection);
    siege.end();
}

#[test]
fn a_body_of_a_gibibyte() {
    const ANNOUNCED: usize = 1 << 30;
    /// More than all buffers between two processes hold.
    const TAKEN: usize = 64 << 20;
    let siege = Siege::begin(&BOUNDS);
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";
    let chunk = [format!("{:x}\r\n", 1 << 16).as_bytes(), &[b' '; 1 << 16], b"\r\n"].concat();
    for (fields, chunk) in [
        (format!("content-length: {ANNOUNCED}\r\n\r\n"), vec![b' '; 1 << 16]),
        (String::from("transfer-encoding: chunked\r\n\r\n"), chunk),
    ] {
        let mut stream = connect(siege.spillgate.http());
        stream.write_all(format!("{head}{fields}").as_bytes()).unwrap();
        let sent = pour(&mut stream, &chunk, ANNOUNCED);
        assert!(sent < TAKEN, "the server took {sent} bytes of a body");
        siege.is_bounded();
        is_closed_by_server(stream);
    }
    // A message that announces a gibibyte, streamed as far as the window allows.
    let mut bytes = http2::greeting();
    frame(&mut bytes, http2::HEADERS, http2::END_HEADERS, 1, &http2::call_headers(http2::SHOULD_RATE_LIMIT));
    frame(&mut bytes, http2::DATA, 0, 1, &[0, 0x40, 0, 0, 0]);
    let mut stream = connect(siege.spillgate.grpc());
    stream.write_all(&bytes).unwrap();
    let ended = eventually("the server to end the call", || {
        let frame = http2::read_frame(&mut stream).expect("an answer");
        let ends = frame.kind == http2::HEADERS && frame.flags & http2::END_STREAM != 0;
        (frame.stream == 1 && (ends || frame.kind == http2::RST_STREAM)).then_some(true)
    });
    assert!(ended);
    drop(stream);
    siege.end();
}

/// Files that this process may open, raised to `wanted` where the machine allows that.
fn open_files(wanted: u64) -> u64 {
    let process = std::process::id().to_string();
    // Without the tool, or the right to raise it, the limit stays as it is.
    let _ = Command::new("prlimit").args(["--pid", &process, &format!("--nofile={wanted}:{wanted}")]).output();
    let _ = Command::new("prlimit").args(["--pid", &process, &format!("--nofile={wanted}:")]).output();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().and_then(|soft| soft.parse().ok()).unwrap_or(wanted)
}

#[test]
fn twenty_thousand_connections_at_a_bound_of_five_hundred() {
    const CONNECTIONS: usize = 20_000;
    let siege = Siege::begin(&BOUNDS);
    let open = open_files(CONNECTIONS as u64 + 1000).saturating_sub(600) as usize;
    let SocketAddr::V4(server) = siege.spillgate.http() else { panic!("an IPv4 address") };
    let mut held = Vec::new();
    for number in 0..CONNECTIONS {
        if held.len() >= open {
            held.clear();
        }
        // Several source addresses, so that no port range runs out.
        let from = Ipv4Addr::new(127, 0, 1, 1 + u8::try_from(number / 5000).unwrap());
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect_timeout(&SocketAddr::V4(server).into(), DEADLINE).unwrap();
        held.push(socket);
        if number % 4000 == 0 {
            siege.serves_on(2);
            siege.is_bounded();
        }
    }
    siege.serves_on(20);
    // Those that hold a place without asking lose it, and then a new client is served although the others stay.
    let begun = Instant::now();
    let answer = eventually("a place for a new client", || {
        http::request(siege.spillgate.http(), "POST", "/v1/check", &[("content-type", "application/json")], CHECK).ok()
    });
    assert_eq!(answer.status, 200, "after {:?}: {answer:?}", begun.elapsed());
    drop(held);
    siege.end();
}
