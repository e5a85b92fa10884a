//! Tests of `GET /overview`: its figures are those of the metrics, and its histories are bounded and survive reloads.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use spillgate::rules::{Rules, RulesFile};
use spillgate_service::{HISTORY_STEP, HISTORY_STEPS, Insight, ServiceOptions};

use crate::http::app::{App, options};
use crate::openapi::schema;

fn get(app: &App, path: &str) -> String {
    let request = Request::get(path).body(Body::empty()).expect("the request is valid");
    let reply = app.admin(None, "203.0.113.9:4711", request);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body
}

fn overview(app: &App) -> Value {
    serde_json::from_str(&get(app, "/overview")).expect("the answer is JSON")
}

/// Returns what an overview says about the limit of the rule with the path `rule`.
fn limit<'o>(overview: &'o Value, rule: &str) -> &'o Value {
    let mut limits = overview["limits"].as_array().expect("there is a list").iter();
    limits.find(|limit| limit["rule"] == rule).unwrap_or_else(|| panic!("{rule}: {overview}"))
}

fn check(app: &App, key: &str, cost: u64) -> u16 {
    let body = json!({"domain": "api", "descriptors": [{ key: "7" }], "cost": cost});
    app.post("/v1/check", &body.to_string()).status
}

fn end_step(app: &App) {
    app.clock.advance(HISTORY_STEP);
    app.service.end_step();
}

fn reload(app: &App, text: &str) {
    let rules =
        Rules::parse(&[RulesFile { name: "rules/api.yaml".into(), text: text.into() }]).expect("the rules are valid");
    app.service.replace_rules(rules);
}

/// Sums up the lines of a metric whose labels contain all of `labels`.
fn metric(page: &str, name: &str, labels: &[&str]) -> u64 {
    let lines =
        page.lines().filter(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")));
    let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    lines.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect("a number")).sum()
}

#[test]
fn the_figures_are_those_of_the_metrics() {
    let app = App::new();
    for (key, cost) in [("user_id", 1), ("shadowed", 1), ("soft", 1), ("pair", 1), ("free", 1), ("tokens", 90)] {
        let statuses = [0; 4].map(|_| check(&app, key, cost));
        assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{key}: {statuses:?}");
    }
    assert_eq!(app.post("/v1/check", "nonsense").status, 400);
    let (overview, page) = (overview(&app), get(&app, "/metrics"));
    let requests = &overview["requests"];
    for outcome in ["allowed", "refused"] {
        let counted = metric(&page, "spillgate_requests_total", &[&format!("outcome=\"{outcome}\"")]);
        assert!(counted > 0 && requests[outcome] == counted, "{outcome}: {counted}, {requests}");
    }
    assert_eq!(requests["rejected"], metric(&page, "spillgate_requests_rejected_total", &[]));
    assert_eq!((&requests["rejected"], &requests["errors"]), (&json!(1), &json!(0)));
    let mut seen = [0; 5];
    for limit in overview["limits"].as_array().expect("there is a list") {
        let name = limit["name"].as_str().map(|name| format!("limit={name:?}")).unwrap_or_default();
        let rule = format!("rule=\"{}\"", limit["rule"].as_str().expect("the rule has a path").replace('"', "\\\""));
        for (at, outcome) in ["allowed", "refused", "shadow_refused", "soft_over"].into_iter().enumerate() {
            let labels = [&*rule, &*name, &*format!("outcome=\"{outcome}\"")];
            assert_eq!(limit[outcome], metric(&page, "spillgate_limit_hits_total", &labels), "{labels:?}");
            seen[at] += limit[outcome].as_u64().unwrap_or_default();
        }
        assert_eq!(limit["near"], metric(&page, "spillgate_limit_near_total", &[&rule, &name]), "{rule} {name}");
        seen[4] += limit["near"].as_u64().unwrap_or_default();
    }
    assert!(seen.iter().all(|count| *count > 0), "each outcome was compared: {seen:?}");
    assert_eq!(overview["memory"]["keys"], metric(&page, "spillgate_store_keys", &[]));
    assert_eq!(overview["memory"]["full_requests"], metric(&page, "spillgate_store_full_total", &[]));
    assert_eq!(
        overview["rules_loaded_ms"],
        1000 * metric(&page, "spillgate_rules_last_reload_success_timestamp_seconds", &[])
    );
}

