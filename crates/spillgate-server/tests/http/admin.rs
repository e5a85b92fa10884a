//! Tests of the admin listener: its metrics, rules and resets.
//!
//! `access.rs` tests that clients without the right to ask are refused.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use spillgate::rules::{Rules, RulesFile};
use spillgate_admin::{Needs, routes};

use crate::http::app::{App, Reply};

const LOCAL: &str = "127.0.0.1:4711";
const REMOTE: &str = "203.0.113.9:4711";

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).expect("the request is valid")
}

fn reset(body: &str) -> Request<Body> {
    let request = Request::post("/reset").header("x-spillgate-admin", "1");
    request.body(Body::from(body.to_owned())).expect("the request is valid")
}

fn use_up(app: &App) {
    let body = r#"{"domain":"api","descriptors":[{"user_id":"7"}],"cost":3}"#;
    assert_eq!(app.post("/v1/check", body).status, 200);
    assert_eq!(app.post("/v1/check", body).status, 429);
}

fn remaining(app: &App) -> serde_json::Value {
    app.post("/v1/check", r#"{"domain":"api","descriptors":[{"user_id":"7"}],"cost":0}"#).json()["remaining"].clone()
}

fn metrics(app: &App, accept: &str) -> Reply {
    let request = Request::get("/metrics").header("accept", accept).body(Body::empty()).expect("the request is valid");
    app.admin(None, REMOTE, request)
}

#[test]
fn metrics_are_text_with_the_counts() {
    let app = App::new();
    use_up(&app);
    let reply = app.admin(None, REMOTE, get("/metrics"));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let refused = "\nspillgate_requests_total{protocol=\"http\",source=\"store\",outcome=\"refused\"} 1\n";
    assert!(reply.body.contains(refused), "{}", reply.body);
}

#[test]
fn metrics_have_the_requested_format() {
    let app = App::new();
    let open = metrics(&app, "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5");
    assert_eq!(open.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(open.body.contains("\n# TYPE spillgate_requests counter\n"), "{}", open.body);
    assert!(open.body.ends_with("\n# EOF\n"));
    let text = metrics(&app, "text/plain;version=0.0.4");
    assert_eq!(text.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(text.body.contains("\n# TYPE spillgate_requests_total counter\n"), "{}", text.body);
    assert!(!text.body.contains("# EOF"));
    let samples = |page: &Reply| -> Vec<String> {
        // The metrics of the process change from scrape to scrape.
        let is_sample = |line: &&str| !line.starts_with('#') && !line.starts_with("process_");
        page.body.lines().filter(is_sample).map(str::to_owned).collect()
    };
    assert_eq!(samples(&open), samples(&text));
}

#[test]
fn samples_are_sorted_and_each_appears_once() {
    let app = App::new();
    let page = metrics(&app, "text/plain").body;
    let samples: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
    let series: Vec<_> = samples.iter().map(|line| line.rsplit_once(' ').expect("each sample has a value").0).collect();
    let unique: BTreeSet<_> = series.iter().collect();
    assert!(series.len() > 50 && unique.len() == series.len(), "{page}");
    // Histograms are left out: their buckets are sorted by the numbers of the bounds, not by their text.
    let others = series.iter().filter(|series| !series.contains("_duration_seconds_"));
    let others: Vec<_> =
        others.map(|series| series.split('{').next().map(|name| (name.trim_end_matches("_total"), *series))).collect();
    assert!(others.is_sorted(), "{page}");
}

#[test]
fn without_a_store_and_snapshots_their_gauges_are_absent() {
    let page = metrics(&App::new(), "text/plain").body;
    let gauges = ["store_up", "store_circuit", "store_in_flight", "snapshot_timestamp_seconds"];
    for name in gauges {
        assert!(!page.contains(&format!("spillgate_{name}")), "{name}: {page}");
    }
}

#[test]
fn rules_are_shown_with_the_line_they_were_written_on() {
    let app = App::new();
    let listing = app.admin(None, REMOTE, get("/rules")).json();
    assert_eq!(listing["domains"], json!([{"name": "api", "file": "rules/api.yaml", "compat_envoy": false}]));
    let rules = listing["rules"].as_array().expect("`rules` is a list");
    let rule = rules.iter().find(|rule| rule["rule"] == "user_id").expect("the rule is listed");
    let expected = json!({
        "domain": "api", "rule": "user_id", "file": "rules/api.yaml", "line": 4, "unlimited": false,
        "shadow_mode": false, "quota_mode": false,
        "limits": [{"domain": "api", "rule": "user_id", "name": "per_user", "label": "per_user",
                    "summary": "3 per hour, fixed window", "algorithm": "fixed_window", "limit": 3,
                    "window_ns": 3_600_000_000_000_u64, "capacity": 3, "sketch_bytes": null, "file": "rules/api.yaml",
                    "line": 4, "options": {"anchor": "epoch", "segments": null, "hard_capacity": 3, "penalty_ns": 0,
                    "denied": "free", "lease_ns": 0, "post_paid": false, "exposed": true, "across_regions": "each", "regions": null,
                    "binding": "enforce"}}],
    });
    assert_eq!(*rule, expected);
    assert!(rules.iter().any(|rule| rule["rule"] == "outer > inner"), "{listing}");
    assert!(rules.iter().any(|rule| rule["limits"][0]["sketch_bytes"].is_u64()), "{listing}");
}

#[test]
fn one_rule_is_shown_with_its_text() {
    let app = App::new();
    let answer = app.admin(None, REMOTE, get("/rules?domain=api&rule=user_id")).json();
    let all = app.admin(None, REMOTE, get("/rules")).json();
    assert_eq!(answer["domains"], all["domains"]);
    let [rule] = answer["rules"].as_array().expect("`rules` is a list").as_slice() else { panic!("{answer}") };
    let text = "- key: user_id\n  rate_limit: {name: per_user, unit: hour, requests_per_unit: 3}";
    assert_eq!((&rule["text"], &rule["text_bytes_left_out"]), (&json!(text), &json!(0)));
    assert_eq!(rule["line"], 4);
    for (query, wrong) in [
        ("domain=api", "only one of `domain` and `rule`"),
        ("rule=user_id", "only one of `domain` and `rule`"),
        ("domain=api&rule=user_id&x=1", "unknown field `x`"),
        ("domain=api&domain=b&rule=user_id", "duplicate field `domain`"),
    ] {
        let reply = app.admin(None, REMOTE, get(&format!("/rules?{query}")));
        assert!(reply.problem(400).contains(wrong), "{query}: {}", reply.body);
        assert!(reply.problem(400).contains("/rules?domain=DOMAIN&rule=PATH"), "{query}: {}", reply.body);
    }
    for query in ["domain=api&rule=none", "domain=none&rule=user_id", "domain=%FF&rule=user_id", "domain=&rule="] {
        assert!(app.admin(None, REMOTE, get(&format!("/rules?{query}"))).problem(404).contains("GET /rules lists"));
    }
}

#[test]
fn the_text_of_a_large_rule_is_cut_at_the_end_of_a_line() {
    let nested: String = (0..1000).map(|n| format!("      - {{key: inner, value: \"{n}\"}}\n")).collect();
    let text = format!("domain: large\ndescriptors:\n  - key: outer\n    descriptors:\n{nested}");
    let written = text.replace("\n  ", "\n");
    let written = &written[written.find("- key: outer").expect("it is there")..].trim_end();
    let loaded = [RulesFile { name: "large.yaml".into(), text }];
    let app = App::new();
    app.service.replace_rules(Rules::parse(&loaded).expect("the rules are valid"));
    let answer = app.admin(None, REMOTE, get("/rules?domain=large&rule=outer")).json();
    let rule = &answer["rules"][0];
    let shown = rule["text"].as_str().expect("it is a text");
    assert!(written.starts_with(&format!("{shown}\n")) && shown.len() > 15_000, "{shown}");
    // The member counts bytes of the file. Each line of the file has two spaces more than a line of `written`, and the
    // text that is shown ends without a line end.
    let left_out = written.len() - shown.len() + 2 * (written.lines().count() - shown.lines().count());
    assert_eq!(rule["text_bytes_left_out"], left_out);
    let inner = app.admin(None, REMOTE, get("/rules?domain=large&rule=outer+%3E+inner%3D999")).json();
    assert_eq!(inner["rules"][0]["text"], r#"- {key: inner, value: "999"}"#);
    // Rules that a program writes can have very long lines.
    let note = "é".repeat(10_000);
    for begin in ["", "\n  ", "\r\n  ", "\r  "] {
        let text =
            format!(r#"{{"domain":"large","descriptors":[{{"key":"a",{begin}"metadata":{{"note":"{note}"}}}}]}}"#);
        let loaded = [RulesFile { name: "large.json".into(), text }];
        app.service.replace_rules(Rules::parse(&loaded).expect("the rules are valid"));
        let answer = app.admin(None, REMOTE, get("/rules?domain=large&rule=a")).json();
        let rule = &answer["rules"][0];
        let shown = rule["text"].as_str().expect("it is a text");
        let begin = begin.replace(['\r', '\n'], "").replacen("  ", "\n  ", 1);
        let expected = format!(r#"{{"key":"a",{begin}"metadata":{{"note":"é"#);
        assert!(shown.starts_with(&expected) && (16_380..=16_384).contains(&shown.len()), "{shown}");
    }
}

#[test]
fn a_reset_deletes_what_a_rule_counted() {
    let app = App::new();
    use_up(&app);
    let reply = app.admin(None, LOCAL, reset(r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#));
    let answer = reply.json();
    assert_eq!((reply.status, &answer["reset"], &answer["limits_left_out"]), (200, &json!(1), &json!(0)));
    let [limit] = answer["limits"].as_array().map(Vec::as_slice).unwrap_or_default() else { panic!("{answer}") };
    assert_eq!((&limit["limit"]["name"], &limit["shared"]), (&json!("per_user"), &json!(false)));
    assert_eq!(remaining(&app), 3);
}

#[test]
fn a_reset_deletes_what_a_hit_counted() {
    let app = App::new();
    let hit = r#"{"bucket":"login","key":"7","limit":1,"window_ms":60000,"penalty_ms":600000}"#;
    assert_eq!([app.post("/v1/hit", hit).status, app.post("/v1/hit", hit).status], [200, 429]);
    let answer = app.admin(None, LOCAL, reset(hit)).json();
    assert_eq!(answer, json!({"reset": 1, "limits": [], "limits_left_out": 0}), "no rule has the limit");
    assert_eq!(app.post("/v1/hit", hit).status, 200, "the penalty is deleted too");
}

#[test]
fn a_reset_with_an_unknown_descriptor_resets_nothing() {
    let app = App::new();
    use_up(&app);
    let reply = app.admin(None, LOCAL, reset(r#"{"domain":"api","descriptors":[{"user_id":"7"},{"unknown":"1"}]}"#));
    assert!(reply.problem(404).contains("no limit matches descriptor 2"));
    assert_eq!(remaining(&app), 0);
}

#[test]
fn an_invalid_reset_is_answered_with_the_reason() {
    let app = App::new();
    let ask = |body: &str| app.admin(None, LOCAL, reset(body));
    assert!(ask(r#"{"domain":"api","descriptors":[{"unknown":"7"}]}"#).problem(404).contains("no limit matches"));
    assert!(ask(r#"{"domain":"api","descriptors":[]}"#).problem(400).contains("no descriptors"));
    assert!(ask(r#"{"domain":"api","descriptor":[]}"#).problem(400).contains("unknown field `descriptor`"));
    assert!(ask(r#"{"bucket":"login"}"#).problem(400).contains("missing field `key`"));
    assert!(ask("nonsense").problem(400).contains("send JSON such as"));
}

/// The book names the routes of the admin listener. The book and the help of `admin_token_file` say which routes do not
/// need the token.
#[test]
fn book_and_help_name_the_routes_and_what_the_token_guards() {
    let app = App::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/src/reference/admin.md")).expect("the page exists");
    for (method, route, needs) in routes() {
        assert!(page.contains(route), "{route}: {page}");
        let request = Request::builder().method(method).uri(route).body(Body::empty()).expect("the request is valid");
        let is_guarded = app.admin(Some("token"), LOCAL, request).status == 401;
        assert_eq!(is_guarded, matches!(needs, Needs::Read | Needs::Write), "{route}");
    }
    assert!(page.contains("every route, except `/healthz`, `/readyz` and the files of the page (`/` and"), "{page}");
    let token =
        spillgate_server::settings::KEYS.iter().find(|key| key.path == "admin_token_file").expect("the setting exists");
    assert!(token.help.contains("except /healthz and /readyz"), "{}", token.help);
}
