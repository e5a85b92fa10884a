//! Tests of `GET /v1/forward-auth`, which nginx, Caddy and Traefik ask before they forward a request.
//!
//! The proxy copies the client's header fields into its request to spillgate. A client must not be able to avoid its
//! limit by choosing these fields.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use spillgate_http::{EntrySource, ForwardAuth, HttpError, HttpOptions, HttpState, ValueSource};
use spillgate_service::{Peer, ServiceOptions};

use crate::http::app::{App, Reply, options};

fn entry(key: &str, from: ValueSource) -> EntrySource {
    EntrySource { key: key.into(), from }
}

fn mapped(deny_status: u16, descriptors: Vec<Vec<EntrySource>>) -> HttpOptions {
    let forward_auth = ForwardAuth { domain: Some("api".into()), deny_status, ipv6_prefix: 64, descriptors };
    HttpOptions {
        forward_auth,
        trusted_proxies: vec!["127.0.0.0/8".parse().expect("the network is valid")],
        ..options()
    }
}

fn by_address(deny_status: u16) -> App {
    let descriptors = vec![vec![entry("remote_address", ValueSource::ClientIp)]];
    App::with(mapped(deny_status, descriptors), ServiceOptions::default())
}

fn by_address_and_user() -> App {
    let descriptors = vec![
        vec![entry("remote_address", ValueSource::ClientIp)],
        vec![entry("user_id", ValueSource::Header("X-User".into()))],
    ];
    App::with(mapped(429, descriptors), ServiceOptions::default())
}

fn ask(app: &App, peer: Peer, headers: &[(&str, &[u8])]) -> Reply {
    let mut request = Request::get("/v1/forward-auth");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    app.call_from(peer, request.body(Body::empty()).expect("the request is valid"))
}

fn tcp(address: &str) -> Peer {
    Peer::Tcp(format!("{address}:4711").parse().expect("the address is valid"))
}

#[test]
fn each_client_is_limited_by_the_address_that_can_be_trusted() {
    let app = by_address(429);
    let via_proxy = |client: &[u8]| ask(&app, tcp("127.0.0.1"), &[("x-forwarded-for", client)]).status;
    assert_eq!([via_proxy(b"203.0.113.1"), via_proxy(b"203.0.113.1"), via_proxy(b"203.0.113.1")], [200, 200, 429]);
    assert_eq!(
        via_proxy(b"198.51.100.9, 203.0.113.1"),
        429,
        "addresses that the client writes into the field are ignored"
    );
    assert_eq!(via_proxy(b"203.0.113.2"), 200);
    let direct = |forged: &[u8]| ask(&app, tcp("203.0.113.3"), &[("x-forwarded-for", forged)]).status;
    assert_eq!([direct(b"10.0.0.1"), direct(b"10.0.0.2"), direct(b"10.0.0.3")], [200, 200, 429]);
    assert_eq!(
        ask(&app, Peer::Unix, &[("x-forwarded-for", b"203.0.113.1")]).status,
        429,
        "a Unix socket is trusted like 127.0.0.1"
    );
}

