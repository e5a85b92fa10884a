//! The layer beside the CORS layer of tower-http.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::HeaderName;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS};
use tower_http::cors::{Any, CorsLayer};

use super::*;

const ONE: Quota = Quota::per_minute(1).constant();

fn limits() -> RateLimitLayer<MemoryStore, ManualClock> {
    RateLimitLayer::new(limiter()).limit("all", &ONE, key::everything()).expose_headers(true)
}

fn cors() -> CorsLayer {
    CorsLayer::new().allow_origin(Any)
}

/// Sends a request from a page of another site. Returns the status, and the names in Access-Control-Expose-Headers, or
/// no names if the page may not read the answer.
async fn from_another_site(app: &Router, method: &str) -> (u16, Vec<String>) {
    let request = Request::builder().method(method).header("origin", "https://other.example");
    let request = request.header("access-control-request-method", "GET").body(Body::empty()).expect("a request");
    let answer = app.clone().oneshot(request).await.expect("the service does not fail");
    let may_read = answer.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
    let lines = answer.headers().get_all(ACCESS_CONTROL_EXPOSE_HEADERS).iter().filter(|_| may_read);
    let names = lines.flat_map(|line| line.to_str().expect("a text").split(", ").map(str::to_owned));
    (answer.status().as_u16(), names.collect())
}

#[tokio::test]
async fn with_the_cors_layer_outside_pages_of_other_sites_read_the_fields_also_of_a_refusal() {
    let app = Router::new().route("/", get(|| async {})).layer(limits()).layer(cors());
    for expected in
        [(200, vec!["ratelimit-policy", "ratelimit"]), (429, vec!["ratelimit-policy", "ratelimit", "retry-after"])]
    {
        let (status, names) = from_another_site(&app, "GET").await;
        assert_eq!((status, names.iter().map(String::as_str).collect::<Vec<_>>()), expected);
    }
    assert_eq!(from_another_site(&app, "OPTIONS").await.0, 200, "a preflight is not counted");
}

#[tokio::test]
async fn a_cors_layer_with_a_list_of_its_own_replaces_the_list_of_the_limits() {
    let list = [HeaderName::from_static("ratelimit"), HeaderName::from_static("x-request-id")];
    let app = Router::new().route("/", get(|| async {})).layer(limits()).layer(cors().expose_headers(list));
    assert_eq!(from_another_site(&app, "GET").await, (200, vec!["ratelimit,x-request-id".to_owned()]));
}

#[tokio::test]
async fn with_the_cors_layer_inside_no_page_of_another_site_reads_a_refusal() {
    let app = Router::new().route("/", get(|| async {})).layer(cors()).layer(limits());
    assert_eq!(from_another_site(&app, "GET").await.0, 200);
    assert_eq!(from_another_site(&app, "GET").await, (429, vec![]));
    assert_eq!(from_another_site(&app, "OPTIONS").await.0, 429, "a preflight is counted");
}
