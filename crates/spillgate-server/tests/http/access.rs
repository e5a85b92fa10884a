//! Tests of who may use the admin listener: a table of all routes and tokens. `make show-admin-security` prints it.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use serde_json::json;
use spillgate_admin::{Access, Needs, routes};
use spillgate_service::Peer;

use crate::http::app::{App, Reply};

pub(crate) const LOCAL: &str = "127.0.0.1:4711";
pub(crate) const REMOTE: &str = "203.0.113.9:4711";
pub(crate) const WRITE_HEADER: (&str, &str) = ("x-spillgate-admin", "1");

const WRITE: &str = "the-write-token-of-this-test";
const READ: &str = "the-read-token-of-this-test";

pub(crate) type Headers<'h> = &'h [(&'h str, &'h str)];

/// Returns a valid body for a route, and the status of its answer if the request is permitted.
fn valid(path: &str) -> (&'static str, u16) {
    match path {
        "/explain" | "/peek" | "/reset" => (r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#, 200),
        "/caller" => (r#"{"values":[{"value":"7"}]}"#, 200),
        "/block" => (r#"{"key":"blocked","value":"7","for":"1h"}"#, 200),
        "/unblock" => (r#"{"key":"unknown","value":"7"}"#, 404),
        "/shadow" => (r#"{"rule":"all","on":true,"for":"1s"}"#, 200),
        // The app of this test has no thread that reloads. `tests/reload.rs` has real servers.
        "/reload" => ("", 503),
        // The app has no other regions. `tests/store/regions.rs` has real servers.
        "/regions/{name}/pause" | "/regions/{name}/resume" => ("", 404),
        "/blocks" | "/shadows" | "/overview" | "/events" | "/metrics" | "/rules" | "/insight" | "/top" | "/reloads"
        | "/regions" | "/openapi.json" | "/healthz" | "/readyz" | "/" => ("", 200),
        _ => panic!("the route {path} is new: add a valid body and its status to this table"),
    }
}

pub(crate) fn request(method: &str, path: &str, peer: &str, headers: Headers<'_>) -> Request<Body> {
    let body = if method == "POST" && path != "/anything" { valid(path).0 } else { "" };
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::from(body)).expect("the request is valid");
    let peer = if peer == "unix" { Peer::Unix } else { Peer::Tcp(peer.parse().expect("`peer` is an address")) };
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

pub(crate) fn ask(app: &App, access: &Access, method: &str, path: &str, peer: &str, headers: Headers<'_>) -> Reply {
    app.head(&app.admin_router(access.clone()), request(method, path, peer, headers))
}

pub(crate) fn access(write: Option<&str>, read: Option<&str>, hosts: &[&str]) -> Access {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Access::new(write, read, hosts).expect("the tokens protect something")
}

#[test]
fn the_help_for_an_unknown_path_names_every_route() {
    let app = App::new();
    let request = request("GET", "/nothing", LOCAL, &[]);
    let help = app.admin_with(access(None, None, &[]), request).problem(404);
    let named: BTreeSet<_> = help.split([' ', ',']).filter(|word| word.starts_with('/')).collect();
    let named = named.into_iter().filter(|word| *word != "/nothing");
    let mut routes: Vec<_> = routes().into_iter().map(|(_, path, _)| path).collect();
    routes.sort_unstable();
    assert!(named.eq(routes), "{help}");
}

#[test]
fn the_reference_has_every_route_and_what_it_needs() {
    let page = include_str!("../../../../docs/src/reference/admin.md");
    let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for (method, path, _) in routes() {
        let rows = page.lines().filter(|line| line.starts_with("| `") && line.contains(&format!("`{method} {path}`")));
        assert!(rows.count() > 0, "{method} {path} has a row");
    }
    let writes = routes().into_iter().filter(|(.., needs)| *needs == Needs::Write).map(|(_, path, _)| path);
    let writes: Vec<_> = writes.map(|path| format!("`{path}`")).collect();
    let (last, first) = writes.split_last().expect("there are writes");
    let list = format!("{} and {last}", first.join(", "));
    let sentence = format!("A write ({list}) then also needs");
    assert_eq!(text.matches(&sentence).count(), 1, "{sentence}");
    for begin in [
        "It permits every route except the writes.",
        "The setting `admin_token_file` sets a token.",
        "If no token is set, every caller",
    ] {
        assert_eq!(text.matches(begin).count(), 1, "{begin}");
    }
}

/// The ways to show a token. Each row has a name, the address of the caller, the header field, and the status of routes
/// that need the right to read and the right to write. The settings have both tokens. 0 stands for the status that the
/// route answers if the request is permitted.
const WAYS: [(&str, &str, Option<&str>, u16, u16); 14] = [
    ("none", LOCAL, None, 401, 401),
    ("none, remote", REMOTE, None, 401, 401),
    ("none, unix", "unix", None, 401, 401),
    ("wrong", LOCAL, Some("Bearer wrong"), 401, 401),
    ("empty", LOCAL, Some("Bearer "), 401, 401),
    ("other scheme", LOCAL, Some("Basic the-write-token-of-this-test"), 401, 401),
    ("no scheme", LOCAL, Some("the-write-token-of-this-test"), 401, 401),
    ("too short", LOCAL, Some("Bearer the-write-token-of-this-tes"), 401, 401),
    ("too long", LOCAL, Some("Bearer the-write-token-of-this-testt"), 401, 401),
    ("both", LOCAL, Some("Bearer the-write-token-of-this-test the-read-token-of-this-test"), 401, 401),
    ("read", LOCAL, Some("Bearer the-read-token-of-this-test"), 0, 403),
    ("read, remote", REMOTE, Some("Bearer the-read-token-of-this-test"), 0, 403),
    ("write", LOCAL, Some("bearer the-write-token-of-this-test"), 0, 0),
    ("write, remote", REMOTE, Some("Bearer the-write-token-of-this-test"), 0, 0),
];

#[test]
fn each_route_answers_each_token_as_its_kind_demands() {
    let app = App::new();
    let both = access(Some(WRITE), Some("the-read-token-of-this-test\n"), &[]);
    let one = access(Some(WRITE), None, &[]);
    println!("{:<22}{}", "route", WAYS.map(|(name, ..)| format!("{name:>15}")).concat());
    for (method, path, needs) in routes() {
        let permitted = valid(path).1;
        let mut row = format!("{:<22}", format!("{method} {path}"));
        for (name, peer, given, read, write) in WAYS {
            let expected = match needs {
                Needs::Nothing | Needs::NoToken => 0,
                Needs::Read => read,
                Needs::Write => write,
            };
            let expected = if expected == 0 { permitted } else { expected };
            let headers: Vec<_> = given.iter().map(|given| ("authorization", *given)).collect();
            let reply = ask(&app, &both, method, path, peer, &headers);
            assert_eq!(reply.status, expected, "{method} {path}, {name}");
            assert_eq!(reply.header("www-authenticate"), (expected == 401).then_some("Bearer"));
            row.push_str(&format!("{:>15}", reply.status));
            // Here the settings have no read token, so the server treats the read token of `WAYS` as a wrong token.
            let guarded = matches!(needs, Needs::Read | Needs::Write);
            let expected = if guarded && name.starts_with("read") { 401 } else { expected };
            assert_eq!(ask(&app, &one, method, path, peer, &headers).status, expected, "{method} {path}, {name}");
        }
        println!("{row}");
    }
}

#[test]
fn a_path_without_a_route_says_nothing_to_strangers() {
    let app = App::new();
    let both = access(Some(WRITE), Some(READ), &[]);
    let paths = [
        ("GET", "/anything"),
        ("POST", "/anything"),
        ("GET", "/reset"),
        ("DELETE", "/rules"),
        ("OPTIONS", "/reset"),
        ("GET", "//"),
        ("GET", "/ui"),
        ("GET", "/UI/page.js"),
        ("GET", "/%75i/page.js"),
        ("POST", "/%72eset"),
        ("POST", "/ui/page.js"),
        ("POST", "/ui/../reset"),
    ];
    for (method, path) in paths {
        let ask = |headers| {
            let mut request = request("GET", "/anything", LOCAL, headers);
            *request.method_mut() = method.parse().expect("it is a method");
            *request.uri_mut() = path.parse().expect("it is a URI");
            app.head(&app.admin_router(both.clone()), request).status
        };
        assert_eq!(ask(&[]), 401, "{method} {path}");
        let expected = if matches!(path, "/reset" | "/rules" | "/ui/page.js") { 405 } else { 404 };
        assert_eq!(ask(&[("authorization", "Bearer the-write-token-of-this-test")]), expected, "{method} {path}");
        let read = if method == "GET" { expected } else { 403 };
        assert_eq!(ask(&[("authorization", "Bearer the-read-token-of-this-test")]), read, "{method} {path}");
    }
}

#[test]
fn the_files_of_the_page_need_no_token() {
    let app = App::new();
    for access in [access(None, None, &[]), access(Some(WRITE), Some(READ), &[])] {
        for path in ["/", "/ui/nothing"] {
            let ask = |headers| {
                let mut request = request("GET", "/anything", REMOTE, headers);
                *request.uri_mut() = path.parse().expect("it is a URI");
                app.head(&app.admin_router(access.clone()), request).status
            };
            assert!(matches!(ask(&[]), 200 | 404), "{path}");
            assert!(matches!(ask(&[("authorization", "Bearer wrong")]), 200 | 404), "{path}");
            assert_eq!(ask(&[("host", "evil.example")]) == 403, !access.has_token(), "{path}");
        }
    }
}

#[test]
fn without_a_token_everybody_reads_and_only_this_machine_posts() {
    let app = App::new();
    let open = access(None, None, &[]);
    for (method, path, needs) in routes() {
        let permitted = valid(path).1;
        for peer in [LOCAL, "[::1]:4711", "[::ffff:127.0.0.1]:1", "unix"] {
            let reply = ask(&app, &open, method, path, peer, &[WRITE_HEADER]);
            assert_eq!(reply.status, permitted, "{method} {path} from {peer}");
            let without = if needs == Needs::Write { 403 } else { permitted };
            assert_eq!(ask(&app, &open, method, path, peer, &[]).status, without, "{method} {path} from {peer}");
            for wrong in ["", "0", "11", "true"] {
                let reply = ask(&app, &open, method, path, peer, &[("x-spillgate-admin", wrong)]);
                assert_eq!(reply.status, without, "{method} {path} {wrong}");
            }
            // Behind a proxy on this machine, every caller seems to be local. So a forwarded request may not write.
            let expected = if method == "POST" { 403 } else { permitted };
            for name in ["forwarded", "x-forwarded-for"] {
                let reply = ask(&app, &open, method, path, peer, &[WRITE_HEADER, (name, "for=203.0.113.9")]);
                assert_eq!(reply.status, expected, "{method} {path} {name}");
            }
        }
        let expected = if method == "POST" { 403 } else { permitted };
        assert_eq!(ask(&app, &open, method, path, REMOTE, &[WRITE_HEADER]).status, expected, "{method} {path}");
    }
}

#[test]
fn a_refused_write_changes_nothing() {
    let app = App::new();
    let body = json!({"domain": "api", "descriptors": [{"user_id": "7"}], "cost": 3}).to_string();
    assert_eq!(app.post("/v1/check", &body).status, 200);
    let tokens = access(Some(WRITE), Some(READ), &[]);
    let read = [("authorization", "Bearer the-read-token-of-this-test"), WRITE_HEADER];
    assert_eq!(ask(&app, &tokens, "POST", "/reset", LOCAL, &read).status, 403);
    let page = [("host", "localhost"), ("origin", "http://evil.example"), WRITE_HEADER];
    let open = access(None, None, &[]);
    assert_eq!(ask(&app, &open, "POST", "/reset", LOCAL, &page).status, 403);
    assert_eq!(ask(&app, &open, "POST", "/reset", LOCAL, &[]).status, 403);
    assert_eq!(app.post("/v1/check", &body).status, 429, "the units are still taken");
    assert_eq!(ask(&app, &open, "POST", "/reset", LOCAL, &[WRITE_HEADER]).status, 200);
    assert_eq!(app.post("/v1/check", &body).status, 200);
}
