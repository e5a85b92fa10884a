//! Tests of `GET /events` with a clock that only the test changes: what a tick contains, and when a stream ends.
//!
//! The tests of `tests/events.rs` use real sockets.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use spillgate::ManualClock;
use spillgate::rules::{Rules, RulesFile};
use spillgate_admin::{self as admin, Access, AdminState};
use spillgate_service::{Peer, Readiness};
use tower::ServiceExt as _;

use crate::http::app::App;
use crate::openapi::schema;

const ASK: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;

const HOUR: Duration = Duration::from_secs(3600);

fn state(app: &App) -> Arc<AdminState<ManualClock>> {
    Arc::new(AdminState::new(Arc::clone(&app.service), Access::default()))
}

fn ticking(app: &App, every: Duration) -> Arc<AdminState<ManualClock>> {
    Arc::new(AdminState::new(Arc::clone(&app.service), Access::default()).with_tick(every))
}

/// Opens a stream from the address `peer`, and returns its status and its body.
fn open(app: &App, state: &Arc<AdminState<ManualClock>>, peer: Peer) -> (u16, Body) {
    let mut request = Request::get("/events").body(Body::empty()).expect("the request is valid");
    request.extensions_mut().insert(ConnectInfo(peer));
    let answer = app.run(admin::router(Arc::clone(state)).oneshot(request)).expect("a router never fails");
    (answer.status().as_u16(), answer.into_body())
}

fn stream(app: &App, state: &Arc<AdminState<ManualClock>>) -> Body {
    let (status, body) = open(app, state, Peer::Unix);
    assert_eq!(status, 200);
    body
}

/// Returns the next message of a stream. `None` if the stream has ended.
fn message(app: &App, body: &mut Body) -> Option<String> {
    let frame = app.run(body.frame())?.expect("no event fails");
    let data = frame.into_data().unwrap_or_else(|_| panic!("an event is no trailer"));
    Some(String::from_utf8(data.to_vec()).expect("events are UTF-8"))
}

/// Returns the events of a message: their names and their data.
fn events(message: &str) -> Vec<(String, Value)> {
    let events = message.split_terminator("\n\n").filter(|event| event.starts_with("event: "));
    let parsed = events.map(|event| {
        let (name, data) = event.split_once("\ndata: ").expect("an event has data");
        assert!(!data.contains('\n'), "the data has one line: {data}");
        let data = serde_json::from_str(data).expect("the data is JSON");
        (name.trim_start_matches("event: ").to_owned(), data)
    });
    parsed.collect()
}

/// Returns the next tick. Panics if another event comes.
fn tick(app: &App, body: &mut Body) -> Value {
    let message = message(app, body).expect("the stream goes on");
    match &events(&message)[..] {
        [(name, tick)] if name == "tick" => tick.clone(),
        _ => panic!("it is no tick: {message}"),
    }
}

fn check(app: &App, key: &str) {
    let body = json!({"domain": "api", "descriptors": [{ key: "7" }]}).to_string();
    assert!(app.post("/v1/check", &body).status != 400);
}

fn overview(app: &App) -> Value {
    app.admin(None, "127.0.0.1:1", Request::get("/overview").body(Body::empty()).expect("the request is valid")).json()
}

/// Returns the id of the first limit of the rule with the path `rule`.
fn id(overview: &Value, rule: &str) -> usize {
    let limits = overview["limits"].as_array().expect("there is a list");
    limits.iter().position(|limit| limit["rule"] == rule).expect("the rule has a limit")
}

