//! Decodes requests whose texts are not UTF-8.
//!
//! The texts of protobuf have to be UTF-8. But Envoy copies header fields of clients into descriptors as they are. If such
//! a request failed, Envoy would usually allow it. So a client could switch off all limits of a request by one byte.

use prost::Message;

use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use super::proto::envoy::service::ratelimit::v3::RateLimitRequest;

/// A [`RateLimitRequest`] with bytes instead of texts.
#[derive(Message)]
struct RequestBytes {
    #[prost(bytes = "vec", tag = "1")]
    domain: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<DescriptorBytes>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Message)]
struct DescriptorBytes {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<EntryBytes>,
    #[prost(message, optional, tag = "2")]
    limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Message)]
struct EntryBytes {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// Returns the request in `message`. Each sequence of bytes that is not UTF-8 becomes U+FFFD, as in a request to
/// `/v1/forward-auth`. `None` if the message is not a request even so.
#[cold]
pub(super) fn decode(message: &[u8]) -> Option<RateLimitRequest> {
    let RequestBytes { domain, descriptors, hits_addend } = RequestBytes::decode(message).ok()?;
    let descriptors = descriptors.into_iter().map(DescriptorBytes::with_texts).collect();
    Some(RateLimitRequest { domain: text(domain), descriptors, hits_addend })
}

impl DescriptorBytes {
    fn with_texts(self) -> RateLimitDescriptor {
        let DescriptorBytes { entries, limit, hits_addend, is_negative_hits } = self;
        let entry = |EntryBytes { key, value }| Entry { key: text(key), value: text(value) };
        RateLimitDescriptor { entries: entries.into_iter().map(entry).collect(), limit, hits_addend, is_negative_hits }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
