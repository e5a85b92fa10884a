//! The answer that a limiter would give to the first request under the rule in `bench/rules.yaml`.
//!
//! The rule allows a billion requests in an hour, and one of them is used. Most servers of this folder send this answer
//! without a decision. The server `script` sends it after a decision.

use prost::Message;

/// The messages of `envoy.service.ratelimit.v3`.
pub(crate) mod pb {
    #![allow(unreachable_pub)]
    tonic::include_proto!("envoy.service.ratelimit.v3");
}

/// The requests that are allowed in an hour, as in `bench/rules.yaml`.
pub(crate) const LIMIT: u32 = 1_000_000_000;
const HOUR: u32 = 3;

/// Returns the answer, with one status for each descriptor. A status has the limit, what remains, and the time until
/// the reset.
pub(crate) fn response(descriptors: usize) -> pb::RateLimitResponse {
    use pb::rate_limit_response::{Code, DescriptorStatus, RateLimit};
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit { requests_per_unit: LIMIT, unit: HOUR, name: String::new() }),
        limit_remaining: LIMIT - 1,
        duration_until_reset: Some(prost_types::Duration { seconds: 3599, nanos: 0 }),
    };
    pb::RateLimitResponse { overall_code: Code::Ok.into(), statuses: vec![status; descriptors] }
}

/// Returns the answer to one descriptor as a gRPC message with its length in front.
pub(crate) fn framed() -> bytes::Bytes {
    let message = response(1).encode_to_vec();
    let mut out = Vec::with_capacity(5 + message.len());
    out.push(0);
    out.extend_from_slice(&u32::try_from(message.len()).expect("a short message").to_be_bytes());
    out.extend_from_slice(&message);
    out.into()
}
