//! Errors as an HTTP client sees them: `application/problem+json` (RFC 9457).
//!
//! Each problem says what is wrong, where, and how to fix it.

use std::borrow::Cow;

use axum_core::response::IntoResponse;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use spillgate::{Clock, StoreErrorKind};
use spillgate_service::ServiceError;

use super::response::{PROBLEM_JSON, response};
use super::{HttpState, json};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub status: StatusCode,
    detail: String,
    help: Cow<'static, str>,
    /// The header field `Retry-After`, if the same request can succeed soon.
    retry_after: Option<HeaderValue>,
}

#[derive(Serialize)]
struct ProblemBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    help: &'a str,
}

impl Problem {
    pub fn new(status: StatusCode, detail: impl Into<String>, help: impl Into<Cow<'static, str>>) -> Problem {
        Problem { status, detail: detail.into(), help: help.into(), retry_after: None }
    }

    pub fn bad_request(detail: impl Into<String>, help: impl Into<Cow<'static, str>>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail, help)
    }

    /// Returns the problem of a body that is not the expected JSON. `example` is a valid body.
    pub fn bad_json(error: &serde_json::Error, example: &'static str) -> Problem {
        Problem::bad_request(
            format!("the body is invalid: {}", json::plain(error)),
            format!("send JSON such as {example}"),
        )
    }

    /// Returns the problem of a request for which the server has no memory now.
    pub fn lacks_memory() -> Problem {
        let problem = Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests are in flight on this server",
            "send the request again; the bound is `limits.in_flight` in the settings",
        );
        Problem { retry_after: Some(HeaderValue::from_static("1")), ..problem }
    }

    pub fn response<B: From<Bytes>>(&self) -> http::Response<B> {
        let mut body = BytesMut::with_capacity(256);
        self.write_json(&mut body);
        let mut response = response(self.status, PROBLEM_JSON, body.freeze(), HeaderMap::new());
        if let Some(seconds) = &self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.clone());
        }
        response
    }

    pub(super) fn write_json(&self, out: &mut BytesMut) {
        let body = ProblemBody {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            help: &self.help,
        };
        serde_json::to_writer(out.writer(), &body).expect("invariant: strings and numbers become JSON in memory");
    }
}

/// Why a request failed. Each error must be counted once, and this type says whether the service has counted it
/// already.
#[derive(Debug)]
pub(super) enum Failure {
    /// An error that this crate found, for example invalid JSON. It is not counted yet.
    Wire(Problem),
    /// A request that this crate does not permit, and how to permit it. It is not counted yet.
    Forbidden(ServiceError, &'static str),
    /// An error that the service found and has counted.
    Service(ServiceError),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Wire(problem)
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Failure {
        Failure::Service(error)
    }
}

impl<C: Clock> HttpState<C> {
    /// Returns the problem that the client gets. Errors that this crate found are counted here and nowhere else.
    pub(super) fn problem(&self, failure: Failure) -> Problem {
        match failure {
            Failure::Service(error) => error.into(),
            Failure::Forbidden(error, help) => {
                let error = self.0.service.rejected(error);
                Problem::new(StatusCode::FORBIDDEN, error.to_string(), help)
            }
            Failure::Wire(problem) => {
                let error = match problem.status {
                    // The listener has counted it: see `Problem::lacks_memory`.
                    StatusCode::SERVICE_UNAVAILABLE => return problem,
                    StatusCode::PAYLOAD_TOO_LARGE => {
                        ServiceError::TooLarge { what: "bytes in the body", max: self.0.body_bytes }
                    }
                    _ => ServiceError::BadRequest(problem.detail.clone()),
                };
                self.0.service.rejected(error);
                problem
            }
        }
    }
}

/// Gives each service error its status.
///
/// After a status 4xx, the same request would fail again. After 503, it can succeed later. Proxies differ: if a
/// sub-request (`/v1/forward-auth`) gets 400 or 503, nginx answers its client with 500, and Caddy answers its client
/// with the same status.
impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Problem {
        let detail = error.to_string();
        match error {
            ServiceError::BadRequest(_) => Problem::bad_request(detail, ""),
            ServiceError::TooLarge { .. } => {
                Problem::bad_request(detail, "send less; the bounds are under `limits` in the settings")
            }
            ServiceError::UnknownLimit(_) => Problem::new(
                StatusCode::NOT_FOUND,
                detail,
                "compare the request with the loaded rules: GET /rules on the admin listener",
            ),
            ServiceError::Forbidden(_) => {
                Problem::new(StatusCode::FORBIDDEN, detail, "the setting `allow.http` can allow it")
            }
            ServiceError::Store(error) if error.kind() == StoreErrorKind::Malformed => {
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail, "")
            }
            ServiceError::Store(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "try again later"),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum_core::response::Response {
        self.response()
    }
}

#[cfg(test)]
mod tests {
    use spillgate::StoreError;

    use super::*;

    #[test]
    fn each_service_error_has_its_status() {
        let status = |error: ServiceError| Problem::from(error).status.as_u16();
        assert_eq!(status(ServiceError::BadRequest("no domain".into())), 400);
        assert_eq!(status(ServiceError::TooLarge { what: "entries", max: 1 }), 400);
        assert_eq!(status(ServiceError::UnknownLimit(1)), 404);
        assert_eq!(status(ServiceError::Forbidden("no refunds")), 403);
        assert_eq!(status(ServiceError::Store(StoreError::new(StoreErrorKind::Timeout, "timed out"))), 503);
        assert_eq!(status(ServiceError::Store(StoreError::malformed("hits"))), 500);
    }

    /// The listener answers a request whose head does not fit with the same response as the reader of a body.
    #[test]
    fn a_request_that_does_not_fit_says_when_to_send_it_again() {
        let response: http::Response<Bytes> = Problem::lacks_memory().response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[RETRY_AFTER]),
            (503, &HeaderValue::from_static("1"))
        );
        let other: http::Response<Bytes> = Problem::bad_request("no domain", "").response();
        assert!(!other.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn a_problem_is_json_with_its_members() {
        let mut out = BytesMut::new();
        Problem::bad_request("a \"quoted\"\nthing", "").write_json(&mut out);
        let expected = r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"a \"quoted\"\nthing"}"#;
        assert_eq!(out, expected);
    }
}
