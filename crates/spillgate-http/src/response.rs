//! Makes HTTP responses from a status, a content type and a body.
//!
//! All decisions and problems become responses here, so that each response tells caches not to keep it.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use super::Response;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Returns the answer 200 with a JSON object.
pub(super) fn object(members: &impl Serialize) -> Response {
    let body = serde_json::to_vec(members).expect("invariant: numbers become JSON in memory");
    response(StatusCode::OK, JSON, body.into(), HeaderMap::new())
}

/// Returns a response that caches do not keep. The map `headers` is emptied, and its memory is used for the header
/// fields of the response.
pub(super) fn response<B: From<Bytes>>(
    status: StatusCode,
    kind: HeaderValue,
    body: Bytes,
    mut headers: HeaderMap,
) -> http::Response<B> {
    headers.clear();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, NO_STORE);
    let mut response = http::Response::new(B::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