#[test]
fn a_stream_begins_with_all_limits_and_goes_on_with_those_that_change() {
    let app = App::new();
    check(&app, "user_id");
    let mut body = stream(&app, &state(&app));
    let first = message(&app, &mut body).expect("a stream has events");
    assert!(first.starts_with("retry: 2000\n\nevent: tick\ndata: {"), "{first}");
    let (first, overview) = (events(&first).remove(0).1, overview(&app));
    let columns = ["id", "allowed", "refused", "near", "shadow_refused", "soft_over"];
    let limits = overview["limits"].as_array().expect("there is a list").iter();
    let rows: Vec<_> = limits.map(|limit| json!(columns.map(|name| limit[name].clone()))).collect();
    assert_eq!(first["limits"], json!(rows));
    for member in ["at_ms", "changes", "store"] {
        assert_eq!(first[member], overview[member], "{member}");
    }
    assert_eq!(first["requests"], json!({"allowed": 1, "refused": 0, "blocked": 0, "errors": 0}));
    assert_eq!(first["memory"]["keys"], overview["memory"]["keys"]);
    let file =
        app.admin(None, "127.0.0.1:1", Request::get("/openapi.json").body(Body::empty()).expect("it is valid")).json();
    let schema = &file["components"]["schemas"]["Tick"];
    schema::check(&file, schema, &first, "tick").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(tick(&app, &mut body)["limits"], json!([]), "nothing has changed");
    for _ in 0..2 {
        ["user_id", "shadowed", "soft"].iter().for_each(|key| check(&app, key));
    }
    app.clock.advance(Duration::from_millis(700));
    let next = tick(&app, &mut body);
    let [user, shadowed, kept] = ["user_id", "shadowed", "soft"].map(|rule| id(&overview, rule));
    let expected =
        json!([[user, 3, 0, 1, 0, 0], [shadowed, 1, 0, 1, 1, 0], [kept, 2, 0, 0, 0, 0], [kept + 1, 1, 0, 1, 0, 1]]);
    assert_eq!((&next["limits"], &next["requests"]["allowed"]), (&expected, &json!(7)));
    assert_eq!(next["at_ms"].as_u64(), first["at_ms"].as_u64().map(|at| at + 700));
    assert_eq!(tick(&app, &mut body)["limits"], json!([]));
}

#[test]
fn a_stream_that_joins_gets_all_limits_first() {
    let app = App::new();
    let state = state(&app);
    let mut streams = [stream(&app, &state), stream(&app, &state)];
    for body in &mut streams {
        assert!(tick_of(&app, body)["limits"].as_array().is_some_and(|limits| limits.len() > 10));
    }
    check(&app, "user_id");
    for body in &mut streams {
        assert_eq!(tick(&app, body)["limits"].as_array().map(Vec::len), Some(1));
    }
    let mut late = stream(&app, &state);
    assert!(tick_of(&app, &mut late)["limits"].as_array().is_some_and(|limits| limits.len() > 10));
    assert_eq!(tick(&app, &mut late)["limits"], json!([]));
}

/// Returns the tick at the beginning of a message that has several events.
fn tick_of(app: &App, body: &mut Body) -> Value {
    events(&message(app, body).expect("a stream has events")).remove(0).1
}

#[test]
fn a_reload_is_an_event_and_then_all_limits_come_again() {
    let app = App::new();
    let mut body = stream(&app, &state(&app));
    let before = tick_of(&app, &mut body)["changes"].as_u64().expect("it is a number");
    let text = "domain: api\ndescriptors: [{key: user_id, rate_limit: {unit: hour, limit: 5}}]".to_owned();
    let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text }]).expect("the rules are valid");
    app.service.replace_rules(rules);
    let events = events(&message(&app, &mut body).expect("the stream goes on"));
    let [(changed, number), (of_tick, tick)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&**changed, &**of_tick), ("changed", "tick"));
    assert!(number["changes"].as_u64() > Some(before) && number["changes"] == tick["changes"], "{events:?}");
    assert_eq!((&tick["limits"], &tick["changes"]), (&json!([[0, 0, 0, 0, 0, 0]]), &overview(&app)["changes"]));
    assert_eq!(self::tick(&app, &mut body)["limits"], json!([]));
}

#[test]
fn a_block_and_a_shadow_switch_are_events() {
    let app = App::new();
    let mut body = stream(&app, &state(&app));
    tick_of(&app, &mut body);
    for (path, body_of_write, blocked) in [
        ("/block", json!({"key": "user_id", "value": "7", "for": "10m"}), 1),
        ("/shadow", json!({"rule": "all", "on": true, "for": "10m"}), 2),
        ("/unblock", json!({"key": "user_id", "value": "7"}), 2),
    ] {
        assert_eq!(app.operate("POST", path, &body_of_write).status, 200, "{path}");
        let events = events(&message(&app, &mut body).expect("the stream goes on"));
        assert_eq!(events[0].0, "changed", "{path}");
        assert_eq!(app.post("/v1/check", ASK).status, if path == "/unblock" { 200 } else { 429 }, "{path}");
        let requests = &tick(&app, &mut body)["requests"];
        assert_eq!([&requests["refused"], &requests["blocked"]], [&json!(blocked), &json!(blocked)], "{path}");
    }
}