#[test]
fn the_head_says_what_server_it_is() {
    let app = App::new();
    let overview = overview(&app);
    let server = &overview["server"];
    assert_eq!((&server["version"], &server["shadow"]), (&json!(env!("CARGO_PKG_VERSION")), &json!(false)));
    assert_eq!(
        (&server["started_ms"], &overview["at_ms"]),
        (&json!(1_700_006_400_000_u64), &json!(1_700_006_400_000_u64))
    );
    let memory = json!({"kind": "memory", "url": null, "up": null, "error": null, "latency_ns": null});
    assert_eq!(
        (&overview["store"], &overview["memory"]["keys_max"]),
        (&memory, &json!(app.service.limiter().store().memory().max_keys()))
    );
    assert!(overview["memory"]["process_bytes"].as_u64() > Some(1 << 20));
    let of_steps =
        (&overview["step_ms"], &overview["history_at_ms"], &overview["limits_left_out"], &overview["changes"]);
    assert_eq!(of_steps, (&json!(10_000), &Value::Null, &json!(0), &json!(0)));
    let ids: Vec<_> =
        overview["limits"].as_array().expect("there is a list").iter().map(|limit| limit["id"].clone()).collect();
    assert!(ids.len() > 10 && ids.iter().enumerate().all(|(at, id)| *id == at), "{ids:?}");
    let limit = limit(&overview, "user_id");
    assert_eq!((&limit["name"], &limit["line"], &limit["capacity"]), (&json!("per_user"), &json!(4), &json!(3)));
}

#[test]
fn a_step_has_what_was_counted_since_the_step_before() {
    let app = App::with(options(), ServiceOptions { insight: watched(), ..ServiceOptions::default() });
    check(&app, "user_id", 2);
    end_step(&app);
    assert_eq!([0; 3].map(|_| check(&app, "user_id", 1)), [200, 429, 429]);
    check(&app, "shadowed", 1);
    check(&app, "shadowed", 1);
    assert_eq!([0; 2].map(|_| check(&app, "soft", 1)), [200, 200]);
    end_step(&app);
    end_step(&app);
    let found = overview(&app);
    assert_eq!(found["requests"]["history"], json!({"allowed": [1, 5, 0], "refused": [0, 2, 0], "errors": [0, 0, 0]}));
    assert_eq!(found["history_at_ms"], 1_700_006_430_000_u64);
    let history = &limit(&found, "user_id")["history"];
    let expected = json!({"allowed": [1, 1, 0], "refused": [0, 2, 0], "near": [0, 1, 0], "shadow_refused": [0, 0, 0], "soft_over": [0, 0, 0]});
    for (name, steps) in expected.as_object().expect("it is an object") {
        assert_eq!(history[name], *steps, "{name}");
    }
    // The refusals of the second step come 10 s after the start of the limit's window, so about 3,590 s of the hour are
    // left. No request of the first step was refused.
    let waits: Vec<_> = history["wait_ms"].as_array().expect("it is a list").iter().map(Value::as_u64).collect();
    assert_eq!(waits[0], None);
    assert!(waits[1..].iter().all(|wait| (3_580_000..4_500_000).contains(&wait.unwrap_or_default())), "{waits:?}");
    assert_eq!(limit(&found, "shadowed")["history"]["shadow_refused"], json!([0, 1, 0]));
    let soft = found["limits"].as_array().expect("it is a list").iter().find(|limit| limit["name"] == "tuned");
    assert_eq!(soft.expect("the limit is listed")["history"]["soft_over"], json!([0, 1, 0]));
}

#[test]
fn a_wait_is_forgotten_after_a_minute() {
    let app = App::with(options(), ServiceOptions { insight: watched(), ..ServiceOptions::default() });
    check(&app, "user_id", 4);
    check(&app, "remote_address", 2);
    check(&app, "remote_address", 1);
    (0..10).for_each(|_| end_step(&app));
    let found = overview(&app);
    let waits = |rule: &str| limit(&found, rule)["history"]["wait_ms"].as_array().expect("it is a list").clone();
    assert_eq!(waits("user_id"), vec![Value::Null; 10], "a request that can never pass has no wait");
    let known: Vec<_> = waits("remote_address").iter().map(Value::is_u64).collect();
    assert!(known[..6].iter().all(|known| *known) && known[8..].iter().all(|known| !known), "{known:?}");
}

#[test]
fn a_history_has_at_most_ten_minutes() {
    let app = App::new();
    for _ in 0..HISTORY_STEPS + 5 {
        check(&app, "path", 1);
        end_step(&app);
    }
    check(&app, "user_id", 1);
    end_step(&app);
    let found = overview(&app);
    for history in [&found["requests"]["history"], &limit(&found, "user_id")["history"]] {
        for (name, steps) in history.as_object().expect("it is an object") {
            assert_eq!(steps.as_array().map(Vec::len), Some(HISTORY_STEPS), "{name}");
        }
    }
    assert_eq!(limit(&found, "user_id")["history"]["allowed"][HISTORY_STEPS - 1], 1);
    assert_eq!(found["requests"]["history"]["allowed"], json!(vec![1; HISTORY_STEPS]));
}

fn watched() -> Insight {
    Insight { max_callers: 4000, ..Insight::default() }
}

#[test]
fn an_overview_with_steps_is_as_the_openapi_file_says() {
    let app = App::with(options(), ServiceOptions { insight: watched(), ..ServiceOptions::default() });
    for _ in 0..3 {
        check(&app, "remote_address", 1);
        end_step(&app);
    }
    let file: Value = serde_json::from_str(&get(&app, "/openapi.json")).expect("the file is JSON");
    let schema = &file["components"]["schemas"]["Overview"];
    schema::check(&file, schema, &overview(&app), "/overview").unwrap_or_else(|error| panic!("{error}"));
}

