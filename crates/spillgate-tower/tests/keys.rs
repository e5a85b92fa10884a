//! What requests are counted by: routes of axum, extensions, functions, and addresses behind proxies.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use spillgate_limiter::{Key, KeyBuilder, network_of};

use super::*;

const ONE: Quota = Quota::per_minute(1).constant();

fn limit(by: key::RequestKey) -> RateLimitLayer<MemoryStore, ManualClock> {
    RateLimitLayer::new(limiter()).limit("limit", &ONE, by)
}

async fn get_all(app: &Router, paths: &[&str]) -> Vec<u16> {
    let mut statuses = vec![];
    for path in paths {
        let request = Request::get(*path).body(Body::empty()).expect("a request");
        statuses.push(app.clone().oneshot(request).await.expect("no failure").status().as_u16());
    }
    statuses
}

fn routes() -> Router {
    Router::new().route("/users/{id}", get(|| async { "user" })).route("/b", get(|| async { "b" }))
}

#[tokio::test]
async fn each_route_of_axum_has_a_count_of_its_own() {
    let paths = ["/users/1", "/users/2", "/b", "/b", "/none"];
    let app = routes().route_layer(limit(key::matched_path()));
    assert_eq!(get_all(&app, &paths).await, [200, 429, 200, 429, 404]);
    let app = routes().layer(limit(key::matched_path()));
    assert_eq!(get_all(&app, &paths).await, [200, 429, 200, 429, 500], "without a route there is nothing to count by");
}

#[tokio::test]
async fn in_a_nested_router_the_path_lacks_the_prefix_and_the_matched_path_has_it() {
    let nested = |by| {
        let inner = routes().layer(limit(by));
        Router::new().nest("/v1", inner.clone()).nest("/v2", inner)
    };
    assert_eq!(get_all(&nested(key::path()), &["/v1/b", "/v2/b"]).await, [200, 429]);
    assert_eq!(get_all(&nested(key::matched_path()), &["/v1/b", "/v2/b", "/v1/b"]).await, [200, 200, 429]);
    let outside = Router::new().nest("/v1", routes()).nest("/v2", routes()).layer(limit(key::path()));
    assert_eq!(get_all(&outside, &["/v1/b", "/v2/b", "/v1/b"]).await, [200, 200, 429]);
}

#[tokio::test]
async fn a_value_of_the_extensions_is_a_key_and_a_request_without_it_is_an_error() {
    #[derive(Clone)]
    struct UserId(u64);
    impl Key for UserId {
        fn add_to(&self, key: &mut KeyBuilder) {
            key.key(&self.0);
        }
    }
    let layer = limit(key::extension::<UserId>());
    let by_user = |id| {
        let mut request = request();
        request.extensions_mut().insert(UserId(id));
        request
    };
    assert_eq!([status(&layer, by_user(1)).await, status(&layer, by_user(1)).await], [200, 429]);
    assert_eq!(status(&layer, by_user(2)).await, 200);
    assert_eq!(status(&layer, request()).await, 500);
}

#[tokio::test]
async fn methods_paths_and_texts_distinguish_requests() {
    let with_method = |method: &str, path: &str| {
        let mut request = request();
        *request.method_mut() = method.parse().expect("a method");
        *request.uri_mut() = path.parse().expect("a path");
        request
    };
    let layer = limit(key::text("api").and(key::method()).and(key::path()));
    for (method, path, expected) in
        [("GET", "/a", 200), ("POST", "/a", 200), ("GET", "/b?x=1", 200), ("GET", "/b?x=2", 429), ("GET", "/a", 429)]
    {
        assert_eq!(status(&layer, with_method(method, path)).await, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn a_function_counts_by_the_host_whatever_the_version_of_http() {
    let layer = limit(key::from_request(|request, key| {
        let host = request.uri.host().or_else(|| request.headers.get("host")?.to_str().ok())?;
        key.key(host.split('.').next()?);
        Some(())
    }));
    // Over HTTP/2, servers write the host into the URI. Over HTTP/1.1 it is a header field.
    let http2 = |host: &str| {
        let mut request = request();
        *request.uri_mut() = format!("https://{host}/").parse().expect("a URI");
        request
    };
    assert_eq!(status(&layer, http2("acme.example.com")).await, 200);
    assert_eq!(status(&layer, with(request(), &[("host", "acme.example.com")])).await, 429);
    assert_eq!(status(&layer, with(request(), &[("host", "other.example.com")])).await, 200);
    assert_eq!(status(&layer, request()).await, 500, "there is no host");
}

#[tokio::test]
async fn a_program_peeks_at_a_limit_of_a_layer_by_its_name_and_its_key() {
    let limiter = Arc::new(limiter());
    let layer = RateLimitLayer::new(Arc::clone(&limiter))
        .limit("client", &TWO, key::address())
        .limit("route", &TWO, key::text("api").and(key::method()))
        .limit("key", &TWO, key::header("x-key").and(key::header("x-other")));
    for (address, used) in [("198.51.100.7", 1), ("2001:db8:1:2::3", 2)] {
        assert_eq!(status(&layer, with(from(address), &[("x-key", address)])).await, 200);
        let client = network_of(address.parse().expect("an address"), 64);
        assert_eq!(limiter.peek_now(&TWO, ("client", client)).remaining, 1);
        assert_eq!(limiter.peek_now(&TWO, ("key", (address, 1), ("", 0))).remaining, 1);
        assert_eq!(limiter.peek_now(&TWO, ("route", "api", "GET")).remaining, 2 - used);
        assert_eq!(limiter.peek_now(&TWO, ("other", client)).remaining, 2);
        limiter.reset_now(&TWO, ("client", client));
        assert_eq!(limiter.peek_now(&TWO, ("client", client)).remaining, 2);
    }
}

#[tokio::test]
async fn a_rule_shares_no_count_with_a_limit_or_a_key_of_the_program() {
    let limiter = Arc::new(limiter());
    let text = "domain: api\ndescriptors: [{key: path, rate_limit: {unit: minute, requests_per_unit: 2}}]";
    let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).expect("valid rules");
    let by_rule = RateLimitLayer::new(Arc::clone(&limiter)).rules(rules, |request, descriptors| {
        descriptors.domain("api").add("path", request.uri.path());
    });
    let by_name = RateLimitLayer::new(Arc::clone(&limiter)).limit("api", &TWO, key::text("path").and(key::path()));
    for _ in 0..2 {
        assert_eq!(status(&by_rule, request()).await, 200);
    }
    assert_eq!(limiter.peek_now(&TWO, ("api", "path", "/")).remaining, 2);
    assert_eq!([status(&by_name, request()).await, status(&by_rule, request()).await], [200, 429]);
}

#[tokio::test]
async fn allowed_networks_are_those_of_the_client_behind_a_trusted_proxy() {
    let layer = limit(key::everything())
        .trusted_proxies(["198.51.100.0/24".parse().expect("a network")])
        .allow_networks(["192.0.2.0/24".parse().expect("a network")]);
    let behind = |client: &str| with(request(), &[("x-forwarded-for", client)]);
    for _ in 0..3 {
        assert_eq!(status(&layer, behind("192.0.2.9")).await, 200, "the client is in an allowed network");
    }
    assert_eq!([status(&layer, behind("203.0.113.1")).await, status(&layer, behind("203.0.113.2")).await], [200, 429]);
    let forged = with(from("203.0.113.9"), &[("x-forwarded-for", "192.0.2.9")]);
    assert_eq!(status(&layer, forged).await, 429, "only a trusted proxy reports the client");
}
