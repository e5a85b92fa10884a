//! Tests of invalid requests: paths, methods, bodies and parameters.
//!
//! Each answer must say what is wrong and what to send instead.

use axum::body::Body;
use axum::http::Request;
use spillgate_service::metrics::Rejection;

use crate::http::app::App;

#[test]
fn invalid_check_bodies_are_answered_with_the_reason() {
    let app = App::new();
    let wrong = [
        ("", "EOF while parsing"),
        ("nonsense", "line 1 column"),
        ("7", "expected an object"),
        ("{}", "missing field `domain`"),
        (r#"{"domain":"api"}"#, "missing field `descriptors`"),
        (r#"{"domain":"api","descriptors":[]}"#, "no descriptors"),
        (r#"{"domain":"","descriptors":[{"a":"b"}]}"#, "domain is empty"),
        (r#"{"domain":null,"descriptors":[{"a":"b"}]}"#, "expected a string"),
        (r#"{"domain":"api","descriptors":[{"a":null}]}"#, "expected a string, a number or a boolean"),
        (r#"{"domain":"api","descriptors":[{"a":"b","a":"c"}]}"#, "duplicate field `a`"),
        (r#"{"domain":"api","descriptors":{"a":"b"}}"#, "invalid type: object, expected a list"),
        (r#"{"domain":"api","descriptors":[[["a"]]]}"#, r#"expected a pair ["key","value"]"#),
        (r#"{"domain":"api","descriptors":["a"]}"#, r#"[["key","value"], ...]"#),
        (r#"{"domain":"api","descriptors":["a"]}"#, "expected a descriptor such as"),
        (r#"{"domain":"api","descriptors":[{"a":"b"}],"costs":1}"#, "unknown field `costs`"),
        (r#"{"domain":"api","domain":"api","descriptors":[]}"#, "duplicate field `domain`"),
        (r#"{"domain":"api","descriptors":[{"a":"b"}],"cost":-1}"#, "invalid value: integer `-1`"),
        (r#"{"domain":"api","descriptors":[{"a":"b"}],"cost":0.5}"#, "expected a whole number from 0"),
        (r#"{"domain":"api","descriptors":[{"a":"b"}]} x"#, "trailing characters"),
        (r#"[{"domain":"api","descriptors":[{"a":"b"}]},{}]"#, "missing field `domain`"),
    ];
    for (body, expected) in wrong {
        let problem = app.post("/v1/check", body).problem(400);
        assert!(problem.contains(expected), "{body}: {problem}");
    }
    assert!(app.post("/v1/check", "{}").problem(400).contains(r#"send JSON such as {"domain":"api""#));
}

#[test]
fn every_part_of_a_body_has_a_bound() {
    let app = App::new();
    let descriptors = |count: usize| vec![r#"{"a":"b"}"#; count].join(",");
    let ask =
        |descriptors: &str| app.post("/v1/check", &format!(r#"{{"domain":"api","descriptors":[{descriptors}]}}"#));
    assert_eq!(ask(&descriptors(32)).status, 200);
    assert!(ask(&descriptors(33)).problem(400).contains("at most 32"));
    let entries = |count: usize| format!("[{}]", vec![r#"["a","b"]"#; count].join(","));
    assert_eq!(ask(&entries(16)).status, 200);
    assert!(ask(&entries(17)).problem(400).contains("at most 16"));
    assert!(ask(&format!(r#"{{"{}":"b"}}"#, "k".repeat(257))).problem(400).contains("at most 256"));
    assert_eq!(
        ask(&format!(r#"{{"a":"{}"}}"#, "v".repeat(1025))).status,
        200,
        "a value that is too long is cut and accepted"
    );
    assert_eq!(ask(&" ".repeat(64 * 1024 - 100)).status, 400, "the body is small enough, but it has no descriptors");
    let too_large = ask(&" ".repeat(64 * 1024));
    assert!(too_large.problem(413).contains("limits.body"));
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let app = App::new();
    for (path, _) in spillgate_http::routes().filter(|(_, allowed)| *allowed == "POST") {
        for deep in
            ["[".repeat(60_000), r#"{"a":"#.repeat(10_000), format!(r#"{{"descriptors":{}"#, "[".repeat(60_000))]
        {
            assert_eq!(app.post(path, &deep).status, 400, "{path}");
        }
    }
}

#[test]
fn the_content_type_is_ignored() {
    let app = App::new();
    let body = r#"{"domain":"api","descriptors":[{"a":"b"}]}"#;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "junk"] {
        let request = Request::post("/v1/check")
            .header("content-type", kind)
            .body(Body::from(body))
            .expect("the request is valid");
        assert_eq!(app.call(request).status, 200, "{kind}");
    }
}

#[test]
fn unknown_paths_and_wrong_methods_are_answered_with_the_valid_ones() {
    let app = App::new();
    for path in ["/", "/v1/chek", "/v1/check/", "/json/x", "/metrics", "/rules"] {
        assert!(app.get(path).problem(404).contains("POST /v1/check"), "{path}");
    }
    for (path, allowed) in spillgate_http::routes() {
        let (method, reply) = if allowed == "POST" { ("GET", app.get(path)) } else { ("POST", app.post(path, "")) };
        assert!(reply.problem(405).contains(&format!("{path} does not support {method}")), "{}", reply.body);
        assert_eq!(reply.header("allow"), Some(allowed));
    }
    let routes: Vec<_> = spillgate_http::routes().collect();
    assert!(routes.contains(&("/v1/check", "POST")) && routes.contains(&("/v1/forward-auth", "GET,HEAD")));
}

#[test]
fn invalid_query_parameters_are_answered_with_the_reason() {
    let app = App::new();
    let body = r#"{"domain":"api","descriptors":[{"a":"b"}]}"#;
    assert!(app.post("/v1/check?wiat=1s", body).problem(400).contains("unknown query parameter `wiat`"));
    assert!(app.post("/v1/check?wait=soon", body).problem(400).contains("`wait` is not a duration"));
    assert!(app.post("/v1/check?wait=2h", body).problem(400).contains("at most 1m"));
}

#[test]
fn a_request_that_is_not_judged_is_counted_once() {
    let bounded = r#"{"bucket":"BBBB","key":"k","limit":1,"window_ms":1000}"#.replace("BBBB", &"b".repeat(257));
    let overriding =
        r#"{"domain":"api","descriptors":[{"entries":[{"key":"a","value":"b"}],"limit":{"unit":"UNKNOWN"}}]}"#;
    let whole = r#"{"domain":"api","descriptors":[{"a":"b"}]}"#;
    let huge = " ".repeat(64 * 1024 + 1);
    for (path, body, reason) in [
        ("/v1/check", "nonsense", Rejection::BadRequest),
        ("/v1/check", r#"{"domain":"","descriptors":[{"a":"b"}]}"#, Rejection::BadRequest),
        ("/v1/check?wait=soon", whole, Rejection::BadRequest),
        ("/v1/check", &*huge, Rejection::TooLarge),
        ("/v1/hit", "{}", Rejection::BadRequest),
        ("/v1/hit", r#"{"bucket":"","key":"k","limit":1,"window_ms":1000}"#, Rejection::BadRequest),
        ("/v1/hit", r#"{"bucket":"b","key":"k","limit":1}"#, Rejection::BadRequest),
        ("/v1/hit", &*bounded, Rejection::TooLarge),
        ("/v1/release", r#"{"lease_id":"AAAA"}"#, Rejection::BadRequest),
        ("/v1/renew", "[]", Rejection::BadRequest),
        ("/json", "[]", Rejection::BadRequest),
        ("/json", overriding, Rejection::BadRequest),
    ] {
        let app = App::new();
        let status = app.post(path, body).status;
        assert!(status == 400 || status == 413, "{path} {body:.60}: {status}");
        for other in [Rejection::BadRequest, Rejection::TooLarge, Rejection::Forbidden] {
            let rejected = app.service.metrics().rejected(other).get();
            assert_eq!(rejected, u64::from(other == reason), "{path} {body:.60}: {other:?}");
        }
    }
}

/// A body that cannot be read. Its error, `TimedOut`, is the error that the listener makes for a body that arrives too
/// slowly.
struct LateBody;

impl http_body::Body for LateBody {
    type Data = axum::body::Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        std::task::Poll::Ready(Some(Err(std::io::ErrorKind::TimedOut.into())))
    }
}

#[test]
fn a_body_that_arrives_too_late_is_a_408_with_a_reason() {
    let request = Request::post("/v1/check").body(Body::new(LateBody)).expect("the request is valid");
    let problem = App::new().call(request).problem(408);
    assert!(problem.starts_with("the body did not arrive in time | send the body at once"), "{problem}");
}

#[test]
fn a_limit_of_0_and_a_wait_that_is_too_long_are_explained() {
    let app = App::new();
    let refused = app.post("/v1/hit", r#"{"bucket":"b","key":"k","limit":0,"window_ms":1000}"#);
    assert!(refused.problem(429).contains("it refuses every request"), "{}", refused.body);
    for wait in ["61s", "99999999999s", "99999999999999999999s"] {
        let problem = app.post(&format!("/v1/check?wait={wait}"), "{}").problem(400);
        assert!(problem.contains("too long, at most 1m"), "{wait}: {problem}");
    }
}
