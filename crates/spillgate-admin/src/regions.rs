//! `GET /regions`, `POST /regions/{name}/pause` and `/resume`: shows the other regions as this server sees them, and sends
//! nothing to one of them for a while.
//!
//! While a region is repaired, a pause saves attempts and lines of the log. It ends with the server, and what
//! waits then is lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::json;
use spillgate::regions::{PeerStatus, Peers};
use spillgate::{Charged, Clock};
use spillgate_http::problem::Problem;
use spillgate_service::Service;

use super::AdminState;
use super::writes::{Change, without_members};

/// The log and answers show at most this many characters of a name that no region has.
const NAME_CHARS_MAX: usize = 32;

/// Another region.
#[derive(Serialize)]
struct Region {
    region: String,
    paused: bool,
    /// For how long it has been cut off.
    cut_off_ns: Option<u64>,
    /// Whether it has been compared with this region. Before that, nothing is sent to it.
    compared: bool,
    /// Whether units are sent to it.
    told: bool,
    /// What it says otherwise than this region, by the names of metrics.
    differs: Vec<&'static str>,
    delay_p50_ns: Option<u64>,
    delay_p99_ns: Option<u64>,
    waiting_keys: usize,
    entries_per_second: f64,
    entries: BTreeMap<&'static str, u64>,
    units_sent: u64,
    units_dropped: u64,
    last_failure: Option<Failure>,
}

#[derive(Serialize)]
struct Failure {
    error: String,
    ago_ns: u64,
}

impl Region {
    fn of(status: PeerStatus) -> Region {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let differs = status.differs.all().into_iter().filter(|(_, differs)| *differs);
        let entries = Charged::ALL.iter().zip(status.results);
        Region {
            paused: status.is_paused,
            cut_off_ns: status.cut_off.map(ns),
            compared: status.is_compared,
            told: status.is_compared && !status.is_paused && !status.differs.stops(),
            differs: differs.map(|(what, _)| what).collect(),
            delay_p50_ns: status.delay_p50.map(ns),
            delay_p99_ns: status.delay_p99.map(ns),
            waiting_keys: status.counts.waiting,
            entries_per_second: status.entries_per_second,
            entries: entries.map(|(result, count)| (result.as_str(), count)).collect(),
            units_sent: status.counts.units_sent,
            units_dropped: status.counts.units_dropped,
            last_failure: status.last_failure.map(|(error, ago)| Failure { error: error.to_string(), ago_ns: ns(ago) }),
            region: status.name,
        }
    }
}

/// Returns the names of the other regions.
pub(super) fn names<C: Clock>(service: &Service<C>) -> Vec<String> {
    service.regions().map(|(peers, _)| peers.names().map(str::to_owned).collect()).unwrap_or_default()
}

pub(super) async fn regions<C: Clock>(State(state): State<Arc<AdminState<C>>>) -> Response {
    let Some((peers, guaranteed)) = state.service.regions() else {
        return Json(json!({"region": null, "keys": 0, "untold_units": 0, "guaranteed": 0, "regions": []}))
            .into_response();
    };
    let regions: Vec<_> = peers.status().into_iter().map(Region::of).collect();
    let answer = json!({
        "region": peers.about().region,
        "keys": peers.keys(),
        "untold_units": peers.untold_units(),
        "guaranteed": guaranteed,
        "regions": regions,
    });
    Json(answer).into_response()
}

pub(super) async fn pause<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, Problem> {
    change(&state, request, Peers::pause, "paused").await
}

pub(super) async fn resume<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, Problem> {
    change(&state, request, Peers::resume, "resumed").await
}

/// Pauses or resumes the region that the path names.
async fn change<C: Clock>(
    state: &AdminState<C>,
    request: Request,
    change: fn(&Peers, &str) -> bool,
    done: &str,
) -> Result<Response, Problem> {
    let path = request.uri().path().to_owned();
    without_members(request).await?;
    // No name of a region has to be encoded in a path.
    let name = path.split('/').nth(2).unwrap_or_default();
    let found = state.service.regions().and_then(|(peers, _)| {
        let is_done = change(peers, name);
        peers.status().into_iter().find(|status| is_done && status.name == name)
    });
    let Some(status) = found else { return Err(unknown(name, &names(&state.service))) };
    let answer = json!({"region": Region::of(status)});
    Ok((Extension(Change(format!("{done} the region {name}"))), Json(answer)).into_response())
}

/// Returns the error for a region that this server does not know.
fn unknown(name: &str, known: &[String]) -> Problem {
    if known.is_empty() {
        let help = "it needs `regions.name`, `regions.peers` and a shared store";
        return Problem::new(StatusCode::NOT_FOUND, "this server tells no other region what it admits", help);
    }
    let name: String = name.chars().take(NAME_CHARS_MAX).collect();
    let help = format!("the other regions are {}", known.join(", "));
    Problem::new(StatusCode::NOT_FOUND, format!("no other region has the name `{name}`"), help)
}
