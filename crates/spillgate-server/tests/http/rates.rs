//! Tests of the rate limits of the admin listener itself.

use std::time::Duration;

use axum::Router;
use spillgate_service::metrics::AdminRefusal;

use crate::http::access::{Headers, LOCAL, REMOTE, access, request};
use crate::http::app::{App, Reply};

const RIGHT: (&str, &str) = ("authorization", "Bearer the-write-token-of-this-test");
const READ: (&str, &str) = ("authorization", "Bearer the-read-token-of-this-test");
const WRONG: (&str, &str) = ("authorization", "Bearer wrong");

fn get(app: &App, router: &Router, path: &str, peer: &str, headers: Headers<'_>) -> Reply {
    app.head(router, request("GET", path, peer, headers))
}

/// Returns how many requests are permitted before the first refusal.
fn permitted(app: &App, router: &Router, path: &str, peer: &str, headers: Headers<'_>) -> usize {
    (0..500).take_while(|_| get(app, router, path, peer, headers).status == 200).count()
}

#[test]
fn an_address_gets_50_requests_a_second_and_200_at_once() {
    let app = App::new();
    let router = app.admin_router(access(None, None, &[]));
    assert_eq!(permitted(&app, &router, "/openapi.json", LOCAL, &[]), 200);
    let refused = get(&app, &router, "/openapi.json", LOCAL, &[]);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(permitted(&app, &router, "/openapi.json", REMOTE, &[]), 200, "another address has its own limit");
    assert_eq!(permitted(&app, &router, "/openapi.json", "unix", &[]), 200);
    assert_eq!(permitted(&app, &router, "/metrics", LOCAL, &[]), 200, "scrapes have their own limit");
    for path in ["/healthz", "/readyz", "/", "/ui/page.css"] {
        assert_eq!(permitted(&app, &router, path, LOCAL, &[]), 500, "probes and files of the page have no limit");
    }
    app.clock.advance(Duration::from_secs(1));
    assert_eq!(permitted(&app, &router, "/openapi.json", LOCAL, &[]), 50);
    assert!(app.service.metrics().admin_refused(AdminRefusal::Rate).get() >= 5);
}

#[test]
fn requests_that_are_not_permitted_take_nothing_from_those_that_are() {
    let app = App::new();
    let router = app.admin_router(access(None, None, &[]));
    // These requests come from a page of another site, in the browser of an operator.
    for _ in 0..500 {
        let page = [("host", "localhost"), ("sec-fetch-site", "cross-site")];
        assert_eq!(get(&app, &router, "/openapi.json", LOCAL, &page).status, 403);
    }
    assert_eq!(permitted(&app, &router, "/openapi.json", LOCAL, &[]), 200);
    let guarded = access(Some("the-write-token-of-this-test"), Some("the-read-token-of-this-test"), &[]);
    let router = app.admin_router(guarded);
    for _ in 0..500 {
        assert_eq!(get(&app, &router, "/openapi.json", LOCAL, &[]).status, 401, "a missing token is no guess");
    }
    let wrong: Vec<_> = (0..30).map(|_| get(&app, &router, "/metrics", LOCAL, &[WRONG])).collect();
    assert!(wrong[..20].iter().all(|reply| reply.status == 401));
    assert!(wrong[20..].iter().all(|reply| reply.status == 429 && reply.header("retry-after") == Some("60")));
    assert_eq!(get(&app, &router, "/metrics", REMOTE, &[WRONG]).status, 401, "another address has its own count");
    // Requests from the same address with a right token are still permitted, and each token has its own limit.
    assert_eq!(permitted(&app, &router, "/openapi.json", LOCAL, &[RIGHT]), 200);
    assert_eq!(permitted(&app, &router, "/openapi.json", LOCAL, &[READ]), 200);
    assert_eq!(permitted(&app, &router, "/metrics", LOCAL, &[READ]), 200);
    app.clock.advance(Duration::from_secs(60));
    assert_eq!(get(&app, &router, "/metrics", LOCAL, &[WRONG]).status, 401);
}

#[test]
fn refused_requests_are_counted_by_their_reason() {
    let app = App::new();
    let open = app.admin_router(access(None, None, &[]));
    let guarded =
        app.admin_router(access(Some("the-write-token-of-this-test"), Some("the-read-token-of-this-test"), &[]));
    let count = |reason| app.service.metrics().admin_refused(reason).get();
    let cases: [(&Router, &str, &str, &str, Headers<'_>, AdminRefusal); 8] = [
        (&open, "GET", "/rules", LOCAL, &[("host", "evil.example")], AdminRefusal::Host),
        (&open, "GET", "/rules", LOCAL, &[("origin", "null")], AdminRefusal::Origin),
        (&open, "GET", "/rules", LOCAL, &[("sec-fetch-site", "cross-site")], AdminRefusal::Origin),
        (&open, "POST", "/peek", REMOTE, &[], AdminRefusal::Remote),
        (&open, "POST", "/reset", LOCAL, &[], AdminRefusal::Header),
        (&guarded, "GET", "/rules", LOCAL, &[], AdminRefusal::Token),
        (&guarded, "GET", "/rules", LOCAL, &[WRONG], AdminRefusal::Token),
        (&guarded, "POST", "/reset", LOCAL, &[READ], AdminRefusal::ReadToken),
    ];
    for (router, method, path, peer, headers, reason) in cases {
        let before = count(reason);
        assert!(app.head(router, request(method, path, peer, headers)).status >= 400);
        assert_eq!(count(reason), before + 1, "{reason:?}: {method} {path} {headers:?}");
    }
}
