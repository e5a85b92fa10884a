//! HTTP: routes for checks, leases and reservations in JSON, for RLS (Envoy's rate limit service) in protobuf's JSON,
//! and for sub-requests of proxies such as nginx and Caddy.

mod answer;
mod body;
pub mod browsers;
mod check;
mod client_address;
mod forward_auth;
mod give_back;
pub mod hit;
pub mod json;
mod lease;
pub mod problem;
mod proto_json;
mod reservation_id;
mod reserve;
mod response;
pub mod rls;
mod sent_request;
mod signature;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body::Body;
use http_body_util::Full;
use ipnet::IpNet;
use spillgate::headers::HeaderStyle;
use spillgate::{Clock, SystemClock};
use tower::BoxError;

pub use body::read_body;
pub use browsers::Browsers;
use forward_auth::Mapping;
pub use forward_auth::{EntrySource, ForwardAuth, ValueSource};
use give_back::Hangups;
pub use give_back::MAX_BYTES as HANG_UPS_BYTES;
use lease::LeaseKey;
use problem::{Failure, Problem};
use reservation_id::ReservationKey;
use spillgate_service::{Client, Grants, Peer, Protocol, Readiness, Records, Service};
use wait::max_wait_ns;

/// The longest time that a request can wait for its turn in the queue of a leaky bucket, whatever the settings say.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// How HTTP requests are answered.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// The style of the header fields about limits, for example `ratelimit` and `ratelimit-policy`.
    pub headers: HeaderStyle,
    /// The proxies whose X-Forwarded-For is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// How the sub-request of a proxy becomes descriptors.
    pub forward_auth: ForwardAuth,
    /// Whether callers may send refunds, and limits of their own.
    pub grants: Grants,
    /// The maximum number of bytes of a request's body.
    pub body_bytes: usize,
    /// The longest time that a request can wait for its turn in the queue of a leaky bucket (`?wait=`). A value above
    /// one minute counts as one minute.
    pub max_wait: Duration,
    /// The longest life of a reservation.
    pub reservation_life: Duration,
    /// Which web pages may send requests with the method POST.
    pub browsers: Browsers,
}

/// Why the options for HTTP are invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// `forward_auth` names a header field that cannot exist.
    #[error("forward_auth: `{0}` is not a valid name of a header field")]
    HeaderName(String),
    /// `forward_auth.deny_status` is a number that no HTTP status can have.
    #[error("forward_auth.deny_status: {0} is not an HTTP status")]
    DenyStatus(u16),
    /// `limits.reservation` is 0, or longer than a lease can be.
    #[error("limits.reservation: {0}")]
    ReservationLife(spillgate::QuotaError),
}

/// The state of the HTTP handlers. It is cheap to clone.
#[derive(Debug)]
pub struct HttpState<C: Clock = SystemClock>(Arc<HttpContext<C>>);

impl<C: Clock> Clone for HttpState<C> {
    fn clone(&self) -> Self {
        HttpState(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct HttpContext<C: Clock> {
    service: Arc<Service<C>>,
    headers: HeaderStyle,
    trusted_proxies: Vec<IpNet>,
    forward_auth: Mapping,
    client: Client,
    body_bytes: usize,
    max_wait: Duration,
    lease_key: LeaseKey,
    reservation_key: ReservationKey,
    records: Records,
    browsers: Browsers,
    /// What clients that hung up have taken.
    left: Hangups,
}

impl<C: Clock> HttpState<C> {
    /// Makes the state of handlers that get their decisions from `service`.
    ///
    /// Lease ids and reservation ids are signed with secrets that are derived from the key secret, with which the
    /// limiter hashes keys. So after a change of the key secret, all old ids are invalid.
    ///
    /// # Errors
    /// The [`HttpError`] says which option is invalid.
    pub fn new(service: Arc<Service<C>>, options: HttpOptions) -> Result<HttpState<C>, HttpError> {
        let HttpOptions {
            headers,
            trusted_proxies,
            forward_auth,
            grants,
            body_bytes,
            max_wait,
            reservation_life,
            browsers,
        } = options;
        let forward_auth = Mapping::try_from(forward_auth)?;
        let lease_key = LeaseKey::of(service.limiter().keys());
        let reservation_key = ReservationKey::of(service.limiter().keys());
        let records = Records::new(reservation_life).map_err(HttpError::ReservationLife)?;
        Ok(HttpState(Arc::new(HttpContext {
            service,
            headers,
            trusted_proxies,
            forward_auth,
            client: Client::new(Protocol::Http, grants),
            body_bytes,
            max_wait: max_wait.min(MAX_WAIT),
            lease_key,
            reservation_key,
            records,
            browsers,
            left: Hangups::default(),
        })))
    }
}

/// A response whose body is complete.
pub type Response = http::Response<Full<Bytes>>;

/// What a route does.
#[derive(Debug, Clone, Copy)]
enum Route {
    Check,
    Hit,
    Release,
    Renew,
    Reserve,
    Commit,
    Cancel,
    ShouldRateLimit,
    ForwardAuth,
    Alive,
    Healthcheck,
    Ready,
}

/// The methods that a route supports, in the form of the header field `Allow`.
const POST: &str = "POST";
const GET: &str = "GET,HEAD";

/// All routes: the path, the methods, and what the route does. The list is searched from its beginning, so
/// frequent routes should come first.
// The examples of the fuzz target choose a POST route by its position, so a new one comes last.
const ROUTES: [(&str, &str, Route); 12] = [
    ("/v1/check", POST, Route::Check),
    ("/v1/hit", POST, Route::Hit),
    ("/v1/forward-auth", GET, Route::ForwardAuth),
    ("/json", POST, Route::ShouldRateLimit),
    ("/v1/release", POST, Route::Release),
    ("/v1/renew", POST, Route::Renew),
    ("/v1/reserve", POST, Route::Reserve),
    ("/v1/commit", POST, Route::Commit),
    ("/v1/cancel", POST, Route::Cancel),
    ("/healthz", GET, Route::Alive),
    ("/healthcheck", GET, Route::Healthcheck),
    ("/readyz", GET, Route::Ready),
];

/// Returns the path of each route, and the methods that the route supports, in the form of the header field `Allow`.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROUTES.iter().map(|(path, allowed, _)| (*path, *allowed))
}

impl<C: Clock + 'static> HttpState<C> {
    /// Answers one request of the HTTP listener. `peer` is the other end of its connection.
    pub async fn answer<B>(&self, peer: Peer, request: Request<B>) -> http::Response<Full<Bytes>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let without_body = request.method() == Method::HEAD;
        let answered = self.route(peer, request).await;
        let mut response = answered.unwrap_or_else(|failure| self.problem(failure).response());
        if without_body {
            let body = std::mem::take(response.body_mut());
            response.headers_mut().insert(CONTENT_LENGTH, body.size_hint().lower().into());
        }
        response
    }

