//! The answer of the service changes what its request was charged: refunds, and charges by the size of the answer.

use spillgate_limiter::OnFull;
use spillgate_limiter::sketch::Sketch;

use super::*;

#[tokio::test]
async fn only_failures_count() {
    let layer = RateLimitLayer::new(limiter())
        .limit("login", &TWO, key::address())
        .count_only(|status| status == StatusCode::UNAUTHORIZED);
    let wrong = || with(request(), &[("answer", "401")]);
    for _ in 0..5 {
        assert_eq!(status(&layer, request()).await, 200, "a correct password costs nothing");
    }
    assert_eq!([status(&layer, wrong()).await, status(&layer, wrong()).await], [401, 401]);
    assert_eq!([status(&layer, wrong()).await, status(&layer, request()).await], [429, 429]);
}

#[tokio::test]
async fn a_failure_of_the_service_is_refunded_and_a_body_is_charged_by_size() {
    let layer = RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything()).refund_server_errors();
    for _ in 0..5 {
        assert_eq!(status(&layer, with(request(), &[("answer", "503")])).await, 503);
    }
    assert_eq!([status(&layer, request()).await, status(&layer, request()).await], [200, 200]);
    assert_eq!(status(&layer, request()).await, 429);

    const BYTES: Quota = Quota::per_minute(12).constant();
    let layer = RateLimitLayer::new(limiter())
        .limit("bytes", &BYTES, key::everything())
        .cost(|_| 0)
        .charge_after(|_, bytes| Charge::Add(bytes.expect("the size is known")));
    for expected in [200, 200, 200, 429] {
        assert_eq!(status(&layer, request()).await, expected, "each answer has five bytes");
    }
}

#[tokio::test]
async fn fields_tell_what_is_left_after_the_answer_has_changed_the_charge() {
    async fn left<S: Store + 'static>(layer: &RateLimitLayer<S, ManualClock>, answer: &str) -> String {
        let response = ask(layer, with(request(), &[("answer", answer)])).await;
        text(response.headers(), "ratelimit").expect("the field").to_owned()
    }
    async fn check<S: Store + 'static>(layer: RateLimitLayer<S, ManualClock>) {
        let layer = layer.limit("login", &TWO, key::everything());
        let layer = layer.count_only(|status| status == StatusCode::UNAUTHORIZED);
        for (answer, expected) in [
            ("200", r#""login";r=2"#),
            ("401", r#""login";r=1;t=30"#),
            ("200", r#""login";r=1;t=30"#),
            ("401", r#""login";r=0;t=30"#),
        ] {
            assert_eq!(left(&layer, answer).await, expected, "{answer}");
        }
    }
    check(RateLimitLayer::new(limiter())).await;
    check(RateLimitLayer::new(stores::remote(false))).await;

    let failing = RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything()).refund_server_errors();
    assert_eq!(left(&failing, "503").await, r#""all";r=2"#);
    let larger = RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything());
    assert_eq!(left(&larger.charge_after(|_, _| Charge::Add(1)), "200").await, r#""all";r=0;t=30"#);
}

#[tokio::test]
async fn after_a_refund_another_limit_can_determine_the_answer() {
    const TEN: Quota = Quota::per_hour(10).constant();
    let layer = RateLimitLayer::new(limiter())
        .limit("two", &TWO, key::everything())
        .limit("ten", &TEN, key::everything())
        .cost(|_| 2)
        .header_style(HeaderStyle::XRateLimit)
        .refund_server_errors();
    for (answer, limit, remaining) in [("503", "2", "2"), ("200", "2", "0")] {
        let response = ask(&layer, with(request(), &[("answer", answer)])).await;
        let fields = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| text(response.headers(), name));
        assert_eq!(fields, [Some(limit), Some(remaining)], "{answer}");
    }
}

#[tokio::test]
async fn a_service_that_fails_without_an_answer_is_refunded_as_one_that_answers_5xx() {
    async fn expect<S: Store + 'static>(layer: RateLimitLayer<S, ManualClock>, expected: [u16; 4]) {
        let service =
            layer.layer(service_fn(|_: Request<Empty<Bytes>>| async { Err::<Response<Full<Bytes>>, _>("timeout") }));
        for expected in expected {
            // 0 stands for a service that returns an error instead of an answer.
            let answered = service.clone().oneshot(request()).await.map_or(0, |answer| answer.status().as_u16());
            assert_eq!(answered, expected);
        }
    }
    let refunded = |layer: RateLimitLayer<MemoryStore, _>| layer.refund_server_errors();
    let layer = || RateLimitLayer::new(limiter()).limit("all", &TWO, key::everything());
    expect(refunded(layer()), [0; 4]).await;
    expect(layer().count_only(|status| status.is_client_error()), [0, 0, 429, 429]).await;
    expect(layer().charge_after(|_, _| Charge::Refund), [0, 0, 429, 429]).await;
    let remote = RateLimitLayer::new(super::stores::remote(false)).limit("all", &TWO, key::everything());
    expect(remote.refund_server_errors(), [0; 4]).await;
}

#[tokio::test]
async fn a_refund_that_a_sketch_cannot_make_is_reported() {
    async fn expect<S: Store + 'static>(store: S, statuses: [u16; 4], errors: usize) {
        let reports = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reports);
        let layer = RateLimitLayer::new(limiter_on(store))
            .limit("login", &TWO, key::address())
            .count_only(|status| status == StatusCode::UNAUTHORIZED)
            .on_error(move |error| {
                assert!(error.to_string().contains("cannot give back the units"), "{error}");
                counted.fetch_add(1, Ordering::Relaxed);
            });
        for expected in statuses {
            assert_eq!(status(&layer, request()).await, expected);
        }
        assert_eq!(reports.load(Ordering::Relaxed), errors);
    }
    let full = |on_full| MemoryStore::new(MemoryOptions { max_keys: 0, on_full, ..MemoryOptions::default() });
    expect(Sketch::new(&TWO, 1 << 20).expect("a size"), [200, 200, 429, 429], 2).await;
    expect(full(OnFull::Sketch { bytes: 1 << 20 }), [200, 200, 429, 429], 2).await;
    expect(full(OnFull::Allow), [200; 4], 0).await;
}
