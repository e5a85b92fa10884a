//! Tests of `POST /block`, `POST /unblock` and `GET /blocks` on the memory store.
//!
//! A block has to win over everything that would allow a request, and has to end by itself.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use spillgate::rules::{Rules, RulesFile};
use spillgate_http::{EntrySource, ForwardAuth, HttpOptions, ValueSource};
use spillgate_service::operator::{BLOCKS_MAX, NewBlock};
use spillgate_service::{Grants, Insight, ServiceOptions};

use crate::http::app::{App, Reply, options};

fn block(app: &App, body: &Value) -> Value {
    let reply = app.operate("POST", "/block", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

/// Blocks an entry in all domains for ten minutes.
fn block_entry(app: &App, key: &str, value: &str) {
    block(app, &json!({"key": key, "value": value, "for": "10m"}));
}

fn unblock(app: &App, body: &Value) -> Reply {
    app.operate("POST", "/unblock", body)
}

fn blocks(app: &App) -> Value {
    app.operate("GET", "/blocks", &Value::Null).json()
}

fn check(app: &App, descriptors: &Value, cost: u64) -> Reply {
    app.post("/v1/check", &json!({"domain": "api", "descriptors": descriptors, "cost": cost}).to_string())
}

fn refresh(app: &App) {
    assert_eq!(app.service.refresh_operator().now_or_never(), Some(Ok(())), "no shared store is asked");
}

fn metric(app: &App, sample: &str) -> u64 {
    let page = app.operate("GET", "/metrics", &Value::Null).body;
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{sample} is missing: {page}")).parse().expect("it is a number")
}

#[test]
fn a_blocked_request_is_refused_until_the_block_ends() {
    let app = App::new();
    let body = json!({"key": "user_id", "value": "7", "domain": "api", "for": "1m30s", "reason": "floods"});
    let now_ms = 1_700_006_400_000_u64;
    let listed = json!({
        "key": "user_id", "value": "7", "domain": "api", "until_ms": now_ms + 90_000, "ends_in_ms": 90_000,
        "reason": "floods", "since_ms": now_ms, "refused": 0,
    });
    assert_eq!(block(&app, &body), json!({"block": listed, "replaced": null, "scope": "server", "blocks": 1}));
    let page = json!({"scope": "server", "read_ms_ago": null, "unreadable": 0, "max": BLOCKS_MAX, "blocks": [listed]});
    assert_eq!(blocks(&app), page);
    app.clock.advance(Duration::from_millis(500));
    let refused = check(&app, &json!([{"user_id": "7"}]), 1);
    assert!(refused.problem(429).contains("an operator has blocked a value of this request"), "{}", refused.body);
    let json = refused.json();
    assert_eq!((&json["retry_after_ms"], &json["rule"], &json["limit"]), (&json!(89_500), &Value::Null, &json!(0)));
    assert_eq!(json["violated-policies"], json!(["blocked"]));
    assert_eq!(
        (refused.header("retry-after"), refused.header("ratelimit-policy")),
        (Some("90"), Some("\"blocked\";q=0;w=1"))
    );
    assert_eq!(check(&app, &json!([{"user_id": "8"}]), 1).status, 200);
    assert_eq!(check(&app, &json!([{"like": "7"}]), 1).status, 200, "the key is another one");
    app.clock.advance(Duration::from_millis(89_499));
    assert_eq!(check(&app, &json!([{"user_id": "7"}]), 1).status, 429);
    app.clock.advance(Duration::from_millis(1));
    let passed = check(&app, &json!([{"user_id": "7"}]), 1);
    assert_eq!((passed.status, &passed.json()["remaining"]), (200, &json!(2)), "blocked requests took nothing");
    assert_eq!(blocks(&app)["blocks"], json!([]));
    assert_eq!(unblock(&app, &json!({"key": "user_id", "value": "7"})).status, 404, "it has ended");
}

#[test]
fn each_block_counts_the_requests_that_it_has_refused() {
    let app = App::new();
    let refused = || -> Vec<(String, u64)> {
        let page = blocks(&app);
        let list = page["blocks"].as_array().expect("it is a list").iter();
        let of = |block: &Value| (block["value"].to_string(), block["refused"].as_u64().expect("it is a number"));
        let mut list: Vec<_> = list.map(of).collect();
        list.sort_unstable();
        list
    };
    let of = |seven: u64, eight: u64| vec![("\"7\"".to_owned(), seven), ("\"8\"".to_owned(), eight)];
    for value in ["7", "8"] {
        block_entry(&app, "user_id", value);
    }
    check(&app, &json!([{"user_id": "7"}]), 1);
    check(&app, &json!([{"user_id": "9"}]), 1);
    assert_eq!(refused(), of(1, 0));
    assert_eq!(refused(), of(1, 0), "reading changes nothing");
    check(&app, &json!([{"user_id": "7"}, {"user_id": "8"}, [["user_id", "7"], ["path", "/"]]]), 1);
    assert_eq!(refused(), of(2, 1), "a request counts once for each block that refuses it");
    app.operate("POST", "/explain", &json!({"domain": "api", "descriptors": [{"user_id": "7"}]}));
    block_entry(&app, "user_id", "10");
    unblock(&app, &json!({"key": "user_id", "value": "10"}));
    refresh(&app);
    assert_eq!(refused(), of(2, 1), "an explanation counts nothing, and other changes lose nothing");
    app.clock.advance(Duration::from_millis(1));
    block_entry(&app, "user_id", "7");
    assert_eq!(refused(), of(0, 1), "a new block on the same entry begins its own count");
}

#[test]
fn a_block_is_on_entries_of_any_descriptor_and_the_longest_one_counts() {
    let app = App::new();
    block_entry(&app, "inner", "x");
    block(&app, &json!({"key": "outer", "value": "x", "for": "1h"}));
    let nested = json!([{"user_id": "7"}, [["outer", "x"], ["inner", "x"]]]);
    assert_eq!(check(&app, &nested, 1).json()["retry_after_ms"], 3_600_000);
    let inner = json!([{"user_id": "7"}, [["outer", "y"], ["inner", "x"]]]);
    assert_eq!(check(&app, &inner, 1).json()["retry_after_ms"], 600_000);
    assert_eq!(check(&app, &json!([{"user_id": "7"}]), 0).json()["remaining"], 3, "nothing was taken");
    assert_eq!(check(&app, &json!([[["outer", "y"], ["inner", "y"]]]), 1).status, 200);
}

#[test]
fn a_block_on_a_long_value_compares_what_chooses_the_counter() {
    let app = App::new();
    // The setting `limits.value` is 1,024 bytes. After 1,024 bytes, a cut would divide the last character of `same`, so
    // the value is cut one byte earlier.
    let same = format!("{}\u{e9}", "v".repeat(1_023));
    let long = |end: &str| format!("{same}{end}");
    assert_eq!(check(&app, &json!([{"user_id": long("a")}]), 1).json()["remaining"], 2);
    assert_eq!(check(&app, &json!([{"user_id": long("b")}]), 1).json()["remaining"], 1, "both have one counter");
    let blocked = block(&app, &json!({"key": "user_id", "value": long("a"), "for": "1h"}));
    assert_eq!(blocked["block"]["value"], "v".repeat(1_023));
    for value in [long("a"), long("b"), long(""), "v".repeat(1_023)] {
        let explained = json!({"domain": "api", "descriptors": [{"user_id": value}]});
        let explained = app.operate("POST", "/explain", &explained).json();
        assert_eq!(explained["descriptors"][0]["block"]["ends_in_ms"], 3_600_000);
        assert_eq!(check(&app, &json!([{"user_id": value}]), 1).status, 429);
    }
    for value in ["v".repeat(1_022), "v".repeat(1_024), "v".repeat(2_000)] {
        assert_eq!(check(&app, &json!([{"user_id": value}]), 1).status, 200);
    }
    let unblocked = unblock(&app, &json!({"key": "user_id", "value": long("c")}));
    assert_eq!((unblocked.status, check(&app, &json!([{"user_id": long("a")}]), 1).status), (200, 200));
}

#[test]
fn a_block_in_one_domain_leaves_the_others_alone() {
    let app = App::new();
    let ask = |domain: &str| {
        app.post("/v1/check", &json!({"domain": domain, "descriptors": [{"user_id": "7"}], "cost": 0}).to_string())
            .status
    };
    block(&app, &json!({"key": "user_id", "value": "7", "domain": "web", "for": "1h"}));
    assert_eq!((ask("api"), ask("web")), (200, 429), "a domain without rules can be blocked too");
    block(&app, &json!({"key": "user_id", "value": "7", "domain": "api", "for": "1h"}));
    block(&app, &json!({"key": "user_id", "value": "7", "for": "1m"}));
    assert_eq!((ask("api"), ask("web"), ask("mail")), (429, 429, 429));
    assert_eq!(unblock(&app, &json!({"key": "user_id", "value": "7", "domain": "mail"})).status, 404);
    assert_eq!(
        unblock(&app, &json!({"key": "user_id", "value": "7", "domain": "web"})).json(),
        json!({"unblocked": 1, "refused": 2})
    );
    assert_eq!(ask("web"), 429, "the block in all domains is still on");
    app.clock.advance(Duration::from_secs(60));
    assert_eq!((ask("api"), ask("web")), (429, 200));
    block(&app, &json!({"key": "user_id", "value": "7", "for": "1m"}));
    assert_eq!(
        unblock(&app, &json!({"key": "user_id", "value": "7"})).json(),
        json!({"unblocked": 2, "refused": 2}),
        "in all domains"
    );
    assert_eq!((ask("api"), ask("web")), (200, 200));
    assert_eq!(unblock(&app, &json!({"key": "user_id", "value": "7"})).status, 404);
}

#[test]
fn blocking_again_replaces_the_end_and_the_reason() {
    let app = App::new();
    block(&app, &json!({"key": "user_id", "value": "7", "for": "1h", "reason": "a"}));
    app.clock.advance(Duration::from_secs(1));
    let again = block(&app, &json!({"key": "user_id", "value": "7", "for": "10s"}));
    assert_eq!(
        (&again["blocks"], &again["block"]["reason"], &again["block"]["ends_in_ms"]),
        (&json!(1), &Value::Null, &json!(10_000))
    );
    assert_eq!(check(&app, &json!([{"user_id": "7"}]), 1).json()["retry_after_ms"], 10_000);
    app.clock.advance(Duration::from_secs(10));
    assert_eq!(check(&app, &json!([{"user_id": "7"}]), 1).status, 200);
}

#[test]
fn a_block_wins_over_every_rule_that_would_allow_the_request() {
    let app = App::new();
    let cases = [
        json!({"path": "/free"}),
        json!({"shadowed": "7"}),
        json!({"unknown": "7"}),
        json!({"sketched": "7"}),
        json!({"paid_later": "7"}),
        json!({"job": "7"}),
    ];
    for descriptor in &cases {
        let (key, value) = descriptor.as_object().and_then(|map| map.iter().next()).expect("it has an entry");
        for cost in [0, 1] {
            assert_eq!(check(&app, &json!([descriptor]), cost).status, 200, "{descriptor}");
        }
        block_entry(&app, key, value.as_str().expect("it is a text"));
        for cost in [0, 1, u64::MAX] {
            assert_eq!(check(&app, &json!([descriptor]), cost).status, 429, "{descriptor} {cost}");
        }
    }
    let shadow = json!({"rule": "all", "on": true, "for": "1h"});
    assert_eq!(app.operate("POST", "/shadow", &shadow).status, 200);
    block_entry(&app, "user_id", "7");
    assert_eq!(check(&app, &json!([{"user_id": "7"}]), 1).status, 429, "a shadow switch lets no blocked request pass");
}

#[test]
fn a_block_wins_in_a_domain_with_compat_envoy_and_with_limits_of_the_request() {
    let grants = Grants { refund: true, overriding: true };
    let app = App::with(HttpOptions { grants, ..options() }, ServiceOptions::default());
    let text =
        "domain: api\ncompat: envoy\ndescriptors: [{key: user_id, rate_limit: {unit: hour, requests_per_unit: 3}}]";
    let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).expect("the rules are valid");
    app.service.replace_rules(rules);
    block_entry(&app, "blocked", "7");
    let both = check(&app, &json!([{"user_id": "7"}, {"blocked": "7"}]), 1);
    assert_eq!(both.status, 429);
    assert_eq!(check(&app, &json!([{"user_id": "7"}]), 0).json()["remaining"], 3, "the first descriptor took nothing");
    let entry = r#""entries":[{"key":"blocked","value":"7"}]"#;
    let own =
        format!(r#"{{"domain":"api","descriptors":[{{{entry},"limit":{{"requestsPerUnit":9,"unit":"HOUR"}}}}]}}"#);
    assert_eq!(app.post("/json", &own).status, 429, "the request has a limit of its own");
    let refund = format!(r#"{{"domain":"api","descriptors":[{{{entry},"isNegativeHits":true,"hitsAddend":1}}]}}"#);
    assert_eq!(app.post("/json", &refund).status, 200, "units can always be given back");
}

#[test]
fn over_json_a_blocked_descriptor_has_the_limit_blocked() {
    let app = App::new();
    block(&app, &json!({"key": "user_id", "value": "7", "for": "90s"}));
    let entry = |key: &str| format!(r#"{{"entries":[{{"key":"{key}","value":"7"}}]}}"#);
    let body = format!(r#"{{"domain":"api","descriptors":[{},{}]}}"#, entry("user_id"), entry("alike"));
    let reply = app.post("/json", &body);
    let status = json!({
        "code": "OVER_LIMIT", "currentLimit": {"name": "blocked", "requestsPerUnit": 0, "unit": "SECOND"},
        "limitRemaining": 0, "durationUntilReset": "90s",
    });
    let mut expected = json!({"overallCode": "OVER_LIMIT", "statuses": [status, {"code": "OK"}]});
    // Protobuf's JSON leaves out numbers that are 0.
    for member in ["limitRemaining"] {
        if reply.json()["statuses"][0].get(member).is_none() {
            expected["statuses"][0].as_object_mut().expect("it is an object").remove(member);
        }
    }
    if reply.json()["statuses"][0]["currentLimit"].get("requestsPerUnit").is_none() {
        expected["statuses"][0]["currentLimit"].as_object_mut().expect("it is an object").remove("requestsPerUnit");
    }
    assert_eq!((reply.status, reply.json()), (429, expected));
    assert_eq!(reply.header("retry-after"), Some("90"));
}

#[test]
fn proxies_get_the_refusal_with_its_wait() {
    let descriptors = vec![vec![EntrySource { key: "user_id".into(), from: ValueSource::Header("X-User".into()) }]];
    let forward_auth = ForwardAuth { domain: Some("api".into()), deny_status: 403, ipv6_prefix: 64, descriptors };
    let app = App::with(HttpOptions { forward_auth, ..options() }, ServiceOptions::default());
    block(&app, &json!({"key": "user_id", "value": "7", "for": "90s"}));
    let ask = |user: &str| {
        let request = Request::get("/v1/forward-auth").header("x-user", user).body(Body::empty());
        app.call(request.expect("the request is valid"))
    };
    let refused = ask("7");
    assert_eq!((refused.status, refused.header("retry-after")), (403, Some("90")));
    assert_eq!(ask("8").status, 200);
}

#[test]
fn a_reservation_is_blocked_and_an_open_one_can_be_settled() {
    let app = App::new();
    let body = json!({"domain": "api", "descriptors": [{"tokens": "red"}], "estimate": 60}).to_string();
    let id = app.post("/v1/reserve", &body).json()["reservation_id"].clone();
    block_entry(&app, "tokens", "red");
    let refused = app.post("/v1/reserve", &body);
    assert_eq!((refused.status, &refused.json()["reservation_id"]), (429, &Value::Null));
    let settled = app.post("/v1/commit", &json!({"reservation_id": id, "used": 10}).to_string());
    assert_eq!((settled.status, settled.json()), (200, json!({"settled": true, "used": 10})));
    assert_eq!(unblock(&app, &json!({"key": "tokens", "value": "red"})).status, 200);
    assert_eq!(check(&app, &json!([{"tokens": "red"}]), 0).json()["remaining"], 90, "only the commit was counted");
}

#[test]
fn a_permit_that_is_held_can_be_renewed_and_released() {
    let app = App::new();
    let held = check(&app, &json!([{"job": "7"}]), 1);
    let lease = json!({"lease_id": held.json()["lease_id"].as_str().expect("the answer has a lease")}).to_string();
    block_entry(&app, "job", "7");
    assert_eq!(check(&app, &json!([{"job": "7"}]), 1).status, 429);
    assert_eq!(["/v1/renew", "/v1/release"].map(|path| app.post(path, &lease).status), [200, 200]);
}

/// A request to `/v1/hit` has no descriptors, so a block cannot match it.
#[test]
fn hits_with_their_own_limit_are_not_blocked() {
    let app = App::new();
    block_entry(&app, "login", "7");
    block_entry(&app, "bucket", "login");
    assert_eq!(app.post("/v1/hit", r#"{"bucket":"login","key":"7","limit":1,"window_ms":60000}"#).status, 200);
}

#[test]
fn a_server_in_shadow_mode_refuses_no_blocked_request() {
    let app = App::with(options(), ServiceOptions { shadow: true, ..ServiceOptions::default() });
    block_entry(&app, "user_id", "7");
    let passed = check(&app, &json!([{"user_id": "7"}]), 1);
    assert_eq!((passed.status, &passed.json()["remaining"]), (200, &json!(2)), "the rules decide");
    assert_eq!(metric(&app, "spillgate_blocked_total"), 0);
    assert_eq!(blocks(&app)["blocks"].as_array().map(Vec::len), Some(1));
    let explained =
        app.operate("POST", "/explain", &json!({"domain": "api", "descriptors": [{"user_id": "7"}]})).json();
    assert_eq!(
        (&explained["descriptors"][0]["block"], &explained["asked"][0]["allowed"]),
        (&Value::Null, &json!(true))
    );
}

#[test]
fn a_block_stays_when_rules_are_reloaded() {
    let app = App::new();
    block_entry(&app, "user_id", "7");
    app.service.replace_rules(Rules::default());
    assert_eq!(check(&app, &json!([{"user_id": "7"}]), 1).status, 429);
    assert_eq!(check(&app, &json!([{"user_id": "8"}]), 1).status, 200);
}

#[test]
fn blocked_requests_are_counted_as_refused_but_not_by_rules_and_insight() {
    let insight = Insight { max_callers: 1000, ..Insight::default() };
    let app = App::with(options(), ServiceOptions { insight, ..ServiceOptions::default() });
    block_entry(&app, "user_id", "7");
    block_entry(&app, "unknown", "7");
    check(&app, &json!([{"user_id": "7"}]), 1);
    check(&app, &json!([{"user_id": "8"}, {"unknown": "7"}]), 1);
    check(&app, &json!([{"user_id": "8"}]), 1);
    let requests = |outcome: &str| {
        metric(&app, &format!("spillgate_requests_total{{protocol=\"http\",source=\"store\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!((requests("refused"), requests("allowed")), (2, 1));
    assert_eq!(
        (metric(&app, "spillgate_blocked_total"), metric(&app, "spillgate_unmatched_descriptors_total")),
        (2, 0)
    );
    let page = app.operate("GET", "/metrics", &Value::Null).body;
    let of_rule = |line: &&str| line.contains("rule=\"user_id\"") && !line.ends_with(" 0");
    let counted: Vec<_> =
        page.lines().filter(of_rule).map(|line| line.rsplit_once(' ').map(|(_, value)| value)).collect();
    assert!(!counted.is_empty() && counted.iter().all(|value| *value == Some("1")), "{page}");
    let top = app.operate("GET", "/insight", &Value::Null).body;
    assert!(top.contains("\"limits\""), "{top}");
    assert_eq!((metric(&app, "spillgate_blocks"), metric(&app, "spillgate_shadow_switches")), (2, 0));
    unblock(&app, &json!({"key": "user_id", "value": "7"}));
    assert_eq!(metric(&app, "spillgate_blocks"), 1);
    app.clock.advance(Duration::from_secs(600));
    assert_eq!(metric(&app, "spillgate_blocks"), 0, "the block has ended");
}

#[test]
fn an_explanation_names_the_block_and_asks_no_limit() {
    let app = App::new();
    let explain = |descriptors: Value| {
        let body = json!({"domain": "api", "descriptors": descriptors});
        app.operate("POST", "/explain", &body).json()
    };
    block(&app, &json!({"key": "user_id", "value": "7", "for": "10m", "reason": "floods"}));
    let explained = explain(json!([{"alike": "7"}, {"user_id": "7"}]));
    let [first, second] = [0, 1].map(|index| &explained["descriptors"][index]);
    assert_eq!((&first["block"], &first["matched"]["shadow_switches"]), (&Value::Null, &json!([])));
    assert_eq!((&second["block"]["reason"], &second["block"]["ends_in_ms"]), (&json!("floods"), &json!(600_000)));
    assert_eq!(second["matched"]["rule"], "user_id", "the rule is shown although it is not asked");
    let asked = &explained["asked"][0];
    assert_eq!(
        (&asked["allowed"], &asked["retry_after_ns"], &asked["limits"]),
        (&json!(false), &json!(600_000_000_000_u64), &json!([]))
    );
    let other = explain(json!([{"user_id": "8"}, {"unknown": "7"}]));
    assert_eq!((&other["asked"][0]["allowed"], &other["descriptors"][1]["rule"]), (&json!(true), &Value::Null));
    assert_eq!(metric(&app, "spillgate_blocked_total"), 0, "an explanation is not counted");
}

#[test]
fn invalid_blocks_are_answered_with_the_reason() {
    let app = App::new();
    let ask = |body: &Value| app.operate("POST", "/block", body);
    let with = |name: &str, value: Value| {
        let mut body = json!({"key": "user_id", "value": "7", "for": "10m"});
        body[name] = value;
        body
    };
    for (lasts, why) in [
        ("", "not a number"),
        ("10", "not a number"),
        ("forever", "not a number"),
        ("-1m", "not a number"),
        ("0s", "not from 1 s to 30 days"),
        ("999ms", "not from 1 s to 30 days"),
        ("30d1ms", "not from 1 s to 30 days"),
        ("999999999999999w", "too large"),
    ] {
        let problem = ask(&with("for", json!(lasts))).problem(400);
        assert!(problem.contains(why) && problem.contains("belongs into a rules file"), "{lasts}: {problem}");
    }
    for lasts in ["1s", "30d"] {
        assert_eq!(ask(&with("for", json!(lasts))).status, 200, "{lasts}");
    }
    for (name, value) in [
        ("key", json!("")),
        ("key", json!("k".repeat(257))),
        ("domain", json!("")),
        ("domain", json!("d".repeat(257))),
        ("reason", json!("r".repeat(201))),
        ("for", json!(600)),
        ("value", json!(7)),
        ("value", Value::Null),
        ("forever", json!(true)),
    ] {
        ask(&with(name, value)).problem(400);
    }
    for (name, value) in [("value", json!("")), ("value", json!("v".repeat(1024))), ("reason", json!("r".repeat(200)))]
    {
        assert_eq!(ask(&with(name, value.clone())).status, 200, "{name} {value}");
    }
    for body in
        ["", "[]", "7", "{}", "{\"key\":\"a\",\"key\":\"a\",\"value\":\"b\",\"for\":\"1m\"}", "\u{0}", "{\"key\":"]
    {
        for path in ["/block", "/unblock"] {
            let request = Request::post(path)
                .header("host", "127.0.0.1:4711")
                .header("x-spillgate-admin", "1")
                .body(Body::from(body))
                .expect("the request is valid");
            app.admin(None, "127.0.0.1:4711", request).problem(400);
        }
    }
}

#[test]
fn hostile_texts_are_blocked_and_shown_as_they_are() {
    let app = App::new();
    let texts = [
        "<script>alert(1)</script>",
        "\u{0}\u{1b}[31m\r\n",
        "\"}],\"x\":[{\"",
        "é\u{202e}\u{fffd}😀",
        "${jndi:ldap://x}",
        "\\\\",
    ];
    for text in texts {
        let reply = block(&app, &json!({"key": text, "value": text, "domain": text, "for": "1h", "reason": text}));
        assert_eq!((&reply["block"]["value"], &reply["block"]["reason"]), (&json!(text), &json!(text)));
        let body = json!({"domain": text, "descriptors": [[[text, text]]]}).to_string();
        assert_eq!(app.post("/v1/check", &body).status, 429, "{text:?}");
    }
    let shown =
        blocks(&app)["blocks"].as_array().map(|all| all.iter().map(|block| block["key"].clone()).collect::<Vec<_>>());
    let mut expected: Vec<_> = texts.iter().map(|text| json!(text)).collect();
    expected.sort_by_key(|text| text.as_str().map(str::to_owned));
    assert_eq!(shown, Some(expected));
}

#[test]
fn the_number_of_blocks_is_bounded_and_ended_ones_do_not_count() {
    let app = App::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("the runtime starts");
    let fill = |key: &str, lasts: &str, count: usize| {
        for number in 0..count {
            let (value, lasts) = (number.to_string(), lasts);
            let new = NewBlock { key, value: &value, domain: None, lasts, reason: None };
            runtime.block_on(app.service.block(&new)).expect("there is space");
        }
    };
    fill("user_id", "1m", 10);
    fill("like", "1h", BLOCKS_MAX - 10);
    let more = json!({"key": "alike", "value": "one more", "for": "1m"});
    let problem = app.operate("POST", "/block", &more).problem(409);
    assert!(problem.contains("the list of blocks is full: it can have 10000"), "{problem}");
    assert_eq!(check(&app, &json!([{"alike": "one more"}]), 1).status, 200);
    let again = block(&app, &json!({"key": "like", "value": "7", "for": "1m"}));
    assert_eq!(again["blocks"], BLOCKS_MAX, "a block can be replaced");
    for (key, value) in [("like", "9989"), ("user_id", "0")] {
        let mut descriptor = json!({});
        descriptor[key] = json!(value);
        assert_eq!(check(&app, &json!([descriptor]), 1).status, 429, "{key} {value}");
    }
    let page = blocks(&app);
    assert_eq!(page["blocks"].as_array().map(Vec::len), Some(BLOCKS_MAX), "the page has all of them");
    app.clock.advance(Duration::from_secs(60));
    assert_eq!(block(&app, &more)["blocks"], BLOCKS_MAX - 10, "eleven have ended");
    refresh(&app);
    app.clock.advance(Duration::from_secs(3600));
    refresh(&app);
    assert_eq!(app.service.operator().in_force().blocks(0).count(), 0, "ended blocks are not kept");
}
