//! Sends any bytes to the paths of the HTTP listener that accept POST, as the body of a request, and to
//! `/v1/forward-auth`, as the values of header fields.
//!
//! The status of the answer must be below 500, because a client must not be able to cause an error of the server.

#![no_main]

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use libfuzzer_sys::fuzz_target;
use spillgate::headers::HeaderStyle;
use spillgate::rules::{Rules, RulesFile};
use spillgate::{Limiter, MemoryOptions, MemoryStore, SystemClock};
use spillgate_http::{Browsers, HttpOptions, HttpState};
use spillgate_server::settings::{SettingsFile, Sources, resolve};
use spillgate_service::metrics::Metrics;
use spillgate_service::{Backend, Grants, Peer, Service, ServiceOptions};

const RULES: &str = r#"
domain: d
descriptors:
  - key: a
    rate_limits:
      - {unit: second, requests_per_unit: 3, name: one}
      - {window: 10s, limit: 5, algorithm: leaky_bucket, name: two}
  - key: c
    rate_limit: {limit: 3, algorithm: concurrency}
"#;

const SETTINGS: &str = r#"
trusted_proxies: [10.0.0.0/8]
forward_auth: {domain: d, deny_status: 429, descriptors: [[{key: a, from: client_ip}], [{key: c, from: "header:X-Forwarded-Uri"}]]}
"#;

static POSTS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    spillgate_http::routes().filter(|(_, allowed)| *allowed == "POST").map(|(path, _)| path).collect()
});

static STATE: LazyLock<HttpState<SystemClock>> = LazyLock::new(|| {
    let file = RulesFile { name: String::from("rules.yaml"), text: RULES.to_owned() };
    let rules = Rules::parse(&[file]).expect("the rules of this target are valid");
    let file = SettingsFile { name: String::from("settings.yaml"), text: SETTINGS.to_owned() };
    let settings = resolve(&Sources { file: Some(file), ..Sources::default() })
        .expect("the settings of this target are valid")
        .settings;
    let store = MemoryStore::new(MemoryOptions { max_keys: 4096, ..MemoryOptions::default() });
    let limiter = Limiter::new(Backend::Memory(store));
    let service = Service::new(rules, limiter, ServiceOptions::default(), Arc::new(Metrics::new()));
    let options = HttpOptions {
        headers: HeaderStyle::Draft11,
        trusted_proxies: settings.trusted_proxies,
        forward_auth: settings.forward_auth,
        grants: Grants { refund: true, overriding: true },
        body_bytes: 1 << 16,
        max_wait: Duration::ZERO,
        reservation_life: Duration::from_secs(60),
        browsers: Browsers::default(),
    };
    HttpState::new(Arc::new(service), options).expect("these settings can be served")
});

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_time().build().expect("the runtime starts"));

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else { return };
    let builder = Request::builder();
    let request = match POSTS.get(usize::from(first) % (POSTS.len() + 1)) {
        Some(path) => builder
            .method("POST")
            .uri(*path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(data.to_vec())),
        None => {
            let (uri, addresses) = data.split_at(data.len() / 2);
            let builder = builder.uri("/v1/forward-auth").header("x-forwarded-uri", uri);
            builder.header("x-forwarded-for", addresses).body(Body::empty())
        }
    };
    let Ok(request) = request else { return };
    let peer = Peer::Tcp(SocketAddr::from(([10, 0, 0, 1], 4)));
    RUNTIME.block_on(async {
        let answer = STATE.answer(peer, request).await;
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), 1 << 20).await.expect("the answer has at most 1 MiB");
        assert!(status.as_u16() < 500, "{status}: {}", String::from_utf8_lossy(&body));
        assert!(status.as_u16() < 400 || !body.is_empty(), "the error {status} has no body");
    });
});
