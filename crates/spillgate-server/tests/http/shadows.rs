//! Tests of `POST /shadow` and `GET /shadows` on the memory store.
//!
//! A shadow switch puts a rule into shadow for a time, without a reload. Its effect has to be that of `shadow_mode:
//! true`.

use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::{Value, json};
use spillgate::rules::{Rules, RulesFile};
use spillgate_service::ServiceOptions;
use spillgate_service::operator::{SWITCHES_MAX, ShadowOf};

use crate::http::app::{App, Reply, options};

fn shadow(app: &App, body: &Value) -> Reply {
    app.operate("POST", "/shadow", body)
}

fn rule(path: &str) -> Value {
    json!({"domain": "api", "path": path})
}

fn on(app: &App, rule: &Value) -> Value {
    let reply = shadow(app, &json!({"rule": rule, "on": true, "for": "30m"}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn shadows(app: &App) -> Value {
    app.operate("GET", "/shadows", &Value::Null).json()
}

fn check(app: &App, descriptor: &Value, cost: u64) -> Reply {
    app.post("/v1/check", &json!({"domain": "api", "descriptors": [descriptor], "cost": cost}).to_string())
}

fn metric(app: &App, sample: &str) -> u64 {
    let page = app.operate("GET", "/metrics", &Value::Null).body;
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{sample} is missing: {page}")).parse().expect("it is a number")
}

fn decisions(app: &App, outcome: &str) -> u64 {
    let labels = format!("domain=\"api\",rule=\"user_id\",outcome=\"{outcome}\"");
    metric(app, &format!("spillgate_decisions_total{{{labels}}}"))
}

#[test]
fn a_rule_in_shadow_counts_what_it_would_refuse() {
    let app = App::new();
    let user = json!({"user_id": "7"});
    assert_eq!(check(&app, &user, 3).status, 200);
    assert_eq!(check(&app, &user, 1).status, 429);
    let now_ms = 1_700_006_400_000_u64;
    let expected = json!({"shadow": {
        "rule": rule("user_id"), "on": true, "scopes": ["server"], "until_ms": now_ms + 1_800_000, "ends_in_ms": 1_800_000,
        "since_ms": now_ms, "also": [],
    }});
    assert_eq!(on(&app, &rule("user_id")), expected);
    let listed = json!({
        "domain": "api", "path": "user_id", "scope": "server", "until_ms": now_ms + 1_800_000, "ends_in_ms": 1_800_000,
        "since_ms": now_ms,
    });
    let page = json!({
        "scope_default": "server", "read_ms_ago": null, "all": null, "rules": [listed],
        "by_file": [rule("shadowed")], "by_file_left_out": 0, "by_server": false,
    });
    assert_eq!(shadows(&app), page);
    assert_eq!(check(&app, &user, 1).status, 200);
    assert_eq!((decisions(&app, "refused"), decisions(&app, "shadow_refused")), (1, 1));
    let of_limit = "domain=\"api\",rule=\"user_id\",limit=\"per_user\"";
    assert_eq!(metric(&app, &format!("spillgate_limit_hits_total{{{of_limit},outcome=\"shadow_refused\"}}")), 1);
    assert_eq!(metric(&app, "spillgate_shadow_switches"), 1);
    app.clock.advance(Duration::from_secs(1799));
    assert_eq!(check(&app, &user, 1).status, 200);
    app.clock.advance(Duration::from_secs(1));
    assert_eq!(check(&app, &user, 1).status, 429, "the switch has ended by itself");
    assert_eq!((shadows(&app)["rules"].clone(), metric(&app, "spillgate_shadow_switches")), (json!([]), 0));
}

#[test]
fn a_rule_in_shadow_answers_as_one_with_shadow_mode() {
    shadow_is_shadow_mode("", "", "");
}

#[test]
fn a_rule_in_shadow_answers_as_one_with_shadow_mode_in_a_domain_with_compat_envoy() {
    shadow_is_shadow_mode("compat: envoy\n", "", "");
}

#[test]
fn a_rule_in_shadow_answers_as_one_with_shadow_mode_in_sketches() {
    shadow_is_shadow_mode("", "", ", representation: sketch, sketch_memory: 1MiB");
    shadow_is_shadow_mode("compat: envoy\n", "", ", denied: free, representation: sketch, sketch_memory: 1MiB");
}

#[test]
fn a_rule_in_shadow_that_is_paid_later_answers_as_one_with_shadow_mode() {
    shadow_is_shadow_mode("", "", ", post_paid: true");
}

#[test]
fn a_rule_in_shadow_is_not_in_quota_mode() {
    shadow_is_shadow_mode("", "quota_mode: true, ", "");
}

/// Compares the answers of two servers: on one, the rule has a shadow switch, and on the other `shadow_mode: true`.
/// `domain` has options of the domain, `rule_option` an option of the rule with the switch, and `limit` options of the
/// rule's limits.
fn shadow_is_shadow_mode(domain: &str, rule_option: &str, limit: &str) {
    let text = |mode: &str| {
        format!(
            "domain: api\n{domain}descriptors:\n  - {{key: user_id, {mode}rate_limits: [{{name: a, unit: hour, requests_per_unit: 2{limit}}}, \
             {{name: b, unit: day, requests_per_unit: 3, expose: false{limit}}}]}}\n  - {{key: other, rate_limit: {{name: other, unit: hour, \
             requests_per_unit: 4}}}}\n"
        )
    };
    let app = |mode: &str| {
        let app = App::new();
        let mut rules =
            Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text(mode) }]).expect("the rules are valid");
        rules.open_sketches(None, NonZeroU32::MIN).expect("there is memory for the sketches");
        app.service.replace_rules(rules);
        app
    };
    let (switched, written) = (app(rule_option), app("shadow_mode: true, "));
    on(&switched, &rule("user_id"));
    let rls = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user_id","value":"7"}]},{"entries":[{"key":"other","value":"7"}]}]}"#;
    let check = json!({"domain": "api", "descriptors": [{"user_id": "7"}, {"other": "7"}]}).to_string();
    let reserve = json!({"domain": "api", "descriptors": [{"user_id": "8"}], "estimate": 2}).to_string();
    for round in 0..4 {
        for (path, body) in [("/json", rls), ("/v1/check", &check), ("/v1/reserve", &reserve)] {
            let [one, other] = [&switched, &written].map(|app| app.post(path, body));
            let text = |reply: &Reply| {
                let mut json = reply.json();
                if let Some(id) = json.get_mut("reservation_id") {
                    // Each server signs its ids with its own secret.
                    *id = json!(id.is_string());
                }
                (reply.status, json, reply.header("ratelimit").map(str::to_owned))
            };
            assert_eq!(text(&one), text(&other), "{path} {round}");
        }
    }
    for outcome in ["allowed", "refused", "shadow_refused", "soft_over"] {
        assert_eq!(decisions(&switched, outcome), decisions(&written, outcome), "{outcome}");
    }
    assert!(decisions(&switched, "shadow_refused") > 0);
}

