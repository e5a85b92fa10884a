//! The admin listener, which is for operators. It shows the metrics, the loaded rules and what they decide, and it resets
//! counts.
//!
//! Clients use other listeners, so that they cannot reset their own counts.
//!
//! If the settings have an admin token, every request except a health check needs this token (`Authorization: Bearer ...`).
//! Without an admin token, everyone who can connect to the listener can read, but only programs on this machine can write
//! (reset counts).

mod explain;
mod explanation;
mod insight;
mod metrics;
mod page;
mod peek;
mod reset;
mod rules;

use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use spillgate::{Clock, SystemClock};

use crate::protocol::http::{self, problem::Problem, signature::equal_in_constant_time};
use crate::service::{Peer, Service};
use crate::settings::StoreUrl;

pub(crate) use explanation::Explanation;
pub(crate) use insight::QuotaOptions;
use page::Pages;

/// The maximum number of bytes in the body of a request. The body of a reset is small: it has only a few descriptors.
const BODY_BYTES: usize = 64 * 1024;

/// The state of the admin handlers. It is cheap to clone.
#[derive(Debug)]
pub struct AdminState<C: Clock = SystemClock> {
    service: Arc<Service<C>>,
    token: Option<Arc<Token>>,
    /// The URL of the shared store without its password. `None` if the store is memory.
    store: Option<Arc<str>>,
    pages: Pages,
}

impl<C: Clock> Clone for AdminState<C> {
    fn clone(&self) -> Self {
        let (service, store) = (Arc::clone(&self.service), self.store.clone());
        AdminState { service, token: self.token.clone(), store, pages: self.pages.clone() }
    }
}

struct Token(String);

impl std::fmt::Debug for Token {
    /// Does not show the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// The error for an empty token. An empty token protects nothing, because everyone can send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the admin token is empty; write a token into its file, for example 32 random characters")]
pub struct EmptyToken;

impl<C: Clock> AdminState<C> {
    /// Makes the state for `service`. `token` is the content of the file with the admin token.
    ///
    /// # Errors
    /// The token is empty or has only white space.
    pub fn new(service: Arc<Service<C>>, token: Option<&str>) -> Result<AdminState<C>, EmptyToken> {
        let token = match token.map(str::trim) {
            Some("") => return Err(EmptyToken),
            token => token.map(|token| Arc::new(Token(token.to_owned()))),
        };
        Ok(AdminState { service, token, store: None, pages: Pages::new() })
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
        .route("/explain", post(explain::explain::<C>))
        .route("/peek", post(peek::peek::<C>))
        .route("/reset", post(reset::reset::<C>))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), authorize::<C>))
        .with_state(state)
        .merge(health.method_not_allowed_fallback(wrong_method))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    http::wrong_method(&method, &uri)
}

async fn unknown_path(uri: Uri) -> Problem {
    let help = "use GET /metrics, /rules, /insight, /top, /healthz or /readyz, or POST /explain, /peek or /reset";
    Problem::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()), help)
}

async fn authorize<C: Clock>(State(state): State<AdminState<C>>, request: Request, next: Next) -> Response {
    let permitted = match &state.token {
        Some(token) => bearer(&request, token),
        None => local(&request),
    };
    match permitted {
        Ok(()) => next.run(request).await,
        Err(problem) if problem.status == StatusCode::UNAUTHORIZED => {
            ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response()
        }
        Err(problem) => problem.into_response(),
    }
}

fn bearer(request: &Request, token: &Token) -> Result<(), Problem> {
    let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes()).and_then(|value| {
        let (scheme, given) = value.split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then(|| given.trim_ascii())
    });
    if given.is_some_and(|given| equal_in_constant_time(given, token.0.as_bytes())) {
        return Ok(());
    }
    let detail = "the admin token is missing or wrong";
    Err(Problem::new(StatusCode::UNAUTHORIZED, detail, "send `Authorization: Bearer` and the text of admin_token_file"))
}

/// Checks whether a request is permitted if there is no admin token. Everyone can read, but only programs on this machine
/// can write.
///
/// A web page of another site, in a browser on this machine, could send requests here. The browser adds an `Origin` header to
/// such a request, so a write with this header is forbidden.
fn local(request: &Request) -> Result<(), Problem> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let on_this_machine = match request.extensions().get::<ConnectInfo<Peer>>() {
        Some(ConnectInfo(Peer::Tcp(address))) => address.ip().to_canonical().is_loopback(),
        Some(ConnectInfo(Peer::Unix)) => true,
        None => false,
    };
    if on_this_machine && !request.headers().contains_key(header::ORIGIN) {
        return Ok(());
    }
    let detail = "without an admin token, only programs on this machine may write, and web pages may not";
    Err(Problem::new(StatusCode::FORBIDDEN, detail, "set `admin_token_file`, and send its text as a bearer token"))
}
