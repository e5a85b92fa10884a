//! Attacks on the real server. During an attack, honest clients are still served, the server runs on, and its memory is bounded.
//!
//! Everyone who can reach a port can send any bytes, and must not be able to stop the server. Each test attacks the
//! server while an honest client sends requests over HTTP and gRPC. Random input comes from fixed seeds. An attack that
//! calls [`Attack::repeat`] lasts a second or two. With `HOSTILE_SECONDS=600`, such an attack lasts ten minutes.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]
#![allow(clippy::disallowed_methods, reason = "attacks and timeouts of clients need real time")]

mod attack;
pub(crate) mod http2;
mod memory;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{DEADLINE, eventually, http};
use attack::{Attack, CHECK, Random, post};
use http2::frame;

const BOUNDS: [&str; 4] = ["--limits-connections", "500", "--limits-receive", "2s"];

fn connect(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&server, DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends `bytes`, or as many of them as the server accepts. Then reads the reply (at most 1 MiB) until the server
/// closes the connection or sends nothing for 100 ms.
fn send(server: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(server);
    // An error is ignored, because the server is allowed to close the connection at any time.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut reply = Vec::new();
    let _ = stream.take(1 << 20).read_to_end(&mut reply);
    reply
}

/// Reads until the server closes the connection. Panics if the connection stays open and the server sends nothing for
/// [`DEADLINE`].
fn read_until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut reply = Vec::new();
    match stream.read_to_end(&mut reply) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the server keeps the connection open and sends nothing for {DEADLINE:?} after: {reply:?}")
        }
        // The server is also allowed to close the connection with a TCP reset.
        _ => reply,
    }
}

/// Writes `chunk` again and again until the server stops reading or at least `total` bytes are sent. Returns the number
/// of sent bytes.
fn fill(stream: &mut TcpStream, chunk: &[u8], total: usize) -> usize {
    let mut sent = 0;
    while sent < total {
        match stream.write(chunk) {
            Ok(n) => sent += n,
            Err(_) => break,
        }
    }
    sent
}

