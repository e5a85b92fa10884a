//! Tests of `POST /v1/check`: its answers, header fields and problems.
//!
//! Applications read each member and header field. So the tests compare whole answers where possible.

use std::time::Duration;

use serde_json::{Value, json};
use spillgate::headers::HeaderStyle;
use spillgate_http::HttpOptions;
use spillgate_service::ServiceOptions;

use crate::http::app::{App, Reply, options};

fn check(app: &App, descriptors: &str) -> Reply {
    app.post("/v1/check", &format!(r#"{{"domain":"api","descriptors":[{descriptors}]}}"#))
}

#[test]
fn a_limit_counts_down_and_then_refuses() {
    let app = App::new();
    for left in [2, 1, 0] {
        let reply = check(&app, r#"{"user_id":"7"}"#);
        assert_eq!(reply.status, 200);
        let expected = json!({
            "allowed": true, "limit": 3, "quota": {"limit": 3, "window_ms": 3_600_000}, "remaining": left,
            "retry_after_ms": 0, "reset_after_ms": 3_600_000, "delay_ms": 0, "soft_over": false, "lease_id": null, "rule": "user_id", "source": "store",
        });
        assert_eq!(reply.json(), expected);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("ratelimit-policy"), Some(r#""per_user";q=3;w=3600"#));
        assert_eq!(reply.header("ratelimit"), Some(&*format!(r#""per_user";r={left};t=3600"#)));
        assert_eq!(reply.header("retry-after"), None);
    }
    assert_eq!(check(&app, r#"{"user_id":"8"}"#).status, 200, "another key has its own counter");
}

#[test]
fn a_refusal_is_an_answer_and_a_problem_at_once() {
    let app = App::new();
    for _ in 0..3 {
        check(&app, r#"{"user_id":"7"}"#);
    }
    app.clock.advance(Duration::from_millis(500));
    let reply = check(&app, r#"{"user_id":"7"}"#);
    assert_eq!(reply.status, 429);
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429, "detail": "the limit is used up", "violated-policies": ["per_user"],
        "allowed": false, "limit": 3, "quota": {"limit": 3, "window_ms": 3_600_000}, "remaining": 0,
        "retry_after_ms": 3_599_500, "reset_after_ms": 3_599_500, "delay_ms": 0, "soft_over": false, "lease_id": null, "rule": "user_id", "source": "store",
    });
    assert_eq!(reply.json(), expected);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("retry-after"), Some("3600"), "the wait is rounded up to whole seconds");
    app.clock.advance(Duration::from_millis(3_599_500));
    assert_eq!(check(&app, r#"{"user_id":"7"}"#).status, 200, "the request is allowed after `retry_after_ms`");
}

#[test]
fn a_value_over_its_bound_is_matched_as_a_whole() {
    let app = App::new();
    let padded = format!("/{}/admin", "x".repeat(1_100));
    assert_eq!(
        check(&app, &format!(r#"{{"uri":"{padded}"}}"#)).status,
        429,
        "a client that sends a longer value does not escape the rule that blocks it"
    );
    let entries = json!({"domain": "api", "descriptors": [{"entries": [{"key": "uri", "value": padded}]}]});
    assert_eq!(app.post("/json", &entries.to_string()).status, 429);
}

#[test]
fn a_limit_that_is_not_exposed_refuses_and_is_not_shown() {
    for style in [HeaderStyle::Draft11, HeaderStyle::Draft06, HeaderStyle::XRateLimit] {
        let app = App::with(HttpOptions { headers: style, ..options() }, ServiceOptions::default());
        let unseen = |reply: &Reply| {
            let fields = reply.headers.values().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
            let shown = fields.chain([reply.body.clone()]).collect::<Vec<_>>().join("\n");
            let numbers = ["safety", "unseen", "hidden", "86400\"", "q=2", "q=1;"];
            assert!(!numbers.iter().any(|number| shown.contains(number)), "{style:?}: {shown}");
        };
        for left in [9, 8] {
            let reply = check(&app, r#"{"guarded":"x"}"#);
            unseen(&reply);
            assert_eq!((reply.status, &reply.json()["remaining"]), (200, &json!(left)));
        }
        let reply = check(&app, r#"{"guarded":"x"}"#);
        unseen(&reply);
        let shown = reply.json();
        assert_eq!((reply.status, reply.header("retry-after")), (429, Some("86400")));
        assert_eq!(
            (&shown["violated-policies"], &shown["rule"], &shown["limit"]),
            (&json!([]), &Value::Null, &Value::Null)
        );
        assert_eq!(shown["retry_after_ms"], json!(86_400_000));
        for status in [200, 429] {
            let reply = check(&app, r#"{"hidden":"x"}"#);
            unseen(&reply);
            assert_eq!((reply.status, &reply.json()["rule"]), (status, &Value::Null));
            assert_eq!(reply.header("x-ratelimit-limit").or(reply.header("ratelimit")), None);
        }
    }
}

#[test]
fn a_limit_that_is_not_exposed_does_not_show_that_it_is_over_its_soft_part() {
    let app = App::new();
    for left in [99, 98] {
        let shown = check(&app, r#"{"soft":"x"}"#).json();
        assert_eq!((&shown["remaining"], &shown["soft_over"]), (&json!(left), &json!(false)));
    }
    assert_eq!(check(&app, r#"{"soft":"x"}"#).status, 429, "the hidden limit is enforced");
}

#[test]
fn a_cost_that_never_fits_has_no_retry_time() {
    let app = App::new();
    let reply = app.post("/v1/check", r#"{"domain":"api","descriptors":[{"user_id":"7"}],"cost":4}"#);
    assert_eq!((reply.status, &reply.json()["retry_after_ms"]), (429, &Value::Null));
    assert_eq!(reply.header("retry-after"), None);
    assert!(reply.problem(429).contains("above the capacity of the limit"));
}

#[test]
fn cost_0_peeks_without_taking() {
    let app = App::new();
    for _ in 0..5 {
        let reply = app.post("/v1/check", r#"{"domain":"api","descriptors":[{"user_id":"7"}],"cost":0}"#);
        assert_eq!((reply.status, &reply.json()["remaining"]), (200, &json!(3)));
    }
}

#[test]
fn unmatched_and_unlimited_requests_are_allowed() {
    let app = App::new();
    let expected = |rule: Value| {
        json!({
            "allowed": true, "limit": null, "quota": null, "remaining": null, "retry_after_ms": 0, "reset_after_ms": null,
            "delay_ms": 0, "soft_over": false, "lease_id": null, "rule": rule, "source": "store",
        })
    };
    assert_eq!(check(&app, r#"{"unknown":"7"}"#).json(), expected(Value::Null));
    let reply = check(&app, r#"{"path":"/free"}"#);
    assert_eq!(reply.json(), expected(json!("path=/free")));
    assert_eq!(reply.header("ratelimit"), None);
}

#[test]
fn members_keep_their_written_order_and_pairs_are_equivalent() {
    let app = App::new();
    assert_eq!(check(&app, r#"{"outer":"1","inner":"2"}"#).json()["remaining"], 0);
    assert_eq!(check(&app, r#"[["outer","1"],["inner","2"]]"#).status, 429);
    assert_eq!(
        check(&app, r#"{"inner":"2","outer":"1"}"#).json()["limit"],
        Value::Null,
        "no rule matches if the entries are in another order"
    );
}

#[test]
fn several_limits_are_charged_all_or_none_and_the_binding_one_is_shown() {
    let app = App::new();
    let reply = check(&app, r#"{"pair":"x"}"#);
    assert_eq!(reply.header("ratelimit-policy"), Some(r#""burst";q=1;w=1, "daily";q=150;w=86400"#));
    let reply = check(&app, r#"{"pair":"x"}"#);
    assert_eq!((reply.status, &reply.json()["violated-policies"]), (429, &json!(["burst"])));
    assert_eq!(
        reply.header("ratelimit"),
        Some(r#""burst";r=0;t=1, "daily";r=149;t=86400"#),
        "the refused request was not charged"
    );
}

#[test]
fn shadow_rules_are_judged_but_never_refuse_and_have_no_header_fields() {
    let app = App::new();
    for _ in 0..3 {
        let reply = check(&app, r#"{"shadowed":"x"}"#);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("ratelimit"), None);
        assert_eq!(reply.json()["limit"], 1);
    }
    let app = App::with(options(), ServiceOptions { shadow: true, ..ServiceOptions::default() });
    for _ in 0..5 {
        assert_eq!(check(&app, r#"{"user_id":"7"}"#).status, 200);
    }
}

#[test]
fn a_queued_request_is_refused_without_a_charge_or_delayed_until_its_turn() {
    let app = App::new();
    let ask = |query: &str| {
        let path = format!("/v1/check{query}");
        app.held(|app| app.post(&path, r#"{"domain":"api","descriptors":[{"queued":"x"}]}"#))
    };
    assert_eq!(ask("").0.status, 200);
    for _ in 0..3 {
        let (reply, held) = ask("");
        assert_eq!((reply.status, held), (429, Duration::ZERO));
        assert_eq!(
            reply.json()["retry_after_ms"],
            500,
            "the wait is the delay in the queue, and refused requests do not make this delay longer"
        );
    }
    let (reply, held) = ask("?wait=1s");
    assert_eq!((reply.status, &reply.json()["delay_ms"]), (200, &json!(500)));
    assert!((Duration::from_millis(500)..Duration::from_millis(510)).contains(&held), "{held:?}");
    let (reply, held) = ask("?wait=10ms");
    assert_eq!((reply.status, held), (429, Duration::ZERO), "the delay in the queue is longer than `wait`");
    assert!(reply.problem(429).contains("longer than the request allows"));
}

#[test]
fn a_list_of_checks_is_answered_as_a_list() {
    let app = App::new();
    let one = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;
    let reply = app.post("/v1/check", &format!(" [{}]", [one; 4].join(",")));
    assert_eq!(reply.status, 200);
    let answers = reply.json();
    let allowed: Vec<&Value> =
        answers.as_array().expect("the answer is a list").iter().map(|answer| &answer["allowed"]).collect();
    assert_eq!(allowed, [&json!(true), &json!(true), &json!(true), &json!(false)]);
    assert_eq!(answers[3]["retry_after_ms"], 3_600_000);
    assert_eq!(app.post("/v1/check", "[]").body, "[]");
}

#[test]
fn each_item_of_a_list_has_its_own_status_and_details() {
    let app = App::new();
    let item = |cost| format!(r#"{{"domain":"api","descriptors":[{{"user_id":"7"}}],"cost":{cost}}}"#);
    let body = format!(r#"[{},{},{{"domain":"","descriptors":[]}}]"#, item(1), item(4));
    let answers = app.post("/v1/check", &body).json();
    let statuses: Vec<&Value> =
        answers.as_array().expect("the answer is a list").iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, [&json!(200), &json!(429), &json!(400)], "{answers}");
    assert_eq!(answers[0].get("type"), None, "an allowed item has no problem type");
    assert_eq!(answers[1]["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(answers[1]["violated-policies"], json!(["per_user"]));
    assert!(answers[1]["detail"].as_str().is_some_and(|detail| detail.contains("above the capacity")), "{answers}");
    assert!(answers[2]["detail"].as_str().is_some_and(|detail| detail.contains("domain is empty")), "{answers}");
}

#[test]
fn an_item_that_cannot_be_judged_is_a_problem_and_is_not_allowed() {
    let app = App::new();
    let reply = app.post(
        "/v1/check",
        r#"[{"domain":"api","descriptors":[{"user_id":"7"}]},{"domain":"","descriptors":[{"user_id":"7"}]}]"#,
    );
    assert_eq!(reply.status, 400);
    let answers = reply.json();
    assert_eq!((&answers[0]["allowed"], &answers[1]["status"]), (&json!(true), &json!(400)));
    assert_eq!(answers[1].get("allowed"), None);
    let many = [r#"{"domain":"api","descriptors":[{"a":"b"}]}"#; 257].join(",");
    assert!(app.post("/v1/check", &format!("[{many}]")).problem(400).contains("at most 256"));
}

#[test]
fn each_header_style_has_its_own_fields() {
    let fields = |headers: HeaderStyle| {
        let app = App::with(spillgate_http::HttpOptions { headers, ..options() }, ServiceOptions::default());
        let reply = check(&app, r#"{"user_id":"7"}"#);
        let names = reply.headers.keys().map(|name| name.as_str().to_owned()).filter(|name| name.contains("ratelimit"));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    assert_eq!(fields(HeaderStyle::Draft11), ["ratelimit", "ratelimit-policy"]);
    assert_eq!(
        fields(HeaderStyle::Draft06),
        ["ratelimit-limit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-reset"]
    );
    assert_eq!(fields(HeaderStyle::XRateLimit), ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]);
    assert!(fields(HeaderStyle::Off).is_empty());
}

#[test]
fn names_that_a_header_field_cannot_contain_are_escaped() {
    let app = App::new();
    let reply = check(&app, r#"{"café":"x"}"#);
    assert_eq!(reply.header("ratelimit-policy"), Some(r#""caf%C3%A9 \"one\"";q=1;w=3600"#));
    let reply = check(&app, r#"{"caf\u00e9":"x"}"#);
    assert_eq!((reply.status, &reply.json()["violated-policies"]), (429, &json!(["caf\u{e9} \"one\""])));
}

#[test]
fn the_same_descriptor_twice_is_one_check_of_both_costs() {
    let app = App::new();
    let reply = check(&app, r#"{"user_id":"7"},{"user_id":"7"}"#);
    assert_eq!((reply.status, &reply.json()["remaining"]), (200, &json!(1)));
    assert_eq!(reply.header("ratelimit-policy"), Some(r#""per_user";q=3;w=3600"#), "the policy is listed once");
    assert_eq!(check(&app, r#"{"user_id":"7"},{"user_id":"7"}"#).status, 429);
    assert_eq!(check(&app, r#"{"user_id":"7"}"#).status, 200, "the refused request was not charged");
}

#[test]
fn numbers_and_booleans_count_as_their_text() {
    let app = App::new();
    let remaining = |value: &str| check(&app, &format!(r#"{{"user_id":{value}}}"#)).json()["remaining"].clone();
    for written in ["7", "-7", "18446744073709551615", "2.5", "1.0", "true", "false"] {
        assert_eq!((remaining(written), remaining(&format!(r#""{written}""#))), (json!(2), json!(1)), "{written}");
        let pairs = format!(r#"[["user_id",{written}]]"#);
        assert_eq!(check(&app, &pairs).json()["remaining"], 0, "{pairs}");
    }
    let hit = |key: &str| {
        let body = format!(r#"{{"bucket":"mail","key":{key},"limit":5,"window_ms":60000}}"#);
        app.post("/v1/hit", &body).json()["remaining"].clone()
    };
    assert_eq!((hit("7"), hit(r#""7""#)), (json!(4), json!(3)));
}

#[test]
fn values_that_are_not_scalars_or_not_exact_are_errors() {
    let app = App::new();
    for value in
        ["null", "[7]", r#"{"a":7}"#, "18446744073709551616", "-9223372036854775809", "1e300", "1e999", "-1e19"]
    {
        let problem = check(&app, &format!(r#"{{"user_id":{value}}}"#)).problem(400);
        let expected = match value {
            "1e999" => "number out of range",
            number if number.parse::<f64>().is_ok() => "too large to be exact; write the value as a string",
            _ => "expected a string, a number or a boolean",
        };
        assert!(problem.contains(expected), "{value}: {problem}");
    }
}

/// The member `quota` of the answer includes the burst of a token bucket or the queue of a leaky bucket. The header field
/// `ratelimit-policy` has only the rate.
#[test]
fn the_answer_has_the_quota_and_the_capacity() {
    let app = App::new();
    let hit = |rest: &str| {
        let reply = app.post("/v1/hit", &format!(r#"{{"bucket":"b","key":"{}",{rest}}}"#, rest.len()));
        let policy = reply.header("ratelimit-policy").expect("the answer has a policy").to_owned();
        (reply.json()["limit"].clone(), reply.json()["quota"].clone(), policy)
    };
    let bucket = hit(r#""algorithm":"token_bucket","limit":10,"window_ms":1000,"burst":20"#);
    let quota = json!({"limit": 10, "window_ms": 1000, "burst": 20});
    assert_eq!(bucket, (json!(20), quota, r#""b";q=10;w=1"#.to_owned()));
    let queue = hit(r#""algorithm":"leaky_bucket","limit":10,"window_ms":1000,"queue":50"#);
    let quota = json!({"limit": 10, "window_ms": 1000, "queue": 50});
    assert_eq!(queue, (json!(51), quota, r#""b";q=10;w=1"#.to_owned()));
    let permits = hit(r#""algorithm":"concurrency","limit":8"#);
    assert_eq!((permits.0, permits.1), (json!(8), json!({"limit": 8})));
}

#[test]
fn two_equal_limits_without_names_get_different_names() {
    let app = App::new();
    let reply = check(&app, r#"{"alike":"x"},{"like":"x"}"#);
    assert_eq!(reply.header("ratelimit-policy"), Some(r#""2-per-3600s";q=2;w=3600, "2-per-3600s-2";q=2;w=3600"#));
    assert_eq!(reply.header("ratelimit"), Some(r#""2-per-3600s";r=1;t=3600, "2-per-3600s-2";r=1;t=3600"#));
    check(&app, r#"{"like":"x"}"#);
    let refused = check(&app, r#"{"alike":"x"},{"like":"x"}"#);
    assert_eq!((refused.status, &refused.json()["violated-policies"]), (429, &json!(["2-per-3600s-2"])));
}

#[test]
fn an_unmatched_descriptor_is_refused_if_the_settings_say_deny() {
    let strict = ServiceOptions { deny_unmatched: true, ..ServiceOptions::default() };
    let app = App::with(options(), strict);
    for descriptors in [r#"{"user":"7"}"#, r#"{"user_id":"7"},{"user":"7"}"#, r#"{"user_id":"7","path":"/"}"#] {
        let reply = check(&app, descriptors);
        assert!(reply.problem(429).contains("no rule matches"), "{}", reply.body);
        assert_eq!(reply.json()["violated-policies"], json!(["unmatched"]));
        assert_eq!((&reply.json()["rule"], &reply.json()["retry_after_ms"]), (&Value::Null, &Value::Null));
    }
    assert_eq!(check(&app, r#"{"user_id":"7"}"#).json()["remaining"], 2, "the refused requests charged no limit");
    let unknown = |cost: u64| format!(r#"{{"domain":"apy","descriptors":[{{"user_id":"7"}}],"cost":{cost}}}"#);
    assert_eq!([0, 1].map(|cost| app.post("/v1/check", &unknown(cost)).status), [429, 429]);
    assert_eq!(check(&app, r#"{"path":"/free"}"#).status, 200, "a rule without a limit also counts as a match");
    let rls = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"7"}]}]}"#;
    let rls = app.post("/json", rls);
    assert_eq!((rls.status, &rls.json()["statuses"][0]["code"]), (429, &json!("OVER_LIMIT")));

    let shadow = App::with(options(), ServiceOptions { shadow: true, ..strict });
    assert_eq!(check(&shadow, r#"{"user":"7"}"#).status, 200);
    assert_eq!(
        check(&App::new(), r#"{"user":"7"}"#).status,
        200,
        "by default, a request that no rule matches is allowed"
    );
}
