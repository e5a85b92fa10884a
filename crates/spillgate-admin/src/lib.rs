//! The admin listener, which is for operators. It shows the metrics, the loaded rules and what they decide. It also
//! resets counts, blocks callers, and reloads the rules.
//!
//! Clients use other listeners, so that they cannot reset their own counts.
//!
//! If the settings have an admin token, every request needs a token (`Authorization: Bearer ...`), except health checks
//! and the files of the page. Without an admin token, everyone who can connect to the listener can read with GET, but
//! only programs on this machine can send POST. `access/` and `guard.rs` check these rights.

mod access;
mod blocks;
mod caller;
mod events;
mod explain;
mod figures;
mod guard;
mod hash;
mod health;
mod in_force;
mod insight;
mod metrics;
mod openapi;
mod overview;
mod page;
mod peek;
mod places;
mod regions;
mod reloads;
mod reset;
mod rules;
mod shadows;
mod ui;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use spillgate::{Clock, SystemClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use access::RateLimits;
pub use access::{Access, Needs, WrongTokens};
pub use events::EVENT_STREAMS_BYTES;
use events::{Streams, TICK_EVERY};
pub use health::{PAGES_BYTES as HEALTH_PAGES_BYTES, router as health_router};
pub use page::PAGES_BYTES;
use page::PagePlaces;
use spillgate_http::problem::Problem;
use spillgate_service::Service;
use spillgate_service::reload_requests::ReloadRequests;
use spillgate_service::reloads::ReloadHistory;
pub use writes::TARGET as WRITES_TARGET;

/// The maximum number of bytes in the body of a request. The largest bodies have a few descriptors.
const BODY_BYTES: usize = 64 * 1024;

/// The maximum number of explanations and peeks that run at the same time. Each of them can ask the shared store about
/// hundreds of limits, one after the other. So more of them would delay decisions.
const QUESTIONS: usize = 4;

/// What all handlers of the admin listener share.
#[derive(Debug)]
pub struct AdminState<C: Clock = SystemClock> {
    service: Arc<Service<C>>,
    access: Access,
    rates: RateLimits,
    writes: Arc<Semaphore>,
    /// When the server started: the time when this state was made, in milliseconds since 1970.
    started_ms: u64,
    questions: Arc<Semaphore>,
    /// The URL of the shared store without its password. `None` if the store is memory.
    store: Option<String>,
    reloads: ReloadHistory,
    reload: ReloadRequests,
    pages: PagePlaces,
    streams: Streams,
    lost_lines: fn() -> u64,
}

impl<C: Clock> AdminState<C> {
    /// Makes the state for `service`. `access` says who may use the listener.
    #[must_use]
    pub fn new(service: Arc<Service<C>>, access: Access) -> AdminState<C> {
        let (rates, writes) = (RateLimits::new(), writes::permits());
        let (started_ms, reloads, reload) = (service.now_ms(), ReloadHistory::default(), ReloadRequests::default());
        let (pages, streams) = (PagePlaces::new(), Streams::new(TICK_EVERY));
        let questions = Arc::new(Semaphore::new(QUESTIONS));
        AdminState {
            service,
            access,
            rates,
            writes,
            questions,
            started_ms,
            store: None,
            reloads,
            reload,
            pages,
            streams,
            lost_lines: || 0,
        }
    }

    /// Returns the permit to run an explanation or a peek. If too many of them run already, the error is the answer
    /// that says so.
    fn question(&self) -> Result<OwnedSemaphorePermit, Box<Response>> {
        page::try_permit(&self.questions, QUESTIONS, "explanations and peeks run", "try again soon")
    }

    /// Sets the list that `GET /reloads` shows, and what `POST /reload` requests. By default, the list is empty, and
    /// nothing reloads.
    #[must_use]
    pub fn with_reloads(mut self, reloads: ReloadHistory, reload: ReloadRequests) -> AdminState<C> {
        (self.reloads, self.reload) = (reloads, reload);
        self
    }

    /// Sets the function that returns how many log lines of the calling thread were lost. With it, the answer to a write
    /// says `"logged": false` if the line about the write is lost. By default, no line is lost.
    #[must_use]
    pub fn with_lost_lines(mut self, lost_lines: fn() -> u64) -> AdminState<C> {
        self.lost_lines = lost_lines;
        self
    }