fn status_of(reply: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(reply);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

#[test]
fn random_bytes_at_every_port() {
    let attack = Attack::begin(&BOUNDS);
    let ports = [attack.spillgate.http(), attack.spillgate.grpc(), attack.spillgate.admin()];
    let mut random = Random::new(1);
    attack.repeat(|round| {
        let start: &[u8] = random.one_of(&[
            b"".as_slice(),
            http2::PREFACE,
            b"GET /",
            b"POST /json HTTP/1.1\r\n",
            b"\x16\x03\x01",
            b"*1\r\n$4\r\n",
        ]);
        let bytes = [start, &random.bytes(2000)].concat();
        send(ports[round as usize % ports.len()], &bytes);
    });
    attack.end();
}

#[test]
fn random_frames_of_http2() {
    let attack = Attack::begin(&BOUNDS);
    let ports = [attack.spillgate.grpc(), attack.spillgate.http()];
    let mut random = Random::new(2);
    attack.repeat(|round| {
        let mut bytes = http2::greeting();
        for _ in 0..random.below(30) {
            let (kind, flags) = (random.byte() % 12, random.byte() & random.byte());
            let stream = random.below(8) as u32;
            let payload = match random.below(4) {
                0 => http2::call_headers(http2::SHOULD_RATE_LIMIT),
                1 => http2::message(&random.bytes(100)),
                2 => random.bytes(9),
                _ => random.bytes(300),
            };
            frame(&mut bytes, kind, flags, stream, &payload);
        }
        if random.below(3) == 0 {
            bytes = random.mutated(&bytes);
        }
        send(ports[round as usize % ports.len()], &bytes);
    });
    attack.end();
}

#[test]
fn streams_opened_and_reset_at_once() {
    let attack = Attack::begin(&BOUNDS);
    attack.repeat(|_| {
        let mut bytes = http2::greeting();
        for id in (1..4000).step_by(2) {
            frame(&mut bytes, http2::HEADERS, http2::END_HEADERS, id, &http2::call_headers(http2::SHOULD_RATE_LIMIT));
            frame(&mut bytes, http2::RST_STREAM, 0, id, &[0, 0, 0, 8]);
        }
        send(attack.spillgate.grpc(), &bytes);
    });
    let closed = r#"spillgate_connections_closed_total{reason="broken"}"#;
    assert!(
        attack.metric(closed).is_some_and(|closed| closed > 0),
        "the server must close connections of the attack and count them as broken"
    );
    let log = attack.spillgate.process.stderr();
    assert!(log.is_empty(), "the attack must write nothing to the log: {log:?}");
    attack.end();
}

#[test]
fn malformed_calls_of_grpc_are_answered() {
    let attack = Attack::begin(&BOUNDS);
    let mut random = Random::new(3);
    let good = http2::message(&http2::rate_limit_request("attack", "user", "a", 3));
    let mut connection = http2::Connection::open(attack.spillgate.grpc()).unwrap();
    attack.repeat(|_| {
        let path = random.one_of(&[
            http2::SHOULD_RATE_LIMIT,
            http2::SHOULD_RATE_LIMIT,
            "/grpc.health.v1.Health/Check",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/no.such.Service/Method",
        ]);
        let data = match random.below(4) {
            0 => random.bytes(200),
            1 => http2::message(&random.bytes(200)),
            2 => http2::message(&random.mutated(&good[5..])),
            _ => random.mutated(&good),
        };
        // If the call gets no answer, for example because the server closed the connection, the test opens a new
        // connection.
        if !matches!(connection.call(path, &data), Ok(Some(_))) {
            connection = http2::Connection::open(attack.spillgate.grpc()).unwrap();
        }
    });
    drop(connection);
    attack.end();
}

#[test]
fn malformed_bodies_of_json_are_refused_with_a_reason() {
    let attack = Attack::begin(&BOUNDS);
    let mut random = Random::new(4);
    let seeds = [
        CHECK,
        r#"[{"domain":"attack","descriptors":[[["user","1"]],{"user":"2"}],"cost":2}]"#,
        r#"{"bucket":"b","key":"k","limit":5,"window_ms":1000,"cost":1,"algorithm":"token_bucket","burst":3}"#,
        r#"{"domain":"attack","descriptors":[{"entries":[{"key":"user","value":"1"}],"hitsAddend":"2"}],"hitsAddend":1}"#,
        r#"{"lease_id":"AAAA"}"#,
        r#"{"domain":"attack","descriptors":[{"user":"1"}],"estimate":3}"#,
        r#"{"reservation_id":"AAAA","used":3}"#,
    ];
    let paths = [
        "/v1/check",
        "/v1/hit",
        "/json",
        "/v1/release",
        "/v1/renew",
        "/v1/reserve",
        "/v1/commit",
        "/v1/forward-auth",
        "/v1/check?wait=9s",
    ];
    let mut stream = connect(attack.spillgate.http());
    attack.repeat(|_| {
        let path = random.one_of(&paths);
        let seed = random.one_of(&seeds);
        let body = random.mutated(seed.as_bytes());
        match post(&mut stream, path, &body) {
            Ok((status, reply)) => {
                let body = String::from_utf8_lossy(&body);
                assert!(status < 500, "{path} answers {status} to {body:?}: {}", String::from_utf8_lossy(&reply));
                assert!(status < 400 || !reply.is_empty(), "{path} gives no reason for {status} to {body:?}");
            }
            // The server is allowed to close the connection after a refusal.
            Err(_) => stream = connect(attack.spillgate.http()),
        }
    });
    attack.end();
}

#[test]
fn slow_clients_are_closed() {
    let attack = Attack::begin(&BOUNDS);
    let (http, grpc) = (attack.spillgate.http(), attack.spillgate.grpc());
    let mut slow = Vec::new();
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
            slow.push(stream);
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
        slow.push(kept);
    }
    attack.wait_served(20);
    for stream in slow {
        read_until_closed(stream);
    }
    attack.end();
}

