//! Tests of `POST /caller`, and of the questions about the hash of a caller.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use serde_json::{Value, json};
use spillgate::rules::{Rules, RulesFile};
use spillgate_admin::Access;
use spillgate_service::{CallerKeys, Insight, Peer, ServiceOptions};
use tower::ServiceExt as _;

use crate::http::app::{App, Reply, options};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user_id, rate_limit: {name: per_user, unit: hour, requests_per_unit: 3}}
  - {key: user_id, value: vip, rate_limit: {name: vips, unit: hour, requests_per_unit: 9}}
  - {key: address, rate_limit: {name: per_address, unit: hour, requests_per_unit: 5}}
  - key: path
    value: /login
    descriptors: [{key: address, rate_limit: {name: login, unit: hour, requests_per_unit: 2}}]
  - key: tenant
    descriptors: [{key: user_id, rate_limit: {name: in_tenant, unit: hour, requests_per_unit: 1}}]
  - {key: report, value: 'm*', shadow_mode: true, rate_limit: {name: reports, unit: hour, requests_per_unit: 1}}
  - key: all
    value: requests
    insight_by: user_id
    rate_limit: {name: together, unit: hour, requests_per_unit: 4}
";

fn load(app: &App, rules: &str, keys: CallerKeys) {
    let rules = Rules::parse(&[RulesFile { name: "shop.yaml".into(), text: rules.into() }]);
    app.service.replace_rules(rules.unwrap_or_else(|errors| panic!("{errors:?}")));
    app.service.replace_caller_keys(keys);
}

fn app(keys: CallerKeys) -> App {
    let insight = Insight { max_callers: 10_000, keys };
    let app = App::with(options(), ServiceOptions { insight, ..ServiceOptions::default() });
    load(&app, RULES, keys);
    app
}

fn check(app: &App, descriptors: &Value) -> u16 {
    app.post("/v1/check", &json!({"domain": "shop", "descriptors": descriptors}).to_string()).status
}

