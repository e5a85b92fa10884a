//! Tests of gRPC calls in situations that a client over the network cannot cause reliably.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use http_body::{Body, Frame};
use prost::Message;
use spillgate::rules::{Rules, RulesFile};
use spillgate::{Limiter, MemoryOptions, MemoryStore};
use spillgate_service::metrics::Metrics;
use spillgate_service::{Backend, ServiceOptions};

use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::*;

const ALL: u32 = 1_000_000_000;
/// The limit is a token bucket that regains one unit each nanosecond. So if the bucket is empty at one reading of the
/// clock, it has a unit again at the next reading.
const RULES: &str = "
domain: d
descriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1000000000, algorithm: token_bucket}}]
";

fn connection() -> GrpcConnection {
    let rules = Rules::parse(&[RulesFile { name: "d.yaml".into(), text: RULES.into() }]).expect("the rules are valid");
    let limiter = Limiter::new(Backend::Memory(MemoryStore::new(MemoryOptions::default())));
    let service = Service::new(rules, limiter, ServiceOptions::default(), Arc::new(Metrics::new()));
    Grpc::new(Arc::new(service), Grants::default(), 1000).expect("the descriptors can be read").connection()
}

/// A body whose message arrives late: the number of polls before the message arrives, and the message.
struct Late(usize, Option<Bytes>);

impl Body for Late {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0 == 0 {
            return Poll::Ready(self.1.take().map(|message| Ok(Frame::data(message))));
        }
        self.0 -= 1;
        Poll::Pending
    }
}

/// Returns a call that takes `hits` units from the token bucket with the number `bucket`. The message of the call
/// arrives after `late` polls.
fn take(bucket: u32, hits: u32, late: usize) -> Request<Late> {
    take_from(bucket.to_string().as_bytes(), hits, late)
}

/// As [`take`], but from the token bucket of any bytes.
fn take_from(value: &[u8], hits: u32, late: usize) -> Request<Late> {
    // The message is encoded with another value of the same length, because a string cannot have all bytes.
    let other = "#".repeat(value.len());
    let entry = Entry { key: "a".into(), value: other.clone() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let wire = RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: hits };
    let mut message =
        vec![0, 0, 0, 0, u8::try_from(wire.encoded_len()).expect("the message is shorter than 256 bytes")];
    wire.encode(&mut message).expect("the buffer has room for the message");
    let at =
        message.windows(other.len()).position(|bytes| bytes == other.as_bytes()).expect("the message has the value");
    message[at..at + value.len()].copy_from_slice(value);
    let call = Request::post(SHOULD_RATE_LIMIT).header(CONTENT_TYPE, "application/grpc");
    call.body(Late(late, Some(message.into()))).expect("the request is valid")
}

fn poll<F: Future>(call: Pin<&mut F>) -> Poll<F::Output> {
    call.poll(&mut Context::from_waker(Waker::noop()))
}

fn code(answered: Poll<Response<AnswerBody>>) -> Code {
    let Poll::Ready(answer) = answered else { panic!("the call is not answered yet") };
    let AnswerBody::Message(message) = answer.into_body() else { panic!("the answer has no message") };
    RateLimitResponse::decode(&message[5..]).expect("the message is a RateLimitResponse").overall_code()
}

fn call(connection: &GrpcConnection, now: Option<Time>, bucket: u32, hits: u32) -> Code {
    code(poll(pin!(connection.answer(Call::of(take(bucket, hits, 0), Instant::now(), now)))))
}

#[test]
fn a_batch_of_calls_is_decided_at_one_time() {
    let connection = connection();
    for bucket in 0..100 {
        let batch = Some(connection.now());
        call(&connection, batch, bucket, ALL);
        assert_eq!(
            call(&connection, batch, bucket, 1),
            Code::OverLimit,
            "the bucket is empty at the time of the batch"
        );
        assert_eq!(
            call(&connection, None, bucket, 1),
            Code::Ok,
            "the bucket has a unit at a later time than that of the batch"
        );
    }
}

#[test]
fn a_call_that_waits_is_decided_at_its_own_time() {
    let connection = connection();
    for bucket in 0..100 {
        let batch = Some(connection.now());
        let mut late = pin!(connection.answer(Call::of(take(bucket, 1, 1), Instant::now(), batch)));
        assert!(poll(late.as_mut()).is_pending());
        call(&connection, batch, bucket, ALL);
        assert_eq!(
            call(&connection, batch, bucket, 1),
            Code::OverLimit,
            "the bucket is empty at the time of the batch"
        );
        assert_eq!(code(poll(late)), Code::Ok, "the late call does not use the time of the batch");
    }
}

/// Envoy copies header fields of clients, which can have any bytes, and allows a request whose call fails.
#[test]
fn bytes_that_are_not_utf_8_fail_no_call() {
    let connection = connection();
    let now = Some(connection.now());
    let call = |value: &[u8], hits| {
        code(poll(pin!(connection.answer(Call::of(take_from(value, hits, 0), Instant::now(), now)))))
    };
    assert_eq!(call(b"a\xff", ALL), Code::Ok);
    for value in [&b"a\xff"[..], b"a\xfe", b"a\xe2\x82", "a\u{fffd}".as_bytes()] {
        assert_eq!(call(value, 1), Code::OverLimit, "each bad sequence becomes U+FFFD: {value:?}");
    }
    assert_eq!(call(b"a\xff\xff", 1), Code::Ok, "two bad sequences are another value");
}
