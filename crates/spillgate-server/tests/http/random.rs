//! Tests with random bodies, from random text to almost valid JSON. Each request must get a clear answer.
//!
//! These tests can find a body that crashes the server, or an error answer without a reason.

use std::cell::OnceCell;

use proptest::prelude::*;
use serde_json::Value;

use crate::http::app::{App, Reply};

thread_local! {
    static APP: OnceCell<App> = const { OnceCell::new() };
}

fn post(path: &str, body: &str) -> Reply {
    APP.with(|app| app.get_or_init(App::new).post(path, body))
}

/// Words that have a meaning in request bodies. With these words, a random body passes the first checks of a body, and
/// reaches the later ones.
const KNOWN: &[&str] = &[
    "domain",
    "descriptors",
    "cost",
    "estimate",
    "used",
    "reservation_id",
    "bucket",
    "key",
    "limit",
    "window_ms",
    "algorithm",
    "burst",
    "anchor",
    "denied",
    "penalty_ms",
    "segments",
    "queue",
    "lease_ms",
    "lease_id",
    "entries",
    "value",
    "hitsAddend",
    "hits_addend",
    "requestsPerUnit",
    "unit",
    "isNegativeHits",
    "api",
    "user_id",
    "job",
    "queued",
    "SECOND",
    "token_bucket",
    "leaky_bucket",
    "sliding_window_counter",
    "concurrency",
    "first_hit",
    "charged",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![4 => proptest::sample::select(KNOWN).prop_map(str::to_owned), 1 => ".{0,12}"]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![0..10_u64, any::<u64>()].prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((word(), inner), 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Generates bodies of `/v1/hit`. Their fields have the right types and random values.
fn hit() -> impl Strategy<Value = Value> {
    let algorithm = proptest::sample::select(
        &[
            "token_bucket",
            "fixed_window",
            "sliding_window_log",
            "sliding_window_counter",
            "leaky_bucket",
            "concurrency",
        ][..],
    );
    let number = || prop_oneof![Just(None), (0..100_u64).prop_map(Some), any::<u64>().prop_map(Some)];
    (algorithm, number(), number(), number(), number(), number(), number(), number()).prop_map(
        |(algorithm, limit, window_ms, cost, burst, queue, penalty_ms, lease_ms)| {
            let mut hit =
                serde_json::json!({"bucket": "b", "key": "k", "algorithm": algorithm, "limit": limit.unwrap_or(1)});
            let optional = [
                ("window_ms", window_ms),
                ("cost", cost),
                ("burst", burst),
                ("queue", queue),
                ("penalty_ms", penalty_ms),
                ("lease_ms", lease_ms),
            ];
            for (name, value) in optional {
                if let Some(value) = value {
                    hit[name] = value.into();
                }
            }
            hit
        },
    )
}

fn answers_clearly(path: &str, body: &str) -> Result<(), TestCaseError> {
    let reply = post(path, body);
    prop_assert!(matches!(reply.status, 200 | 400 | 403 | 410 | 429), "{path} {body}: {}", reply.status);
    let json: Value = serde_json::from_str(&reply.body).map_err(|error| TestCaseError::fail(error.to_string()))?;
    if reply.status == 400 {
        prop_assert!(json["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{path} {body}: {}", reply.body);
    }
    if reply.status == 429 && path != "/json" {
        prop_assert_eq!(&json["allowed"], &Value::Bool(false));
        prop_assert_ne!(&json["retry_after_ms"], &Value::from(0));
        prop_assert_ne!(reply.header("retry-after"), Some("0"));
    }
    if let (Some(remaining), Some(limit)) = (json["remaining"].as_u64(), json["limit"].as_u64()) {
        prop_assert!(remaining <= limit, "{path} {body}: {}", reply.body);
    }
    Ok(())
}

const PATHS: [&str; 9] = [
    "/v1/check",
    "/v1/hit",
    "/v1/release",
    "/v1/renew",
    "/v1/reserve",
    "/v1/commit",
    "/v1/cancel",
    "/json",
    "/v1/check?wait=1s",
];

proptest! {
    #[test]
    fn random_text_is_answered_clearly(path in proptest::sample::select(&PATHS[..]), body in ".{0,300}") {
        answers_clearly(path, &body)?;
    }

    #[test]
    fn any_json_is_answered_clearly(path in proptest::sample::select(&PATHS[..]), body in json()) {
        answers_clearly(path, &body.to_string())?;
    }

    #[test]
    fn any_numbers_in_a_hit_are_answered_clearly(body in hit(), wait in any::<bool>()) {
        answers_clearly(if wait { "/v1/hit?wait=5s" } else { "/v1/hit" }, &body.to_string())?;
    }

    #[test]
    fn a_valid_body_with_one_change_is_answered_clearly(at in 0_usize..100, piece in ".{0,3}", cut in 0_usize..4) {
        let good = [
            ("/v1/check", r#"{"domain":"api","descriptors":[{"user_id":"7"},[["job","x"]]],"cost":1}"#),
            ("/v1/hit", r#"{"bucket":"b","key":"k","limit":5,"window_ms":1000,"algorithm":"leaky_bucket","queue":3}"#),
            ("/json", r#"{"domain":"api","descriptors":[{"entries":[{"key":"user_id","value":"7"}],"hitsAddend":"1"}]}"#),
            ("/v1/reserve", r#"{"domain":"api","descriptors":[{"tokens":"red"}],"estimate":30}"#),
            ("/v1/commit", r#"{"reservation_id":"AQ","used":18446744073709551615}"#),
        ];
        for (path, body) in good {
            let at = at % body.len();
            let end = (at + cut).min(body.len());
            answers_clearly(path, &format!("{}{piece}{}", &body[..at], &body[end..]))?;
        }
    }
}
