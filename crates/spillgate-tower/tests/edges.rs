//! Layers in shadow mode, layers inside other layers, and requests that lack what a limit counts by.

use super::by_rules::by_rules;
use super::*;
use axum::extract::connect_info::MockConnectInfo;

pub(crate) async fn statuses(layer: &RateLimitLayer<MemoryStore, ManualClock>) -> [u16; 4] {
    let mut statuses = [0; 4];
    for answer in &mut statuses {
        *answer = status(layer, request()).await;
    }
    statuses
}

#[tokio::test]
async fn a_shadow_covers_rules_and_requests_that_lack_something_are_reported() {
    let rules = by_rules("rate_limit: {unit: hour, requests_per_unit: 2}");
    assert_eq!(statuses(&rules.shadow(true)).await, [200; 4]);
    let reports = Arc::new(AtomicUsize::new(0));
    let reported = Arc::clone(&reports);
    let report = move |_: &StoreError| {
        reported.fetch_add(1, Ordering::Relaxed);
    };
    let layer = RateLimitLayer::new(limiter()).limit("address", &TWO, key::address()).on_error(report);
    let nowhere = || Request::new(Empty::new());
    assert_eq!(status(&layer.clone().shadow(true), nowhere()).await, 200);
    assert_eq!(reports.load(Ordering::Relaxed), 1);
    assert_eq!(status(&layer, nowhere()).await, 500);
    assert_eq!(reports.load(Ordering::Relaxed), 2, "each such request is reported, also without the shadow");
}

#[tokio::test]
async fn an_outer_layer_does_not_hide_the_fields_of_an_inner_one() {
    const MANY: Quota = Quota::per_minute(100).constant();
    for (style, field, expected) in [
        (HeaderStyle::XRateLimit, "x-ratelimit-limit", vec!["2"]),
        (HeaderStyle::Draft11, "ratelimit-policy", vec![r#""inner";q=2;w=60"#, r#""outer";q=100;w=60"#]),
    ] {
        let inner = RateLimitLayer::new(limiter()).limit("inner", &TWO, key::everything()).header_style(style);
        let outer = RateLimitLayer::new(limiter()).limit("outer", &MANY, key::everything()).header_style(style);
        let service = outer.layer(inner.layer(service_fn(answer)));
        for expected_status in [200, 200, 429] {
            let response = service.clone().oneshot(request()).await.expect("no failure");
            assert_eq!(response.status(), expected_status);
            let values: Vec<_> = response.headers().get_all(field).iter().collect();
            assert_eq!(values, expected, "{style:?}");
        }
    }
}

#[tokio::test]
async fn a_client_of_grpc_web_gets_an_answer_over_http() {
    let layer = RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything()).cost(|_| 3);
    for (kind, expected) in [
        ("application/grpc", (200, "application/grpc")),
        ("application/grpc+proto", (200, "application/grpc")),
        ("application/grpc-web+proto", (429, "application/problem+json")),
    ] {
        let refused = ask(&layer, with(request(), &[("content-type", kind)])).await;
        assert_eq!(
            (refused.status().as_u16(), text(refused.headers(), "content-type")),
            (expected.0, Some(expected.1))
        );
    }
    let refused = String::from_utf8(body(ask(&layer, request()).await).await.to_vec()).expect("the body is text");
    assert!(refused.contains("costs more than its limit ever allows"), "{refused}");
}

#[tokio::test]
async fn networks_may_be_written_as_mapped_addresses_and_tests_may_invent_a_peer() {
    let network = "::ffff:198.51.100.0/120".parse().expect("a network");
    let layer = RateLimitLayer::new(limiter()).limit("address", &TWO, key::address()).allow_networks([network]);
    assert_eq!(statuses(&layer).await, [200; 4]);
    let invented = || {
        let mut request = Request::new(Empty::new());
        request.extensions_mut().insert(MockConnectInfo(SocketAddr::from(([203, 0, 113, 7], 80))));
        request
    };
    for expected in [200, 200, 429] {
        assert_eq!(status(&layer, invented()).await, expected);
    }
}
