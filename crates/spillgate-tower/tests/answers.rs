//! The answers that clients see: header fields, bodies, statuses of gRPC.

use super::*;

#[tokio::test]
async fn a_client_sees_its_limit_and_then_a_refusal_that_says_when_to_come_back() {
    let layer = RateLimitLayer::new(limiter()).limit("per address", &TWO, key::address());
    for left in ["1", "0"] {
        let response = ask(&layer, request()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(text(response.headers(), "ratelimit-policy"), Some(r#""per address";q=2;w=60"#));
        assert!(text(response.headers(), "ratelimit").is_some_and(|field| field.contains(&format!(";r={left};"))));
        assert_eq!(text(response.headers(), "retry-after"), None);
        assert_eq!(body(response).await, "hello");
    }
    let refused = ask(&layer, request()).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(text(refused.headers(), "content-type"), Some("application/problem+json"));
    assert_eq!(text(refused.headers(), "retry-after"), Some("30"));
    let problem: serde_json::Value = serde_json::from_slice(&body(refused).await).expect("the body is JSON");
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["status"], &problem["retry_after_ms"]), (&429.into(), &30_000.into()));
    assert_eq!(problem["violated-policies"], serde_json::json!(["per address"]));
    assert_eq!(status(&layer, from("198.51.100.8")).await, 200, "another client has its own limit");
}

#[tokio::test]
async fn the_body_of_a_refusal_is_that_of_the_page() {
    let page = include_str!("../../../docs/src/how-to/middleware.md");
    let block = page.split("```json").nth(1).and_then(|rest| rest.split("```").next()).expect("the page has a body");
    let expected: serde_json::Value = serde_json::from_str(block).expect("the block is JSON");
    let layer = RateLimitLayer::new(limiter()).limit("client", &TWO, key::address());
    assert_eq!([status(&layer, request()).await, status(&layer, request()).await], [200, 200]);
    let refused = body(ask(&layer, request()).await).await;
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&refused).expect("the body is JSON"), expected);
}

#[tokio::test]
async fn names_of_limits_are_escaped_in_the_body() {
    const NONE: Quota = Quota::per_minute(0).constant();
    let layer = RateLimitLayer::new(limiter()).limit("a \"b\"\\\n\u{1}ü", &NONE, key::everything());
    let refused = ask(&layer, request()).await;
    let problem: serde_json::Value = serde_json::from_slice(&body(refused).await).expect("the body is JSON");
    assert!(problem["violated-policies"][0].as_str().is_some_and(|name| name.starts_with("a ")), "{problem}");
    assert_eq!(problem["retry_after_ms"], serde_json::Value::Null, "a limit of 0 never allows a request");
}

#[tokio::test]
async fn a_client_of_grpc_gets_a_status_with_the_time_to_wait() {
    let layer = RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything());
    let grpc = || with(request(), &[("content-type", "application/grpc+proto")]);
    for _ in 0..2 {
        assert_eq!(text(ask(&layer, grpc()).await.headers(), "grpc-status"), None);
    }
    let refused = ask(&layer, grpc()).await;
    assert_eq!(refused.status(), 200);
    assert_eq!(text(refused.headers(), "content-type"), Some("application/grpc"));
    assert_eq!(text(refused.headers(), "grpc-status"), Some("8"));
    let details = text(refused.headers(), "grpc-status-details-bin").expect("the details");
    let details = base64(details);
    let status = prost_types_status(&details);
    assert_eq!((status.0, status.1.as_str(), status.2), (8, "the limit is used up", (30, 0)));
    assert!(body(refused).await.is_empty());
}

fn base64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD_NO_PAD.decode(text).expect("the details are base64")
}

/// Decodes `google.rpc.Status` with an independent implementation: its code, its message and the delay of its
/// RetryInfo.
fn prost_types_status(bytes: &[u8]) -> (i32, String, (i64, i32)) {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Status {
        #[prost(int32, tag = "1")]
        code: i32,
        #[prost(string, tag = "2")]
        message: String,
        #[prost(message, repeated, tag = "3")]
        details: Vec<prost_types::Any>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        retry_delay: Option<prost_types::Duration>,
    }
    let status = Status::decode(bytes).expect("a status");
    let [detail] = &status.details[..] else { panic!("one detail: {status:?}") };
    assert_eq!(detail.type_url, "type.googleapis.com/google.rpc.RetryInfo");
    let delay = RetryInfo::decode(&detail.value[..]).expect("a retry info").retry_delay.expect("a delay");
    (status.code, status.message, (delay.seconds, delay.nanos))
}

