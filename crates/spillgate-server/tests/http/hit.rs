//! Tests of `POST /v1/hit`, where the request itself contains the limit.
//!
//! A request can contain any algorithm and any option. The server must either apply them or refuse them with a clear
//! reason.

use std::time::Duration;

use serde_json::{Value, json};

use crate::http::app::{App, Reply};

fn hit(app: &App, rest: &str) -> Reply {
    app.post("/v1/hit", &format!(r#"{{"bucket":"login","key":"user-7",{rest}}}"#))
}

#[test]
fn the_default_is_an_exact_sliding_window() {
    let app = App::new();
    for left in [1, 0] {
        let reply = hit(&app, r#""limit":2,"window_ms":1000"#);
        let expected = json!({
            "allowed": true, "limit": 2, "quota": {"limit": 2, "window_ms": 1000}, "remaining": left,
            "retry_after_ms": 0, "reset_after_ms": 1000, "delay_ms": 0, "soft_over": false, "lease_id": null, "rule": null, "source": "store",
        });
        assert_eq!((reply.status, reply.json()), (200, expected));
        assert_eq!(reply.header("ratelimit-policy"), Some(r#""login";q=2;w=1"#));
    }
    let reply = hit(&app, r#""limit":2,"window_ms":1000"#);
    assert_eq!((reply.status, &reply.json()["retry_after_ms"]), (429, &json!(1000)));
    assert_eq!(reply.header("retry-after"), Some("1"));
    app.clock.advance(Duration::from_millis(1000));
    assert_eq!(hit(&app, r#""limit":2,"window_ms":1000"#).status, 200);
}

#[test]
fn every_algorithm_and_option_is_accepted() {
    let app = App::new();
    let limits = [
        (r#""limit":2,"window_ms":1000,"algorithm":"token_bucket","burst":5"#, 5),
        (r#""limit":2,"window_ms":1001,"algorithm":"gcra""#, 2),
        (r#""limit":2,"window_ms":1000,"algorithm":"fixed_window","anchor":"first_hit","penalty_ms":5"#, 2),
        (r#""limit":2,"window_ms":1000,"algorithm":"fixed_window","anchor":"epoch","denied":"charged""#, 2),
        (r#""limit":2,"window_ms":1000,"algorithm":"sliding_window_log","denied":"free""#, 2),
        (r#""limit":2,"window_ms":1000,"algorithm":"sliding_window_counter","segments":10"#, 2),
        (r#""limit":2,"window_ms":1000,"algorithm":"leaky_bucket","queue":6"#, 7),
        (r#""limit":2,"algorithm":"concurrency","lease_ms":100"#, 2),
    ];
    for (rest, limit) in limits {
        let reply = hit(&app, rest);
        assert_eq!((reply.status, &reply.json()["limit"]), (200, &json!(limit)), "{rest}: {}", reply.body);
    }
}

#[test]
fn charged_refusals_and_penalties_extend_the_wait() {
    let app = App::new();
    let charged = r#""limit":1,"window_ms":1000,"denied":"charged""#;
    assert_eq!(hit(&app, charged).status, 200);
    app.clock.advance(Duration::from_millis(600));
    assert_eq!(hit(&app, charged).json()["retry_after_ms"], 1000, "the refused hit is charged too");
    let punished = r#""limit":1,"window_ms":10,"algorithm":"fixed_window","penalty_ms":60000"#;
    assert_eq!(hit(&app, punished).status, 200);
    let reply = hit(&app, punished);
    assert_eq!((reply.status, &reply.json()["retry_after_ms"]), (429, &json!(60_000)));
    app.clock.advance(Duration::from_secs(1));
    assert!(hit(&app, punished).problem(429).contains("penalty"));
}

#[test]
fn a_queue_delays_a_hit_until_its_turn() {
    let app = App::new();
    let body = r#"{"bucket":"b","key":"k","limit":10,"window_ms":1000,"algorithm":"leaky_bucket"}"#;
    assert_eq!(app.post("/v1/hit?wait=1s", body).json()["delay_ms"], 0);
    let (reply, held) = app.held(|app| app.post("/v1/hit?wait=1s", body));
    assert_eq!((reply.status, &reply.json()["delay_ms"]), (200, &json!(100)));
    assert!(held >= Duration::from_millis(100), "{held:?}");
}

#[test]
fn a_changed_limit_finds_what_was_used() {
    let app = App::new();
    assert_eq!(hit(&app, r#""limit":5,"window_ms":1000,"cost":5"#).json()["remaining"], 0);
    assert_eq!(hit(&app, r#""limit":7,"window_ms":1000,"cost":0"#).json()["remaining"], 2);
}

#[test]
fn invalid_limits_are_answered_with_the_reason() {
    let app = App::new();
    let wrong = [
        (r#""limit":5"#, "missing field `window_ms`"),
        (r#""limit":5,"window_ms":0"#, "window"),
        (r#""window_ms":5"#, "missing field `limit`"),
        (r#""limit":-1,"window_ms":5"#, "invalid value: integer `-1`"),
        (r#""limit":1.5,"window_ms":5"#, "expected a whole number from 0"),
        (r#""limit":70000,"window_ms":5"#, "at most 65536"),
        (r#""limit":18446744073709551615,"window_ms":1000,"algorithm":"fixed_window""#, "at most"),
        (r#""limit":18446744073709551616,"window_ms":1000"#, "expected a whole number from 0"),
        (r#""limit":5,"window_ms":18446744073709551615"#, "window"),
        (r#""limit":5,"window_ms":5,"burst":3"#, "burst is not an option of sliding_window_log"),
        (r#""limit":5,"window_ms":7,"algorithm":"sliding_window_counter","segments":0"#, "1 to 128"),
        (
            r#""limit":5,"window_ms":7,"algorithm":"sliding_window_counter","segments":256"#,
            "expected a whole number from 0 to 255",
        ),
        (
            r#""limit":5,"window_ms":5,"algorithm":"round_robin""#,
            "unknown variant `round_robin`, expected one of fixed_window",
        ),
        (r#""limit":5,"window_ms":5,"algorithm":"concurrency""#, "window_ms is not an option of concurrency"),
        (r#""limit":5,"window_ms":5,"windows":5"#, "unknown field `windows`"),
        (r#""limit":5,"window_ms":5,"limit":5"#, "duplicate field `limit`"),
    ];
    for (rest, expected) in wrong {
        let problem = hit(&app, rest).problem(400);
        assert!(problem.contains(expected), "{rest}: {problem}");
    }
}

#[test]
fn bucket_and_key_have_bounds_but_may_contain_any_characters() {
    let app = App::new();
    let ask = |bucket: &str, key: &str| {
        app.post("/v1/hit", &json!({"bucket": bucket, "key": key, "limit": 1, "window_ms": 1000}).to_string())
    };
    assert!(ask("", "k").problem(400).contains("bucket is empty"));
    assert!(ask(&"b".repeat(257), "k").problem(400).contains("at most 256"));
    assert!(ask("b", &"k".repeat(1025)).problem(400).contains("at most 1024"));
    assert_eq!(ask("b", "").status, 200);
    assert_eq!(ask("\u{1F980}\n\"", "\u{0}").header("ratelimit-policy"), Some(r#""%F0%9F%A6%80%0A\"";q=1;w=1"#));
    assert_eq!(ask("ab", "c").status, 200);
    assert_eq!(ask("a", "bc").status, 200, "the bucket `a` with the key `bc` has its own counter");
    assert_eq!(ask("a", "bc").json()["allowed"], Value::Bool(false));
}
