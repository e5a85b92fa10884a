//! Decodes any bytes as a `RateLimitRequest`, the request message of Envoy. If the bytes are valid, a service with
//! rules decides the request, and must not panic.
//!
//! Envoy copies values of its clients into this message. So a client can choose a part of the bytes.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use prost::Message;
use spillgate::rules::{Action, Limit, Request, Rules, RulesFile, Unit};
use spillgate::{Limiter, MemoryOptions, MemoryStore};
use spillgate_grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use spillgate_service::metrics::Metrics;
use spillgate_service::{Backend, Client, Grants, Service, ServiceOptions};

const RULES: &str = r#"
domain: d
descriptors:
  - key: a
    value: "v*"
    rate_limits:
      - {unit: second, requests_per_unit: 3, name: one}
      - {window: 10s, limit: 5, algorithm: token_bucket, burst: 2, name: two}
    descriptors:
      - key: b
        quota_mode: true
        rate_limit: {window: 1s, limit: 2, algorithm: leaky_bucket}
  - key: a
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1, denied: charged}
  - key: b
    rate_limit: {window: 1m, limit: 7, algorithm: sliding_window_log, replaces: [{name: one}]}
  - key: c
    rate_limit: {limit: 3, algorithm: concurrency}
  - key: u
    rate_limit: {unlimited: true}
"#;

static SERVICE: LazyLock<Service> = LazyLock::new(|| {
    let file = RulesFile { name: String::from("rules.yaml"), text: RULES.to_owned() };
    let rules = Rules::parse(&[file]).expect("the rules of this target are valid");
    let store = MemoryStore::new(MemoryOptions { max_keys: 4096, ..MemoryOptions::default() });
    let limiter = Limiter::new(Backend::Memory(store));
    Service::new(rules, limiter, ServiceOptions::default(), Arc::new(Metrics::new()))
});

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().build().expect("the runtime starts"));

fuzz_target!(|data: &[u8]| {
    let Ok(wire) = RateLimitRequest::decode(data) else { return };
    assert_eq!(RateLimitRequest::decode(&wire.encode_to_vec()[..]).as_ref(), Ok(&wire));
    let limits: Vec<Option<Limit>> = wire
        .descriptors
        .iter()
        .map(|descriptor| descriptor.limit.map(|limit| Limit::overriding(Unit::Minute, limit.requests_per_unit)))
        .collect();
    let mut request = Request::new(&wire.domain).with_max_wait_ns(u64::from(wire.hits_addend));
    for (descriptor, limit) in wire.descriptors.iter().zip(&limits) {
        let hits = descriptor.hits_addend.unwrap_or(u64::from(wire.hits_addend.max(1)));
        let action = if descriptor.is_negative_hits { Action::Refund(hits) } else { Action::Take(hits) };
        let entries = descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value));
        request.add(entries, action, limit.as_ref());
    }
    let client = Client { grants: Grants { refund: true, overriding: true }, ..Client::default() };
    let loaded = SERVICE.rules();
    // The service can return an error. It must not panic or hang.
    if let Ok(answer) = RUNTIME.block_on(SERVICE.decide(&loaded, &request, client)) {
        assert_eq!(answer.statuses.len(), wire.descriptors.len());
        for status in &answer.statuses {
            assert!(status.decision.remaining <= status.decision.limit || status.limit.is_none(), "{status:?}");
            assert!(!status.enforced_over || status.over, "{status:?}");
        }
    }
});
