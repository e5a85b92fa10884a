//! Tests with hostile clients. Most tests also check that the server still answers an honest client.
//!
//! Without a bound on each part of a call, one hostile client could use up the server's memory or connections.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code::Ok as Passed;
use spillgate_server::listener::Limits;
use spillgate_service::metrics::{Closed, Rejection};
use tonic::Code;

use crate::grpc::support::*;

const RULES: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
";

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

async fn honest_client_is_served(client: &mut Client) {
    let response = ask(client, "api", &[descriptor(&[("user", "7")])]).await.unwrap();
    assert_eq!(response.overall_code(), Passed);
}

#[tokio::test]
async fn a_message_over_the_bound_is_refused_and_its_connection_stays_open() {
    let server = TestServer::start(&[RULES]);
    let mut client = server.client().await;
    let giant = "x".repeat(4 << 20);
    let refused = ask(&mut client, "api", &[descriptor(&[("user", &giant)])]).await.unwrap_err();
    // The server answers with a status, or it resets the stream while the client is still sending. The code depends on
    // which of the two the client sees.
    assert_ne!(refused.code(), Code::Unavailable, "{refused:?}");
    honest_client_is_served(&mut client).await;
    assert_eq!(server.metrics.connections_accepted.get(), 1);
}

#[tokio::test]
async fn ten_thousand_descriptors_are_refused() {
    let server = TestServer::start(&[RULES]);
    let mut client = server.client().await;
    let empty = vec![RateLimitDescriptor::default(); 10_000];
    assert_eq!(ask(&mut client, "api", &empty).await.unwrap_err().code(), Code::InvalidArgument);
    let overrides = vec![overriding(&[], 1, 1); 5_000];
    assert_eq!(ask(&mut client, "api", &overrides).await.unwrap_err().code(), Code::InvalidArgument);
    let full = vec![descriptor(&[("user", "0123456789")]); 10_000];
    assert_eq!(ask(&mut client, "api", &full).await.unwrap_err().code(), Code::OutOfRange);
    honest_client_is_served(&mut client).await;
}

#[tokio::test]
async fn every_part_of_a_request_has_a_bound() {
    let server = TestServer::start(&[RULES]);
    let mut client = server.client().await;
    let long = |bytes| "x".repeat(bytes);
    let entries = |count| vec![("user", "7"); count];
    for (domain, descriptors, fits) in [
        (long(256), vec![descriptor(&[("user", "7")])], true),
        (long(257), vec![descriptor(&[("user", "7")])], false),
        ("api".into(), vec![descriptor(&[("user", "7")]); 32], true),
        ("api".into(), vec![descriptor(&[("user", "7")]); 33], false),
        ("api".into(), vec![descriptor(&entries(16))], true),
        ("api".into(), vec![descriptor(&entries(17))], false),
        ("api".into(), vec![descriptor(&[(&long(256), "7")])], true),
        ("api".into(), vec![descriptor(&[(&long(257), "7")])], false),
        ("api".into(), vec![descriptor(&[("user", &long(1024))])], true),
        ("api".into(), vec![descriptor(&[("user", &long(1025))])], true),
    ] {
        let answer = ask(&mut client, &domain, &descriptors).await;
        match answer {
            Ok(_) => assert!(fits),
            Err(status) => assert!(!fits && status.code() == Code::InvalidArgument, "{status:?}"),
        }
    }
    assert_eq!(server.metrics.rejected(Rejection::TooLarge).get(), 4);
}

