//! Tests of `POST /json`: Envoy's rate limit service with JSON instead of gRPC.
//!
//! Clients of Envoy's reference rate limit server use this path. So its answers must be the gRPC answers, written as JSON.

use serde_json::json;
use spillgate_http::HttpOptions;
use spillgate_service::{Grants, ServiceOptions};

use crate::http::app::{App, options};

fn app(grants: Grants) -> App {
    App::with(HttpOptions { grants, ..options() }, ServiceOptions::default())
}

fn entry(key: &str, value: &str) -> String {
    format!(r#"{{"entries":[{{"key":"{key}","value":"{value}"}}]}}"#)
}

fn request(descriptors: &str) -> String {
    format!(r#"{{"domain":"api","descriptors":[{descriptors}]}}"#)
}

#[test]
fn answers_are_protobuf_json() {
    let app = App::new();
    let body = request(&format!("{},{}", entry("user_id", "7"), entry("unknown", "7")));
    let reply = app.post("/json", &body);
    let status = |code: &str, remaining: u32| {
        json!({
            "code": code, "currentLimit": {"name": "per_user", "requestsPerUnit": 3, "unit": "HOUR"},
            "limitRemaining": remaining, "durationUntilReset": "3600s",
        })
    };
    let expected = json!({"overallCode": "OK", "statuses": [status("OK", 2), {"code": "OK"}]});
    assert_eq!((reply.status, reply.json()), (200, expected));
    app.post("/json", &body);
    app.post("/json", &body);
    let reply = app.post("/json", &body);
    let expected = json!({"overallCode": "OVER_LIMIT", "statuses": [status("OVER_LIMIT", 0), {"code": "OK"}]});
    assert_eq!((reply.status, reply.json()), (429, expected));
    assert_eq!((reply.header("retry-after"), reply.header("cache-control")), (Some("3600"), Some("no-store")));
}

#[test]
fn hits_come_from_the_descriptor_else_the_request_else_are_one() {
    let app = App::new();
    let remaining = |body: &str| app.post("/json", body).json()["statuses"][0]["limitRemaining"].clone();
    let entries = r#""entries":[{"key":"user_id","value":"7"}]"#;
    assert_eq!(remaining(&format!(r#"{{"domain":"api","descriptors":[{{{entries}}}],"hits_addend":"2"}}"#)), 1);
    let peek = format!(r#"{{"domain":"api","descriptors":[{{{entries},"hitsAddend":0}}],"hitsAddend":2}}"#);
    assert_eq!(
        remaining(&peek),
        1,
        "the cost 0 of the descriptor replaces the cost 2 of the request, so no unit is taken"
    );
    assert_eq!(remaining(&format!(r#"{{"domain":"api","descriptors":[{{{entries}}}],"hitsAddend":0}}"#)), 0);
}

#[test]
fn unlimited_and_shadow_rules_are_answered_ok() {
    let app = App::new();
    let reply = app.post("/json", &request(&entry("path", "/free")));
    assert_eq!(reply.json()["statuses"][0], json!({"code": "OK", "limitRemaining": u32::MAX}));
    for _ in 0..3 {
        let reply = app.post("/json", &request(&entry("shadowed", "x")));
        assert_eq!((reply.status, &reply.json()["statuses"][0]["code"]), (200, &json!("OK")));
    }
}

#[test]
fn refunds_and_overrides_over_http_need_a_grant() {
    let refund = request(r#"{"entries":[{"key":"user_id","value":"7"}],"isNegativeHits":true}"#);
    let overriding = request(r#"{"entries":[{"key":"any","value":"7"}],"limit":{"requestsPerUnit":1,"unit":"DAY"}}"#);
    let without_grants = App::new();
    assert!(without_grants.post("/json", &refund).problem(403).contains("allow.http"));
    assert!(without_grants.post("/json", &overriding).problem(403).contains("allow.http"));

    let app = app(Grants { refund: true, overriding: true });
    for _ in 0..3 {
        app.post("/json", &request(&entry("user_id", "7")));
    }
    assert_eq!(app.post("/json", &refund).json()["statuses"][0]["limitRemaining"], 1);
    let reply = app.post("/json", &overriding);
    assert_eq!(reply.json()["statuses"][0]["currentLimit"], json!({"requestsPerUnit": 1, "unit": "DAY"}));
    assert_eq!(app.post("/json", &overriding).status, 429);
    for unit in ["", r#","unit":"UNKNOWN""#, r#","unit":0"#] {
        let body =
            request(&format!(r#"{{"entries":[{{"key":"a","value":"b"}}],"limit":{{"requestsPerUnit":1{unit}}}}}"#));
        assert!(app.post("/json", &body).problem(400).contains("has no unit"));
    }
}

#[test]
fn an_invalid_request_is_a_400_with_a_reason() {
    let app = App::new();
    let wrong = [
        ("{}", "domain is empty"),
        (r#"{"domain":"api"}"#, "no descriptors"),
        (r#"{"domain":"api","descriptors":{}}"#, "expected a list"),
        (r#"{"domain":7}"#, "expected a string"),
        (r#"{"domain":"api","hits":1}"#, "unknown field `hits`"),
        (r#"{"domain":"api","hitsAddend":4294967296}"#, "expected a whole number from 0 to 4294967295"),
        (r#"{"domain":"api","descriptors":[{"entries":[{"key":"a","val":"b"}]}]}"#, "unknown field `val`"),
        ("[]", "expected an object"),
        ("", "EOF"),
    ];
    for (body, expected) in wrong {
        let problem = app.post("/json", body).problem(400);
        assert!(problem.contains(expected), "{body}: {problem}");
    }
}
