//! Tests of `POST /explain` and `POST /peek` on the memory store.
//!
//! An operator relies on two things: an explanation says what a request would really get, and it takes nothing.

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use serde_json::{Value, json};
use spillgate::rules::{Rules, RulesFile};
use spillgate::{MemoryOptions, OnFull};
use spillgate_admin::{self as admin, Access, AdminState};
use spillgate_service::operator::NewBlock;
use spillgate_service::{Bounds, Peer, ServiceOptions};
use spillgate_testkit::Random;
use tower::ServiceExt as _;

use crate::http::app::{App, RULES, Reply, options};

const LOCAL: &str = "127.0.0.1:4711";

fn post(app: &App, path: &str, body: &Value) -> Reply {
    let request = Request::post(path).header("host", LOCAL).body(Body::from(body.to_string()));
    app.admin(None, LOCAL, request.expect("the request is valid"))
}

fn explain(app: &App, descriptors: &Value, cost: u64) -> Value {
    let reply = post(app, "/explain", &json!({"domain": "api", "descriptors": descriptors, "cost": cost}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn peek(app: &App, descriptors: &Value) -> Value {
    let reply = post(app, "/peek", &json!({"domain": "api", "descriptors": descriptors}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn check(app: &App, descriptors: &Value, cost: u64) -> Reply {
    app.post("/v1/check", &json!({"domain": "api", "descriptors": descriptors, "cost": cost}).to_string())
}

/// Returns the metrics that count requests. Other metrics can change without a request, for example when an expired
/// state is removed.
fn metrics(app: &App) -> Vec<String> {
    let request = Request::get("/metrics").body(Body::empty()).expect("the request is valid");
    let page = app.admin(None, LOCAL, request).body;
    let of_requests = ["spillgate_requests_", "spillgate_decisions_total", "spillgate_limit_", "spillgate_unmatched_"];
    let lines = page.lines().filter(|line| of_requests.iter().any(|name| line.starts_with(name)));
    lines.map(str::to_owned).collect()
}

/// Asks for an explanation, then sends the request, and checks that the request gets what the explanation says.
fn explains_what_comes(app: &App, descriptors: &Value, cost: u64) {
    let (before, counted) = (peek(app, descriptors), metrics(app));
    let said = explain(app, descriptors, cost)["asked"][0].clone();
    assert_eq!(peek(app, descriptors), before, "an explanation takes nothing");
    assert_eq!(metrics(app), counted, "an explanation counts nothing");
    let answer = check(app, descriptors, cost);
    let context = format!("{descriptors} cost {cost}: {said}\n{}", answer.body);
    assert_eq!(said["allowed"], json!(answer.status == 200), "{context}");
    let got = answer.json();
    let wait = said["retry_after_ns"].as_u64().map(|ns| ns.div_ceil(1_000_000));
    if answer.status != 200 && wait.is_some() {
        assert_eq!(got["retry_after_ms"].as_u64(), wait, "{context}");
    }
    assert_eq!(said["delay_ns"].as_u64().map(|ns| ns.div_ceil(1_000_000)), got["delay_ms"].as_u64(), "{context}");
    let after = peek(app, descriptors);
    let left = |page: &Value| -> Vec<Value> {
        let descriptors = page["descriptors"].as_array().expect("it is a list").iter();
        let limits = descriptors.flat_map(|it| it["limits"].as_array().expect("it is a list").clone());
        limits.map(|limit| limit["remaining"].clone()).collect()
    };
    let said: Vec<_> = said["limits"].as_array().expect("it is a list").iter().collect();
    let foreseen: Vec<_> = said.iter().map(|limit| limit["after"]["remaining"].clone()).collect();
    assert_eq!(foreseen, left(&after), "{context}");
}

#[test]
fn a_request_gets_what_its_explanation_says() {
    let app = App::new();
    let mut random = Random(18);
    let keys = [
        "user_id",
        "path",
        "shadowed",
        "pair",
        "queued",
        "job",
        "guarded",
        "hidden",
        "soft",
        "tokens",
        "paid_later",
        "sketched",
        "both",
        "unknown",
    ];
    for _ in 0..600 {
        let key = *random.pick(&keys);
        let descriptor = json!([{ key: random.below(2).to_string() }]);
        explains_what_comes(&app, &descriptor, random.below(5));
        app.clock.advance(std::time::Duration::from_millis(random.below(900)));
    }
}

#[test]
fn a_request_gets_what_its_explanation_says_although_the_store_is_full() {
    for on_full in [OnFull::Deny, OnFull::Allow, OnFull::Sketch { bytes: 1 << 20 }] {
        let memory = MemoryOptions { max_keys: 1, on_full, ..MemoryOptions::default() };
        let app = App::with_memory(options(), ServiceOptions::default(), memory);
        assert_eq!(check(&app, &json!([{"user_id": "first"}]), 1).status, 200);
        for (key, cost) in [("user_id", 1), ("user_id", 1), ("user_id", 3), ("job", 1), ("tokens", 4), ("tokens", 70)] {
            let said = explain(&app, &json!([{ key: "second" }]), cost)["asked"][0]["allowed"].clone();
            let status = check(&app, &json!([{ key: "second" }]), cost).status;
            assert_eq!(said, json!(status == 200), "{on_full:?}: {key} {cost}");
        }
    }
}

#[test]
fn an_explanation_stores_no_key() {
    let app = App::new();
    for key in ["user_id", "pair", "queued", "job", "soft", "tokens", "paid_later", "both", "unknown"] {
        for value in 0..50 {
            explain(&app, &json!([{ key: value }]), value % 4);
            peek(&app, &json!([{ key: value }]));
        }
    }
    assert_eq!(app.service.limiter().store().memory().len(), 0);
}

#[test]
fn an_explanation_shows_each_level_and_the_rule_with_its_line() {
    let app = App::new();
    let said = explain(&app, &json!([[["outer", "1"], ["inner", "2"]], {"unknown": "3"}]), 1);
    let found = &said["descriptors"][0];
    assert_eq!(found["entries"], json!([["outer", "1"], ["inner", "2"]]));
    let outcomes: Vec<_> = found["steps"].as_array().expect("it is a list").iter().map(|it| &it["outcome"]).collect();
    assert_eq!(outcomes, [&json!("went_deeper"), &json!("matched")]);
    assert_eq!(found["matched"]["rule"], "outer > inner");
    assert!(found["matched"]["file"].as_str().is_some_and(|file| file == "rules/api.yaml"), "{found}");
    assert_eq!(said["descriptors"][1]["rule"], Value::Null);
    assert_eq!((&said["store"], &said["takes"], &said["costs"]), (&Value::Null, &json!(false), &json!([1])));
}

#[test]
fn a_peek_shows_states_and_penalties() {
    let app = App::new();
    check(&app, &json!([{"pair": "a"}]), 1);
    let mut seen = peek(&app, &json!([{"pair": "a"}, {"unknown": "b"}]));
    for (number, line) in [(0, 12), (1, 12)] {
        let limit = seen["descriptors"][0]["limits"][number]["limit"].take();
        assert_eq!((&limit["file"], &limit["line"]), (&json!("rules/api.yaml"), &json!(line)));
        seen["descriptors"][0]["limits"][number]["limit"] = limit["name"].clone();
    }
    let day_ns = 86_400_000_000_000_u64;
    let expected = json!({
        "entries": [["pair", "a"]], "rule": "pair", "limits": [
            {"limit": "burst", "capacity": 1, "remaining": 0,
             "reset_after_ns": 1_000_000_000, "penalty_ns": 0},
            {"limit": "daily", "capacity": 150, "remaining": 149,
             "reset_after_ns": day_ns, "penalty_ns": 0},
        ],
    });
    assert_eq!(seen["descriptors"][0], expected);
    assert_eq!(seen["descriptors"][1], json!({"entries": [["unknown", "b"]], "rule": null, "limits": []}));
    let text = "domain: api\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1, penalty: 5m}}]";
    let rules = Rules::parse(&[RulesFile { name: "p.yaml".into(), text: text.into() }]).expect("the rules are valid");
    app.service.replace_rules(rules);
    for _ in 0..2 {
        explains_what_comes(&app, &json!([{"a": "1"}]), 1);
    }
    assert_eq!(peek(&app, &json!([{"a": "1"}]))["descriptors"][0]["limits"][0]["penalty_ns"], 300_000_000_000_u64);
    assert_eq!(explain(&app, &json!([{"a": "1"}]), 1)["asked"][0]["limits"][0]["reason"], "penalty");
}

#[test]
fn an_explanation_is_right_for_limits_that_are_like_those_of_the_dry_run_and_for_refusals_that_cost() {
    let app = App::new();
    for options in [
        "unit: second, requests_per_unit: 2, algorithm: fixed_window, anchor: first_hit",
        "unit: second, requests_per_unit: 2, algorithm: fixed_window",
        "unit: hour, requests_per_unit: 3, algorithm: fixed_window, denied: charged",
        "unit: hour, requests_per_unit: 3, penalty: 5m",
        "unit: minute, requests_per_unit: 3, penalty: 5m",
        "unit: minute, requests_per_unit: 3, algorithm: token_bucket, penalty: 5m",
        "unit: minute, requests_per_unit: 3, denied: charged, penalty: 5m",
    ] {
        let text = format!("domain: api\ndescriptors: [{{key: a, rate_limit: {{{options}}}}}]");
        let rules = Rules::parse(&[RulesFile { name: "a.yaml".into(), text }]).expect("the rules are valid");
        app.service.replace_rules(rules);
        for (value, cost) in [("x", 1), ("x", 1), ("x", 1), ("x", 1), ("y", 2), ("y", 2), ("y", 1), ("z", 4), ("z", 1)]
        {
            explains_what_comes(&app, &json!([{"a": format!("{options} {value}")}]), cost);
        }
    }
}

#[test]
fn the_wait_of_a_refusal_that_starts_a_penalty_is_known() {
    let app = App::new();
    let wait = |options: &str| {
        let text = format!(
            "domain: api\ndescriptors: [{{key: a, rate_limit: {{unit: minute, requests_per_unit: 3, {options}}}}}]"
        );
        app.service.replace_rules(Rules::parse(&[RulesFile { name: "p.yaml".into(), text }]).expect("valid rules"));
        let descriptors = json!([{ "a": options }]);
        assert_eq!(check(&app, &descriptors, 2).status, 200);
        explain(&app, &descriptors, 2)["asked"][0]["retry_after_ns"].clone()
    };
    assert_eq!(wait("penalty: 5m"), json!(300_000_000_000_u64));
    assert_eq!(wait("penalty: 1s"), Value::Null, "the window ends after the penalty");
    assert_eq!(wait("penalty: 5m, denied: charged"), Value::Null);
}

#[test]
fn a_domain_that_charges_in_turn_is_explained_one_descriptor_at_a_time() {
    let app = App::new();
    let text = RULES.replacen("domain: api", "domain: api\ncompat: envoy", 1);
    let text = text.split("  - key: sketched").next().unwrap_or_default().to_owned();
    let rules = Rules::parse(&[RulesFile { name: "e.yaml".into(), text }]).expect("the rules are valid");
    app.service.replace_rules(rules);
    let body = |descriptors: Value| json!({"domain": "api", "descriptors": descriptors});
    let both = post(&app, "/explain", &body(json!([{"user_id": "7"}, {"alike": "7"}])));
    assert!(both.problem(400).contains("ask one descriptor at a time"));
    assert_eq!(post(&app, "/explain", &body(json!([{"user_id": "7"}]))).status, 200);
}

#[test]
fn an_explanation_says_which_refusals_refuse_nothing() {
    let app = App::with(options(), ServiceOptions { shadow: true, ..ServiceOptions::default() });
    let said = explain(&app, &json!([{"user_id": "7"}]), 4)["asked"][0].clone();
    let limit = &said["limits"][0];
    assert_eq!(
        (&said["allowed"], &limit["allowed"], &limit["binding"]),
        (&json!(true), &json!(false), &json!("shadow"))
    );
    let app = App::new();
    for (key, binding) in [("user_id", "enforce"), ("shadowed", "shadow")] {
        assert_eq!(explain(&app, &json!([{ key: "7" }]), 1)["asked"][0]["limits"][0]["binding"], binding);
    }
}

#[test]
fn a_descriptor_that_is_refused_because_no_rule_matches_is_explained() {
    let app = App::with(options(), ServiceOptions { deny_unmatched: true, ..ServiceOptions::default() });
    let said = explain(&app, &json!([{"user_id": "7"}, {"unknown": "1"}]), 1);
    assert_eq!(said["descriptors"][1]["rule"], Value::Null);
    let asked = &said["asked"][0];
    assert_eq!((&asked["allowed"], &asked["limits"][0]["index"]), (&json!(false), &json!(0)));
    let unmatched = &asked["limits"][1];
    let found = (&unmatched["index"], &unmatched["name"], &unmatched["allowed"], &unmatched["descriptor"]);
    assert_eq!(found, (&Value::Null, &json!("unmatched"), &json!(false), &json!(1)));
    explains_what_comes(&app, &json!([{"unknown": "1"}]), 1);
    explains_what_comes(&app, &json!([{"user_id": "7"}, {"unknown": "1"}]), 1);
}

/// One long value can match thousands of wildcards in the rules. The answer has only the first steps, and the beginning
/// of the value.
#[test]
fn an_explanation_has_a_bounded_size_whatever_the_rules_and_values() {
    let app = App::new();
    let wildcards: String =
        (1..=1_800).map(|length| format!("  - {{key: a, value: '{}*'}}\n", "x".repeat(length))).collect();
    let text = format!("domain: api\ndescriptors:\n{wildcards}");
    let rules = Rules::parse(&[RulesFile { name: "w.yaml".into(), text }]).expect("the rules are valid");
    app.service.replace_rules(rules);
    let entries = |value: usize| json!([["a", "x".repeat(value)], ["b", "y"]]);
    let short = explain(&app, &json!([entries(700), entries(300), entries(1_500)]), 1);
    let count = |at: usize| {
        let found = &short["descriptors"][at];
        (found["steps"].as_array().expect("it is a list").len(), found["steps_left_out"].clone())
    };
    assert_eq!([count(0), count(1), count(2)], [(700, json!(0)), (300, json!(0)), (0, json!(1_500))]);
    let long = post(&app, "/explain", &json!({"domain": "api", "descriptors": [entries(60_000)]}));
    let found = &long.json()["descriptors"][0];
    assert_eq!(found["steps"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(found["steps_left_out"], 800);
    assert_eq!(found["steps"][0]["value"].as_str().map(str::len), Some(1_024), "a value is cut to limits.value");
    // Each step also has its wildcard. Without the bounds, the values alone would take 108 MB.
    assert!(long.body.len() < 4_000_000, "{}", long.body.len());
}

#[test]
fn a_block_comes_before_the_bound_on_limits_as_in_a_decision() {
    let bounds = Bounds { descriptors: 300, ..Bounds::default() };
    let app = App::with(options(), ServiceOptions { bounds, ..ServiceOptions::default() });
    let descriptors: Vec<_> = (0..300).map(|user| json!({"user_id": user.to_string()})).collect();
    let body = json!({"domain": "api", "descriptors": descriptors});
    let ask = || [app.post("/v1/check", &body.to_string()), post(&app, "/explain", &body)];
    let statuses = ask().map(|reply| reply.status);
    assert!(statuses[0] >= 400 && statuses[0] != 429 && statuses[1] == statuses[0], "{statuses:?}");
    let new = NewBlock { key: "user_id", value: "299", domain: None, lasts: "1h", reason: None };
    app.run(app.service.block(&new)).expect("there is space");
    let [check, explain] = ask();
    assert_eq!((check.status, explain.status, &explain.json()["asked"][0]["allowed"]), (429, 200, &json!(false)));
}

#[test]
fn costs_of_any_size_are_explained() {
    let app = App::new();
    for key in ["user_id", "pair", "queued", "job", "guarded", "soft", "tokens", "paid_later", "sketched", "both"] {
        for cost in [1 << 31, u64::from(u32::MAX), 1 << 53, 1 << 63, u64::MAX] {
            explains_what_comes(&app, &json!([{ key: cost.to_string() }]), cost);
        }
    }
}

/// Explanations and peeks run at the same time as requests. In the end, exactly the limit was admitted.
#[test]
fn explanations_beside_requests_take_nothing() {
    let app = App::new();
    let (service, body) = (&app.service, json!({"domain": "api", "descriptors": [{"pair": "a"}]}));
    let request = |path: &str| {
        Request::post(path).header("host", LOCAL).body(Body::from(body.to_string())).expect("the request is valid")
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    let admitted = std::thread::scope(|threads| {
        for path in ["/explain", "/peek"] {
            let (request, done) = (&request, &done);
            threads.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("the runtime starts");
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let state = AdminState::new(std::sync::Arc::clone(service), Access::default());
                    let mut request = request(path);
                    let local = Peer::Tcp(LOCAL.parse().expect("it is an address"));
                    request.extensions_mut().insert(ConnectInfo(local));
                    let answer = runtime.block_on(admin::router(state).oneshot(request)).expect("a router never fails");
                    assert_eq!(answer.status(), 200);
                }
            });
        }
        let admitted =
            (0..500).filter(|_| check(&app, &json!([{"sketched": "a"}, {"pair": "a"}]), 1).status == 200).count();
        let daily = (0..400).filter(|_| {
            app.clock.advance(std::time::Duration::from_secs(1));
            check(&app, &json!([{"pair": "a"}]), 1).status == 200
        });
        let daily = daily.count();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        (admitted, daily)
    });
    assert_eq!(admitted, (1, 149), "one a second and 150 a day");
}

#[test]
fn a_request_of_envoy_is_explained_as_that_of_check() {
    let app = App::new();
    check(&app, &json!([{"user_id": "7"}]), 2);
    let entry = |key: &str, value: &str| json!({"key": key, "value": value});
    let envoy = json!({
        "domain": "api", "hitsAddend": 2,
        "descriptors": [{"entries": [entry("user_id", "7")]}, {"entries": [entry("outer", "a"), entry("inner", "b")]}],
    });
    let of_envoy = post(&app, "/explain", &envoy).json();
    let same = explain(&app, &json!([{"user_id": "7"}, [["outer", "a"], ["inner", "b"]]]), 2);
    assert_eq!(of_envoy, same);
    assert_eq!(of_envoy["asked"][0]["allowed"], false);
    let own = json!({
        "domain": "api", "hits_addend": 5,
        "descriptors": [{"entries": [entry("user_id", "7")], "hitsAddend": "1"}],
    });
    assert_eq!(post(&app, "/explain", &own).json(), explain(&app, &json!([{"user_id": "7"}]), 1));
    for (more, part) in [
        (json!({"limit": {"requestsPerUnit": 5, "unit": "HOUR"}}), "a limit of its own"),
        (json!({"isNegativeHits": true}), "gives units back"),
        (json!({"entry": 1}), "unknown field `entry`"),
    ] {
        let mut descriptor = json!({"entries": [entry("user_id", "7")]});
        more.as_object().into_iter().flatten().for_each(|(name, value)| descriptor[name] = value.clone());
        let wrong = post(&app, "/explain", &json!({"domain": "api", "descriptors": [descriptor]})).problem(400);
        assert!(wrong.contains(part), "{wrong}");
    }
    // A key can be named as Envoy's member.
    assert_eq!(explain(&app, &json!([{"entries": "x"}]), 1)["unknown"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_descriptor_without_a_rule_is_told_which_keys_the_rules_have() {
    let app = App::new();
    let known = explain(&app, &json!([[["user_id", "7"], ["remote_address", "192.0.2.1"]]]), 1)["known"].clone();
    let paths = known["paths"].as_array().expect("it is a list");
    assert!(["user_id", "outer > inner", "page=/search"].iter().all(|path| paths.contains(&json!(path))), "{known}");
    assert!(!paths.contains(&json!("path=/free")), "a rule without a limit is not named");
    let none = json!({"paths": [], "left_out": 0});
    assert_eq!(explain(&app, &json!([{"user_id": "7"}]), 1)["known"], none);
    let many: String =
        (0..70).map(|at| format!("- {{key: k{at}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n")).collect();
    let text = format!("domain: api\ndescriptors:\n{many}");
    app.service.replace_rules(Rules::parse(&[RulesFile { name: "m.yaml".into(), text }]).expect("valid rules"));
    let known = explain(&app, &json!([{"a": "b"}]), 1)["known"].clone();
    assert_eq!((known["paths"].as_array().map(Vec::len), &known["left_out"]), (Some(50), &json!(20)));
}

#[test]
fn a_wrong_body_is_answered_with_the_reason() {
    let app = App::new();
    for path in ["/explain", "/peek"] {
        let ask = |body: Value| post(&app, path, &body).problem(400);
        assert!(ask(json!({"domain": "api", "descriptors": []})).contains("no descriptors"));
        assert!(ask(json!({"domain": "", "descriptors": [{"a": "b"}]})).contains("the domain is empty"));
        assert!(ask(json!({"domain": "api"})).contains("missing field `descriptors`"));
        assert!(ask(json!({"domain": "api", "descriptor": []})).contains("unknown field `descriptor`"));
        assert!(ask(json!([1])).contains("send JSON such as"));
        assert!(
            ask(json!({"domain": "api", "descriptors": vec![json!({"a": "b"}); 33]})).contains("too many descriptors")
        );
        let deep = "[".repeat(60_000);
        let request = Request::post(path).header("host", LOCAL).body(Body::from(deep)).expect("the request is valid");
        assert_eq!(app.admin(None, LOCAL, request).status, 400);
        let long = json!({"domain": "a".repeat(70_000), "descriptors": [{"a": "b"}]});
        post(&app, path, &long).problem(413);
        let script = json!({"domain": "api", "descriptors": [{"<script>": "</script>\u{0}\u{202e}"}]});
        assert_eq!(post(&app, path, &script).header("content-type"), Some("application/json"));
    }
}