    /// Calls the handler of the request's path. Handlers that are given the header map of the request reuse the map for
    /// their response, so that no second map is allocated.
    async fn route<B>(&self, peer: Peer, request: Request<B>) -> Result<Response, Failure>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (Parts { method, uri, headers, .. }, body) = request.into_parts();
        let Some((_, allowed, route)) = ROUTES.iter().find(|(path, ..)| *path == uri.path()) else {
            return Ok(unknown_path(&uri).response());
        };
        if !allowed.split(',').any(|allowed| allowed == method.as_str()) {
            let mut response = wrong_method(&method, &uri).response();
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            return Ok(response);
        }
        if *allowed == POST {
            // forward-auth is not checked: a proxy sends it the fields of its client's browser, which may have any site.
            self.0.browsers.check(&headers, &uri)?;
        }
        let body = read_body(body, self.0.body_bytes);
        let wait = || max_wait_ns(uri.query(), self.0.max_wait);
        // The futures of rare routes are boxed, so that they do not make the future of all requests larger.
        match route {
            Route::Check => check::check(self, &body.await?, wait()?, headers).await,
            Route::Hit => hit::hit(self, &body.await?, wait()?, headers).await,
            Route::ForwardAuth => {
                // Nothing reads this body. If it lived until the decision, what has arrived of it would stay in memory.
                drop(body);
                forward_auth::forward_auth(self, peer, headers).await
            }
            Route::ShouldRateLimit => Box::pin(rls::should_rate_limit(self, &body.await?, headers)).await,
            Route::Release => Box::pin(hit::release(self, &body.await?)).await,
            Route::Renew => Box::pin(hit::renew(self, &body.await?)).await,
            Route::Reserve => Box::pin(reserve::reserve(self, &body.await?, headers)).await,
            Route::Commit => Box::pin(reserve::commit(self, &body.await?)).await,
            Route::Cancel => Box::pin(reserve::cancel(self, &body.await?)).await,
            Route::Alive => Ok(text((StatusCode::OK, "ok\n"))),
            Route::Healthcheck => Ok(text(health(&self.0.service))),
            Route::Ready => Ok(text(readiness(&self.0.service))),
        }
    }
}

fn unknown_path(uri: &Uri) -> Problem {
    let paths = |methods| {
        let paths: Vec<_> = ROUTES.iter().filter(|(_, own, _)| *own == methods).map(|(path, ..)| *path).collect();
        paths.join(", ")
    };
    let help = format!("there are POST {}, and GET {}", paths(POST), paths(GET));
    Problem::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()), help)
}

/// Returns the answer to `/healthcheck`. As in Envoy's reference server, the answer is OK unless the server drains. So
/// unlike `/readyz`, this route does not report a failure of the store. The HTTP listener and the health listener share it.
pub fn health<C: Clock>(service: &Service<C>) -> (StatusCode, &'static str) {
    match service.readiness() {
        Readiness::Draining => (StatusCode::INTERNAL_SERVER_ERROR, "draining\n"),
        Readiness::Ready | Readiness::StoreDown => (StatusCode::OK, "OK"),
    }
}

/// Returns the answer to `/readyz`. The HTTP, the admin and the health listener share it.
pub fn readiness<C: Clock>(service: &Service<C>) -> (StatusCode, String) {
    let status = if service.ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, service.readiness_text() + "\n")
}

fn text<T: Into<Bytes>>((status, text): (StatusCode, T)) -> Response {
    let mut response = Response::new(Full::from(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

pub fn wrong_method(method: &Method, uri: &Uri) -> Problem {
    let detail = format!("{} does not support {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail, "the Allow header field names the methods that it supports")
}
