//! A layer with the limits of rules files.

use std::num::NonZeroU32;

use spillgate_limiter::FallbackStore;

use super::edges::statuses;
use super::stores::{Remote, remote};
use super::*;

/// Returns rules with one rule for each path. `fields` are the fields of this rule in YAML.
fn rules(fields: &str) -> Rules {
    let text = format!("domain: api\ndescriptors: [{{key: path, {fields}}}]");
    Rules::parse(&[RulesFile { name: "api.yaml".into(), text }]).expect("the rules are valid")
}

fn layer_on<S: Store>(limiter: Limiter<S, ManualClock>, fields: &str) -> RateLimitLayer<S, ManualClock> {
    RateLimitLayer::new(limiter).rules(rules(fields), |request, descriptors| {
        descriptors.domain("api").add("path", request.uri.path());
    })
}

pub(crate) fn by_rules(fields: &str) -> RateLimitLayer<MemoryStore, ManualClock> {
    layer_on(limiter(), fields)
}

#[tokio::test]
async fn a_rules_file_limits_requests_beside_the_limits_of_the_layer() {
    const ALL: Quota = Quota::per_minute(5).constant();
    let text = "
domain: api
descriptors:
  - {key: path, value: /search, rate_limit: {name: search, unit: minute, requests_per_unit: 2}}
  - key: client
    descriptors:
      - {key: method, value: GET, rate_limit: {unit: minute, requests_per_unit: 3}}
";
    let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).expect("the rules are valid");
    let layer = RateLimitLayer::new(limiter()).limit("all", &ALL, key::everything()).rules(rules, |request, found| {
        let address = request.client_address().map(|address| address.to_string()).unwrap_or_default();
        found
            .domain("api")
            .add("path", request.uri.path())
            .add("client", address)
            .and("method", request.method.as_str());
    });
    let get = |address, path: &str| {
        let mut request = from(address);
        *request.uri_mut() = path.parse().expect("a path");
        request
    };
    assert_eq!(status(&layer, get("192.0.2.1", "/search")).await, 200);
    assert_eq!(status(&layer, get("192.0.2.2", "/search")).await, 200);
    let refused = ask(&layer, get("192.0.2.3", "/search")).await;
    let problem: serde_json::Value = serde_json::from_slice(&body(refused).await).expect("the body is JSON");
    assert_eq!(problem["violated-policies"], serde_json::json!(["search"]));
    assert_eq!([status(&layer, get("192.0.2.1", "/")).await, status(&layer, get("192.0.2.1", "/")).await], [200, 200]);
    assert_eq!(status(&layer, get("192.0.2.1", "/")).await, 429, "the client has used its three requests");
    assert_eq!(status(&layer, get("192.0.2.4", "/")).await, 200);
    assert_eq!(status(&layer, get("192.0.2.5", "/")).await, 429, "five requests in all have passed");
}

#[tokio::test]
async fn a_post_paid_rule_refuses_before_the_work() {
    const RULE: &str = "rate_limit: {unit: hour, requests_per_unit: 2, post_paid: true}";
    let layer = by_rules(RULE);
    assert_eq!(statuses(&layer).await, [200, 200, 429, 429]);
    let afterwards = by_rules(RULE).cost(|_| 0).charge_after(|_, _| Charge::Add(3));
    assert_eq!(statuses(&afterwards).await, [200, 429, 429, 429]);
}

