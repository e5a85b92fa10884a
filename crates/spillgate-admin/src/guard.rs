//! Checks whether each request is permitted, and adds the header fields that every answer needs.
//!
//! All paths for operators are behind this guard, even paths without a route. Only health checks are not.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use spillgate::{Clock, Wait};
use spillgate_http::problem::Problem;
use spillgate_service::metrics::AdminRefusal;

use super::AdminState;
use super::access::{self, Proof, Refused};
use super::page;
use super::writes::{self, Write};

/// The log shows at most this many characters of the name of a server in a request, because a client can send a name of
/// any length.
const HOST_CHARS_MAX: usize = 100;

/// Header fields of every answer, for browsers. Because of them, a page of another site cannot show an answer in a
/// frame or use an answer as a script. If such a page opens an answer in a window, it gets no access to that window.
/// And the browser tells no other site a URL of this listener.
const FIELDS: [(header::HeaderName, HeaderValue); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (header::HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
];

/// Further header fields of every answer. If a handler has set one of them itself, the value of the handler stays.
const DEFAULTS: [(header::HeaderName, HeaderValue); 2] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
];

/// Runs a request if it is permitted, and answers with the refusal otherwise. Writes are also logged.
pub(super) async fn check<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    mut request: Request,
    next: Next,
) -> Response {
    match permit(&state, &request) {
        Ok(proof) if access::is_write(&request) => {
            let write = Write::new(&request, proof);
            writes::run(&state.writes, (state.service.metrics(), state.lost_lines), write, request, next).await
        }
        Ok(proof) => {
            let caller = (access::source(access::peer(&request)), proof);
            request.extensions_mut().insert(proof);
            page::placed(&state.pages, caller, next.run(request).await)
        }
        Err((refused, wait)) => {
            state.service.metrics().admin_refused(refused.reason).inc();
            let is_token = refused.problem.status == StatusCode::UNAUTHORIZED;
            let mut response = refused.problem.into_response();
            if is_token {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            if let Some(wait) = wait {
                // The wait may be unknown, for example if the store of the rate limits is full. Then it is one second.
                response.headers_mut().insert(header::RETRY_AFTER, wait.secs_ceil().unwrap_or(1).into());
            }
            response
        }
    }
}

/// Returns what a permitted request has proved. The error is the refusal, and the wait if the rate limits have refused
/// the request.
fn permit<C: Clock>(state: &AdminState<C>, request: &Request) -> Result<Proof, (Refused, Option<Wait>)> {
    let (now, peer) = (state.service.limiter().now(), access::peer(request));
    let proof = match state.access.permit(request) {
        Ok(proof) => proof,
        Err(refused) => {
            match refused.reason {
                AdminRefusal::Token if access::shows_token(request) => {
                    let detail = "this address has sent too many wrong admin tokens";
                    state.rates.take_wrong_token(now, peer).map_err(|wait| too_many(detail, wait))?;
                    if state.rates.may_warn(now, "token") {
                        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
                        tracing::warn!(peer, "a request to the admin listener had a wrong token");
                    }
                }
                AdminRefusal::Host if state.rates.may_warn(now, "host") => warn_of_host(request),
                _ => {}
            }
            return Err((refused, None));
        }
    };
    if access::is_file(request) {
        // The files of the page have no rate limit. Otherwise other requests from the address of an operator, for
        // example from behind the same proxy, could keep the page away from the operator.
        return Ok(proof);
    }
    let is_scrape = request.uri().path() == "/metrics" && request.method() == Method::GET;
    let detail = "this address sends too many requests to the admin listener";
    state.rates.take(now, peer, proof, is_scrape).map_err(|wait| too_many(detail, wait))?;
    Ok(proof)
}

fn too_many(detail: &str, wait: Wait) -> (Refused, Option<Wait>) {
    let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail, "wait as long as Retry-After says");
    (Refused::new(AdminRefusal::Rate, problem), Some(wait))
}

/// Warns that a program uses a name of this server that is not in the settings. If the program is Prometheus, for
/// example, it shows only the status 403, and not the reason.
fn warn_of_host(request: &Request) {
    let in_header = request.headers().get(header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
    // HTTP/2 has the name in the URL and not in `Host`. A request can also have a different name in each of the two
    // places.
    let in_url = request.uri().authority().map(|authority| authority.as_str().into());
    let mut names: Vec<_> = in_header.into_iter().chain(in_url).collect();
    names.dedup();
    let host: String = names.join(" and ").chars().take(HOST_CHARS_MAX).collect();
    let peer = access::peer(request).map(|peer| peer.to_string()).unwrap_or_default();
    tracing::warn!(
        host,
        peer,
        "a request to the admin listener was refused, because its URL has a name that is not in admin_hosts"
    );
}

/// Adds [`FIELDS`] and [`DEFAULTS`] to an answer.
pub(super) async fn for_browsers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in FIELDS {
        headers.insert(name, value);
    }
    for (name, value) in DEFAULTS {
        headers.entry(name).or_insert(value);
    }
    response
}
