//! A helper for the tests of the HTTP paths. It calls the handlers of the listeners without sockets, and has a clock that only
//! the test changes.
//!
//! Without sockets and real time, the tests are fast and exact.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use spillgate::headers::HeaderStyle;
use spillgate::rules::{Rules, RulesFile};
use spillgate::{Limiter, ManualClock, MemoryOptions, MemoryStore, Time};
use spillgate_admin::{self as admin, Access, AdminState};
use spillgate_http::{Browsers, ForwardAuth, HttpOptions, HttpState};
use spillgate_service::metrics::Metrics;
use spillgate_service::{Backend, Grants, Peer, Service, ServiceOptions};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// The start of a day. All fixed windows of `RULES` begin at this time, so a test knows when they end.
const START_S: u64 = 1_700_006_400;

pub(crate) const RULES: &str = r#"
domain: api
descriptors:
  - key: user_id
    rate_limit: {name: per_user, unit: hour, requests_per_unit: 3}
  - key: path
    value: /free
    rate_limit: {unlimited: true}
  - key: shadowed
    rate_limit: {name: watched, unit: hour, requests_per_unit: 1}
    shadow_mode: true
  - key: pair
    rate_limits:
      - {name: burst, unit: second, requests_per_unit: 1}
      - {name: daily, unit: day, requests_per_unit: 150}
  - key: queued
    rate_limit: {name: queue, algorithm: leaky_bucket, unit: second, requests_per_unit: 2, queue: 4}
  - key: job
    rate_limit: {name: jobs, algorithm: concurrency, requests_per_unit: 2, lease: 30s}
  - key: brief_job
    rate_limit: {name: brief_jobs, algorithm: concurrency, requests_per_unit: 2, lease: 10s}
  - key: "caf\u00e9"
    rate_limit: {name: "caf\u00e9 \"one\"", unit: hour, requests_per_unit: 1}
  - key: remote_address
    rate_limit: {name: per_address, unit: minute, requests_per_unit: 2}
  - key: alike
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: like
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: outer
    descriptors:
      - key: inner
        rate_limit: {unit: hour, requests_per_unit: 1}
  - key: guarded
    rate_limits:
      - {name: per_client, unit: hour, requests_per_unit: 10}
      - {name: safety, unit: day, requests_per_unit: 2, expose: false}
  - key: hidden
    rate_limit: {name: unseen, unit: hour, requests_per_unit: 1, expose: false}
  - key: soft
    rate_limits:
      - {name: kept, unit: hour, requests_per_unit: 100}
      - {name: tuned, unit: day, requests_per_unit: 1, soft: 100%, expose: false}
  - key: tokens
    rate_limit: {name: tokens, algorithm: sliding_window_log, unit: hour, requests_per_unit: 100}
  - key: paid_later
    rate_limit: {name: paid_later, unit: hour, requests_per_unit: 100, post_paid: true}
  - key: sketched
    rate_limit: {name: sketched, unit: minute, requests_per_unit: 3, representation: sketch, sketch_memory: 1MiB}
  - key: both
    rate_limits:
      - {name: by_sketch, algorithm: token_bucket, unit: minute, limit: 5, representation: sketch, sketch_memory: 1MiB}
      - {name: by_state, unit: day, requests_per_unit: 2}
  - key: page
    value: /search
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: uri
    value: "*/admin"
    rate_limit: {unit: hour, requests_per_unit: 0}
"#;

pub(crate) struct App {
    pub(crate) clock: ManualClock,
    pub(crate) service: Arc<Service<ManualClock>>,
    http: HttpState<ManualClock>,
    runtime: Runtime,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("header values are visible ASCII"))
    }

    /// Asserts that the answer is a problem (a JSON error) with this status. Returns the members `detail` and `help` of
    /// the problem.
    pub(crate) fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.body);
        let json = self.json();
        assert_eq!(json["status"], status);
        let text = |member: &str| json[member].as_str().unwrap_or_default().to_owned();
        assert!(!text("title").is_empty() && !text("detail").is_empty(), "{}", self.body);
        format!("{} | {}", text("detail"), text("help"))
    }
}

pub(crate) fn options() -> HttpOptions {
    HttpOptions {
        reservation_life: Duration::from_secs(60),
        browsers: Browsers::default(),
        headers: HeaderStyle::Draft11,
        trusted_proxies: vec![],
        forward_auth: ForwardAuth { domain: None, deny_status: 429, ipv6_prefix: 64, descriptors: vec![] },
        grants: Grants::default(),
        body_bytes: 64 * 1024,
        max_wait: Duration::from_secs(60),
    }
}

impl App {
    pub(crate) fn new() -> App {
        App::with(options(), ServiceOptions::default())
    }

    pub(crate) fn with(options: HttpOptions, service_options: ServiceOptions) -> App {
        App::with_memory(options, service_options, MemoryOptions::default())
    }

    pub(crate) fn with_memory(options: HttpOptions, service_options: ServiceOptions, memory: MemoryOptions) -> App {
        App::on(Backend::Memory(MemoryStore::new(memory)), options, service_options)
    }

