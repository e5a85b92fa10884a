//! Tests of reservations: an estimate is taken, and settled once.
//!
//! If an estimate could be settled twice, a client could give back units that it has used.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use spillgate::{MemoryOptions, OnFull};
use spillgate_service::ServiceOptions;

use crate::http::app::{App, Reply, options};

const LIFE: Duration = Duration::from_secs(60);

fn reserve(app: &App, descriptors: &Value, estimate: u64) -> Reply {
    app.post("/v1/reserve", &json!({ "domain": "api", "descriptors": descriptors, "estimate": estimate }).to_string())
}

fn reserved(app: &App, descriptors: &Value, estimate: u64) -> String {
    let reply = reserve(app, descriptors, estimate);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["reservation_id"].as_str().expect("the answer has a reservation id").to_owned()
}

fn commit(app: &App, id: &str, used: u64) -> Reply {
    app.post("/v1/commit", &json!({ "reservation_id": id, "used": used }).to_string())
}

fn cancel(app: &App, id: &str) -> Reply {
    app.post("/v1/cancel", &json!({ "reservation_id": id }).to_string())
}

/// Returns how many units of the limit for `descriptor` are left.
fn left(app: &App, descriptor: &Value) -> u64 {
    let body = json!({ "domain": "api", "descriptors": [descriptor], "cost": 0 }).to_string();
    app.post("/v1/check", &body).json()["remaining"].as_u64().expect("the limit has units")
}

#[test]
fn a_commit_counts_what_was_used_instead_of_the_estimate() {
    let (app, red) = (App::new(), json!({"tokens": "red"}));
    for (estimate, used, expected) in [(60, 45, 55), (20, 30, 25), (10, 10, 15)] {
        let id = reserved(&app, &json!([red]), estimate);
        let reply = commit(&app, &id, used);
        assert_eq!((reply.status, reply.json()), (200, json!({"settled": true, "used": used})));
        assert_eq!(left(&app, &red), expected);
    }
    let refused = reserve(&app, &json!([red]), 16);
    assert_eq!((refused.status, &refused.json()["reservation_id"]), (429, &Value::Null));
    assert!(refused.problem(429).contains("the limit is used up"));
    assert_eq!(left(&app, &red), 15, "a refusal charges nothing");
}

#[test]
fn a_cancelled_reservation_gives_everything_back() {
    let (app, red) = (App::new(), json!({"tokens": "red"}));
    let id = reserved(&app, &json!([red]), 100);
    assert_eq!(left(&app, &red), 0);
    assert_eq!(cancel(&app, &id).json(), json!({"settled": true, "used": 0}));
    assert_eq!(left(&app, &red), 100);
}

#[test]
fn only_the_first_settlement_changes_something() {
    let (app, red) = (App::new(), json!({"tokens": "red"}));
    let id = reserved(&app, &json!([red]), 60);
    assert_eq!(commit(&app, &id, 45).status, 200);
    for reply in [commit(&app, &id, 45), commit(&app, &id, 0), commit(&app, &id, 99), cancel(&app, &id)] {
        assert!(reply.problem(410).contains("was settled before, or its life has ended"), "{}", reply.body);
        assert_eq!(left(&app, &red), 55);
    }
}

#[test]
fn a_reservation_ends_with_its_life_and_stays_charged() {
    let (app, red) = (App::new(), json!({"tokens": "red"}));
    let (in_time, late) = (reserved(&app, &json!([red]), 40), reserved(&app, &json!([red]), 40));
    app.clock.advance(LIFE - Duration::from_nanos(1));
    assert_eq!(cancel(&app, &in_time).status, 200);
    app.clock.advance(Duration::from_nanos(1));
    assert_eq!((cancel(&app, &late).status, commit(&app, &late, 50).status), (410, 410));
    assert_eq!(left(&app, &red), 60);
}

#[test]
fn several_limits_take_the_estimate_or_none_does() {
    let app = App::new();
    let both = json!([{"tokens": "red"}, {"user_id": "7"}]);
    assert_eq!(reserve(&app, &both, 4).status, 429, "the user has 3 units");
    assert_eq!((left(&app, &json!({"tokens": "red"})), left(&app, &json!({"user_id": "7"}))), (100, 3));
    let id = reserved(&app, &both, 3);
    assert_eq!(commit(&app, &id, 1).status, 200);
    assert_eq!((left(&app, &json!({"tokens": "red"})), left(&app, &json!({"user_id": "7"}))), (99, 2));
}

#[test]
fn a_counter_that_is_named_twice_is_charged_and_settled_twice() {
    let (app, red) = (App::new(), json!({"tokens": "red"}));
    let id = reserved(&app, &json!([red, red]), 30);
    assert_eq!(left(&app, &red), 40);
    assert_eq!(commit(&app, &id, 10).status, 200);
    assert_eq!(left(&app, &red), 80);
}

#[test]
fn a_limit_that_is_paid_later_takes_the_estimate_too() {
    let (app, blue) = (App::new(), json!({"paid_later": "blue"}));
    assert_eq!(reserve(&app, &json!([blue]), 101).status, 429);
    let id = reserved(&app, &json!([blue]), 80);
    assert_eq!(reserve(&app, &json!([blue]), 21).status, 429, "only 20 units are left");
    assert_eq!(commit(&app, &id, 120).status, 200);
    assert_eq!(left(&app, &blue), 0);
}