#[test]
fn a_stream_ends_after_an_hour_and_when_the_server_drains() {
    let app = App::new();
    let mut body = stream(&app, &ticking(&app, HOUR / 10));
    let begun = app.run(async { tokio::time::Instant::now() });
    while message(&app, &mut body).is_some() {}
    assert_eq!(app.run(async { tokio::time::Instant::now() }) - begun, HOUR);
    let mut body = stream(&app, &state(&app));
    assert!(message(&app, &mut body).is_some() && message(&app, &mut body).is_some());
    app.service.set_readiness(Readiness::StoreDown);
    assert!(message(&app, &mut body).is_some(), "the store is no reason to end");
    app.service.set_readiness(Readiness::Draining);
    assert!(message(&app, &mut body).is_none());
}

#[test]
fn a_stream_without_ticks_sends_comments() {
    let app = App::new();
    let mut body = stream(&app, &ticking(&app, HOUR));
    drop(message(&app, &mut body));
    assert_eq!(message(&app, &mut body).as_deref(), Some(":\n\n"));
    assert_eq!(message(&app, &mut body).as_deref(), Some(":\n\n"));
}

#[test]
fn a_stream_that_is_far_behind_ends_and_keeps_no_ticks() {
    let app = App::new();
    let state = state(&app);
    let (mut late, mut other) = (stream(&app, &state), stream(&app, &state));
    drop(message(&app, &mut late));
    for _ in 0..17 {
        assert!(message(&app, &mut other).is_some());
    }
    // `late` is sixteen ticks behind, and the ring buffer of the server still has all of these ticks.
    for _ in 0..16 {
        assert!(message(&app, &mut late).is_some());
    }
    for _ in 0..17 {
        assert!(message(&app, &mut other).is_some());
    }
    assert!(message(&app, &mut late).is_none(), "it is 17 ticks behind");
    assert!(message(&app, &mut other).is_some());
}

#[test]
fn the_streams_of_an_address_and_of_all_are_bounded() {
    let app = App::new();
    let state = state(&app);
    let peer = |index: usize| Peer::Tcp(format!("10.0.0.{index}:4711").parse().expect("it is an address"));
    let gauge = || app.service.metrics().event_streams.get();
    let mut streams = Vec::new();
    for index in 0..8 {
        streams.extend((0..8).map(|_| open(&app, &state, peer(index))));
        if index == 0 {
            let (status, body) = open(&app, &state, peer(0));
            let body = app.run(body.collect()).expect("the body is in memory").to_bytes();
            let problem: Value = serde_json::from_slice(&body).expect("the problem is JSON");
            assert_eq!((status, problem["status"].as_u64()), (503, Some(503)));
            assert!(
                problem["detail"].as_str().is_some_and(|detail| detail.contains("8 event streams of your address"))
            );
            // A socket for IPv6 shows an IPv4 client with an address of this form.
            let same = Peer::Tcp("[::ffff:10.0.0.0]:1".parse().expect("it is an address"));
            assert_eq!(open(&app, &state, same).0, 503);
        }
    }
    assert!(streams.iter().all(|(status, _)| *status == 200));
    assert_eq!(gauge(), 64);
    // A client with a whole network of IPv6 addresses may open as many streams as a client with one address.
    streams.truncate(50);
    let of_network = |index: usize| {
        let address = format!("[2001:db8::{index:x}]:1");
        open(&app, &state, Peer::Tcp(address.parse().expect("it is an address")))
    };
    streams.extend((0..8).map(of_network));
    assert!(streams.iter().all(|(status, _)| *status == 200));
    assert_eq!((of_network(8).0, gauge()), (503, 58));
    streams.truncate(50);
    streams.extend((0..14).map(|index| open(&app, &state, peer(20 + index))));
    assert!(streams.iter().all(|(status, _)| *status == 200));
    assert_eq!(gauge(), 64);
    assert_eq!([open(&app, &state, peer(9)).0, open(&app, &state, Peer::Unix).0], [503, 503]);
    streams.truncate(60);
    assert_eq!(gauge(), 60);
    assert_eq!(open(&app, &state, peer(9)).0, 200);
    streams.clear();
    assert_eq!(gauge(), 0);
    // For five seconds, ticks find no open stream. A stream that is opened later gets ticks nevertheless.
    app.run(async { tokio::time::sleep(Duration::from_secs(5)).await });
    let mut body = stream(&app, &state);
    assert!(message(&app, &mut body).is_some() && message(&app, &mut body).is_some());
}