    pub(crate) fn on(store: Backend, options: HttpOptions, service_options: ServiceOptions) -> App {
        let files = [RulesFile { name: "rules/api.yaml".into(), text: RULES.into() }];
        let mut rules = Rules::parse(&files).unwrap_or_else(|errors| panic!("{errors:?}"));
        rules.open_sketches(None, NonZeroU32::MIN).expect("there is memory for the sketches");
        let clock = ManualClock::at(Time::EPOCH.after(Duration::from_secs(START_S)));
        let limiter = Limiter::with_clock(store, clock.clone());
        let service = Arc::new(Service::new(rules, limiter, service_options, Arc::new(Metrics::new())));
        let http = HttpState::new(Arc::clone(&service), options).expect("the options are valid");
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().expect("the runtime starts");
        App { clock, service, http, runtime }
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Reply {
        self.call(Request::post(path).body(Body::from(body.to_owned())).expect("the request is valid"))
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call(Request::get(path).body(Body::empty()).expect("the request is valid"))
    }

    /// Sends a request. If the future is dropped, the client has hung up.
    pub(crate) async fn send(&self, path: &str, body: &str) -> StatusCode {
        let request = Request::post(path).body(Body::from(body.to_owned())).expect("the request is valid");
        self.http.answer(Peer::Unix, request).await.status()
    }

    pub(crate) fn call(&self, request: Request<Body>) -> Reply {
        self.call_from(Peer::Unix, request)
    }

    pub(crate) fn call_from(&self, peer: Peer, request: Request<Body>) -> Reply {
        self.reply(async { self.http.answer(peer, request).await })
    }

    /// Sends a request from `peer` to an admin listener with the write token `token`.
    pub(crate) fn admin(&self, token: Option<&str>, peer: &str, mut request: Request<Body>) -> Reply {
        request.extensions_mut().insert(ConnectInfo(Peer::Tcp(peer.parse().expect("`peer` is an address"))));
        self.admin_with(Access::new(token, None, vec![]).expect("the token is not empty"), request)
    }

    /// Sends a request of an operator on this machine to an admin listener without a token.
    pub(crate) fn operate(&self, method: &str, path: &str, body: &Value) -> Reply {
        let peer = "127.0.0.1:4711";
        let request = Request::builder().method(method).uri(path).header("host", peer).header("x-spillgate-admin", "1");
        self.admin(None, peer, request.body(Body::from(body.to_string())).expect("the request is valid"))
    }

    /// Sends a request to the admin listener, whose users have the rights `access`.
    pub(crate) fn admin_with(&self, access: Access, request: Request<Body>) -> Reply {
        let router = self.admin_router(access);
        self.reply(async { router.oneshot(request).await.expect("a router never fails") })
    }

    /// Returns the router of an admin listener, whose users have the rights `access`. Each router counts for its own
    /// rate limits.
    pub(crate) fn admin_router(&self, access: Access) -> Router {
        admin::router(AdminState::new(Arc::clone(&self.service), access))
    }

    /// Sends a request to a router. Returns only the head of the reply, because the body may never end.
    pub(crate) fn head(&self, router: &Router, request: Request<Body>) -> Reply {
        self.reply(async {
            let response = router.clone().oneshot(request).await.expect("a router never fails");
            response.map(|_| Body::empty())
        })
    }

    /// Runs `ask`. Returns its reply, and how long the server waited before it replied. No real time passes: when the
    /// server waits for a timer, the clock of the async runtime jumps to the end of this timer.
    pub(crate) fn held(&self, ask: impl FnOnce(&App) -> Reply) -> (Reply, Duration) {
        let now = || self.runtime.block_on(async { tokio::time::Instant::now() });
        let begun = now();
        let reply = ask(self);
        (reply, now() - begun)
    }

    /// Runs a future. No real time passes while it waits for a timer.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    pub(crate) fn reply<B>(&self, response: impl Future<Output = Response<B>>) -> Reply
    where
        B: http_body::Body<Data = Bytes, Error: std::fmt::Debug> + Unpin,
    {
        self.run(async {
            let (parts, mut body) = response.await.into_parts();
            // An event stream ends only after an hour, so only its first message is read.
            let is_stream = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
            let body = if is_stream {
                // If the function `head` sent the request, there is no body.
                let first = body.frame().await.map(|first| first.expect("no event fails"));
                first.map_or_else(Bytes::new, |first| {
                    first.into_data().unwrap_or_else(|_| panic!("an event is no trailer"))
                })
            } else {
                body.collect().await.expect("the body is in memory").to_bytes()
            };
            let body = String::from_utf8(body.to_vec()).expect("answers are UTF-8");
            Reply { status: parts.status.as_u16(), headers: parts.headers, body }
        })
    }
}

#[test]
fn health_is_always_200_and_readiness_ends_with_draining() {
    use spillgate_service::Readiness;
    let app = App::new();
    assert_eq!((app.get("/healthz").status, app.get("/readyz").status), (200, 200));
    app.service.set_readiness(Readiness::Draining);
    assert_eq!(
        (app.get("/healthz").status, app.get("/readyz").status),
        (200, StatusCode::SERVICE_UNAVAILABLE.as_u16())
    );
    assert_eq!(app.get("/readyz").body, "draining\n");
}

/// Health probes for Envoy's reference rate limit server use the path `/healthcheck`. When the server drains, this
/// path answers 500.
#[test]
fn the_health_path_of_the_reference_server_answers() {
    use spillgate_service::Readiness;
    let app = App::new();
    assert_eq!((app.get("/healthcheck").status, app.get("/healthcheck").body.as_str()), (200, "OK"));
    app.service.set_readiness(Readiness::StoreDown);
    assert_eq!(app.get("/healthcheck").status, 200, "a server is healthy even if its store is down");
    app.service.set_readiness(Readiness::Draining);
    assert_eq!(app.get("/healthcheck").status, 500);
    app.post("/healthcheck", "").problem(405);
}
