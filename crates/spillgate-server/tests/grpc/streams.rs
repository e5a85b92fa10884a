//! Tests of unusual calls. The client sends calls in pieces, mixes the pieces of several calls, cancels calls, never reads
//! the answers, or sends invalid messages.
//!
//! Any program can send such calls to the port. The usual client libraries do not let a test control each piece, so
//! these tests have their own client.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::Request;
use prost::Message;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Verdict;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use spillgate_server::listener::Limits;
use spillgate_service::Readiness;
use spillgate_service::metrics::{Closed, Rejection};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::Code;

use crate::grpc::support::*;

const RULES: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000}
";

/// A client that controls each HTTP/2 stream and frame. It sends no calls through a gRPC library: the functions in this
/// file write gRPC messages and read the answers.
pub(crate) struct Raw {
    client: SendRequest<Bytes>,
    connection: JoinHandle<()>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

async fn raw_connection(
    server: &TestServer,
    builder: &h2::client::Builder,
) -> (SendRequest<Bytes>, Connection<TcpStream>) {
    let stream = TcpStream::connect(server.address()).await.unwrap();
    builder.handshake(stream).await.unwrap()
}

impl Raw {
    pub(crate) async fn connect(server: &TestServer) -> Raw {
        let (client, connection) = raw_connection(server, &h2::client::Builder::new()).await;
        Raw { client, connection: tokio::spawn(async move { drop(connection.await) }) }
    }

    /// Sends the header fields of a call. The test then sends the message on the returned stream.
    pub(crate) async fn call(&mut self, headers: &[(&str, &str)]) -> (ResponseFuture, SendStream<Bytes>) {
        let mut call = Request::post("http://test/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        for (name, value) in headers {
            call = call.header(*name, *value);
        }
        self.client = self.client.clone().ready().await.unwrap();
        self.client.send_request(call.body(()).unwrap(), false).unwrap()
    }

    pub(crate) async fn ask(&mut self, body: &[u8]) -> (Code, Option<RateLimitResponse>) {
        let (response, mut stream) = self.call(&GRPC).await;
        stream.send_data(Bytes::copy_from_slice(body), true).unwrap();
        answer(response).await
    }
}

pub(crate) const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

pub(crate) fn message(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&[0], &length[..], bytes].concat()
}

/// Returns a gRPC message that asks for one unit of the limit of `user`.
pub(crate) fn hit(user: &str) -> Vec<u8> {
    message(&request("api", &[descriptor(&[("user", user)])]).encode_to_vec())
}

/// Returns the status of a call, and the message of its answer.
pub(crate) async fn answer(response: ResponseFuture) -> (Code, Option<RateLimitResponse>) {
    let code = |headers: &http::HeaderMap| headers.get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()));
    let (head, mut body) = tokio::time::timeout(DEADLINE, response).await.unwrap().unwrap().into_parts();
    assert_eq!(head.status, 200);
    assert_eq!(head.headers["content-type"], "application/grpc");
    if let Some(code) = code(&head.headers) {
        assert_ne!(code, Code::Ok, "if the header fields have a status, it must be an error");
        assert!(body.is_end_stream() || body.data().await.is_none());
        return (code, None);
    }
    let mut received = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        received.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.unwrap().expect("the answer has trailers");
    let wire = received.split_off(5);
    assert_eq!(received[0], 0, "the first byte is 0, because the answer is not compressed");
    assert_eq!(received[1..], u32::try_from(wire.len()).unwrap().to_be_bytes());
    (code(&trailers).expect("the trailers have a gRPC status"), Some(RateLimitResponse::decode(wire).unwrap()))
}

/// Asserts that the call was allowed. Returns the number of remaining units in the answer.
pub(crate) fn left((code, response): (Code, Option<RateLimitResponse>)) -> u32 {
    assert_eq!(code, Code::Ok);
    let response = response.expect("a call with status OK has a message");
    assert_eq!(response.overall_code(), Verdict::Ok);
    response.statuses[0].limit_remaining
}

#[tokio::test]
async fn messages_in_interleaved_pieces_are_each_answered() {
    let server = TestServer::start(&[RULES]);
    let mut raw = Raw::connect(&server).await;
    let mut calls = Vec::new();
    for user in 0..10 {
        // Each call takes a different number of units. So the test notices if a call gets the answer of another call.
        let descriptors = [hits(&[("user", &user.to_string())], user + 1)];
        let body = message(&request("api", &descriptors).encode_to_vec());
        let (response, stream) = raw.call(&GRPC).await;
        calls.push((Some(response), stream, body));
    }
    let longest = calls.iter().map(|(_, _, body)| body.len()).max().unwrap();
    for at in 0..longest {
        for (number, (_, stream, body)) in calls.iter_mut().enumerate() {
            // The last byte of the first call is sent after the other answers.
            if at < body.len() - usize::from(number == 0) {
                let ends = at + 1 == body.len();
                stream.send_data(Bytes::copy_from_slice(&body[at..=at]), ends).unwrap();
            }
        }
        tokio::task::yield_now().await;
    }
    // The answers are read in reverse order of the calls.
    for (user, (response, ..)) in (1..10).zip(&mut calls[1..]).rev() {
        assert_eq!(left(answer(response.take().unwrap()).await), 1000 - (user + 1));
    }
    let (response, stream, body) = &mut calls[0];
    stream.send_data(Bytes::copy_from_slice(&body[body.len() - 1..]), true).unwrap();
    assert_eq!(left(answer(response.take().unwrap()).await), 999);
}