#[test]
fn a_client_that_never_reads_cannot_fill_the_servers_memory() {
    let attack = Attack::begin(&BOUNDS);
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{CHECK}",
        CHECK.len()
    );
    let mut clients = Vec::new();
    for _ in 0..4 {
        // The client has small socket buffers. So unread answers soon fill the buffers of the server.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.set_send_buffer_size(1 << 16).unwrap();
        socket.connect(&attack.spillgate.http().into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        // The client stops when the server has read nothing for 300 ms.
        let sent = fill(&mut stream, request.repeat(100).as_bytes(), 64 << 20);
        assert!(sent < 64 << 20, "the server took {sent} bytes of requests from a client that reads no answer");
        clients.push(stream);
    }
    attack.wait_served(20);
    attack.assert_bounded();
    drop(clients);
    attack.end();
}

#[test]
fn a_header_of_a_mebibyte() {
    let attack = Attack::begin(&BOUNDS);
    let value = "x".repeat(1 << 20);
    for (name, server) in [("http", attack.spillgate.http()), ("admin", attack.spillgate.admin())] {
        let mut stream = connect(server);
        let _ = stream.write_all(format!("GET /healthz HTTP/1.1\r\nhost: a\r\nx-big: {value}\r\n\r\n").as_bytes());
        let reply = read_until_closed(stream);
        assert!(matches!(status_of(&reply), 0 | 400 | 431), "{name}: {}", String::from_utf8_lossy(&reply));
    }
    for server in [attack.spillgate.http(), attack.spillgate.grpc()] {
        let mut bytes = http2::greeting();
        frame(&mut bytes, http2::HEADERS, 0, 1, &http2::call_headers(http2::SHOULD_RATE_LIMIT));
        // A literal header field with the name `x-big`. The last four bytes are an HPACK integer, the length of the
        // value: 1 MiB.
        let block = [b"\x00\x05x-big\x7f\x81\xff\x3f".as_slice(), value.as_bytes()].concat();
        for chunk in block.chunks(16_384) {
            frame(&mut bytes, http2::CONTINUATION, 0, 1, chunk);
        }
        let mut stream = connect(server);
        let _ = stream.write_all(&bytes);
        read_until_closed(stream);
    }
    attack.end();
}