/// Rules with these limits of the key `user_id`.
fn rules(limits: &str) -> String {
    format!("domain: api\ndescriptors:\n  - key: user_id\n    rate_limits: [{limits}]\n")
}

#[test]
fn a_reload_keeps_the_history_of_limits_that_stay() {
    let app = App::new();
    let (a, b) = ("{name: a, unit: hour, limit: 5}", "{name: b, unit: day, limit: 5}");
    reload(&app, &rules(&format!("{a}, {b}")));
    check(&app, "user_id", 1);
    end_step(&app);
    let before = overview(&app);
    check(&app, "user_id", 1);
    reload(&app, &rules(&format!("{{name: new, unit: hour, limit: 5}}, {b}")));
    let after = overview(&app);
    assert!(after["changes"].as_u64() > before["changes"].as_u64(), "{after}");
    let column = |overview: &Value, name: &str| -> Vec<Value> {
        overview["limits"]
            .as_array()
            .expect("it is a list")
            .iter()
            .map(|limit| limit["history"][name].clone())
            .collect()
    };
    assert_eq!(column(&before, "allowed"), [json!([1]), json!([1])]);
    assert_eq!(column(&after, "allowed"), [json!([]), json!([1])], "the new limit has no history yet");
    end_step(&app);
    assert_eq!(column(&overview(&app), "allowed"), [json!([0]), json!([1, 1])]);
    // A limit that was removed and comes back has an empty history, and its counters begin at zero.
    reload(&app, &rules(a));
    assert_eq!(column(&overview(&app), "allowed"), [json!([])]);
}

#[test]
fn a_failed_reload_changes_the_number_of_changes() {
    let app = App::new();
    let before = overview(&app)["changes"].as_u64();
    app.service.metrics().reload_failures.inc();
    app.service.metrics().reload_successful.set(0);
    let after = overview(&app);
    assert!(after["changes"].as_u64() > before && after["reload_successful"] == false, "{after}");
}

#[test]
fn only_the_first_thousand_limits_are_listed() {
    let app = App::new();
    let text = |limits: usize| {
        let rule = |at| format!("  - {{key: k{at}, rate_limit: {{unit: hour, limit: 5}}}}\n");
        format!("domain: api\ndescriptors:\n{}", (0..limits).map(rule).collect::<String>())
    };
    for (limits, left_out) in [(999, 0), (1000, 0), (1003, 3)] {
        reload(&app, &text(limits));
        let found = overview(&app);
        assert_eq!(found["limits"].as_array().map(Vec::len), Some(limits - left_out));
        assert_eq!((&found["limits_left_out"], &found["rules"]), (&json!(left_out), &json!(limits)));
        end_step(&app);
        let found = overview(&app);
        let steps = limit(&found, "k998")["history"]["allowed"].as_array().map(Vec::len);
        assert!(steps > Some(0), "{steps:?}");
    }
    reload(&app, "domain: api\n");
    assert_eq!(overview(&app)["limits"], json!([]), "there can be no limits");
    let nested = "domain: api\ndescriptors: [{key: a, descriptors: [{key: b, rate_limit: {unit: hour, limit: 5}}]}]\n";
    reload(&app, nested);
    let found = overview(&app);
    assert_eq!((found["limits"].as_array().map(Vec::len), &found["rules"]), (Some(1), &json!(2)), "one has no limit");
}

#[test]
fn verdicts_are_those_of_insight_and_at_most_ten_seconds_old() {
    let app = App::with(options(), ServiceOptions { insight: watched(), ..ServiceOptions::default() });
    let said = |overview: &Value| {
        let limit = limit(overview, "user_id");
        (limit["verdict"].clone(), limit["reason"].clone(), limit["attention"].clone())
    };
    check(&app, "user_id", 1);
    let (verdict, reason, attention) = said(&overview(&app));
    assert_eq!((verdict, attention), (json!("too_early"), json!(2)));
    check(&app, "user_id", 1);
    app.clock.advance(Duration::from_secs(9));
    assert_eq!(said(&overview(&app)).1, reason, "the samples are not read again");
    app.clock.advance(Duration::from_secs(1));
    let insight: Value = serde_json::from_str(&get(&app, "/insight")).expect("the answer is JSON");
    let now = said(&overview(&app)).1;
    assert!(now != reason && now == limit(&insight, "user_id")["reason"], "{now}");
    let unwatched = overview(&App::with(
        options(),
        ServiceOptions { insight: Insight { max_callers: 0, ..watched() }, ..ServiceOptions::default() },
    ));
    assert_eq!(said(&unwatched), (Value::Null, Value::Null, json!(0)));
}

#[test]
fn a_server_in_shadow_mode_says_so() {
    let app = App::with(options(), ServiceOptions { shadow: true, ..ServiceOptions::default() });
    let found = overview(&app);
    assert_eq!(found["server"]["shadow"], true);
    assert_eq!(limit(&found, "user_id")["options"]["binding"], "shadow");
}