#[tokio::test]
async fn a_forged_address_does_not_help_and_a_trusted_proxy_does() {
    let layer = RateLimitLayer::new(limiter()).limit("address", &TWO, key::address());
    let forged = |n: u8| with(request(), &[("x-forwarded-for", &format!("203.0.113.{n}"))]);
    assert_eq!([status(&layer, forged(1)).await, status(&layer, forged(2)).await], [200, 200]);
    assert_eq!(status(&layer, forged(3)).await, 429);

    let layer = layer.trusted_proxies(["198.51.100.0/24".parse().expect("a network")]);
    assert_eq!(status(&layer, forged(3)).await, 200, "the proxy reports another client");
    let chain = |first: &str| with(request(), &[("x-forwarded-for", &format!("{first}, 203.0.113.9"))]);
    assert_eq!([status(&layer, chain("1.1.1.1")).await, status(&layer, chain("2.2.2.2")).await], [200, 200]);
    assert_eq!(status(&layer, chain("3.3.3.3")).await, 429, "what the client wrote in front changes nothing");
}

#[tokio::test]
async fn ipv6_clients_are_counted_by_network_and_mapped_addresses_as_ipv4() {
    let layer = RateLimitLayer::new(limiter()).limit("address", &TWO, key::address());
    assert_eq!(status(&layer, from("2001:db8:1:2::1")).await, 200);
    assert_eq!(status(&layer, from("2001:db8:1:2:ffff::1")).await, 200);
    assert_eq!(status(&layer, from("2001:db8:1:2::77")).await, 429);
    assert_eq!(status(&layer, from("2001:db8:1:3::1")).await, 200);
    for (address, expected) in [("192.0.2.1", 200), ("::ffff:192.0.2.1", 200), ("192.0.2.1", 429)] {
        assert_eq!(status(&layer, from(address)).await, expected);
    }
}

#[tokio::test]
async fn a_request_without_an_address_is_an_error_that_says_what_to_do() {
    let layer = RateLimitLayer::new(limiter()).limit("address", &TWO, key::address());
    let response = ask(&layer, Request::new(Empty::new())).await;
    assert_eq!(response.status(), 500);
    let problem = body(response).await;
    assert!(String::from_utf8_lossy(&problem).contains("into_make_service_with_connect_info"), "{problem:?}");
}