#[tokio::test]
async fn a_rule_in_shadow_mode_refuses_nothing_while_the_store_fails() {
    const ALLOW: Quota = Quota::per_minute(5).on_store_failure(OnStoreFailure::Allow).constant();
    for policy in ["local", "deny", "error", "allow"] {
        let rule =
            format!("shadow_mode: true, rate_limit: {{unit: hour, requests_per_unit: 0, on_store_failure: {policy}}}");
        assert_eq!(status(&layer_on(remote(false), &rule), request()).await, 200, "{policy}: the store works");
        let fails = layer_on(remote(true), &rule);
        assert_eq!(status(&fails, request()).await, 200, "{policy}: alone");
        let beside = fails.limit("all", &ALLOW, key::everything());
        assert_eq!(status(&beside, request()).await, 200, "{policy}: beside a limit that allows");
        let (shared, local) = (Remote::new(true), MemoryStore::new(MemoryOptions::default()));
        let fallback = limiter_on(FallbackStore::new(shared, local, NonZeroU32::MIN));
        assert_eq!(status(&layer_on(fallback, &rule), request()).await, 200, "{policy}: with a fallback");
    }
}

#[tokio::test]
async fn a_concurrency_rule_is_an_error_and_in_shadow_mode_it_is_left_out() {
    let rule = "rate_limit: {algorithm: concurrency, requests_per_unit: 3}";
    let refused = ask(&by_rules(rule), request()).await;
    assert_eq!(refused.status(), 500);
    assert!(String::from_utf8_lossy(&body(refused).await).contains("Limiter::hold"));
    let shadow = by_rules(&format!("shadow_mode: true, {rule}")).limit("all", &TWO, key::everything());
    assert_eq!(statuses(&shadow).await, [200, 200, 429, 429], "the other limits are asked");

    const PERMITS: Quota = Quota::concurrency(3).constant();
    let by_request = RateLimitLayer::new(limiter()).limit_by("jobs", |_| &PERMITS, key::everything());
    assert_eq!(statuses(&by_request).await, [500; 4]);
}

#[tokio::test]
async fn more_limits_than_a_request_can_have_are_an_error() {
    let descriptors = |count: usize| {
        let rules = rules("rate_limit: {unit: hour, requests_per_unit: 5}");
        RateLimitLayer::new(limiter()).rules(rules, move |_, descriptors| {
            descriptors.domain("api");
            for number in 0..count {
                descriptors.add("path", number.to_string());
            }
        })
    };
    assert_eq!(status(&descriptors(256), request()).await, 200);
    assert_eq!(status(&descriptors(257), request()).await, 500);
    assert_eq!(status(&descriptors(256).limit("all", &TWO, key::everything()), request()).await, 500);
}

#[tokio::test]
async fn a_hidden_limit_of_the_rules_is_in_no_answer() {
    const MANY: Quota = Quota::per_minute(100).constant();
    let rule = "rate_limit: {name: secret, unit: hour, requests_per_unit: 1, expose: false}";
    let everything = |response: &Answer| format!("{:?}", response.headers());
    for style in HeaderStyle::ALL {
        let alone = by_rules(rule).header_style(style);
        let allowed = ask(&alone, request()).await;
        assert_eq!((allowed.status().as_u16(), everything(&allowed).as_str()), (200, "{}"), "{style:?}");
        let grpc = ask(&alone, with(request(), &[("content-type", "application/grpc")])).await;
        assert_eq!(text(grpc.headers(), "grpc-status"), Some("8"));
        assert!(text(grpc.headers(), "retry-after").is_some(), "the wait is shown");
        let refused = ask(&alone, request()).await;
        assert_eq!(refused.status(), 429);
        for answer in [&grpc, &refused] {
            let fields = everything(answer);
            assert!(!fields.contains("secret") && !fields.contains("ratelimit"), "{style:?}: {fields}");
        }
        let problem: serde_json::Value = serde_json::from_slice(&body(refused).await).expect("the body is JSON");
        assert_eq!(problem["violated-policies"], serde_json::json!([]));

        let beside = by_rules(rule).limit("all", &MANY, key::everything()).header_style(style);
        for expected in [200, 429] {
            let answer = ask(&beside, request()).await;
            let fields = everything(&answer);
            assert_eq!(answer.status(), expected);
            assert!(!fields.contains("secret") && !fields.contains("3600"), "{style:?}: {fields}");
            assert_eq!(fields.contains("100"), style != HeaderStyle::Off, "the other limit is shown: {fields}");
        }
    }
}