fn caller(app: &App, values: &Value) -> Value {
    let reply = app.operate("POST", "/caller", &json!({ "values": values }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

/// Returns what is used of each limit of a caller, by the name of the limit.
fn used(answer: &Value) -> BTreeMap<String, u64> {
    let limits = answer["limits"].as_array().expect("it is a list").iter();
    let name = |limit: &Value| limit["limit"]["name"].as_str().expect("it has a name").to_owned();
    limits.map(|limit| (name(limit), limit["used"].as_u64().expect("it is a number"))).collect()
}

fn is(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    expected.iter().map(|(name, used)| ((*name).to_owned(), *used)).collect()
}

#[test]
fn all_limits_that_the_values_of_a_caller_touch_are_shown_with_their_state() {
    let app = app(CallerKeys::Hashed);
    for _ in 0..2 {
        check(&app, &json!([{"user_id": "7"}, [["path", "/login"], ["address", "192.0.2.1"]]]));
    }
    check(&app, &json!([{"address": "192.0.2.1"}]));
    check(&app, &json!([[["tenant", "acme"], ["user_id", "7"]]]));
    let user = caller(&app, &json!([{"key": "user_id", "value": "7"}]));
    assert_eq!(used(&user), is(&[("per_user", 2)]));
    assert_eq!(user["unread"], json!([{"domain": "shop", "rule": "tenant > user_id", "missing": ["tenant"]}]));
    let limit = &user["limits"][0];
    assert_eq!(
        (&limit["remaining"], &limit["allowed"], &limit["retry_after_ns"]),
        (&json!(1), &json!(true), &Value::Null)
    );
    let all = caller(
        &app,
        &json!([{"key": "user_id", "value": "7"}, {"key": "tenant", "value": "acme"}, {"value": "192.0.2.1"}]),
    );
    assert_eq!(used(&all), is(&[("per_user", 2), ("in_tenant", 1), ("per_address", 1), ("login", 2)]));
    assert_eq!(all["unread"], json!([]));
    let login =
        all["limits"].as_array().and_then(|limits| limits.iter().find(|limit| limit["limit"]["name"] == "login"));
    let login = login.expect("it is listed");
    assert_eq!(login["entries"], json!([["path", "/login"], ["address", "192.0.2.1"]]), "the rule fixes the path");
    assert_eq!(
        (&login["allowed"], &login["reason"], &login["binding"]),
        (&json!(false), &json!("exceeded"), &json!("enforce"))
    );
    assert_eq!(login["retry_after_ns"], json!(3_600_000_000_000_u64), "the clock stands still at the begin of an hour");
    assert_eq!(caller(&app, &json!([{"key": "user_id", "value": "7"}])), user, "nothing was taken");
}

#[test]
fn a_rule_that_another_one_hides_is_not_shown() {
    let app = app(CallerKeys::Hashed);
    check(&app, &json!([{"user_id": "vip"}]));
    assert_eq!(
        used(&caller(&app, &json!([{"value": "vip"}]))),
        is(&[("vips", 1)]),
        "of a value alone, unused limits are left out"
    );
    let of_other_path = json!([{"key": "path", "value": "/other"}, {"key": "address", "value": "a"}]);
    assert_eq!(used(&caller(&app, &of_other_path)), is(&[("per_address", 0)]));
    let reports = caller(&app, &json!([{"key": "report", "value": "monthly"}]));
    assert_eq!((used(&reports), &reports["limits"][0]["binding"]), (is(&[("reports", 0)]), &json!("shadow")));
    assert_eq!(used(&caller(&app, &json!([{"key": "report", "value": "daily"}]))), is(&[]));
    let nothing = caller(&app, &json!([{"key": "unknown", "value": "7"}]));
    assert_eq!((&nothing["limits"], &nothing["blocks"], &nothing["unread"]), (&json!([]), &json!([]), &json!([])));
}

#[test]
fn the_blocks_of_a_caller_are_shown_whatever_the_rules_say() {
    let app = app(CallerKeys::Hashed);
    for body in [
        json!({"key": "user_id", "value": "7", "for": "1h", "domain": "shop"}),
        json!({"key": "cookie", "value": "7", "for": "2h"}),
        json!({"key": "user_id", "value": "8", "for": "1h"}),
    ] {
        assert_eq!(app.operate("POST", "/block", &body).status, 200);
    }
    let blocked = |values: &Value| -> Vec<Value> {
        let answer = caller(&app, values);
        answer["blocks"].as_array().expect("it is a list").iter().map(|block| block["key"].clone()).collect()
    };
    assert_eq!(blocked(&json!([{"value": "7"}])), [json!("cookie"), json!("user_id")], "the longest one first");
    assert_eq!(blocked(&json!([{"key": "user_id", "value": "7"}])), [json!("user_id")]);
    assert_eq!(used(&caller(&app, &json!([{"key": "user_id", "value": "7"}]))), is(&[("per_user", 0)]));
    let elsewhere = app.operate("POST", "/caller", &json!({"domain": "none", "values": [{"value": "7"}]}));
    assert!(elsewhere.problem(400).contains("no rules file has the domain `none`"), "{}", elsewhere.body);
}

#[test]
fn wrong_and_large_questions_about_a_caller_are_answered() {
    let app = app(CallerKeys::Hashed);
    let wrong = |body: &Value| app.operate("POST", "/caller", body).problem(400);
    assert!(wrong(&json!({"values": []})).contains("1 to 16 are possible"));
    assert!(wrong(&json!({"values": vec![json!({"value": "7"}); 17]})).contains("1 to 16 are possible"));
    let twice = json!({"values": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]});
    assert!(wrong(&twice).contains("the key `a` has two values"));
    assert!(wrong(&json!({"values": [{"key": "a"}]})).contains("missing field `value`"));
    let limit = "descriptors: [{key: u, rate_limit: {unit: hour, limit: 1}}]";
    let many: String = (0..300).map(|at| format!("  - {{key: k, value: v{at}, {limit}}}\n")).collect();
    let deep: String = (0..300).map(|at| format!("  - {{key: d{at}, {limit}}}\n")).collect();
    load(&app, &format!("domain: shop\ndescriptors:\n{many}{deep}"), CallerKeys::Hashed);
    let answer = caller(&app, &json!([{"key": "u", "value": "7"}]));
    let lengths = ["limits", "unread"].map(|name| answer[name].as_array().map(Vec::len));
    assert_eq!(lengths, [Some(100); 2]);
    assert_eq!((&answer["limits_left_out"], &answer["unread_left_out"]), (&json!(200), &json!(200)));
}

/// Asks the admin listener, while a program sends requests with these descriptors.
fn while_asked(app: &App, path: &str, body: &Value, descriptors: &Value) -> Reply {
    let router = app.admin_router(Access::new(None, None, vec![]).expect("no token is needed"));
    let mut request = Request::post(path)
        .header("host", "127.0.0.1:4711")
        .header("x-spillgate-admin", "1")
        .body(Body::from(body.to_string()))
        .expect("the request is valid");
    request.extensions_mut().insert(ConnectInfo(Peer::Tcp("127.0.0.1:4711".parse().expect("it is an address"))));
    let sent = json!({"domain": "shop", "descriptors": descriptors}).to_string();
    app.reply(async {
        let load = async {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                app.send("/v1/check", &sent).await;
            }
        };
        tokio::select! {
            answer = router.oneshot(request) => answer.expect("a router never fails"),
            () = load => unreachable!("the load never ends"),
        }
    })
}

/// Returns the hash of the only caller with allowed units of the limit with this name.
fn hash(app: &App, name: &str, list: &str) -> Value {
    let top = app.operate("GET", "/top", &Value::Null).json();
    let limits = top["limits"].as_array().expect("it is a list");
    let limit = limits.iter().find(|limit| limit["name"] == name).expect("it is watched");
    let callers = limit.pointer(list).and_then(Value::as_array).expect("there are callers");
    assert_eq!((callers.len(), &callers[0]["name"]), (1, &Value::Null), "{limit}");
    callers[0]["id"].clone()
}

#[test]
fn a_caller_is_blocked_and_explained_by_its_hash() {
    let app = app(CallerKeys::Hashed);
    let login = json!([[["path", "/login"], ["address", "192.0.2.1"]], {"user_id": "7"}]);
    assert_eq!(check(&app, &login), 200);
    let id = hash(&app, "login", "/allowed/callers");
    let explained = while_asked(&app, "/explain", &json!({"hash": id}), &login);
    assert_eq!(explained.status, 200, "{}", explained.body);
    let entries: Vec<_> = explained.json()["descriptors"]
        .as_array()
        .expect("it is a list")
        .iter()
        .map(|one| one["entries"].clone())
        .collect();
    assert_eq!(
        entries,
        [json!([["path", "/login"], ["address", "192.0.2.1"]]), json!([["user_id", "7"]])],
        "the whole request"
    );
    let blocked = while_asked(&app, "/block", &json!({"hash": id, "for": "10m"}), &login);
    assert_eq!(blocked.status, 200, "{}", blocked.body);
    let block = &blocked.json()["block"];
    assert_eq!((&block["key"], &block["value"]), (&json!("address"), &json!("192.0.2.1")), "the rule fixes the path");
    assert_eq!((check(&app, &login), check(&app, &json!([{"user_id": "7"}]))), (429, 200));
}

#[test]
fn a_hash_that_cannot_be_found_out_is_an_error_that_says_why() {
    let app = app(CallerKeys::Hashed);
    let body = json!({"hash": "0123456789abcdef", "for": "10m"});
    let (unseen, waited) = app.held(|app| while_asked(app, "/block", &body, &json!([{"user_id": "7"}])));
    assert!(unseen.problem(404).contains("no request of this caller came within 3 seconds"), "{}", unseen.body);
    assert!(unseen.problem(404).contains("set insight.keys: plain and reload"), "{}", unseen.body);
    assert_eq!(waited, Duration::from_secs(3));
    let wrong = |body: &Value, status| app.operate("POST", "/block", body).problem(status);
    for text in ["", "7", "0123456789abcdeg", "+123456789abcdef", "0123456789abcdef0"] {
        assert!(wrong(&json!({"hash": text, "for": "1m"}), 400).contains("16 hexadecimal digits"), "{text}");
    }
    assert!(wrong(&json!({"hash": "0123456789abcdef", "value": "7", "for": "1m"}), 400).contains("not both"));
    assert!(wrong(&json!({"value": "7", "for": "1m"}), 400).contains("missing field `key`"));
    assert!(wrong(&json!({"key": "user_id", "for": "1m"}), 400).contains("missing field `value`"));
    // Two entries are the caller's own, so the operator has to choose.
    let pair = json!([[["tenant", "acme"], ["user_id", "7"]]]);
    check(&app, &pair);
    let id = hash(&app, "in_tenant", "/allowed/callers");
    let ask = |body: &Value| while_asked(&app, "/block", body, &pair);
    assert!(
        ask(&json!({"hash": id, "for": "1m"})).problem(409).contains("several entries of its own: `tenant`, `user_id`")
    );
    assert!(
        ask(&json!({"hash": id, "key": "path", "for": "1m"}))
            .problem(409)
            .contains("no entry of its own with the key `path`")
    );
    // All callers of this limit have one counter.
    let shared = json!([{"all": "requests"}]);
    check(&app, &shared);
    let id_of_all = hash(&app, "together", "/allowed/callers");
    let refused = while_asked(&app, "/block", &json!({"hash": id_of_all, "for": "1m"}), &shared);
    assert!(refused.problem(409).contains("the block would refuse all of them"), "{}", refused.body);
    let chosen = ask(&json!({"hash": id, "key": "tenant", "for": "1m"}));
    assert_eq!((chosen.status, &chosen.json()["block"]["value"]), (200, &json!("acme")));
    let off = App::new();
    let body = json!({"hash": "0123456789abcdef", "for": "1m"});
    assert!(off.operate("POST", "/block", &body).problem(404).contains("insight.max_callers: off"));
}

#[test]
fn who_may_only_read_learns_no_value_behind_a_hash() {
    for (keys, status) in [(CallerKeys::Hashed, 403), (CallerKeys::Plain, 404)] {
        let app = app(keys);
        let access =
            Access::new(Some("the-write-token"), Some("the-read-token"), vec![]).expect("the tokens are valid");
        let request = Request::post("/explain").header("authorization", "Bearer the-read-token");
        let mut request = request.body(Body::from(r#"{"hash":"0123456789abcdef"}"#)).expect("the request is valid");
        request.extensions_mut().insert(ConnectInfo(Peer::Unix));
        let answer = app.admin_with(access, request);
        assert_eq!(answer.status, status, "{}", answer.body);
    }
}

#[test]
fn a_shared_limit_says_who_fills_it() {
    let app = app(CallerKeys::Plain);
    let request = |user: &str| json!([{"all": "requests"}, {"user_id": user}]);
    let statuses: Vec<_> = ["7", "7", "8", "7", "7", "7"].iter().map(|user| check(&app, &request(user))).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    check(&app, &json!([{"all": "requests"}]));
    let of = |page: &str, name: &str| {
        let page = app.operate("GET", page, &Value::Null).json();
        let limits = page["limits"].as_array().expect("it is a list").clone();
        limits.into_iter().find(|limit| limit["name"] == name).expect("it is watched")
    };
    for page in ["/top", "/insight"] {
        let by = &of(page, "together")["by"];
        let units = |list: &str| -> Vec<(Value, Value)> {
            let callers = by[list]["callers"].as_array().expect("it is a list").iter();
            callers.map(|caller| (caller["name"].clone(), caller["units"].clone())).collect()
        };
        assert_eq!(by["key"], "user_id");
        assert_eq!(units("allowed"), [(json!("user_id=7"), json!(3)), (json!("user_id=8"), json!(1))]);
        assert_eq!(units("refused"), [(json!("user_id=7"), json!(2))], "a request without the entry is not counted");
        assert_eq!(of(page, "per_user")["by"], Value::Null);
    }
    // A reload keeps the counts while the rule names the same key.
    load(&app, &RULES.replace("requests_per_unit: 4", "requests_per_unit: 40"), CallerKeys::Plain);
    assert_eq!(check(&app, &request("7")), 429, "the limit of this caller is used up");
    assert_eq!(of("/top", "together")["by"]["allowed"]["units"], 4, "what another limit refuses takes nothing");
    load(&app, &RULES.replace("insight_by: user_id", "insight_by: address"), CallerKeys::Plain);
    assert_eq!(of("/top", "together")["by"]["allowed"]["units"], 0);
    load(&app, &RULES.replace("    insight_by: user_id\n", ""), CallerKeys::Plain);
    assert_eq!(of("/top", "together")["by"], Value::Null);
}

#[test]
fn who_fills_a_shared_limit_is_hidden_and_blocked_by_hash() {
    let app = app(CallerKeys::Hashed);
    let request = json!([{"all": "requests"}, {"user_id": "7"}]);
    check(&app, &request);
    let id = hash(&app, "together", "/by/allowed/callers");
    let blocked = while_asked(&app, "/block", &json!({"hash": id, "for": "1m"}), &request);
    assert_eq!((blocked.status, &blocked.json()["block"]["key"]), (200, &json!("user_id")), "{}", blocked.body);
    load(&app, RULES, CallerKeys::Off);
    let top = app.operate("GET", "/top", &Value::Null).body;
    assert!(!top.contains(id.as_str().expect("it is a text")) && top.contains(r#""by":{"key":"user_id""#), "{top}");
}

#[test]
fn a_reload_shows_and_hides_the_names_of_callers() {
    let app = app(CallerKeys::Hashed);
    let names = || -> Vec<(Value, Value)> {
        let top = app.operate("GET", "/top", &Value::Null).json();
        let callers = top["limits"][0]["allowed"]["callers"].as_array().expect("it is a list").clone();
        callers.into_iter().map(|caller| (caller["name"].clone(), caller["units"].clone())).collect()
    };
    for user in ["7", "8", "7"] {
        check(&app, &json!([{"user_id": user}]));
    }
    assert_eq!(names(), [(Value::Null, json!(2)), (Value::Null, json!(1))]);
    load(&app, RULES, CallerKeys::Plain);
    assert_eq!(names(), [(Value::Null, json!(2)), (Value::Null, json!(1))], "their requests came before");
    check(&app, &json!([{"user_id": "8"}]));
    check(&app, &json!([{"user_id": "8"}]));
    check(&app, &json!([{"user_id": "9"}]));
    assert_eq!(names(), [(json!("user_id=8"), json!(3)), (Value::Null, json!(2)), (json!("user_id=9"), json!(1))]);
    load(&app, RULES, CallerKeys::Off);
    assert_eq!(names(), []);
    load(&app, RULES, CallerKeys::Hashed);
    assert_eq!(names(), [(Value::Null, json!(3)), (Value::Null, json!(2)), (Value::Null, json!(1))]);
    load(&app, RULES, CallerKeys::Plain);
    assert_eq!(names()[0].0, Value::Null, "names that were hidden are forgotten");
    assert_eq!(check(&app, &json!([{"user_id": "8"}])), 429, "the counts of the limits stay");
}

#[test]
fn a_query_of_insight_can_have_an_equals_sign() {
    let app = app(CallerKeys::Plain);
    let rules = "domain: a=b\ndescriptors: [{key: plan, value: x=y, rate_limit: {unit: hour, requests_per_unit: 3}}]";
    load(&app, rules, CallerKeys::Plain);
    for query in ["domain=a=b&rule=plan=x=y", "domain=a%3Db&rule=plan%3Dx%3Dy", "rule=plan=x=y", "domain=a=b"] {
        let page = app.operate("GET", &format!("/insight?{query}"), &Value::Null).json();
        assert_eq!(page["limits"].as_array().map(Vec::len), Some(1), "{query}");
    }
    let page = app.operate("GET", "/insight?rule=plan=x", &Value::Null).json();
    assert_eq!(page["limits"], json!([]));
}