#[tokio::test]
async fn a_message_may_arrive_in_many_frames_and_end_with_an_empty_one_or_trailers() {
    let server = TestServer::start(&[RULES]);
    let mut raw = Raw::connect(&server).await;
    let long = vec![descriptor(&[("user", "7"), ("path", &"x".repeat(1000))]); 16];
    let body = message(&request("api", &long).encode_to_vec());
    for ends_in_trailers in [false, true] {
        let (response, mut stream) = raw.call(&GRPC).await;
        stream.send_data(Bytes::new(), false).unwrap();
        for piece in body.chunks(100) {
            stream.send_data(Bytes::copy_from_slice(piece), false).unwrap();
        }
        if ends_in_trailers {
            stream.send_trailers(http::HeaderMap::new()).unwrap();
        } else {
            stream.send_data(Bytes::new(), true).unwrap();
        }
        let (code, response) = answer(response).await;
        assert_eq!((code, response.unwrap().statuses.len()), (Code::Ok, 16));
    }
}

#[tokio::test]
async fn calls_that_are_cancelled_midway_free_their_streams() {
    let limits = Limits { streams: 8, ..limits() };
    let server = TestServer::start_with(&[RULES], Setup { limits, ..Setup::default() });
    let mut raw = Raw::connect(&server).await;
    let body = hit("7");
    for cut in 0..200 {
        let (response, mut stream) = raw.call(&GRPC).await;
        stream.send_data(Bytes::copy_from_slice(&body[..cut % body.len()]), false).unwrap();
        tokio::task::yield_now().await;
        stream.send_reset(Reason::CANCEL);
        drop(response);
        if cut % 8 == 0 {
            left(raw.ask(&hit("9")).await);
        }
    }
    assert_eq!(left(raw.ask(&body).await), 999, "cancelled calls are not charged");
    assert_eq!((server.metrics.panics.get(), server.metrics.connections_accepted.get()), (0, 1));
}

/// Returns a client that accepts no DATA frames at first, and a sender. When the test sends a value on this sender, the
/// client begins to accept DATA frames.
async fn client_that_reads_nothing(server: &TestServer) -> (Raw, tokio::sync::oneshot::Sender<()>) {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (client, mut connection) = raw_connection(server, &builder).await;
    let (open, mut opened) = tokio::sync::oneshot::channel();
    let connection = tokio::spawn(async move {
        tokio::select! {
            _ = &mut opened => connection.set_initial_window_size(65_535).unwrap(),
            _ = &mut connection => {}
        }
        drop(connection.await);
    });
    (Raw { client, connection }, open)
}