#[test]
fn all_rules_can_be_put_into_shadow_and_taken_out() {
    let app = App::new();
    let (user, like) = (json!({"user_id": "7"}), json!({"like": "7"}));
    for descriptor in [&user, &like] {
        check(&app, descriptor, 2);
        assert_eq!(check(&app, descriptor, 2).status, 429);
    }
    on(&app, &json!("all"));
    on(&app, &rule("user_id"));
    assert_eq!([&user, &like].map(|descriptor| check(&app, descriptor, 2).status), [200, 200]);
    assert_eq!(
        (&shadows(&app)["all"]["ends_in_ms"], &shadows(&app)["all"]["scope"]),
        (&json!(1_800_000), &json!("server"))
    );
    let off = |rule: &Value| shadow(&app, &json!({"rule": rule, "on": false}));
    let reply = off(&json!("all"));
    let nothing = json!({"rule": "all", "on": false, "scopes": ["server"], "until_ms": null, "ends_in_ms": null, "since_ms": null, "also": []});
    assert_eq!((reply.status, &reply.json()["shadow"]), (200, &nothing));
    assert_eq!([&user, &like].map(|descriptor| check(&app, descriptor, 2).status), [200, 429]);
    assert_eq!(
        (off(&rule("user_id")).status, off(&rule("user_id")).status, off(&json!("all")).status),
        (200, 404, 404)
    );
    assert_eq!(check(&app, &user, 2).status, 429);
    assert!(!app.service.operator().in_force().switches().any(|_| true), "nothing is kept");
}

#[test]
fn a_switch_never_turns_the_mode_of_a_rules_file_off() {
    let app = App::new();
    let shadowed = json!({"shadowed": "7"});
    on(&app, &rule("shadowed"));
    assert_eq!(shadow(&app, &json!({"rule": rule("shadowed"), "on": false})).status, 200);
    assert_eq!([1, 1, 1].map(|cost| check(&app, &shadowed, cost).status), [200; 3]);
    assert_eq!(shadow(&app, &json!({"rule": rule("shadowed"), "on": false})).status, 404);
}

/// A refusal that comes from no rule, for example because of `deny_unmatched`, is not affected by shadow switches.
#[test]
fn limits_of_no_rule_are_not_in_shadow() {
    let app = App::with(options(), ServiceOptions { deny_unmatched: true, ..ServiceOptions::default() });
    on(&app, &json!("all"));
    assert_eq!(check(&app, &json!({"unknown": "7"}), 1).status, 429);
}

