//! Tests of bodies that no route reads, while the request waits for the shared store.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::cli_support::signal;
use crate::hostile::http2::{self, frame};
use crate::store::fleet::{LONG_DEADLINE, rules, serve, until_store};
use crate::support::DEADLINE;
use crate::support::redis::Redis;

const LIMITS: &str = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000}}\n";
const FORWARD_AUTH: [&str; 4] =
    ["--forward-auth-domain", "api", "--forward-auth-descriptors", "[[{key: user, from: \"value:x\"}]]"];

/// Sends a request with a body to forward-auth while the store is stopped. Returns whether the server frees its window
/// before it answers. If both happened together, the answer would come before that to a PING.
fn frees_its_window(server: SocketAddr) -> bool {
    let client = TcpStream::connect(server).expect("the server listens");
    client.set_read_timeout(Some(DEADLINE)).expect("the socket is open");
    let mut bytes = http2::greeting();
    frame(&mut bytes, http2::HEADERS, http2::END_HEADERS, 1, b"\x82\x86\x04\x10/v1/forward-auth\x01\x01a");
    for _ in 0..3 {
        frame(&mut bytes, http2::DATA, 0, 1, &[b'x'; 16_384]);
    }
    (&client).write_all(&bytes).expect("the server reads");
    let next = |kinds: [u8; 2]| loop {
        let kind = http2::read_frame(&mut &client).expect("the server keeps the connection").kind;
        if kinds.contains(&kind) {
            return kind;
        }
    };
    if next([http2::WINDOW_UPDATE, http2::HEADERS]) == http2::HEADERS {
        return false;
    }
    let mut ping = Vec::new();
    frame(&mut ping, http2::PING, 0, 0, b"windowed");
    (&client).write_all(&ping).expect("the server reads");
    next([http2::PING, http2::HEADERS]) == http2::PING
}

#[test]
fn the_body_of_a_forward_auth_request_is_not_kept_while_the_store_decides() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &FORWARD_AUTH].concat());
    // After two seconds the server notices that the store is stopped. On a busy machine this can come first.
    let is_freed = (0..5).any(|attempt| {
        until_store(server.http(), "user", &attempt.to_string());
        signal(redis.id(), "STOP");
        let is_freed = frees_its_window(server.http());
        signal(redis.id(), "CONT");
        is_freed
    });
    assert!(is_freed, "the body is kept until the answer");
}

#[test]
fn a_connection_over_http_1_stays_open_after_the_body_of_a_forward_auth_request() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &FORWARD_AUTH].concat());
    until_store(server.http(), "user", "first");
    let mut client = TcpStream::connect(server.http()).expect("the server listens");
    client.set_read_timeout(Some(DEADLINE)).expect("the socket is open");
    let answer = |client: &mut TcpStream| {
        let (mut read, mut byte) = (Vec::new(), [0]);
        while !read.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte).expect("the server answers");
            read.extend_from_slice(&byte);
        }
        let head = String::from_utf8(read).expect("the head is text");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        client.read_exact(&mut vec![0; length.expect("the answer has a length")]).expect("the server answers");
        head
    };
    for _ in 0..2 {
        signal(redis.id(), "STOP");
        let request = b"GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody";
        client.write_all(request).expect("the connection is open");
        signal(redis.id(), "CONT");
        let head = answer(&mut client);
        assert!(head.starts_with("HTTP/1.1 200") && !head.contains("connection: close"), "{head}");
    }
    // The rest of this body never comes. So the connection ends after the answer.
    let request = b"GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbo";
    client.write_all(request).expect("the connection is open");
    assert!(answer(&mut client).starts_with("HTTP/1.1 200"));
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("the server closes the connection");
}
