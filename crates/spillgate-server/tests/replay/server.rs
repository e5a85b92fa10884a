//! The HTTP application and the admin listener of a server, in the process of the test and with a clock that only the test changes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use spillgate::headers::HeaderStyle;
use spillgate::rules::Rules;
use spillgate::{Limiter, ManualClock, MemoryStore, Time};
use spillgate_admin::{self as admin, Access, AdminState};
use spillgate_http::{Browsers, EntrySource, ForwardAuth, HttpOptions, HttpState, ValueSource};
use spillgate_replay::RunOptions;
use spillgate_service::metrics::Metrics;
use spillgate_service::{Backend, Grants, Peer, Service};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt as _;

pub(crate) struct Server {
    clock: ManualClock,
    service: Arc<Service<ManualClock>>,
    http: HttpState<ManualClock>,
    runtime: Runtime,
}

impl Server {
    pub(crate) fn start(rules: Rules, options: &RunOptions, now: Time) -> Server {
        let clock = ManualClock::at(now);
        let store = Backend::Memory(MemoryStore::new(options.memory));
        let limiter = Limiter::with_keys(store, clock.clone(), options.keys.clone());
        let service = Arc::new(Service::new(rules, limiter, options.service, Arc::new(Metrics::new())));
        let http_options = HttpOptions {
            reservation_life: Duration::from_secs(60),
            browsers: Browsers::default(),
            headers: HeaderStyle::Draft11,
            trusted_proxies: vec!["127.0.0.0/8".parse().expect("it is a network")],
            forward_auth: ForwardAuth {
                domain: Some("web".to_owned()),
                deny_status: 429,
                ipv6_prefix: 64,
                descriptors: vec![
                    vec![EntrySource { key: "remote_address".to_owned(), from: ValueSource::ClientIp }],
                    vec![EntrySource { key: "path".to_owned(), from: ValueSource::Path }],
                ],
            },
            grants: Grants::default(),
            body_bytes: 64 * 1024,
            max_wait: Duration::from_secs(60),
        };
        let http = HttpState::new(Arc::clone(&service), http_options).expect("the options are valid");
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().expect("the runtime starts");
        Server { clock, service, http, runtime }
    }

    /// Sends `POST /v1/check` at this time. Returns the status and the body.
    pub(crate) fn check(&self, now: Time, body: &Value) -> (u16, Value) {
        self.clock.set(now);
        let request = Request::post("/v1/check").body(Body::from(body.to_string())).expect("the request is valid");
        self.runtime.block_on(async {
            let (parts, body) = self.http.answer(Peer::Unix, request).await.into_parts();
            let body = body.collect().await.expect("the body is in memory").to_bytes();
            (parts.status.as_u16(), serde_json::from_slice(&body).expect("the answer is JSON"))
        })
    }

    /// Asks forward-auth at this time, as a proxy does. Returns whether the request is allowed.
    pub(crate) fn allows(&self, now: Time, client: &str, uri: &str) -> bool {
        self.clock.set(now);
        let request = Request::get("/v1/forward-auth").header("x-forwarded-for", client).header("x-forwarded-uri", uri);
        let request = request.body(Body::empty()).expect("the request is valid");
        self.runtime.block_on(async { self.http.answer(Peer::Unix, request).await.status().is_success() })
    }

    /// Returns what `GET /insight` says of each limit at this time.
    pub(crate) fn insight(&self, now: Time) -> Vec<Value> {
        self.clock.set(now);
        let mut request = Request::get("/insight").body(Body::empty()).expect("the request is valid");
        request.extensions_mut().insert(ConnectInfo(Peer::Unix));
        let access = Access::new(None, None, Vec::new()).expect("there is no token");
        let state = AdminState::new(Arc::clone(&self.service), access);
        self.runtime.block_on(async {
            let response = admin::router(state).oneshot(request).await.expect("a router never fails");
            let body = response.into_body().collect().await.expect("the body is in memory").to_bytes();
            let mut page: Value = serde_json::from_slice(&body).expect("the answer is JSON");
            serde_json::from_value(page["limits"].take()).expect("the page has a list")
        })
    }
}
