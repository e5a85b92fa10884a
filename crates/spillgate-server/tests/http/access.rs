//! Tests of who may use the admin listener: a table of all routes and tokens, and requests of web pages.

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use serde_json::json;
use spillgate_server::admin::Access;
use spillgate_server::service::Peer;

use crate::app::{App, Reply};

const LOCAL: &str = "127.0.0.1:4711";
const REMOTE: &str = "203.0.113.9:4711";

/// A route: its method, its path, and what it needs.
pub(crate) const ROUTES: [(&str, &str, Needs); 11] = [
    ("GET", "/healthz", Needs::Nothing),
    ("GET", "/readyz", Needs::Nothing),
    ("GET", "/metrics", Needs::Read),
    ("GET", "/rules", Needs::Read),
    ("GET", "/insight", Needs::Read),
    ("GET", "/top", Needs::Read),
    ("GET", "/reloads", Needs::Read),
    ("GET", "/openapi.json", Needs::Read),
    ("POST", "/explain", Needs::Read),
    ("POST", "/peek", Needs::Read),
    ("POST", "/reset", Needs::Write),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Read,
    Write,
}

/// The header fields of a request.
type Headers<'h> = &'h [(&'h str, &'h str)];

fn ask(app: &App, access: &Access, method: &str, path: &str, peer: &str, headers: Headers<'_>) -> Reply {
    let body = if method == "POST" { r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"# } else { "" };
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::from(body)).expect("the request is valid");
    let peer = if peer == "unix" { Peer::Unix } else { Peer::Tcp(peer.parse().expect("`peer` is an address")) };
    request.extensions_mut().insert(ConnectInfo(peer));
    app.admin_with(access.clone(), request)
}

fn access(write: Option<&str>, read: Option<&str>, hosts: &[&str]) -> Access {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Access::new(write, read, hosts).expect("the tokens protect something")
}

#[test]
fn the_table_has_every_route() {
    let app = App::new();
    let help = ask(&app, &access(None, None, &[]), "GET", "/nothing", LOCAL, &[]).problem(404);
    let named: std::collections::BTreeSet<_> = help.split([' ', ',']).filter(|word| word.starts_with('/')).collect();
    let named = named.into_iter().filter(|word| *word != "/nothing");
    let mut routes = ROUTES.map(|(_, path, _)| path);
    routes.sort_unstable();
    assert!(named.eq(routes), "{help}");
}

#[test]
fn each_route_answers_each_token_as_its_kind_demands() {
    let app = App::new();
    let both = access(Some("w-token"), Some("r-token\n"), &[]);
    let one = access(Some("w-token"), None, &[]);
    for (method, path, needs) in ROUTES {
        for (peer, given, read, write) in [
            (LOCAL, None, 401, 401),
            (REMOTE, None, 401, 401),
            ("unix", None, 401, 401),
            (LOCAL, Some("Bearer wrong"), 401, 401),
            (LOCAL, Some("Bearer "), 401, 401),
            (LOCAL, Some("Basic w-token"), 401, 401),
            (LOCAL, Some("Bearer w-toke"), 401, 401),
            (LOCAL, Some("Bearer w-tokenr-token"), 401, 401),
            (LOCAL, Some("Bearer r-token"), 200, 403),
            (REMOTE, Some("Bearer r-token"), 200, 403),
            (LOCAL, Some("bearer w-token"), 200, 200),
            (REMOTE, Some("Bearer w-token"), 200, 200),
        ] {
            let expected = match needs {
                Needs::Nothing => 200,
                Needs::Read => read,
                Needs::Write => write,
            };
            let headers: Vec<_> = given.iter().map(|given| ("authorization", *given)).collect();
            let reply = ask(&app, &both, method, path, peer, &headers);
            assert_eq!(reply.status, expected, "{method} {path} {given:?} from {peer}: {}", reply.body);
            assert_eq!(reply.header("www-authenticate"), (expected == 401).then_some("Bearer"));
            // Without a read token in the settings, its text is a wrong token.
            let expected = if given == Some("Bearer r-token") && needs != Needs::Nothing { 401 } else { expected };
            assert_eq!(ask(&app, &one, method, path, peer, &headers).status, expected, "{method} {path} {given:?}");
        }
    }
    for (method, path) in [("GET", "/anything"), ("POST", "/anything"), ("GET", "/reset"), ("DELETE", "/rules")] {
        assert_eq!(ask(&app, &both, method, path, LOCAL, &[]).status, 401, "{method} {path}");
        let expected = if path == "/anything" { 404 } else { 405 };
        let write = [("authorization", "Bearer w-token")];
        assert_eq!(ask(&app, &both, method, path, LOCAL, &write).status, expected, "{method} {path}");
        let read = if method == "GET" { expected } else { 403 };
        assert_eq!(
            ask(&app, &both, method, path, LOCAL, &[("authorization", "Bearer r-token")]).status,
            read,
            "{path}"
        );
    }
}

