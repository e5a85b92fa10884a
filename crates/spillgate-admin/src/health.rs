//! The health listener, which is for probes and for Prometheus.
//!
//! A probe sends no token and no client certificate, and it reaches the server by any name. So this listener asks for
//! nothing, and answers only what may be known to everyone who reaches it: whether the server works, and its metrics without
//! the values that clients have sent.

use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use spillgate::Clock;
use spillgate_http::problem::Problem;
use spillgate_service::metrics::Page;
use spillgate_service::{Peer, Service};

use super::access::{Proof, RateLimits, source};
use super::metrics::{page_of, preferred};
use super::page::{PAGE_BYTES, PagePlaces, placed};
use super::{guard, wrong_method};

/// The maximum number of pages of metrics that clients can read at the same time. Few programs read them, and each page that
/// a slow client reads keeps a few pieces in memory.
const PAGES: usize = 8;
/// The maximum number of pages that one address can read at the same time.
const PAGES_OF_CALLER: usize = 4;
/// What all pages that clients of this listener read at the same time take at most, in bytes.
pub const PAGES_BYTES: usize = PAGES * PAGE_BYTES;

/// What the handlers of the health listener share.
#[derive(Debug)]
struct HealthState<C: Clock> {
    service: Arc<Service<C>>,
    rates: RateLimits,
    pages: PagePlaces,
}

/// Returns the router for all paths of the health listener.
pub fn router<C: Clock + 'static>(service: Arc<Service<C>>) -> Router {
    let (of_check, of_ready) = (Arc::clone(&service), Arc::clone(&service));
    let pages = PagePlaces::without_readings(PAGES, PAGES_OF_CALLER);
    let state = Arc::new(HealthState { service, rates: RateLimits::new(), pages });
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move || spillgate_http::readiness(&of_ready)))
        .route("/healthcheck", get(async move || spillgate_http::health(&of_check)))
        .route("/metrics", get(metrics::<C>))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(state)
        .layer(map_response(guard::for_browsers))
}

/// Returns the metrics. They take time on the thread of all probes, so each address has a limit.
async fn metrics<C: Clock + 'static>(
    State(state): State<Arc<HealthState<C>>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let now = state.service.limiter().now();
    if let Err(wait) = state.rates.take(now, Some(peer), Proof::None, true) {
        let detail = "this address reads the metrics too often";
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail, "wait as long as Retry-After says");
        let mut response = problem.into_response();
        response.headers_mut().insert(header::RETRY_AFTER, wait.secs_ceil().unwrap_or(1).into());
        return response;
    }
    let page = page_of(&state.service, Page::new(preferred(&headers)).without_values());
    placed(&state.pages, (source(Some(peer)), Proof::None), page)
}

async fn unknown_path(uri: Uri) -> Problem {
    let help = "the health listener has only GET /healthz, /readyz, /healthcheck and /metrics";
    Problem::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()), help)
}
