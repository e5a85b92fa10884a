//! Tests that send the same calls twice: all at once, and one after the other. Both ways must give the same answers.
//!
//! If calls arrive together, the server reads them as a batch. Batches must change neither the answers nor the charges.

use bytes::Bytes;
use h2::Reason;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Verdict;
use tonic::Code;

use crate::grpc::streams::{GRPC, Raw, answer, hit, left, message};
use crate::grpc::support::*;

/// Rules for these tests. A unit that is taken comes back only after days, so never during a test. If both limits of a
/// user refuse a request, the answer shows the limit with the longer wait. With these rules, this is always the yearly
/// limit, so the answer does not depend on the time of the request.
const RULES: &str = "
domain: api
descriptors:
  - key: user
    rate_limits:
      - {name: few, unit: year, requests_per_unit: 5, algorithm: token_bucket}
      - {name: more, unit: month, requests_per_unit: 7, algorithm: sliding_window_log}
  - key: path
    rate_limit: {unit: year, requests_per_unit: 6, algorithm: token_bucket}
";

#[derive(Clone, Copy, Debug)]
struct Asked {
    key: &'static str,
    value: u8,
    hits: u64,
    is_refund: bool,
}

#[derive(Clone, Debug)]
enum Call {
    Asks(Vec<Asked>),
    Malformed(Vec<u8>),
    /// A call whose last byte is sent after all other calls are answered.
    Slow(Asked),
    /// A call that is reset before its message is complete.
    Cancelled(Asked),
}

fn asked() -> impl Strategy<Value = Asked> {
    let key = prop_oneof![Just("user"), Just("path"), Just("unlimited")];
    (key, 0..3u8, 0..3u64, prop::bool::weighted(0.2)).prop_map(|(key, value, hits, is_refund)| Asked {
        key,
        value,
        hits,
        is_refund,
    })
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        12 => vec(asked(), 0..4).prop_map(Call::Asks),
        1 => vec(any::<u8>(), 0..20).prop_map(Call::Malformed),
        1 => asked().prop_map(Call::Slow),
        1 => asked().prop_map(Call::Cancelled),
    ]
}

/// Returns the message of a call. `side` is `alone` or `together`, and is a part of each value in the message. So calls
/// that are sent one by one and calls that are sent together have separate counters.
fn body(side: &str, call: &Call) -> Vec<u8> {
    let asked = match call {
        Call::Asks(asked) => &asked[..],
        Call::Malformed(bytes) => return bytes.clone(),
        Call::Slow(asked) | Call::Cancelled(asked) => std::slice::from_ref(asked),
    };
    let descriptor = |asked: &Asked| {
        let value = format!("{side} {}", asked.value);
        let make = if asked.is_refund { refund } else { hits };
        make(&[(asked.key, &value)], asked.hits)
    };
    message(&request("api", &asked.iter().map(descriptor).collect::<Vec<_>>()).encode_to_vec())
}

type Answered = (Code, Option<(Verdict, Vec<(Verdict, u32)>)>);

fn shown((code, response): (Code, Option<RateLimitResponse>)) -> Answered {
    (code, response.as_ref().map(summary))
}

/// Returns the answers in the order of the calls. The answers to slow calls are at the end.
async fn answers(raw: &mut Raw, side: &str, calls: &[Call], one_by_one: bool) -> Vec<Answered> {
    let (mut open, mut slow, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for call in calls {
        let body = Bytes::from(body(side, call));
        let (response, mut stream) = raw.call(&GRPC).await;
        match call {
            Call::Asks(_) | Call::Malformed(_) => {
                stream.send_data(body, true).unwrap();
                open.push(response);
            }
            Call::Slow(_) => {
                let (begun, last) = (body.slice(..body.len() - 1), body.slice(body.len() - 1..));
                stream.send_data(begun, false).unwrap();
                slow.push((response, stream, last));
            }
            Call::Cancelled(_) => {
                stream.send_data(body.slice(..body.len() - 1), false).unwrap();
                stream.send_reset(Reason::CANCEL);
            }
        }
        if one_by_one {
            for response in open.drain(..) {
                answers.push(shown(answer(response).await));
            }
        }
    }
    for response in open {
        answers.push(shown(answer(response).await));
    }
    for (response, mut stream, last) in slow {
        stream.send_data(last, true).unwrap();
        answers.push(shown(answer(response).await));
    }
    answers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn calls_sent_together_are_answered_like_calls_sent_one_by_one(calls in vec(call(), 1..100)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = TestServer::start(&[RULES]);
            let mut raw = Raw::connect(&server).await;
            let expected = answers(&mut raw, "alone", &calls, true).await;
            assert_eq!(answers(&mut raw, "together", &calls, false).await, expected);
        });
    }
}

#[tokio::test]
async fn calls_on_a_broken_connection_are_charged_if_they_were_decided() {
    const YEARLY: &str = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000}}]";
    let server = TestServer::start(&[YEARLY]);
    let mut honest = Raw::connect(&server).await;
    let mut decided = 0;
    for round in 1..=10 {
        let begun = server.metrics.requests(true);
        let mut raw = Raw::connect(&server).await;
        let mut calls = Vec::new();
        for _ in 0..50 {
            let (response, mut stream) = raw.call(&GRPC).await;
            stream.send_data(hit("7").into(), true).unwrap();
            calls.push(response);
        }
        eventually("the connection is accepted", || server.metrics.connections_accepted.get() > round).await;
        if round % 2 == 0 {
            eventually("some calls are decided", || server.metrics.requests(true) > begun).await;
        }
        drop(raw);
        eventually("the connection has ended", || server.metrics.connections.get() == 1).await;
        // The call of the honest client also takes a unit, and the metric `allowed` counts this call too.
        let used = 1000 - u64::from(left(honest.ask(&hit("7")).await));
        assert_eq!(used, server.metrics.requests(true));
        assert!(used > decided);
        decided = used;
    }
    assert_eq!(server.metrics.panics.get(), 0);
}