#[test]
fn a_refusal_has_the_deny_status_and_the_fields() {
    let app = by_address(403);
    let client = [("x-forwarded-for", &b"203.0.113.1"[..])];
    let allowed = ask(&app, tcp("127.0.0.1"), &client);
    assert_eq!((allowed.status, allowed.header("ratelimit")), (200, Some(r#""per_address";r=1;t=60"#)));
    ask(&app, tcp("127.0.0.1"), &client);
    let denied = ask(&app, tcp("127.0.0.1"), &client);
    assert_eq!((denied.status, denied.header("retry-after")), (403, Some("60")));
    assert_eq!((denied.json()["status"].clone(), denied.header("cache-control")), (json!(403), Some("no-store")));
    assert_eq!(denied.json()["violated-policies"], json!(["per_address"]));
}

#[test]
fn a_missing_header_field_does_not_avoid_its_limit() {
    let app = by_address_and_user();
    let policies = |headers: &[(&str, &[u8])]| {
        ask(&app, tcp("203.0.113.1"), headers).header("ratelimit-policy").map(str::to_owned)
    };
    let both = r#""per_address";q=2;w=60, "per_user";q=3;w=3600"#;
    assert_eq!(policies(&[]).as_deref(), Some(both));
    assert_eq!(policies(&[("x-user", b"7")]).as_deref(), Some(both));
    let only_user = vec![vec![entry("user_id", ValueSource::Header("X-User".into()))]];
    let app = App::with(mapped(429, only_user), ServiceOptions::default());
    let statuses = [1, 2, 3, 4].map(|host| ask(&app, tcp(&format!("203.0.113.{host}")), &[]).status);
    assert_eq!(statuses, [200, 200, 200, 429], "all requests without the field share one counter");
    assert_eq!(
        ask(&app, tcp("203.0.113.1"), &[("x-user", b"")]).status,
        429,
        "an empty field has the same counter as a missing field"
    );
    assert_eq!(ask(&app, tcp("203.0.113.1"), &[("x-user", b"7")]).status, 200);
}

/// Traefik and others send the URI as the client wrote it.
#[test]
fn every_spelling_of_a_path_meets_its_rule() {
    let by_path = || vec![vec![entry("page", ValueSource::Path)]];
    let spellings = ["/search", "/search?q=1", "//search", "/%73earch", "/./search", "/x/../search", "/search#a"];
    for spelling in spellings {
        let app = App::with(mapped(429, by_path()), ServiceOptions::default());
        let status = |uri: &str| ask(&app, tcp("127.0.0.1"), &[("x-forwarded-uri", uri.as_bytes())]).status;
        assert_eq!([status(spelling), status("/search"), status(spelling)], [200, 429, 429], "{spelling}");
        assert_eq!([status("/Search"), status("/search/"), status("/")], [200; 3], "{spelling}");
    }
    let raw = vec![vec![entry("page", ValueSource::Header("X-Forwarded-Uri".into()))]];
    let app = App::with(mapped(429, raw), ServiceOptions::default());
    let statuses = spellings.map(|uri| ask(&app, tcp("127.0.0.1"), &[("x-forwarded-uri", uri.as_bytes())]).status);
    assert_eq!(statuses, [200; 7], "a header field is used as it is");
}

#[test]
fn a_part_that_a_client_repeats_does_not_avoid_its_counter() {
    for (from, name, plain, others) in [
        (ValueSource::Cookie("u".into()), "cookie", "u=7", ["u=\"7\"", "a=1; u=%37", "u=7; u=7"]),
        (ValueSource::Query("u".into()), "x-forwarded-uri", "/?u=7", ["/a?u=%37", "/?%75=7", "/?u=7&u=7"]),
        (ValueSource::Method, "x-forwarded-method", "POST", ["post", "Post", "POST"]),
        (ValueSource::Host, "x-forwarded-host", "a.example", ["A.example", "a.example:443", "a.example."]),
    ] {
        let app = App::with(mapped(429, vec![vec![entry("user_id", from.clone())]]), ServiceOptions::default());
        let status = |value: &str| ask(&app, tcp("127.0.0.1"), &[(name, value.as_bytes())]).status;
        let statuses = [plain, others[0], others[1], others[2]].map(status);
        assert_eq!(statuses, [200, 200, 200, 429], "{from:?}");
    }
    let by_cookie = vec![vec![entry("user_id", ValueSource::Cookie("u".into()))]];
    let app = App::with(mapped(429, by_cookie), ServiceOptions::default());
    let statuses = ["", "u=1; u=2", "u=1; u=3", "u=4; u=5"].map(|line| {
        let headers = [("cookie", line.as_bytes())];
        ask(&app, tcp("127.0.0.1"), &headers).status
    });
    assert_eq!(statuses, [200, 200, 200, 429], "different values count as a missing cookie");
}

#[test]
fn an_empty_mapping_allows_no_request() {
    let app = App::with(mapped(429, vec![]), ServiceOptions::default());
    assert!(ask(&app, tcp("203.0.113.1"), &[]).problem(400).contains("no descriptors"));
}

#[test]
fn header_values_may_be_any_bytes_and_several_lines_are_one_list() {
    let nested = vec![vec![
        entry("outer", ValueSource::Value("fixed".into())),
        entry("inner", ValueSource::Header("X-User".into())),
    ]];
    let app = App::with(mapped(429, nested), ServiceOptions::default());
    let status = |headers: &[(&str, &[u8])]| ask(&app, tcp("203.0.113.1"), headers).status;
    assert_eq!([status(&[("x-user", b"\xff\xfe")]), status(&[("x-user", b"\xff\xfe")])], [200, 429]);
    assert_eq!([status(&[("x-user", b"a"), ("x-user", b"b")]), status(&[("x-user", b"a, b")])], [200, 429]);
    assert_eq!(status(&[("x-user", b"a")]), 200);
}

#[test]
fn a_value_over_the_bound_counts_as_its_beginning_and_does_not_avoid_the_limit() {
    let app = by_address_and_user();
    // Each request comes from another address, so only the limit of the user can refuse it.
    let ask_as = |last: u8| {
        let peer = tcp(&format!("203.0.113.{last}"));
        ask(&app, peer, &[("x-user", &[&[b'a'; 1024][..], &[last]].concat())])
    };
    let statuses: Vec<u16> = (b'a'..=b'z').map(|last| ask_as(last).status).collect();
    assert!(statuses.starts_with(&[200]) && statuses.ends_with(&[429]), "{statuses:?}");
}

#[test]
fn without_a_mapping_the_problem_names_the_setting() {
    let app = App::new();
    assert!(ask(&app, tcp("203.0.113.1"), &[]).problem(404).contains("forward_auth.domain"));
}

#[test]
fn invalid_mappings_are_refused_at_the_start() {
    let app = App::new();
    let start = |options| HttpState::new(std::sync::Arc::clone(&app.service), options).map(|_| ());
    let header = vec![vec![entry("a", ValueSource::Header("no name".into()))]];
    assert!(matches!(start(mapped(429, header)), Err(HttpError::HeaderName(name)) if name == "no name"));
    assert!(matches!(start(mapped(99, vec![])), Err(HttpError::DenyStatus(99))));
}