#[tokio::test]
async fn garbage_closes_its_own_connection_and_no_other() {
    let server = TestServer::start(&[RULES]);
    let mut client = server.client().await;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |count: usize| -> Vec<u8> {
        let byte = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..count).map(byte).collect()
    };
    for round in 0..200 {
        let noise = random(16 + round * 4);
        let sent_bytes = match round % 4 {
            0 => noise,
            1 => [PREFACE, &noise].concat(),
            2 => [PREFACE, EMPTY_SETTINGS, &noise].concat(),
            // Frames with a correct length and a known type.
            _ => {
                let length = u8::try_from(noise.len() % 256).unwrap();
                let head = [0, 0, length, u8::try_from(round % 10).unwrap(), noise[0], 0, 0, 0, noise[1] % 4];
                [PREFACE, EMPTY_SETTINGS, &head, &noise[..usize::from(length)]].concat()
            }
        };
        drop(server.send(&sent_bytes));
        if round % 20 == 0 {
            honest_client_is_served(&mut client).await;
        }
    }
    honest_client_is_served(&mut server.client().await).await;
    eventually("only honest connections are left", || server.metrics.connections.get() <= 2).await;
    assert_eq!(server.metrics.panics.get(), 0);
}

#[tokio::test]
async fn clients_that_never_finish_the_preface_are_closed() {
    let setup = Setup { limits: Limits { receive: Duration::from_millis(200), ..limits() }, ..Setup::default() };
    let server = TestServer::start_with(&[RULES], setup);
    let mut client = server.client().await;
    let slow: Vec<_> = (0..100).map(|count| server.send(&PREFACE[..count % 24])).collect();
    eventually("the slow clients are connected", || server.metrics.connections_accepted.get() == 101).await;
    honest_client_is_served(&mut client).await;
    eventually("the slow clients are closed", || server.metrics.connections.get() == 1).await;
    honest_client_is_served(&mut client).await;
    drop(slow);
    assert_eq!(server.metrics.closed(Closed::Slow).get(), 100);
}

#[tokio::test]
async fn clients_that_never_finish_the_first_headers_frame_are_closed() {
    let soon = Duration::from_millis(200);
    let setup = Setup { limits: Limits { idle: soon, receive: soon, ..limits() }, ..Setup::default() };
    let server = TestServer::start_with(&[RULES], setup);
    // A HEADERS frame that announces 100 bytes and contains 10.
    let head = [&[0, 0, 100, 1, 4, 0, 0, 0, 1][..], &[0x83; 10]].concat();
    let slow: Vec<_> = (0..50).map(|_| server.send(&[PREFACE, EMPTY_SETTINGS, &head].concat())).collect();
    eventually("the slow clients are connected", || server.metrics.connections_accepted.get() == 50).await;
    honest_client_is_served(&mut server.client().await).await;
    eventually("the slow clients are closed", || server.metrics.connections.get() == 0).await;
    drop(slow);
}

/// A body that never sends a frame.
struct Never;

impl http_body::Body for Never {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn a_call_whose_body_never_arrives_is_refused() {
    let setup = Setup { limits: Limits { receive: Duration::from_millis(200), ..limits() }, ..Setup::default() };
    let server = TestServer::start_with(&[RULES], setup);
    let mut client = server.client().await;
    let stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let call = http::Request::post("http://test/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Never)
        .unwrap();
    let answer = tokio::time::timeout(DEADLINE, sender.send_request(call)).await.unwrap().unwrap();
    let status =
        answer.headers().get("grpc-status").expect("a refusal without a message has its status in the header fields");
    assert_ne!(status, "0");
    honest_client_is_served(&mut client).await;
    connection.abort();
}

#[tokio::test]
async fn wrong_paths_and_wrong_content_types_are_answered() {
    let server = TestServer::start(&[RULES]);
    let stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let rls = "/envoy.service.ratelimit.v3.RateLimitService";
    for path in [&format!("{rls}/Other"), "/unknown/Method", "/", rls] {
        let call = http::Request::post(format!("http://test{path}"))
            .header("content-type", "application/grpc")
            .body(http_body_util::Empty::<Bytes>::new())
            .unwrap();
        let answer = sender.send_request(call).await.unwrap();
        let unimplemented = (Code::Unimplemented as i32).to_string();
        assert_eq!(answer.headers().get("grpc-status").unwrap(), &*unimplemented, "{path}");
    }
    connection.abort();
}