    /// Sets the time between two ticks of the event streams. The default is a second. A time below a millisecond counts
    /// as a millisecond.
    #[must_use]
    pub fn with_tick(mut self, every: Duration) -> AdminState<C> {
        self.streams = Streams::new(every);
        self
    }

    /// Sets the URL of the shared store, which answers show. The URL must have no password. `None` means that the store
    /// is memory.
    #[must_use]
    pub fn with_store(mut self, url: Option<String>) -> AdminState<C> {
        self.store = url;
        self
    }
}

struct Route<C: Clock> {
    method: &'static str,
    path: &'static str,
    needs: Needs,
    handler: MethodRouter<Arc<AdminState<C>>>,
}

/// Returns all routes that the guard protects. Add a new route here. The tests in `tests/http/access.rs` then fail
/// until their table has the route too.
fn guarded<C: Clock + 'static>() -> Vec<Route<C>> {
    use Needs::{NoToken, Read, Write};
    let read = |path, handler| Route { method: "GET", path, needs: Read, handler };
    let ask = |path, handler| Route { method: "POST", path, needs: Read, handler };
    let write = |path, handler| Route { method: "POST", path, needs: Write, handler };
    let page = Route { method: "GET", path: "/", needs: NoToken, handler: get(ui::index) };
    vec![
        page,
        read("/overview", get(overview::overview::<C>)),
        read("/events", get(events::events::<C>)),
        read("/metrics", get(metrics::metrics::<C>)),
        read("/rules", get(rules::rules::<C>)),
        read("/insight", get(insight::insight::<C>)),
        read("/top", get(insight::top::<C>)),
        read("/reloads", get(reloads::reloads::<C>)),
        read("/openapi.json", get(openapi::openapi)),
        ask("/explain", post(explain::explain::<C>)),
        ask("/caller", post(caller::caller::<C>)),
        ask("/peek", post(peek::peek::<C>)),
        write("/reset", post(reset::reset::<C>)),
        read("/blocks", get(blocks::blocks::<C>)),
        write("/block", post(blocks::block::<C>)),
        write("/unblock", post(blocks::unblock::<C>)),
        read("/shadows", get(shadows::shadows::<C>)),
        write("/shadow", post(shadows::shadow::<C>)),
        write("/reload", post(reloads::reload::<C>)),
        read("/regions", get(regions::regions::<C>)),
        write("/regions/{name}/pause", post(regions::pause::<C>)),
        write("/regions/{name}/resume", post(regions::resume::<C>)),
    ]
}

/// The routes without a guard. Programs that watch the server need no token for them, and have no rate limit.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// Returns the method and the path of each route, and what a request needs.
#[must_use]
pub fn routes() -> Vec<(&'static str, &'static str, Needs)> {
    let guarded = guarded::<SystemClock>().into_iter().map(|route| (route.method, route.path, route.needs));
    guarded.chain(HEALTH.map(|path| ("GET", path, Needs::Nothing))).collect()
}

/// Returns the router for all paths of the admin listener.
pub fn router<C: Clock + 'static>(state: impl Into<Arc<AdminState<C>>>) -> Router {
    let state = state.into();
    let service = Arc::clone(&state.service);
    let ready = async move || spillgate_http::readiness(&service);
    let [healthz, readyz] = HEALTH;
    let health = Router::new().route(healthz, get(async || "ok\n")).route(readyz, get(ready));
    let routes = guarded::<C>().into_iter();
    let router = routes.fold(Router::new(), |router, route| router.route(route.path, route.handler));
    router
        // The files of the page `/`. Only browsers ask for them, so the list of routes does not have them.
        .route("/ui/{file}", get(ui::file))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&state), guard::check::<C>))
        .with_state(state)
        .merge(health.method_not_allowed_fallback(wrong_method))
        .layer(map_response(guard::for_browsers))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    spillgate_http::wrong_method(&method, &uri)
}

async fn unknown_path(uri: Uri) -> Problem {
    let paths = |method| {
        let routes = routes().into_iter().filter(move |(own, ..)| *own == method);
        routes.map(|(_, path, _)| path).collect::<Vec<_>>().join(", ")
    };
    let help = format!("use GET {}, or POST {}", paths("GET"), paths("POST"));
    Problem::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()), help)
}

/// Says what is wrong with the query of a URL.
fn query_error(error: &QueryRejection) -> String {
    let text = error.body_text();
    let cause = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
    format!("the query of the URL is wrong: {cause}")
}
