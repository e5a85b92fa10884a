//! Tests of what a web page of another site can do through a browser. With the admin listener: nothing. With the HTTP
//! listener: nothing that uses up a limit, unless the settings name the site.

use axum::body::Body;
use axum::http::Request;
use spillgate_admin::{Needs, routes};
use spillgate_http::{Browsers, HttpOptions};
use spillgate_service::ServiceOptions;

use crate::http::access::{Headers, LOCAL, WRITE_HEADER, access, ask, request};
use crate::http::app::{App, Reply, options};

const TOKEN: (&str, &str) = ("authorization", "Bearer the-write-token-of-this-test");

/// Each case has header fields, and says twice whether such a request is permitted: if the settings have no token, and
/// if they have a token and the request shows this token.
const CASES: [(&str, Headers<'_>, bool, bool); 29] = [
    ("address", &[("host", "127.0.0.1:6070")], true, true),
    ("IPv6 address", &[("host", "[::1]:6070")], true, true),
    ("address of the network", &[("host", "10.1.2.3:6070")], true, true),
    ("localhost", &[("host", "LOCALHOST")], true, true),
    ("name of admin_hosts", &[("host", "gate.internal.:6070")], true, true),
    ("own page", &[("host", "localhost:6070"), ("origin", "http://localhost:6070")], true, true),
    ("own page, TLS proxy", &[("host", "gate.internal"), ("origin", "https://gate.internal")], true, true),
    ("own script", &[("host", "localhost:6070"), ("sec-fetch-site", "same-origin")], true, true),
    ("typed URL", &[("host", "localhost:6070"), ("sec-fetch-site", "none")], true, true),
    // A name that an attacker lets point to this machine (DNS rebinding), with and without its own `Origin`.
    ("rebinding", &[("host", "evil.example:6070")], false, true),
    ("rebinding", &[("host", "evil.example:6070"), ("origin", "http://evil.example:6070")], false, true),
    ("rebinding", &[("host", "evil.example:6070"), ("sec-fetch-site", "same-origin")], false, true),
    ("rebinding", &[("host", "localhost.evil.example")], false, true),
    ("rebinding", &[("host", "127.0.0.1.evil.example")], false, true),
    ("rebinding", &[("host", "localhost@evil.example")], false, true),
    ("X-Forwarded-Host", &[("host", "localhost"), ("x-forwarded-host", "evil.example")], true, true),
    ("empty Host", &[("host", "")], false, true),
    // A form or a script of another site.
    ("other site", &[("host", "localhost:6070"), ("origin", "http://evil.example")], false, false),
    ("other port", &[("host", "localhost:6070"), ("origin", "http://localhost:80")], false, false),
    ("Origin null", &[("host", "localhost:6070"), ("origin", "null")], false, false),
    ("file", &[("host", "localhost:6070"), ("origin", "file://localhost:6070")], false, false),
    (
        "two Origins",
        &[("host", "localhost:6070"), ("origin", "http://localhost:6070"), ("origin", "http://evil.example")],
        false,
        false,
    ),
    ("two Hosts", &[("host", "localhost:6070"), ("host", "evil.example")], false, false),
    ("Origin without Host", &[("origin", "http://localhost:6070")], false, false),
    ("no-cors", &[("host", "localhost:6070"), ("sec-fetch-site", "cross-site")], false, false),
    ("other port", &[("host", "localhost:6070"), ("sec-fetch-site", "same-site")], false, false),
    ("unknown word", &[("host", "localhost:6070"), ("sec-fetch-site", "other")], false, false),
    (
        "two words",
        &[("host", "localhost:6070"), ("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
        false,
        false,
    ),
    (
        "link or form",
        &[
            ("host", "localhost"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ],
        false,
        false,
    ),
];

#[test]
fn a_page_of_another_site_gets_nothing() {
    let app = App::new();
    let open = access(None, None, &["Gate.Internal"]);
    let guarded = access(Some("the-write-token-of-this-test"), None, &[]);
    for (method, path, _) in routes().into_iter().filter(|(.., needs)| *needs != Needs::Nothing) {
        for (name, headers, is_permitted, with_token) in CASES {
            if path == "/" && name == "link or form" {
                continue;
            }
            let context = format!("{method} {path} {name} {headers:?}");
            let status = ask(&app, &open, method, path, LOCAL, &[headers, &[WRITE_HEADER]].concat()).status;
            assert_eq!(matches!(status, 400 | 403), !is_permitted, "{context}: {status}");
            // A page of another site does not know the token. So if a request shows the token, the name in `Host` does
            // not matter.
            let status = ask(&app, &guarded, method, path, LOCAL, &[headers, &[TOKEN]].concat()).status;
            assert_eq!(matches!(status, 400 | 403), !with_token, "{context} with a token: {status}");
        }
    }
    println!("{:<26}{:>12}{:>12}", "request of a browser", "no token", "right token");
    for (name, _, is_permitted, with_token) in CASES {
        let words = [is_permitted, with_token].map(|is| if is { "permitted" } else { "refused" });
        println!("{name:<26}{:>12}{:>12}", words[0], words[1]);
    }
    let absolute = |uri: &str| {
        let mut request = request("GET", "/anything", LOCAL, &[("host", "localhost")]);
        *request.uri_mut() = uri.parse().expect("it is a URI");
        app.head(&app.admin_router(open.clone()), request).status
    };
    assert_eq!([absolute("http://localhost/rules"), absolute("http://evil.example/rules")], [200, 403]);
    let http2 = |uri: &str| {
        let mut request = request("GET", "/anything", LOCAL, &[]);
        *request.uri_mut() = uri.parse().expect("it is a URI");
        app.head(&app.admin_router(open.clone()), request).status
    };
    assert_eq!([http2("http://[::1]:6070/rules"), http2("http://evil.example/rules")], [200, 403]);
}

#[test]
fn a_form_of_another_site_writes_nothing() {
    let app = App::new();
    // Without a preflight request, a page of another site can send only forms and simple requests (fetch with no-cors).
    // Both have one of these content types, and no header field that the page chooses. An old browser sends neither
    // `Origin` nor `Sec-Fetch-Site`.
    let kinds = ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"];
    let origins: [Headers<'_>; 4] = [
        &[("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")],
        &[("origin", "null"), ("sec-fetch-site", "cross-site")],
        &[("origin", "null")],
        &[],
    ];
    for (method, path, _) in routes().into_iter().filter(|(.., needs)| *needs == Needs::Write) {
        for (kind, origin) in kinds.iter().flat_map(|kind| origins.iter().map(move |origin| (kind, origin))) {
            let headers = [origin, &[("host", "localhost:6070"), ("content-type", *kind)][..]].concat();
            let status = ask(&app, &access(None, None, &[]), method, path, LOCAL, &headers).status;
            assert_eq!(status, 403, "{method} {path} {headers:?}");
        }
        // Before a request with the header field `x-spillgate-admin`, a browser sends a preflight request (OPTIONS).
        // The server does not permit it.
        let question = [
            ("host", "localhost:6070"),
            ("origin", "http://evil.example"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "x-spillgate-admin"),
        ];
        let mut request = request("GET", "/anything", LOCAL, &question);
        (*request.method_mut(), *request.uri_mut()) =
            (axum::http::Method::OPTIONS, path.parse().expect("it is a path"));
        let reply = app.head(&app.admin_router(access(None, None, &[])), request);
        assert_eq!(reply.status, 403);
        assert!(!reply.headers.keys().any(|name| name.as_str().starts_with("access-control")), "{:?}", reply.headers);
    }
}

#[test]
fn a_link_opens_only_the_page() {
    let app = App::new();
    let access = access(None, None, &[]);
    let ask = |method: &str, path: &str, mode: &str, dest: &str, host: &str| {
        let headers =
            [("host", host), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
        let mut request = request("GET", "/anything", LOCAL, &headers);
        (*request.method_mut(), *request.uri_mut()) = (method.parse().expect("valid"), path.parse().expect("valid"));
        app.head(&app.admin_router(access.clone()), request).status != 403
    };
    assert!(ask("GET", "/", "navigate", "document", "localhost"));
    assert!(!ask("GET", "/", "navigate", "document", "evil.example"), "the name is checked too");
    assert!(!ask("GET", "/", "navigate", "iframe", "localhost"), "a frame is no window");
    assert!(!ask("GET", "/", "no-cors", "document", "localhost"));
    assert!(!ask("POST", "/", "navigate", "document", "localhost"));
    assert!(!ask("GET", "/rules", "navigate", "document", "localhost"));
    assert!(!ask("GET", "/ui/page.js", "no-cors", "script", "localhost"));
}

#[test]
fn every_answer_has_the_header_fields_that_protect_browsers() {
    let app = App::new();
    let open = access(None, None, &[]);
    let guarded = access(Some("the-write-token-of-this-test"), None, &[]);
    let mut seen = std::collections::BTreeSet::new();
    for (method, path, needs) in routes() {
        for (access, host) in [(&open, "localhost"), (&open, "evil.example"), (&guarded, "localhost")] {
            let reply = ask(&app, access, method, path, LOCAL, &[("host", host), WRITE_HEADER]);
            seen.insert(reply.status);
            let context = format!("{method} {path} {}", reply.status);
            for (name, value) in [
                ("x-content-type-options", "nosniff"),
                ("cross-origin-resource-policy", "same-origin"),
                ("cross-origin-opener-policy", "same-origin"),
                ("referrer-policy", "no-referrer"),
                ("x-frame-options", "DENY"),
            ] {
                assert_eq!(reply.header(name), Some(value), "{context}");
            }
            let policy = reply.header("content-security-policy").unwrap_or_default();
            assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{context}");
            if needs != Needs::NoToken {
                assert_eq!(reply.header("cache-control"), Some("no-store"), "{context}");
                assert_eq!(policy, "default-src 'none'; frame-ancestors 'none'", "{context}");
            }
        }
    }
    assert!(seen.is_superset(&[200, 401, 403].into()), "{seen:?}");
}

/// The names are random sequences of pieces that confuse parsers. If the server permits a name, a browser must read it
/// as a name of this server.
#[test]
fn no_random_name_passes_as_a_name_of_this_server() {
    const PIECES: [&str; 18] = [
        "localhost",
        "LOCALHOST",
        "gate.internal",
        "127.0.0.1",
        "[::1]",
        "::1",
        "evil.example",
        ".",
        ":",
        "6070",
        "@",
        "[",
        "]",
        "%",
        "/",
        "\\",
        "#",
        "?",
    ];
    let app = App::new();
    let router = app.admin_router(access(None, None, &["gate.internal"]));
    let mut random = spillgate_testkit::Random(19);
    let mut permitted = 0;
    for _ in 0..5_000 {
        let host: String = (0..=random.below(4)).map(|_| *random.pick(&PIECES)).collect();
        for origin in [None, Some(format!("http://{host}"))] {
            let mut headers = vec![("host", host.as_str())];
            headers.extend(origin.as_deref().map(|origin| ("origin", origin)));
            // Time passes, so that the rate limit refuses nothing.
            app.clock.advance(std::time::Duration::from_millis(20));
            if matches!(app.head(&router, request("GET", "/rules", LOCAL, &headers)).status, 400 | 403) {
                continue;
            }
            permitted += 1;
            let name = host.to_ascii_lowercase();
            let name = name.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix(':').unwrap_or(&name);
            let name = name.strip_suffix('.').unwrap_or(name);
            assert!(["localhost", "gate.internal", "127.0.0.1", "[::1]"].contains(&name), "{host}");
        }
    }
    assert!(permitted > 500, "{permitted}");
}

#[test]
fn header_fields_that_are_no_text_are_refused() {
    let app = App::new();
    for access in [access(None, None, &[]), access(Some("the-write-token-of-this-test"), None, &[])] {
        for name in ["host", "origin", "sec-fetch-site", "authorization"] {
            let mut request = request("GET", "/rules", LOCAL, &[]);
            let bytes =
                axum::http::HeaderValue::from_bytes(b"\xff\xfe localhost").expect("the bytes are valid in a field");
            request.headers_mut().insert(name, bytes);
            let status = app.head(&app.admin_router(access.clone()), request).status;
            let expected = match (name, access.has_token()) {
                ("authorization", false) => 200,
                ("authorization", true) => 401,
                _ => 400,
            };
            assert_eq!(status, expected, "{name}");
        }
    }
}

fn app_for(origins: &[&str], hosts: &[&str]) -> App {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let browsers = Browsers { origins: owned(origins), hosts: owned(hosts) };
    App::with(HttpOptions { browsers, ..options() }, ServiceOptions::default())
}

fn send(app: &App, path: &str, headers: Headers<'_>, body: &str) -> Reply {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    app.call(request.body(Body::from(body.to_owned())).expect("the request is valid"))
}

/// The header fields of each case, and whether a request with them is permitted.
const OF_PAGES: [(Headers<'_>, bool); 19] = [
    (&[], true),
    (&[("host", "gate.internal:8080")], true),
    (&[("host", "gate.internal"), ("origin", "https://gate.internal")], true),
    (&[("host", "gate.internal"), ("origin", "https://gate.internal"), ("sec-fetch-site", "same-origin")], true),
    (&[("host", "gate.internal"), ("sec-fetch-site", "same-origin")], true),
    (&[("host", "gate.internal"), ("sec-fetch-site", "none")], true),
    (&[("host", "gate.internal"), ("origin", "https://App.example")], true),
    (&[("host", "gate.internal"), ("origin", "https://app.example"), ("sec-fetch-site", "cross-site")], true),
    (&[("host", "gate.internal"), ("origin", "http://gate.internal"), ("sec-fetch-site", "same-site")], true),
    (&[("host", "gate.internal"), ("origin", "http://app.example"), ("sec-fetch-site", "cross-site")], false),
    (&[("host", "gate.internal"), ("origin", "https://app.example:8443")], false),
    (&[("host", "gate.internal"), ("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")], false),
    (&[("host", "gate.internal"), ("origin", "https://evil.example")], false),
    (&[("host", "gate.internal"), ("origin", "null")], false),
    (&[("host", "gate.internal"), ("sec-fetch-site", "cross-site")], false),
    (&[("host", "gate.internal"), ("sec-fetch-site", "same-site")], false),
    (&[("origin", "https://gate.internal")], false),
    (&[("host", "gate.internal"), ("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")], false),
    (
        &[
            ("host", "gate.internal"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ],
        false,
    ),
];

/// A browser sends a `fetch` with `no-cors`, and a form, without a question before.
#[test]
fn a_page_of_another_site_charges_nothing_through_a_browser() {
    const ASK: &str = r#"{"domain": "api", "descriptors": [{"user_id": "7"}]}"#;
    for (headers, is_permitted) in OF_PAGES {
        let app = app_for(&["https://app.example"], &[]);
        let reply = send(&app, "/v1/check", headers, ASK);
        assert_eq!(reply.status == 200, is_permitted, "{headers:?}: {}", reply.body);
        if !is_permitted {
            assert!(reply.problem(403).contains("http_origins"), "{headers:?}: {}", reply.body);
        }
        let left = send(&app, "/v1/check", &[], &ASK.replace("]}", "], \"cost\": 0}"));
        assert_eq!(left.json()["remaining"], if is_permitted { 2 } else { 3 }, "{headers:?}: {}", left.body);
    }
    let app = app_for(&[], &[]);
    let page = [("host", "gate.internal"), ("origin", "https://evil.example"), ("content-type", "text/plain")];
    for (path, allowed) in spillgate_http::routes() {
        let status = send(&app, path, &page, "").status;
        assert_eq!(status, if allowed == "POST" { 403 } else { 405 }, "{path}");
    }
    let posts = spillgate_http::routes().filter(|(_, allowed)| *allowed == "POST").count();
    let metrics = app.operate("GET", "/metrics", &serde_json::Value::Null).body;
    let counted = format!("spillgate_requests_rejected_total{{reason=\"forbidden\"}} {posts}\n");
    assert!(metrics.contains(&counted), "{metrics}");
}

#[test]
fn a_name_of_the_http_listener_is_checked_only_if_names_are_set() {
    const ASK: &str = r#"{"domain": "api", "descriptors": [{"path": "/free"}]}"#;
    let status = |hosts: &[&str], host: &str| {
        let origin = format!("http://{host}");
        send(&app_for(&[], hosts), "/v1/check", &[("host", host), ("origin", &origin)], ASK).status
    };
    for host in ["gate.internal", "evil.example:8080", "127.0.0.1"] {
        assert_eq!(status(&[], host), 200, "{host}");
    }
    for (host, expected) in [("Gate.internal:80", 200), ("10.0.0.1", 200), ("localhost:1", 200), ("evil.example", 403)]
    {
        assert_eq!(status(&["gate.internal"], host), expected, "{host}");
    }
    let app = app_for(&[], &["gate.internal"]);
    let rebound = send(&app, "/v1/check", &[("host", "evil.example")], ASK).problem(403);
    assert!(rebound.contains("http_hosts"), "{rebound}");
    send(&app, "/v1/check", &[], ASK).problem(403);
    let probe = Request::get("/healthz").header("host", "evil.example").body(Body::empty()).expect("it is valid");
    assert_eq!(app.call(probe).status, 200, "a probe changes nothing");
}

#[test]
fn fields_of_browsers_that_are_no_text_are_refused_by_the_http_listener() {
    let bytes = axum::http::HeaderValue::from_bytes(b"\xff\xfe").expect("the bytes are valid in a field");
    for (name, hosts) in [("origin", &[][..]), ("sec-fetch-site", &[]), ("host", &["gate.internal"])] {
        let mut request = Request::post("/v1/check").body(Body::empty()).expect("the request is valid");
        request.headers_mut().insert(name, bytes.clone());
        app_for(&[], hosts).call(request).problem(400);
    }
}