#[test]
fn a_switch_stays_when_rules_are_reloaded() {
    let app = App::new();
    let user = json!({"user_id": "7"});
    check(&app, &user, 3);
    on(&app, &rule("user_id"));
    app.service.replace_rules(Rules::clone(&app.service.rules()));
    assert_eq!(check(&app, &user, 3).status, 200);
}

#[test]
fn an_explanation_shows_the_switches_that_are_on() {
    let app = App::new();
    check(&app, &json!({"user_id": "7"}), 3);
    let explain = || {
        let body = json!({"domain": "api", "descriptors": [{"user_id": "7"}]});
        app.operate("POST", "/explain", &body).json()
    };
    assert_eq!(explain()["asked"][0]["allowed"], false);
    on(&app, &rule("user_id"));
    let explained = explain();
    let switches = &explained["descriptors"][0]["matched"]["shadow_switches"];
    assert_eq!((&switches[0]["scope"], &switches[0]["ends_in_ms"]), (&json!("server"), &json!(1_800_000)));
    let asked = &explained["asked"][0];
    assert_eq!((&asked["allowed"], &asked["limits"][0]["allowed"]), (&json!(true), &json!(false)));
}

#[test]
fn invalid_switches_are_answered_with_the_reason() {
    let app = App::new();
    let ask = |body: Value, status: u16| shadow(&app, &body).problem(status);
    let found = |path: &str| ask(json!({"rule": rule(path), "on": true, "for": "1m"}), 404);
    assert!(found("user").contains("GET /rules show the paths"));
    assert!(found("user_ids").contains("did you mean the rule `user_id`?"));
    assert!(found("outer>inner").contains("did you mean the rule `outer > inner`?"));
    let domain = json!({"rule": {"domain": "apy", "path": "user_id"}, "on": true, "for": "1m"});
    assert!(ask(domain, 404).contains("did you mean the domain `api`?"));
    for (body, why) in [
        (json!({"rule": "all", "on": true}), "`for` is missing"),
        (json!({"rule": "all", "on": false, "for": "1m"}), "`for` has no meaning"),
        (json!({"rule": "all", "on": true, "for": "31d"}), "not from 1 s to 30 days"),
        (json!({"rule": "all", "on": true, "for": "1m", "scope": "fleet"}), "shares no store"),
        (json!({"rule": "all", "on": true, "for": "1m", "scope": "world"}), "unknown variant"),
        (json!({"rule": "user_id", "on": true, "for": "1m"}), r#""all", or a rule"#),
        (json!({"rule": 7, "on": true, "for": "1m"}), r#""all", or a rule"#),
        (json!({"rule": {"domain": "api"}, "on": true, "for": "1m"}), "missing field `path`"),
        (json!({"rule": {"domain": "api", "path": "user_id", "x": 1}, "on": true, "for": "1m"}), "unknown field `x`"),
        (json!({"rule": "all", "on": "yes", "for": "1m"}), "invalid type"),
        (json!({"rule": "all", "on": true, "for": "1m", "x": 1}), "unknown field `x`"),
    ] {
        let problem = ask(body.clone(), 400);
        assert!(problem.contains(why), "{body}: {problem}");
    }
    assert_eq!(shadows(&app)["rules"], json!([]));
}

#[test]
fn the_number_of_switches_is_bounded() {
    let app = App::new();
    let rules: Vec<_> = (0..=SWITCHES_MAX)
        .map(|number| format!("  - {{key: k{number}, rate_limit: {{unit: hour, requests_per_unit: 0}}}}\n"))
        .collect();
    let text = format!("domain: api\ndescriptors:\n{}", rules.concat());
    let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text }]).expect("the rules are valid");
    app.service.replace_rules(rules);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("the runtime starts");
    for number in 0..SWITCHES_MAX {
        let path = format!("k{number}");
        let of = ShadowOf::Rule { domain: "api", path: &path };
        runtime.block_on(app.service.shadow_on(of, "1h", None)).expect("there is space");
    }
    let more = json!({"rule": rule(&format!("k{SWITCHES_MAX}")), "on": true, "for": "1m"});
    let problem = shadow(&app, &more).problem(409);
    assert!(problem.contains("the list of shadow switches is full: it can have 1000"), "{problem}");
    assert!(problem.contains("write `shadow_mode: true` into a rules file"), "{problem}");
    let mut more_descriptor = json!({});
    more_descriptor[format!("k{SWITCHES_MAX}")] = json!("7");
    assert_eq!(check(&app, &more_descriptor, 1).status, 429);
    on(&app, &rule("k7"));
    on(&app, &json!("all"));
    assert_eq!(check(&app, &more_descriptor, 1).status, 200);
}
