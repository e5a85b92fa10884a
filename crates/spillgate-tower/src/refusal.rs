//! The answers of the layer itself: a refusal over HTTP or gRPC, and the error for a request that cannot be decided.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use spillgate_core::Wait;

use spillgate_limiter::headers;

use super::Outcome;
use super::head::RequestHead;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// The codes of gRPC that the layer uses.
const RESOURCE_EXHAUSTED: u8 = 8;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Why the layer answers instead of the service.
#[derive(Debug)]
pub(super) enum Why<'a> {
    /// A limit refuses the request.
    Refused(&'a Outcome),
    /// The request lacks what a limit counts by, or it has limits that a layer cannot decide. Only a change of the
    /// program helps.
    Lacks(&'a str),
    /// The store failed.
    StoreFailed,
}

/// Returns the answer to the request, without the header fields about the limits.
pub(super) fn answer(request: RequestHead<'_>, why: &Why<'_>) -> Response<Bytes> {
    // `application/grpc+proto` is gRPC, but `application/grpc-web` is not.
    let kind = request.headers.get(CONTENT_TYPE).and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    let is_grpc = kind.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')));
    if is_grpc { grpc_answer(why) } else { http_answer(why) }
}

fn http_answer(why: &Why<'_>) -> Response<Bytes> {
    let (status, body) = match why {
        Why::Refused(outcome) => (StatusCode::TOO_MANY_REQUESTS, quota_exceeded(outcome)),
        Why::Lacks(what) => (StatusCode::INTERNAL_SERVER_ERROR, problem(StatusCode::INTERNAL_SERVER_ERROR, what)),
        Why::StoreFailed => (
            StatusCode::SERVICE_UNAVAILABLE,
            problem(StatusCode::SERVICE_UNAVAILABLE, "the store of rate limits does not answer; try again later"),
        ),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    response
}

/// Says what a refused client can do.
const fn detail(retry_after: Wait) -> &'static str {
    match retry_after {
        Wait::After(_) => "the limit is used up; try again after the time in Retry-After",
        Wait::Unknown => "requests cannot be counted now; try again later",
        Wait::Never => "the request costs more than its limit ever allows",
    }
}

/// Returns the body of a refusal (RFC 9457). Its problem type is registered by draft-ietf-httpapi-ratelimit-headers.
fn quota_exceeded(outcome: &Outcome) -> Bytes {
    let mut out = String::with_capacity(256);
    let _ = write!(out, r#"{{"type":"{QUOTA_EXCEEDED}","title":"Too Many Requests","status":429,"detail":"#);
    push_json(&mut out, detail(outcome.verdict.retry_after));
    out.push_str(r#","violated-policies":["#);
    let (policies, _) = outcome.policies();
    let violated = (0..policies.len()).filter(|index| !policies[*index].decision.allowed);
    for (position, index) in violated.enumerate() {
        out.push_str(if position > 0 { "," } else { "" });
        push_json(&mut out, &headers::label(&policies, index));
    }
    let retry_after_ms = outcome.verdict.retry_after.millis_ceil();
    let _ = match retry_after_ms {
        Some(ms) => write!(out, r#"],"retry_after_ms":{ms}}}"#),
        None => write!(out, r#"],"retry_after_ms":null}}"#),
    };
    out.into()
}

fn problem(status: StatusCode, detail: &str) -> Bytes {
    let mut out = String::with_capacity(192);
    let title = status.canonical_reason().unwrap_or("Error");
    let _ = write!(out, r#"{{"type":"about:blank","title":"{title}","status":{},"detail":"#, status.as_u16());
    push_json(&mut out, detail);
    out.push('}');
    out.into()
}

/// Writes a string of JSON (RFC 8259, section 7).
fn push_json(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Returns an answer of gRPC that consists of header fields only.
fn grpc_answer(why: &Why<'_>) -> Response<Bytes> {
    let (code, message, wait) = match why {
        Why::Refused(outcome) => {
            let wait = outcome.verdict.retry_after;
            let message = if let Wait::After(_) = wait { "the limit is used up" } else { detail(wait) };
            (RESOURCE_EXHAUSTED, message, wait)
        }
        Why::Lacks(what) => (INTERNAL, *what, Wait::Unknown),
        Why::StoreFailed => (UNAVAILABLE, "the store of rate limits does not answer", Wait::Unknown),
    };
    let mut response = Response::new(Bytes::new());
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, GRPC);
    fields.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
    // The messages of the layer have neither `%` nor control characters, so they need no percent-encoding.
    if let Ok(message) = HeaderValue::from_str(message) {
        fields.insert(GRPC_MESSAGE, message);
    }
    if let (RESOURCE_EXHAUSTED, Some(ns)) = (code, wait.nanos()) {
        let details = STANDARD_NO_PAD.encode(status_with_retry_info(code, message, ns));
        if let Ok(details) = HeaderValue::try_from(details) {
            fields.insert(GRPC_DETAILS, details);
        }
    }
    response
}

/// Encodes a `google.rpc.Status` with one `google.rpc.RetryInfo`, which tells clients of gRPC how long to wait.
fn status_with_retry_info(code: u8, message: &str, wait_ns: u64) -> BytesMut {
    // The numbers of the fields in these messages. Duration: seconds = 1, nanos = 2. RetryInfo: retry_delay = 1. Any:
    // type_url = 1, value = 2. Status: code = 1, message = 2, details = 3.
    let mut duration = BytesMut::new();
    push_varint_field(&mut duration, 1, wait_ns / 1_000_000_000);
    push_varint_field(&mut duration, 2, wait_ns % 1_000_000_000);
    let mut retry_info = BytesMut::new();
    push_bytes_field(&mut retry_info, 1, &duration);
    let mut any = BytesMut::new();
    push_bytes_field(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    push_bytes_field(&mut any, 2, &retry_info);
    let mut status = BytesMut::new();
    push_varint_field(&mut status, 1, u64::from(code));
    push_bytes_field(&mut status, 2, message.as_bytes());
    push_bytes_field(&mut status, 3, &any);
    status
}

fn push_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

fn push_varint_field(out: &mut BytesMut, number: u8, value: u64) {
    out.put_u8(number << 3);
    push_varint(out, value);
}

fn push_bytes_field(out: &mut BytesMut, number: u8, bytes: &[u8]) {
    out.put_u8(number << 3 | 2);
    push_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}