#[tokio::test]
async fn a_client_that_reads_no_answers_harms_only_itself_and_may_read_them_later() {
    let server = TestServer::start(&[RULES]);
    let (mut raw, open) = client_that_reads_nothing(&server).await;
    let mut answers = Vec::new();
    for _ in 0..128 {
        let (response, mut stream) = raw.call(&GRPC).await;
        stream.send_data(hit("7").into(), true).unwrap();
        answers.push(response);
    }
    eventually("all calls are decided", || server.metrics.requests(true) == 128).await;
    assert_eq!(left(Raw::connect(&server).await.ask(&hit("9")).await), 999);
    open.send(()).unwrap();
    let mut lefts = Vec::new();
    for response in answers {
        lefts.push(left(answer(response).await));
    }
    // The server reads the calls together, but decides them one after the other.
    assert_eq!(lefts, (872..1000).rev().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_closed_as_idle() {
    let setup = Setup { limits: Limits { idle: Duration::from_millis(200), ..limits() }, ..Setup::default() };
    let server = TestServer::start_with(&[RULES], setup);
    let (mut raw, open) = client_that_reads_nothing(&server).await;
    let mut answers = Vec::new();
    for _ in 0..16 {
        let (response, mut stream) = raw.call(&GRPC).await;
        stream.send_data(hit("7").into(), true).unwrap();
        answers.push(response);
    }
    eventually("all calls are decided", || server.metrics.requests(true) == 16).await;
    eventually("the connection is closed", || server.metrics.connections.get() == 0).await;
    assert_eq!(server.metrics.closed(Closed::Idle).get(), 1);
    drop((answers, open));
}

#[tokio::test]
async fn a_stream_of_answers_waits_for_its_client() {
    let server = TestServer::start(&[RULES]);
    let (mut raw, open) = client_that_reads_nothing(&server).await;
    let call = Request::post("http://test/grpc.health.v1.Health/Watch").header("content-type", "application/grpc");
    let (response, mut stream) = raw.client.send_request(call.body(()).unwrap(), false).unwrap();
    stream.send_data(message(b"").into(), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    for change in 1..=20 {
        let readiness = if change % 2 == 0 { Readiness::Ready } else { Readiness::StoreDown };
        server.service.set_readiness(readiness);
        // After each change, the test sends a call. When this call is decided, the server has also noticed the change.
        let (_, mut stream) = raw.call(&GRPC).await;
        stream.send_data(hit("7").into(), true).unwrap();
        eventually("the call is decided", || server.metrics.requests(true) == change).await;
    }
    open.send(()).unwrap();
    server.service.set_readiness(Readiness::Draining);
    let mut received = BytesMut::new();
    while let Some(data) = body.data().await {
        received.extend_from_slice(&data.unwrap());
    }
    let messages: Vec<_> = received.chunks(7).map(|message| message[6]).collect();
    // The client gets the messages that were already sent or queued, and the last state. It does not get a message for each
    // change.
    assert!(messages.len() < 8 && messages.last() == Some(&2), "{messages:?}");
}

#[tokio::test]
async fn an_invalid_message_is_refused_with_the_status_that_says_why() {
    let server = TestServer::start(&[RULES]);
    let mut raw = Raw::connect(&server).await;
    let good = hit("7");
    let compressed = [&[1], &good[1..]].concat();
    let announced = [&[0], &(64 * 1024 + 1u32).to_be_bytes()[..]].concat();
    for (body, code) in [
        (&message(b"\x0a\xff"), Code::InvalidArgument),
        (&message(b"\x0a\x02\xff\xfe"), Code::InvalidArgument),
        (&good[..3].to_vec(), Code::InvalidArgument),
        (&good[..good.len() - 1].to_vec(), Code::InvalidArgument),
        (&Vec::new(), Code::Unimplemented),
        (&[&good[..], &good].concat(), Code::Unimplemented),
        (&[&good[..], &[0]].concat(), Code::Unimplemented),
        (&announced, Code::OutOfRange),
        (&compressed, Code::Internal),
        (&[&[7], &good[1..]].concat(), Code::Internal),
    ] {
        assert_eq!(raw.ask(body).await, (code, None), "{body:?}");
    }
    assert_eq!(server.metrics.rejected(Rejection::BadRequest).get(), 2);
    assert_eq!(left(raw.ask(&good).await), 999, "the invalid calls were not charged");
}

#[tokio::test]
async fn a_message_over_the_bound_is_refused_before_it_has_arrived() {
    let server = TestServer::start(&[RULES]);
    let mut raw = Raw::connect(&server).await;
    let (response, mut stream) = raw.call(&GRPC).await;
    let announced = [&[0], &u32::MAX.to_be_bytes()[..]].concat();
    stream.send_data(announced.into(), false).unwrap();
    assert_eq!(answer(response).await, (Code::OutOfRange, None));
}

#[tokio::test]
async fn compression_is_refused_and_the_refusal_names_the_accepted_encoding() {
    let server = TestServer::start(&[RULES]);
    let mut raw = Raw::connect(&server).await;
    for (encoding, accepted) in [("gzip", false), ("identity", true)] {
        let (response, mut stream) = raw.call(&[GRPC[0], ("grpc-encoding", encoding)]).await;
        stream.send_data(hit("7").into(), true).unwrap();
        if accepted {
            assert_eq!(left(answer(response).await), 999);
            continue;
        }
        let answer = response.await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], (Code::Unimplemented as i32).to_string());
        assert_eq!(answer.headers()["grpc-accept-encoding"], "identity");
    }
}

#[tokio::test]
async fn only_grpc_content_types_are_accepted() {
    let server = TestServer::start(&[RULES]);
    let mut raw = Raw::connect(&server).await;
    for (content, accepted) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("application/grpc;charset=utf-8", true),
        ("application/grpc-web", false),
        ("application/json", false),
    ] {
        let (response, mut stream) = raw.call(&[("content-type", content)]).await;
        stream.send_data(hit("7").into(), true).unwrap();
        let answer = response.await.unwrap();
        assert_eq!(answer.status(), if accepted { 200 } else { 415 }, "{content}");
    }
}

#[tokio::test]
async fn an_answer_larger_than_the_window_is_sent_as_the_client_reads_it() {
    let server = TestServer::start(&[RULES]);
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(7);
    let (client, connection) = raw_connection(&server, &builder).await;
    let mut raw = Raw { client, connection: tokio::spawn(async move { drop(connection.await) }) };
    let wire = RateLimitRequest { hits_addend: 1, ..request("api", &vec![descriptor(&[("user", "7")]); 32]) };
    let (code, response) = raw.ask(&message(&wire.encode_to_vec())).await;
    assert_eq!((code, response.unwrap().statuses.len()), (Code::Ok, 32));
}
