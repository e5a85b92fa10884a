//! The admin listener, which is for operators. It shows the metrics, the loaded rules and what they decide, and it resets
//! counts.
//!
//! Clients use other listeners, so that they cannot reset their own counts.
//!
//! If the settings have an admin token, every request except a health check needs a token (`Authorization: Bearer ...`).
//! Without an admin token, everyone who can connect to the listener can read, but only programs on this machine can send
//! POST. `access.rs` checks that.

mod access;
mod explain;
mod explanation;
mod insight;
mod metrics;
mod openapi;
mod page;
mod peek;
mod reloads;
mod reset;
mod rules;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use spillgate::{Clock, SystemClock};

use crate::protocol::http::{self, problem::Problem};
use crate::service::Service;
use crate::settings::StoreUrl;

pub use access::{Access, WrongTokens};
pub(crate) use explanation::Explanation;
use page::Pages;
pub use reloads::ReloadHistory;
pub(crate) use reloads::{Lines, LoadedCounts, Outcome, Reload};

/// The maximum number of bytes in the body of a request. The body of a reset is small: it has only a few descriptors.
const BODY_BYTES: usize = 64 * 1024;

/// The state of the admin handlers. It is cheap to clone.
#[derive(Debug)]
pub struct AdminState<C: Clock = SystemClock> {
    service: Arc<Service<C>>,
    access: Access,
    /// The URL of the shared store without its password. `None` if the store is memory.
    store: Option<Arc<str>>,
    reloads: ReloadHistory,
    pages: Pages,
}

impl<C: Clock> Clone for AdminState<C> {
    fn clone(&self) -> Self {
        let (service, store) = (Arc::clone(&self.service), self.store.clone());
        let (access, reloads) = (self.access.clone(), self.reloads.clone());
        AdminState { service, access, store, reloads, pages: self.pages.clone() }
    }
}

impl<C: Clock> AdminState<C> {
    /// Makes the state for `service`. `access` says who may use the listener.
    #[must_use]
    pub fn new(service: Arc<Service<C>>, access: Access) -> AdminState<C> {
        AdminState { service, access, store: None, reloads: ReloadHistory::default(), pages: Pages::new() }
    }

    /// Sets the list of the last reloads. Without it, the page lists no reloads.
    #[must_use]
    pub fn with_reloads(mut self, reloads: ReloadHistory) -> AdminState<C> {
        self.reloads = reloads;
        self
    }

    /// Sets the URL of the shared store, which explanations show. `None` means that the store is memory.
    #[must_use]
    pub fn with_store(mut self, url: &StoreUrl) -> AdminState<C> {
        self.store = match url {
            StoreUrl::Memory => None,
            StoreUrl::Shared(_) => Some(url.to_string().into()),
        };
        self
    }
}

/// Returns the router for all paths of the admin listener.
pub fn router<C: Clock + 'static>(state: AdminState<C>) -> Router {
    let service = Arc::clone(&state.service);
    let ready = async move || http::readiness(&service);
    let health = Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready));
    Router::new()
        .route("/metrics", get(metrics::metrics::<C>))
        .route("/rules", get(rules::rules::<C>))
        .route("/insight", get(insight::insight::<C>))
        .route("/top", get(insight::top::<C>))
        .route("/reloads", get(reloads::reloads::<C>))
        .route("/openapi.json", get(openapi::openapi))
        .route("/explain", post(explain::explain::<C>))
        .route("/peek", post(peek::peek::<C>))
        .route("/reset", post(reset::reset::<C>))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), access::check::<C>))
        .with_state(state)
        .merge(health.method_not_allowed_fallback(wrong_method))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    http::wrong_method(&method, &uri)
}

async fn unknown_path(uri: Uri) -> Problem {
    let help = "use GET /metrics, /rules, /insight, /top, /reloads, /openapi.json, /healthz or /readyz, or POST /explain, /peek or /reset";
    Problem::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()), help)
}
