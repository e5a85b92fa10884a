//! `GET /overview`: what the server and each of its limits do now, and did in the last ten minutes.
//!
//! An operator looks here first. The counters are those of `GET /metrics`, so both pages show the same figures.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use spillgate::Clock;
use spillgate::insight::{Verdict, Who};
use spillgate::rules::LimitDescription;
use spillgate_service::metrics::LimitHits;
use spillgate_service::{HISTORY_STEP, LimitStep, LimitView, Loaded, Service, Totals};

use super::figures::{Figures, Requests};
use super::page::json;
use super::{AdminState, page};

/// The answer without the list of limits. The limits follow one by one, so that the whole answer is never in memory.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(flatten)]
    figures: Figures<'a>,
    server: Server,
    requests: RequestsWithHistory,
    /// The number of rules, also of those without a limit of their own.
    rules: usize,
    rules_loaded_ms: i64,
    reload_successful: bool,
    step_ms: u128,
    history_at_ms: Option<u64>,
    limits_left_out: usize,
    changes: u64,
}

#[derive(Serialize)]
struct Server {
    /// A random number that is new after each start of the server.
    id: String,
    version: &'static str,
    started_ms: u64,
    shadow: bool,
}

#[derive(Serialize)]
struct RequestsWithHistory {
    #[serde(flatten)]
    totals: Requests,
    /// Requests that were not decided, because they were invalid, too large or not allowed on their listener.
    rejected: u64,
    history: RequestsHistory,
}

/// The counts of the whole server in each step of ten seconds, the oldest first.
#[derive(Serialize)]
struct RequestsHistory {
    allowed: Vec<u64>,
    refused: Vec<u64>,
    errors: Vec<u64>,
}

#[derive(Serialize)]
struct LimitOverview {
    id: usize,
    #[serde(flatten)]
    name: LimitDescription,
    allowed: u64,
    refused: u64,
    near: u64,
    shadow_refused: u64,
    soft_over: u64,
    verdict: Option<Verdict>,
    /// Whose units were refused.
    who: Option<Who>,
    reason: Option<String>,
    attention: u8,
    history: LimitHistory,
}

/// The counts of a limit in each step of ten seconds, the oldest first.
#[derive(Serialize)]
struct LimitHistory {
    allowed: Vec<u64>,
    refused: Vec<u64>,
    near: Vec<u64>,
    shadow_refused: Vec<u64>,
    soft_over: Vec<u64>,
    wait_ms: Vec<Option<u64>>,
}

pub(super) async fn overview<C: Clock + 'static>(State(state): State<Arc<AdminState<C>>>) -> Response {
    let loaded = Arc::clone(&state.service.rules());
    let (service, mut id) = (Arc::clone(&state.service), 0);
    let head = head(&state, &loaded);
    page::list(&head, "limits", move || {
        let limit = loaded.tracked_limit(id).map(|view| json(&LimitOverview::of(&service, id, view)));
        id += 1;
        limit.into_iter().collect()
    })
}

/// Returns the answer without its limits.
fn head<'a, C: Clock>(state: &'a AdminState<C>, loaded: &Loaded) -> Head<'a> {
    let (service, metrics) = (&state.service, state.service.metrics());
    let (steps, ended) = service.history();
    let column = |of: fn(&Totals) -> u64| steps.iter().map(of).collect();
    Head {
        figures: Figures::of(state),
        server: Server {
            id: format!("{:016x}", service.number()),
            version: env!("CARGO_PKG_VERSION"),
            started_ms: state.started_ms,
            shadow: service.options().shadow,
        },
        requests: RequestsWithHistory {
            totals: service.totals().into(),
            rejected: metrics.all_rejected(),
            history: RequestsHistory {
                allowed: column(|step| step.allowed),
                refused: column(|step| step.refused),
                errors: column(|step| step.errors),
            },
        },
        rules: loaded.rules().count(),
        rules_loaded_ms: metrics.rules_loaded.get().saturating_mul(1000),
        reload_successful: metrics.reload_successful.get() == 1,
        step_ms: HISTORY_STEP.as_millis(),
        history_at_ms: ended.map(|at| at.as_nanos() / 1_000_000),
        limits_left_out: loaded.untracked(),
        changes: service.changes(loaded),
    }
}

impl LimitOverview {
    fn of<C: Clock>(service: &Service<C>, id: usize, view: LimitView<'_>) -> LimitOverview {
        let LimitHits { allowed, refused, shadow_refused, soft_over, near } = view.hits();
        let judged = view.verdict(service.limiter().now());
        let (verdict, who) = judged.as_ref().map(|(verdict, who, _)| (*verdict, *who)).unzip();
        LimitOverview {
            id,
            name: LimitDescription::of(view.rule, view.limit).on_server(service.options().shadow),
            allowed,
            refused,
            near,
            shadow_refused,
            soft_over,
            verdict,
            who,
            attention: judged.as_ref().map_or(0, |(verdict, who, _)| verdict.attention(*who)),
            reason: judged.map(|(.., reason)| reason),
            history: LimitHistory::of(&view.steps()),
        }
    }
}

impl LimitHistory {
    fn of(steps: &[LimitStep]) -> LimitHistory {
        let column = |of: fn(&LimitHits) -> u64| steps.iter().map(|step| of(&step.hits)).collect();
        LimitHistory {
            allowed: column(|hits| hits.allowed),
            refused: column(|hits| hits.refused),
            near: column(|hits| hits.near),
            shadow_refused: column(|hits| hits.shadow_refused),
            soft_over: column(|hits| hits.soft_over),
            wait_ms: steps.iter().map(|step| step.wait_ns.map(|ns| ns.div_ceil(1_000_000))).collect(),
        }
    }
}