#[test]
fn without_a_limit_there_is_nothing_to_settle() {
    let app = App::new();
    for descriptors in [json!([{"path": "/free"}]), json!([{"unknown": "x"}])] {
        let reply = reserve(&app, &descriptors, 5);
        assert_eq!((reply.status, &reply.json()["reservation_id"]), (200, &Value::Null));
    }
    let check = app.post("/v1/check", r#"{"domain":"api","descriptors":[{"tokens":"red"}]}"#);
    assert!(check.json().get("reservation_id").is_none(), "a check has no reservation");
}

#[test]
fn limits_without_units_and_bad_bodies_are_explained() {
    let app = App::new();
    let bad = |reply: Reply, text: &str| {
        let problem = reply.problem(400);
        assert!(problem.contains(text), "{problem}");
    };
    bad(reserve(&app, &json!([{"job": "x"}]), 1), "descriptor 1 (rule `job`): a limit with permits (concurrency)");
    bad(
        reserve(&app, &json!([{"queued": "x"}]), 1),
        "descriptor 1 (rule `queued`): a limit with permits (concurrency) or turns",
    );
    bad(reserve(&app, &json!([{"tokens": "red"}]), 0), "estimate at least 1 unit");
    bad(app.post("/v1/reserve", r#"{"domain":"api","descriptors":[{"tokens":"red"}]}"#), "missing field `estimate`");
    bad(app.post("/v1/reserve", r#"{"domain":"api","descriptors":[],"estimate":1,"cost":1}"#), "unknown field `cost`");
    bad(app.post("/v1/commit", r#"{"reservation_id":"AQ"}"#), "missing field `used`");
    bad(commit(&app, "AQAAAA", 1), "was not made by this server");
    bad(cancel(&app, ""), "was not made by this server");
    let id = reserved(&app, &json!([{"tokens": "red"}]), 1);
    bad(app.post("/v1/release", &json!({ "lease_id": id }).to_string()), "was not made by this server");
    bad(cancel(&app, &App::with(options(), ServiceOptions::default()).an_id()), "was not made by this server");
    assert_eq!(app.get("/v1/reserve").status, 405);
}

impl App {
    fn an_id(&self) -> String {
        reserved(self, &json!([{"tokens": "red"}]), 1)
    }
}

#[test]
fn in_shadow_mode_a_reservation_is_never_refused() {
    let app = App::with(options(), ServiceOptions { shadow: true, ..ServiceOptions::default() });
    let red = json!({"tokens": "red"});
    let (first, second) = (reserved(&app, &json!([red]), 80), reserved(&app, &json!([red]), 80));
    assert_eq!(commit(&app, &second, 0).status, 200, "it has a record, although its limit took nothing");
    assert_eq!(left(&app, &red), 20);
    assert_eq!(commit(&app, &first, 10).status, 200);
    assert_eq!((left(&app, &red), commit(&app, &first, 10).status), (90, 410));
}

/// Returns a server whose store is full: it has only the state of the limit for `descriptor`.
fn full(descriptor: &str, on_full: OnFull) -> App {
    let memory = MemoryOptions { max_keys: 1, on_full, ..MemoryOptions::default() };
    let app = App::with_memory(options(), ServiceOptions::default(), memory);
    let body = json!({ "domain": "api", "descriptors": [{ descriptor: "red" }] });
    assert_eq!(app.post("/v1/check", &body.to_string()).status, 200);
    app
}

#[test]
fn a_full_store_refuses_a_reservation_as_its_limit() {
    let app = full("tokens", OnFull::Deny);
    let refused = reserve(&app, &json!([{"tokens": "red"}]), 20);
    assert!(refused.problem(429).contains("the memory for counts is full"), "{}", refused.body);
    let answer = refused.json();
    assert_eq!((&answer["rule"], &answer["limit"], &answer["remaining"]), (&json!("tokens"), &json!(100), &json!(0)));
    assert_eq!(answer["violated-policies"], json!(["tokens"]));
    assert_eq!(answer["reservation_id"], Value::Null);
    assert_eq!(left(&app, &json!({"tokens": "red"})), 99);
    let request = Request::get("/metrics").body(Body::empty()).expect("the request is valid");
    let metrics = app.admin(None, "127.0.0.1:1", request).body;
    assert!(metrics.contains(r#"rule="tokens",outcome="refused"} 1"#), "{metrics}");
}

#[test]
fn a_full_store_that_allows_makes_no_reservation_that_could_be_settled() {
    let app = full("tokens", OnFull::Allow);
    let allowed = reserve(&app, &json!([{"tokens": "red"}]), 20);
    assert_eq!((allowed.status, &allowed.json()["reservation_id"]), (200, &Value::Null));
    assert_eq!(left(&app, &json!({"tokens": "red"})), 79, "the estimate stays charged");
}

#[test]
fn a_full_store_refuses_no_reservation_of_a_rule_in_shadow_mode() {
    let app = full("shadowed", OnFull::Deny);
    let allowed = reserve(&app, &json!([{"shadowed": "red"}]), 1);
    assert_eq!((allowed.status, &allowed.json()["reservation_id"]), (200, &Value::Null));
}