#[test]
fn without_a_token_everybody_reads_and_only_this_machine_posts() {
    let app = App::new();
    let open = access(None, None, &[]);
    for (method, path, _) in ROUTES {
        for peer in [LOCAL, "[::1]:4711", "[::ffff:127.0.0.1]:1", "unix"] {
            assert_eq!(ask(&app, &open, method, path, peer, &[]).status, 200, "{method} {path} from {peer}");
        }
        let expected = if method == "POST" { 403 } else { 200 };
        assert_eq!(ask(&app, &open, method, path, REMOTE, &[]).status, expected, "{method} {path}");
    }
}

#[test]
fn a_page_of_another_site_gets_nothing() {
    let app = App::new();
    let (open, guarded) = (access(None, None, &["Gate.Internal"]), access(Some("w-token"), None, &[]));
    // Each case says whether the request is permitted without a token in the settings, and with the right token.
    let cases: [(Headers<'_>, bool, bool); 19] = [
        (&[("host", "127.0.0.1:6070")], true, true),
        (&[("host", "[::1]:6070")], true, true),
        (&[("host", "10.1.2.3:6070")], true, true),
        (&[("host", "LOCALHOST")], true, true),
        (&[("host", "gate.internal.:6070")], true, true),
        (&[("host", "localhost:6070"), ("origin", "http://localhost:6070")], true, true),
        (&[("host", "gate.internal"), ("origin", "https://gate.internal")], true, true),
        // The name of an attacker that points to this machine (DNS rebinding), with and without its own `Origin`.
        (&[("host", "evil.example:6070")], false, true),
        (&[("host", "evil.example:6070"), ("origin", "http://evil.example:6070")], false, true),
        (&[("host", "localhost.evil.example")], false, true),
        (&[("host", "127.0.0.1.evil.example")], false, true),
        (&[("host", "localhost@evil.example")], false, true),
        (&[("host", "")], false, true),
        // A form or a script of another site.
        (&[("host", "localhost:6070"), ("origin", "http://evil.example")], false, false),
        (&[("host", "localhost:6070"), ("origin", "http://localhost:80")], false, false),
        (&[("host", "localhost:6070"), ("origin", "null")], false, false),
        (&[("host", "localhost:6070"), ("origin", "file://localhost:6070")], false, false),
        (
            &[("host", "localhost:6070"), ("origin", "http://localhost:6070"), ("origin", "http://evil.example")],
            false,
            false,
        ),
        (&[("host", "localhost:6070"), ("host", "evil.example")], false, false),
    ];
    for (method, path, needs) in ROUTES.iter().filter(|(.., needs)| *needs != Needs::Nothing) {
        for (headers, is_permitted, with_token) in cases {
            let reply = ask(&app, &open, method, path, LOCAL, headers);
            let context = format!("{method} {path} {headers:?} {needs:?}: {}", reply.body);
            assert_eq!(reply.status == 200, is_permitted, "{context}");
            assert!(is_permitted || matches!(reply.status, 400 | 403), "{context}");
            // A page does not know the token, so the name in `Host` does not matter.
            let headers = [headers, &[("authorization", "Bearer w-token")]].concat();
            let reply = ask(&app, &guarded, method, path, LOCAL, &headers);
            assert_eq!(reply.status == 200, with_token, "{context}: {}", reply.body);
        }
    }
    let absolute = |uri: &str| ask(&app, &open, "GET", uri, LOCAL, &[("host", "localhost")]).status;
    assert_eq!([absolute("http://localhost/rules"), absolute("http://evil.example/rules")], [200, 403]);
    let http2 = |uri: &str| ask(&app, &open, "GET", uri, LOCAL, &[]).status;
    assert_eq!([http2("http://[::1]:6070/rules"), http2("http://evil.example/rules")], [200, 403]);
}

#[test]
fn a_refused_write_changes_nothing() {
    let app = App::new();
    let body = json!({"domain": "api", "descriptors": [{"user_id": "7"}], "cost": 3}).to_string();
    assert_eq!(app.post("/v1/check", &body).status, 200);
    let read = access(Some("w-token"), Some("r-token"), &[]);
    assert_eq!(ask(&app, &read, "POST", "/reset", LOCAL, &[("authorization", "Bearer r-token")]).status, 403);
    let page = [("host", "localhost"), ("origin", "http://evil.example")];
    assert_eq!(ask(&app, &access(None, None, &[]), "POST", "/reset", LOCAL, &page).status, 403);
    assert_eq!(app.post("/v1/check", &body).status, 429, "the units are still taken");
    assert_eq!(ask(&app, &access(None, None, &[]), "POST", "/reset", LOCAL, &[]).status, 200);
    assert_eq!(app.post("/v1/check", &body).status, 200);
}