#[tokio::test]
async fn a_missing_header_field_is_a_value_of_its_own_and_lines_do_not_run_together() {
    const ONE: Quota = Quota::per_minute(1).constant();
    let by = key::header("x-key").and(key::header("x-other"));
    let layer = RateLimitLayer::new(limiter()).limit("key", &ONE, by);
    let different: [&[(&'static str, &str)]; 6] = [
        &[],
        &[("x-key", "")],
        &[("x-key", "a")],
        &[("x-key", "a,b")],
        &[("x-key", "a"), ("x-other", "b")],
        &[("x-other", "a")],
    ];
    for expected in [200, 429] {
        for fields in different {
            assert_eq!(status(&layer, with(request(), fields)).await, expected, "{fields:?}");
        }
    }
    let lines = with(request(), &[("x-key", "a"), ("x-key", "b")]);
    assert_eq!(status(&layer, lines).await, 429, "a second line makes no new key");
}

#[tokio::test]
async fn limits_are_taken_all_or_none_and_have_counts_of_their_own() {
    const FIVE: Quota = Quota::per_minute(5).constant();
    let layer = RateLimitLayer::new(limiter())
        .limit("address", &TWO, key::address())
        .limit("all", &FIVE, key::everything())
        .outcome_in_extensions(true);
    for address in ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"] {
        assert_eq!(status(&layer, from(address)).await, 200);
    }
    for _ in 0..10 {
        assert_eq!(status(&layer, from("192.0.2.1")).await, 429, "a refused request takes nothing from `all`");
    }
    assert_eq!(status(&layer, from("192.0.2.3")).await, 200);
    assert_eq!(status(&layer, from("192.0.2.3")).await, 429, "`all` is used up");
}

#[tokio::test(flavor = "multi_thread")]
async fn clones_share_one_limit() {
    const LIMIT: Quota = Quota::per_second(5).constant();
    let layer = RateLimitLayer::new(Arc::new(Limiter::in_memory())).limit("all", &LIMIT, key::everything());
    let passed = Arc::new(AtomicUsize::new(0));
    let started = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..1_500)
        .map(|_| {
            let (layer, passed) = (layer.clone(), Arc::clone(&passed));
            tokio::spawn(async move {
                let response = layer.layer(service_fn(answer)).oneshot(request()).await.expect("no failure");
                passed.fetch_add(usize::from(response.status() == 200), Ordering::Relaxed);
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the task ends");
    }
    let bound = 5 + started.elapsed().as_millis().div_ceil(200) as usize;
    let passed = passed.load(Ordering::Relaxed);
    assert!((5..=bound).contains(&passed), "{passed} passed; the bound is {bound}");
}

#[tokio::test]
async fn allowed_networks_and_skipped_requests_are_not_counted() {
    let layer = RateLimitLayer::new(limiter())
        .limit("all", &TWO, key::everything())
        .allow_networks(["192.0.2.0/24".parse().expect("a network")])
        .skip_if(|request| request.uri.path() == "/health");
    for _ in 0..5 {
        let response = ask(&layer, from("192.0.2.9")).await;
        assert_eq!((response.status().as_u16(), text(response.headers(), "ratelimit")), (200, None));
        let mut health = request();
        *health.uri_mut() = "/health".parse().expect("a path");
        assert_eq!(status(&layer, health).await, 200);
    }
    assert_eq!([status(&layer, request()).await, status(&layer, request()).await], [200, 200]);
    assert_eq!(status(&layer, request()).await, 429);
}

#[tokio::test]
async fn a_request_can_cost_more_and_have_a_quota_of_its_own() {
    const SMALL: Quota = Quota::per_minute(4).constant();
    const LARGE: Quota = Quota::per_minute(40).constant();
    let layer = RateLimitLayer::new(limiter())
        .limit_by(
            "plan",
            |request| if request.headers.contains_key("pro") { &LARGE } else { &SMALL },
            key::header("x-key"),
        )
        .cost(|request| if request.headers.contains_key("export") { 3 } else { 1 });
    assert_eq!(status(&layer, with(request(), &[("export", "1")])).await, 200);
    assert_eq!(status(&layer, with(request(), &[("export", "1")])).await, 429);
    assert_eq!(status(&layer, request()).await, 200);
    assert_eq!(status(&layer, request()).await, 429);
    assert_eq!(status(&layer, with(request(), &[("pro", "1")])).await, 200, "a larger plan goes on from what was used");
}

#[tokio::test]
async fn a_shadow_refuses_nothing_and_shows_nothing() {
    let refused = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&refused);
    let layer = RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything()).shadow(true);
    let service = layer.outcome_in_extensions(true).layer(service_fn(move |request: Request<Empty<Bytes>>| {
        let outcome = request.extensions().get::<Outcome>().expect("the outcome");
        seen.fetch_add(usize::from(!outcome.limits()[0].decision.allowed), Ordering::Relaxed);
        answer(request)
    }));
    for _ in 0..5 {
        let response = service.clone().oneshot(request()).await.expect("no failure");
        assert_eq!(response.status(), 200);
        assert!(response.headers().is_empty());
    }
    assert_eq!(refused.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn headers_have_the_chosen_style_and_can_be_exposed() {
    let layer = RateLimitLayer::new(limiter())
        .limit("all", &TWO, key::everything())
        .header_style(HeaderStyle::XRateLimit)
        .expose_headers(true);
    let response = ask(&layer, request()).await;
    assert_eq!(text(response.headers(), "x-ratelimit-remaining"), Some("1"));
    assert_eq!(
        text(response.headers(), "access-control-expose-headers"),
        Some("x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset")
    );
    let off = layer.header_style(HeaderStyle::Off);
    assert!(ask(&off, request()).await.headers().is_empty());
    assert_eq!(text(ask(&off, request()).await.headers(), "retry-after"), Some("30"));
}

#[tokio::test]
async fn a_program_can_answer_refusals_itself() {
    let layer = RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything()).refusal(|parts, outcome| {
        assert_eq!(outcome.binding_limit().and_then(|limit| limit.name.as_deref()), Some("all"));
        let mut response = Response::new(Bytes::from(format!("{} is busy", parts.uri.path())));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    });
    for _ in 0..2 {
        ask(&layer, request()).await;
    }
    let refused = ask(&layer, request()).await;
    assert_eq!((refused.status().as_u16(), text(refused.headers(), "retry-after")), (503, Some("30")));
    assert_eq!(body(refused).await, "/ is busy");
}

#[test]
#[should_panic(expected = "use Limiter::hold in the handler")]
fn a_layer_cannot_hold_permits() {
    const PERMITS: Quota = Quota::concurrency(2).constant();
    let _ = RateLimitLayer::new(limiter()).limit("jobs", &PERMITS, key::everything());
}

#[test]
#[should_panic(expected = "two limits with the name `all`")]
fn two_limits_of_a_layer_cannot_share_a_count() {
    const ALL: Quota = Quota::per_minute(5).constant();
    let layer = RateLimitLayer::new(limiter()).limit("all", &ALL, key::everything());
    let _ = layer.limit_by("all", |_| &ALL, key::everything());
}

#[test]
#[should_panic(expected = "a layer can have at most 256 limits")]
fn a_layer_has_a_bounded_number_of_limits() {
    const ALL: Quota = Quota::per_minute(5).constant();
    let add = |layer: RateLimitLayer<_, _>, number: usize| layer.limit(number.to_string(), &ALL, key::everything());
    let _ = (0..=256).fold(RateLimitLayer::new(limiter()), add);
}