#[test]
fn ten_thousand_descriptors() {
    let attack = Attack::begin(&["--limits-body", "4MiB"]);
    let list = vec![r#"{"user":"a"}"#; 10_000].join(",");
    let entries = vec![r#"["user","a"]"#; 10_000].join(",");
    for body in [
        format!(r#"{{"domain":"attack","descriptors":[{list}]}}"#),
        format!(r#"{{"domain":"attack","descriptors":[[{entries}]]}}"#),
    ] {
        let answer =
            http::request(attack.spillgate.http(), "POST", "/v1/check", &[("content-type", "application/json")], &body)
                .unwrap();
        assert!((400..500).contains(&answer.status), "{answer:?}");
        assert!(answer.body.len() < 1000 && !answer.body.is_empty(), "{answer:?}");
    }
    let mut connection = http2::Connection::open(attack.spillgate.grpc()).unwrap();
    let message = http2::message(&http2::rate_limit_request("attack", "user", "a", 10_000));
    for _ in 0..5 {
        let answer = connection.call(http2::SHOULD_RATE_LIMIT, &message).unwrap();
        assert_eq!(answer.as_deref(), Some(&[][..]), "the answer has a gRPC status and no message");
    }
    drop(connection);
    attack.end();
}

#[test]
fn a_body_of_a_gibibyte() {
    const ANNOUNCED: usize = 1 << 30;
    /// The test fails if the server takes this many bytes. The operating system buffers fewer bytes than this.
    const TAKEN: usize = 64 << 20;
    let attack = Attack::begin(&BOUNDS);
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";
    let chunk = [format!("{:x}\r\n", 1 << 16).as_bytes(), &[b' '; 1 << 16], b"\r\n"].concat();
    for (fields, chunk) in [
        (format!("content-length: {ANNOUNCED}\r\n\r\n"), vec![b' '; 1 << 16]),
        (String::from("transfer-encoding: chunked\r\n\r\n"), chunk),
    ] {
        let mut stream = connect(attack.spillgate.http());
        stream.write_all(format!("{head}{fields}").as_bytes()).unwrap();
        let sent = fill(&mut stream, &chunk, ANNOUNCED);
        assert!(sent < TAKEN, "the server read {sent} bytes of a body that is larger than the bound on bodies");
        attack.assert_bounded();
        read_until_closed(stream);
    }
    // A gRPC message whose prefix announces a gibibyte. The server must end the call after it has read the prefix.
    let mut bytes = http2::greeting();
    frame(&mut bytes, http2::HEADERS, http2::END_HEADERS, 1, &http2::call_headers(http2::SHOULD_RATE_LIMIT));
    frame(&mut bytes, http2::DATA, 0, 1, &[0, 0x40, 0, 0, 0]);
    let mut stream = connect(attack.spillgate.grpc());
    stream.write_all(&bytes).unwrap();
    let ended = eventually("the server to end the call", || {
        let frame = http2::read_frame(&mut stream).expect("the server sends frames until the call ends");
        let ends = frame.kind == http2::HEADERS && frame.flags & http2::END_STREAM != 0;
        (frame.stream == 1 && (ends || frame.kind == http2::RST_STREAM)).then_some(true)
    });
    assert!(ended);
    drop(stream);
    attack.end();
}

/// Tries to raise the limit on open files of this process to `wanted`. Returns the limit that the process then has.
fn open_files(wanted: u64) -> u64 {
    let process = std::process::id().to_string();
    // The limit stays unchanged if `prlimit` is missing or this process has no right to raise the limit.
    let _ = Command::new("prlimit").args(["--pid", &process, &format!("--nofile={wanted}:{wanted}")]).output();
    let _ = Command::new("prlimit").args(["--pid", &process, &format!("--nofile={wanted}:")]).output();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().and_then(|soft| soft.parse().ok()).unwrap_or(wanted)
}

#[test]
fn twenty_thousand_connections_at_a_bound_of_five_hundred() {
    const CONNECTIONS: usize = 20_000;
    let attack = Attack::begin(&BOUNDS);
    let open = open_files(CONNECTIONS as u64 + 1000).saturating_sub(600) as usize;
    let SocketAddr::V4(server) = attack.spillgate.http() else { panic!("the server must listen on an IPv4 address") };
    let mut held = Vec::new();
    for number in 0..CONNECTIONS {
        if held.len() >= open {
            held.clear();
        }
        // The clients use several source addresses. One address would not have enough free ports.
        let from = Ipv4Addr::new(127, 0, 1, 1 + u8::try_from(number / 5000).unwrap());
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect_timeout(&SocketAddr::V4(server).into(), DEADLINE).unwrap();
        held.push(socket);
        if number % 4000 == 0 {
            attack.wait_served(2);
            attack.assert_bounded();
        }
    }
    attack.wait_served(20);
    // The clients above do not disconnect. The server itself closes connections that send nothing, so that a new client
    // is served.
    let begun = Instant::now();
    let answer = eventually("a connection for a new client", || {
        http::request(attack.spillgate.http(), "POST", "/v1/check", &[("content-type", "application/json")], CHECK).ok()
    });
    assert_eq!(answer.status, 200, "the new client was refused after {:?}: {answer:?}", begun.elapsed());
    drop(held);
    attack.end();
}
