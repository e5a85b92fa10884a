//! Tests of `GET /insight` and `GET /top`.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use spillgate::rules::{Rules, RulesFile};
use spillgate_service::{CallerKeys, Insight, ServiceOptions};

use crate::http::app::{App, RULES, options};

fn app(keys: CallerKeys) -> App {
    let insight = Insight { max_callers: 2000, keys };
    App::with(options(), ServiceOptions { insight, ..ServiceOptions::default() })
}

fn read(app: &App, path: &str) -> Value {
    let request = Request::get(path).body(Body::empty()).expect("the request is valid");
    let reply = app.admin(None, "203.0.113.9:4711", request);
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")), "{}", reply.body);
    reply.json()
}

/// Returns what a page says about the limit of the rule with the path `rule`.
fn limit(app: &App, path: &str, rule: &str) -> Value {
    let page = read(app, path);
    let limits = page["limits"].as_array().expect("the page has a list").iter();
    limits.into_iter().find(|limit| limit["rule"] == rule).unwrap_or_else(|| panic!("{rule}: {page}")).clone()
}

fn check(app: &App, body: &str) -> u16 {
    app.post("/v1/check", body).status
}

#[test]
fn insight_has_the_requests_of_each_limit() {
    let app = app(CallerKeys::Hashed);
    let body = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;
    assert_eq!([0; 5].map(|_| check(&app, body)), [200, 200, 200, 429, 429]);
    check(&app, r#"{"domain":"api","descriptors":[{"user_id":"8"}],"cost":2}"#);
    check(&app, r#"{"domain":"api","descriptors":[{"user_id":"8"}],"cost":0}"#);
    let found = limit(&app, "/insight", "user_id");
    assert_eq!(
        (&found["name"], &found["file"], &found["limit"]),
        (&json!("per_user"), &json!("rules/api.yaml"), &json!(3))
    );
    for span in found["spans"].as_array().expect("there are spans") {
        let counts = ["requests", "refused_requests", "units", "refused_units"].map(|name| span[name].as_u64());
        assert_eq!(counts, [6, 2, 7, 2].map(Some), "a peek that is allowed is no request: {span}");
        assert_eq!(
            (&span["callers"]["asked"]["value"], &span["callers"]["refused"]["value"]),
            (&json!(2.0), &json!(1.0))
        );
        assert_eq!(
            span["burst_needed"]["highest"],
            json!({"at_least": 4.0, "at_most": 5.0}),
            "three units passed, and two came once or twice"
        );
        assert_eq!(span["window_count"]["highest"], json!({"at_least": 4.0, "at_most": 5.0}));
        assert_eq!(span["use_share"]["highest"]["at_most"], json!(1.0));
    }
    assert_eq!((&found["verdict"], &found["who"]), (&json!("too_early"), &json!("one")));
    assert_eq!(found["reading"], Value::Null, "readings are only for those who ask for them");
    assert!(limit(&app, "/insight?readings=true", "user_id")["reading"].is_object());
}

#[test]
fn insight_says_what_another_limit_would_change() {
    let app = app(CallerKeys::Hashed);
    let body = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;
    assert_eq!([0; 5].map(|_| check(&app, body)), [200, 200, 200, 429, 429]);
    check(&app, r#"{"domain":"api","descriptors":[{"user_id":"8"}]}"#);
    let with = |limit: u64| limit_with(&app, limit)["with_limit"].clone();
    let range = |least: f64, most: f64| json!({"at_least": least, "at_most": most});
    let found = with(6);
    assert_eq!((&found["limit"], &found["refused_callers"]), (&json!(6), &range(0.0, 0.0)));
    let text = |limit: u64| with(limit)["text"].as_str().unwrap_or_default().to_owned();
    let said = text(6);
    for part in [
        "With 6 instead of 3, the one caller refused in the last ",
        " (2 refused units). These are 2 of 2 refused units. In all, 0 of 2 callers would be \
         refused at least once. In the last ",
        ", it was 1.",
        " would not be refused: hash ",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(text(4).contains(" For 1 caller, it depends: hash "), "{}", text(4));
    assert_eq!(limit(&app, "/insight", "user_id")["with_limit"], Value::Null, "nobody has asked");
    assert_eq!(with(0), Value::Null);
    assert_eq!(with(u64::MAX), Value::Null);
    let request = Request::get("/insight?limit=many").body(Body::empty()).expect("the request is valid");
    let reply = app.admin(None, "203.0.113.9:4711", request);
    assert!(reply.status == 400 && reply.body.contains("`limit` is another limit as a whole number"), "{}", reply.body);
}

fn limit_with(app: &App, other: u64) -> Value {
    limit(app, &format!("/insight?domain=api&rule=user_id&limit={other}"), "user_id")
}

#[test]
fn the_callers_with_the_most_units_are_shown_as_the_settings_say() {
    for (keys, callers) in [(CallerKeys::Off, 0), (CallerKeys::Hashed, 1), (CallerKeys::Plain, 1)] {
        let app = app(keys);
        check(&app, r#"{"domain":"api","descriptors":[{"user_id":"7\u0000<b>"}],"cost":2}"#);
        for (page, member) in [("/top", "allowed"), ("/insight", "top_allowed")] {
            let top = &limit(&app, page, "user_id")[member];
            assert_eq!((&top["units"], &top["missing"]), (&json!(2), &json!(0)));
            let shown = top["callers"].as_array().expect("it is a list");
            assert_eq!(shown.len(), callers, "{keys:?}");
            let name = (keys == CallerKeys::Plain).then_some("user_id=7\0<b>");
            assert!(shown.iter().all(|caller| caller["name"].as_str() == name && caller["units"] == 2), "{shown:?}");
        }
    }
}

#[test]
fn a_name_has_the_entries_that_the_rule_does_not_fix() {
    let app = app(CallerKeys::Plain);
    let path = format!("/v1/{}", "projects/".repeat(12));
    reload(
        &app,
        format!(
            "domain: api\ndescriptors:\n  - key: path\n    value: {path}\n    rate_limit: {{unit: hour, limit: 5}}\n    \
             descriptors:\n      - {{key: tenant, rate_limit: {{unit: hour, limit: 5}}}}\n  - key: group\n    value: a*\n    \
             share_threshold: true\n    descriptors:\n      - {{key: user, rate_limit: {{unit: hour, limit: 5}}}}\n"
        ),
    );
    let name = |descriptor: Value, rule: &str| {
        check(&app, &json!({"domain": "api", "descriptors": [descriptor]}).to_string());
        limit(&app, "/top", rule)["allowed"]["callers"][0]["name"].as_str().expect("names are kept").to_owned()
    };
    assert_eq!(name(json!({"path": path, "tenant": "acme"}), &format!("path={path} > tenant")), "tenant=acme");
    assert_eq!(name(json!({"group": "abc", "user": "7"}), "group=a* > user"), "user=7");
    let all = name(json!({"path": path}), &format!("path={path}"));
    assert!(all.starts_with("path=/v1/projects/") && all.contains('…') && all.len() <= 64, "{all}");
}

#[test]
fn a_request_counts_once_for_each_counter() {
    let app = app(CallerKeys::Hashed);
    check(&app, r#"{"domain":"api","descriptors":[{"user_id":"7"},{"user_id":"7"},{"pair":"x"}]}"#);
    let hour = |rule| limit(&app, "/insight", rule)["spans"][2].clone();
    assert_eq!((&hour("user_id")["requests"], &hour("user_id")["units"]), (&json!(1), &json!(2)));
    let page = read(&app, "/insight");
    let pair = page["limits"].as_array().expect("it is a list").iter().filter(|limit| limit["rule"] == "pair");
    assert_eq!(pair.map(|limit| limit["spans"][2]["requests"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(1)]);
}

#[test]
fn a_reload_keeps_the_insight_of_limits_that_have_not_changed() {
    let app = app(CallerKeys::Hashed);
    for key in ["user_id", "remote_address"] {
        check(&app, &format!(r#"{{"domain":"api","descriptors":[{{"{key}":"7"}}]}}"#));
    }
    let text = RULES.replace(
        "name: per_address, unit: minute, requests_per_unit: 2",
        "name: per_address, unit: minute, requests_per_unit: 3",
    );
    assert_ne!(text, RULES);
    let mut rules = Rules::parse(&[RulesFile { name: "rules/api.yaml".into(), text }]).expect("the rules are valid");
    rules.open_sketches(None, std::num::NonZeroU32::MIN).expect("there is memory");
    app.service.replace_rules(rules);
    let requests = |rule| limit(&app, "/insight", rule)["spans"][2]["requests"].as_u64();
    assert_eq!((requests("user_id"), requests("remote_address")), (Some(1), Some(0)));
}

fn reload(app: &App, text: String) {
    let rules = Rules::parse(&[RulesFile { name: "rules/api.yaml".into(), text }]).expect("the rules are valid");
    app.service.replace_rules(rules);
}

#[test]
fn a_limit_keeps_its_insight_if_other_limits_of_its_rule_change() {
    let app = app(CallerKeys::Hashed);
    let rules = |limits: &str| format!("domain: api\ndescriptors:\n  - key: user_id\n    rate_limits: [{limits}]\n");
    let (a, b) = ("{name: a, unit: hour, limit: 5}", "{name: b, unit: day, limit: 5}");
    reload(&app, rules(&format!("{a}, {b}")));
    check(&app, r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#);
    reload(&app, rules(&format!("{{name: new, unit: minute, limit: 5}}, {}, {b}", a.replace('5', "6"))));
    let page = read(&app, "/insight");
    let limits = page["limits"].as_array().expect("it is a list").iter();
    let requests: Vec<_> = limits.map(|limit| limit["spans"][2]["requests"].as_u64()).collect();
    assert_eq!(requests, [Some(0), Some(0), Some(1)], "only b has not changed: {page}");
}

#[test]
fn samples_never_have_more_callers_than_the_settings_allow() {
    let app = app(CallerKeys::Hashed);
    let rules = |limits: usize| {
        let rule = |index| format!("  - key: k{index}\n    rate_limit: {{unit: hour, limit: 5}}\n");
        format!("domain: api\ndescriptors:\n{}", (0..limits).map(rule).collect::<String>())
    };
    // A single limit has a large sample. The more limits there are, the smaller each sample has to be.
    for limits in [1, 3, 16, 31, 40] {
        reload(&app, rules(limits));
        for index in 0..limits {
            for user in 0..3_000 / limits + 200 {
                check(&app, &format!(r#"{{"domain":"api","descriptors":[{{"k{index}":"{user}"}}],"cost":6}}"#));
            }
        }
        let page = read(&app, "/insight?readings=true");
        let callers = |limit: &Value| limit["reading"]["spans"][2]["sampled"]["callers"].as_array().map_or(0, Vec::len);
        let watched = page["limits"].as_array().expect("it is a list");
        let sum: usize = watched.iter().map(callers).sum();
        // A sample may have a quarter more callers than its size, so all together have at most 2,500 instead of 2,000.
        assert!(sum <= 2_500, "{limits} limits have {sum} callers");
        let unwatched = page["server"]["unwatched_limits"].as_u64();
        assert_eq!(unwatched, Some((limits - watched.len()) as u64));
        assert_eq!(watched.len(), limits.min(2_000 / 64), "{limits}");
    }
}

#[test]
fn without_watched_callers_the_pages_are_empty() {
    let app = App::new();
    check(&app, r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#);
    let page = read(&app, "/insight");
    assert_eq!((&page["limits"], &page["server"]["unwatched_limits"]), (&json!([]), &json!(0)));
    assert_eq!(read(&app, "/top"), json!({"limits": []}));
}

#[test]
fn a_wrong_query_is_an_error_that_says_what_is_right() {
    for query in ["readings=maybe", "reading=true"] {
        let request = Request::get(format!("/insight?{query}")).body(Body::empty()).expect("the request is valid");
        let problem = app(CallerKeys::Off).admin(None, "127.0.0.1:1", request).problem(400);
        assert!(problem.contains("/insight?readings=true"), "{problem}");
    }
}

#[test]
fn suggestions_are_rules_files_of_the_same_limit() {
    let app = app(CallerKeys::Off);
    reload(
        &app,
        r#"
domain: api
descriptors:
  - {key: job, rate_limit: {name: jobs, algorithm: concurrency, requests_per_unit: 100, lease: 30s}}
  - {key: own, rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 50}}
  - {key: many, rate_limit: {window: 20s, requests_per_unit: 5}}
  - key: tenant
    descriptors: [{key: path, value: "/a: b", rate_limit: {window: 90s, requests_per_unit: 100}}]
"#
        .to_owned(),
    );
    for step in 0..182 {
        for user in 0..20 {
            for descriptor in [
                format!(r#"{{"job":"{user}"}}"#),
                format!(r#"{{"own":"{user}"}}"#),
                format!(r#"{{"tenant":"{user}","path":"/a: b"}}"#),
            ] {
                check(&app, &format!(r#"{{"domain":"api","descriptors":[{descriptor}]}}"#));
            }
            let many = json!({"domain": "api", "descriptors": [{"many": user.to_string()}]}).to_string();
            (0..if step % 5 == 0 { 8 } else { 0 }).for_each(|_| _ = check(&app, &many));
        }
        app.clock.advance(std::time::Duration::from_secs(20));
    }
    let page = read(&app, "/insight");
    for limit in page["limits"].as_array().expect("it is a list") {
        let text = limit["suggested_rules"].as_str().unwrap_or_else(|| panic!("{limit}")).to_owned();
        let file = RulesFile { name: "suggested.yaml".into(), text: text.clone() };
        let rules = Rules::parse(&[file]).unwrap_or_else(|error| panic!("{error}: {text}"));
        let rule = rules.rules().find(|rule| !rule.limits.is_empty()).expect("there is a limit");
        let quota = &rule.limits[0].quota;
        assert_eq!((&limit["rule"], &limit["domain"]), (&json!(*rule.path), &json!(*rule.domain)), "{text}");
        assert_eq!(limit["window_ns"].as_u64().unwrap_or(0), quota.window_ns(), "{text}");
        let suggestion = &limit["suggestion"];
        assert_eq!((&suggestion["limit"], rule.limits.len()), (&json!(quota.limit()), 1), "{text}");
        assert!(suggestion["burst"].is_null() || suggestion["burst"] == quota.capacity(), "{text}");
        let before = ["limit", "capacity"].map(|member| limit[member].as_u64().expect("it is a number"));
        let is_higher = limit["verdict"] == "bursts";
        assert_eq!(is_higher, limit["rule"] == "many", "{limit}");
        let after = (quota.limit(), quota.capacity());
        let expected = if is_higher {
            after.0 == before[0] && after.1 > before[1]
        } else {
            after.0 <= before[0] && after.1 < before[1]
        };
        assert!(expected, "{before:?}: {text}");
    }
    assert_eq!(page["limits"].as_array().map(Vec::len), Some(4));
}

#[test]
fn a_server_in_shadow_mode_says_so_of_each_limit() {
    let insight = Insight { max_callers: 2000, keys: CallerKeys::Off };
    for (shadow, binding) in [(false, "enforce"), (true, "shadow")] {
        let app = App::with(options(), ServiceOptions { insight, shadow, ..ServiceOptions::default() });
        assert_eq!(limit(&app, "/insight", "user_id")["options"]["binding"], binding);
        assert_eq!(limit(&app, "/top", "shadowed")["options"]["binding"], "shadow");
    }
}
