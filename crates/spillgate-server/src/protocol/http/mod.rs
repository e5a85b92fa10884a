//! HTTP: checks in JSON, leases, RLS in protobuf JSON, and the sub-requests of proxies.

mod answer;
mod check;
mod client_address;
mod forward_auth;
pub(crate) mod hit;
pub(crate) mod json;
pub(crate) mod lease;
pub(crate) mod problem;
mod proto_json;
mod rls;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::BytesRejection;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};
use ipnet::IpNet;
use spillgate::headers::HeaderStyle;
use spillgate::{Clock, SystemClock};

use crate::service::{Readiness, Service};
use crate::settings::{self, Grants, Settings};

use forward_auth::ForwardAuth;
use lease::LeaseKey;
use problem::Problem;

/// The longest a request can ask to be held until its turn, whatever the time to drain.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// How HTTP answers.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// The header fields of answers.
    pub headers: HeaderStyle,
    /// Whose X-Forwarded-For is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How a proxy's sub-request becomes descriptors.
    pub forward_auth: settings::ForwardAuth,
    /// What callers may do beyond asking.
    pub grants: Grants,
    /// The most bytes of a request's body.
    pub body_bytes: usize,
    /// The longest a request can ask to be held until its turn (`?wait=`).
    pub max_wait: Duration,
}

impl From<&Settings> for HttpOptions {
    fn from(settings: &Settings) -> HttpOptions {
        HttpOptions {
            headers: settings.headers,
            trusted_proxies: settings.trusted_proxies.clone(),
            forward_auth: settings.forward_auth.clone(),
            grants: settings.allow.http,
            body_bytes: settings.limits.body,
            // What is held when the server is told to end must have its turn before it is cut.
            max_wait: settings.limits.drain.min(MAX_WAIT),
        }
    }
}

/// Why HTTP cannot be served as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// `forward_auth` names a header field that cannot exist.
    #[error("forward_auth: `{0}` is no name of a header field")]
    HeaderName(String),
    /// `forward_auth.deny_status` is no status.
    #[error("forward_auth.deny_status: {0} is no HTTP status")]
    DenyStatus(u16),
}

/// What every handler needs; cheap to clone.
#[derive(Debug)]
pub struct HttpState<C: Clock = SystemClock>(Arc<Shared<C>>);

impl<C: Clock> Clone for HttpState<C> {
    fn clone(&self) -> Self {
        HttpState(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Shared<C: Clock> {
    service: Arc<Service<C>>,
    headers: HeaderStyle,
    trusted_proxies: Vec<IpNet>,
    forward_auth: ForwardAuth,
    grants: Grants,
    body_bytes: usize,
    max_wait: Duration,
    lease_key: LeaseKey,
}

impl<C: Clock> HttpState<C> {
    /// What serves `service` over HTTP.
    ///
    /// Lease ids are signed with a secret made of that of the limiter's keys: they last as long as
    /// the leases can be found.
    ///
    /// # Errors
    /// A setting that cannot be served.
    pub fn new(service: Arc<Service<C>>, options: HttpOptions) -> Result<HttpState<C>, HttpError> {
        let HttpOptions { headers, trusted_proxies, forward_auth, grants, body_bytes, max_wait } = options;
        let forward_auth = ForwardAuth::try_from(forward_auth)?;
        let lease_key = LeaseKey::of(service.limiter().keys());
        Ok(HttpState(Arc::new(Shared {
            service,
            headers,
            trusted_proxies,
            forward_auth,
            grants,
            body_bytes,
            max_wait,
            lease_key,
        })))
    }
}

/// All paths of the HTTP listener.
pub fn router<C: Clock + 'static>(state: HttpState<C>) -> Router {
    let body_bytes = state.0.body_bytes;
    Router::new()
        .route("/v1/check", post(check::check::<C>))
        .route("/v1/hit", post(hit::hit::<C>))
        .route("/v1/release", post(hit::release::<C>))
        .route("/v1/renew", post(hit::renew::<C>))
        .route("/v1/forward-auth", get(forward_auth::forward_auth::<C>))
        .route("/json", post(rls::should_rate_limit::<C>))
        .merge(health(Arc::clone(&state.0.service)))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(body_bytes))
        .with_state(state)
}

/// `/healthz` (the process answers) and `/readyz` (it wants requests), for any listener.
pub(crate) fn health<S, C>(service: Arc<Service<C>>) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    C: Clock + 'static,
{
    let ready = async move || match service.readiness() {
        Readiness::Ready => Ok("ready\n"),
        Readiness::Starting => Err((StatusCode::SERVICE_UNAVAILABLE, "starting\n")),
        Readiness::Draining => Err((StatusCode::SERVICE_UNAVAILABLE, "draining\n")),
    };
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

pub(crate) async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not take {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail, "the Allow header field names what it takes")
}

async fn unknown_path(uri: Uri) -> Problem {
    let help = "there are POST /v1/check, /v1/hit, /v1/release, /v1/renew, /json, \
                and GET /v1/forward-auth, /healthz, /readyz";
    Problem::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()), help)
}

/// A request's body, as far as it was readable and within its bound. The content type is not
/// looked at: what parses as JSON is JSON.
pub(crate) type Received = Result<Bytes, BytesRejection>;

/// Whether the listener gave up on the body.
fn came_too_late(rejection: &BytesRejection) -> bool {
    let causes = std::iter::successors(Some(rejection as &dyn std::error::Error), |error| error.source());
    let mut inner = causes.filter_map(|error| error.downcast_ref::<std::io::Error>());
    inner.any(|error| error.kind() == std::io::ErrorKind::TimedOut)
}

pub(crate) fn received(body: Received) -> Result<Bytes, Problem> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is too large",
            "send fewer checks at once; the bound is `limits.body` in the settings",
        ),
        _ if came_too_late(&rejection) => Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not come in time",
            "send it at once; the bound is `limits.receive` in the settings",
        ),
        status => Problem::new(status, format!("the body could not be read: {rejection}"), ""),
    })
}
