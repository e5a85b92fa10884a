//! `GET /insight` and `GET /top`: say what each limit does to its callers, and who they are.
//!
//! Counters show how much a limit refuses. Only these pages show whether it should.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use spillgate::insight::{Reading, Report, TopCallers};
use spillgate::rules::{Limit, Rule};
use spillgate::{Algorithm, Anchor, Binding, Clock, Denied};

use crate::protocol::http::problem::Problem;
use crate::service::{Service, Watched};
use crate::settings::CallerKeys;

use super::AdminState;

/// How a limit is called on a page.
#[derive(Serialize)]
struct LimitName<'a> {
    domain: &'a str,
    rule: &'a str,
    name: Option<&'a str>,
    file: &'a str,
    line: u32,
    algorithm: &'static str,
    limit: u64,
    /// `None` for a concurrency limit.
    window_ns: Option<u64>,
    /// The burst of a token bucket, the queue length plus 1 of a leaky bucket, or otherwise the limit.
    capacity: u64,
    options: QuotaOptions,
}

/// The other options of a limit that change what it refuses. Only limits with the same ones are the same limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct QuotaOptions {
    /// For a fixed window: `epoch` or `first_hit`.
    anchor: Option<String>,
    /// For a sliding window counter: the segments of a window.
    segments: Option<u8>,
    /// The most units that can be used, with the soft share.
    hard_capacity: u64,
    penalty_ns: u64,
    /// What a refused request costs: `free` or `charged`.
    denied: String,
    lease_ns: u64,
    post_paid: bool,
    /// `enforce`, `shadow` or `quota`.
    binding: String,
}

impl QuotaOptions {
    /// Returns why requests that are over the limit pass. Returns `None` if the limit refuses them.
    pub(crate) fn passing(&self) -> Option<&str> {
        Some(self.binding.as_str()).filter(|binding| *binding != "enforce")
    }
}

/// The server that a page is of.
#[derive(Serialize)]
struct Server {
    /// A random number of the process. Two addresses of one server show the same one.
    id: String,
    /// Two servers show the same one if a caller of both has the same hash: they hash keys with the same secret, which is not
    /// public.
    key_check: String,
    /// The number of limits for which `insight.max_callers` does not suffice.
    unwatched_limits: usize,
}

#[derive(Serialize)]
struct InsightOfLimit<'a> {
    #[serde(flatten)]
    limit: LimitName<'a>,
    #[serde(flatten)]
    report: Report,
    /// The suggestion as a rules file.
    suggested_rules: Option<String>,
    /// What was counted, for `spillgate insight`, which merges the readings of several servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<Reading>,
}

#[derive(Serialize)]
struct TopOfLimit<'a> {
    #[serde(flatten)]
    limit: LimitName<'a>,
    allowed: TopCallers,
    refused: TopCallers,
}

/// The query of `GET /insight`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InsightQuery {
    /// Whether the readings are in the answer.
    #[serde(default)]
    readings: bool,
}

impl<'a> LimitName<'a> {
    fn of<C: Clock>(service: &Service<C>, (rule, limit, _): Watched<'a>) -> LimitName<'a> {
        let (quota, origin) = (&limit.quota, limit.origin.as_ref().unwrap_or(&rule.origin));
        LimitName {
            domain: &rule.domain,
            rule: &rule.path,
            name: limit.name.as_deref(),
            file: &origin.file,
            line: origin.line,
            algorithm: quota.algorithm().as_str(),
            limit: quota.limit(),
            window_ns: Some(quota.window_ns()).filter(|window_ns| *window_ns > 0),
            capacity: quota.capacity(),
            options: QuotaOptions::of(rule, limit, service.options().shadow),
        }
    }
}

impl QuotaOptions {
    /// `shadow` says that the whole server is in shadow mode.
    fn of(rule: &Rule, limit: &Limit, shadow: bool) -> QuotaOptions {
        let quota = &limit.quota;
        let (anchor, segments) = match quota.algorithm() {
            Algorithm::FixedWindow(Anchor::Epoch) => (Some("epoch"), None),
            Algorithm::FixedWindow(Anchor::FirstHit) => (Some("first_hit"), None),
            Algorithm::SlidingWindowCounter { segments } => (None, Some(segments)),
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::SlidingWindowLog | Algorithm::Concurrency => {
                (None, None)
            }
        };
        let denied = match quota.denied() {
            Denied::Free => "free",
            Denied::Charged => "charged",
        };
        let binding = match rule.binding() {
            _ if shadow => "shadow",
            Binding::Shadow => "shadow",
            Binding::Quota => "quota",
            _ => "enforce",
        };
        QuotaOptions {
            anchor: anchor.map(str::to_owned),
            segments,
            hard_capacity: quota.hard_capacity(),
            penalty_ns: quota.penalty_ns(),
            denied: denied.to_owned(),
            lease_ns: quota.lease_ns(),
            post_paid: limit.post_paid,
            binding: binding.to_owned(),
        }
    }
}

pub(super) async fn insight<C: Clock + 'static>(
    State(state): State<AdminState<C>>,
    query: Result<Query<InsightQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let readings = match query {
        Ok(Query(query)) => query.readings,
        Err(error) => {
            let help = "use /insight, or /insight?readings=true";
            return Problem::bad_request(error.body_text(), help).into_response();
        }
    };
    let server = Server {
        id: format!("{:016x}", state.service.number()),
        key_check: state.service.caller_check(),
        unwatched_limits: state.service.rules().unwatched(),
    };
    let begin = format!("{{\"server\":{},\"limits\":[", json(&server));
    limits(state, begin, move |service, watched| {
        let (rule, limit, insight) = watched;
        let mut reading = insight.read(service.limiter().now());
        let mut report = reading.report();
        hide(service, [&mut report.top_allowed, &mut report.top_refused]);
        hide(service, [&mut reading.top_allowed, &mut reading.top_refused]);
        let reading = readings.then_some(reading);
        let suggested_rules = report.suggestion.map(|suggestion| suggestion.to_yaml(rule, limit));
        json(&InsightOfLimit { limit: LimitName::of(service, watched), report, suggested_rules, reading })
    })
}

pub(super) async fn top<C: Clock + 'static>(State(state): State<AdminState<C>>) -> Response {
    limits(state, "{\"limits\":[".to_owned(), |service, watched| {
        let Reading { top_allowed: mut allowed, top_refused: mut refused, .. } =
            watched.2.read(service.limiter().now());
        hide(service, [&mut allowed, &mut refused]);
        json(&TopOfLimit { limit: LimitName::of(service, watched), allowed, refused })
    })
}

/// Removes the callers if the settings do not show them.
fn hide<C: Clock>(service: &Service<C>, tops: [&mut TopCallers; 2]) {
    if service.options().insight.keys == CallerKeys::Off {
        tops.into_iter().for_each(|top| top.callers.clear());
    }
}

/// Answers with a list that has one item for each watched limit. The page is built in pieces of one limit. `begin` is the first
/// piece.
fn limits<C, F>(state: AdminState<C>, begin: String, item: F) -> Response
where
    C: Clock + 'static,
    F: Fn(&Service<C>, Watched<'_>) -> String + Send + Unpin + 'static,
{
    let (service, loaded) = (Arc::clone(&state.service), Arc::clone(&state.service.rules()));
    let (mut begin, mut separator, mut position) = (Some(begin), "", Some((0, 0)));
    state.pages.page("application/json", move || {
        if begin.is_some() {
            return begin.take();
        }
        let Some((watched, next)) = loaded.watched_from(position?) else {
            position = None;
            return Some("]}".to_owned());
        };
        position = Some(next);
        let piece = format!("{separator}{}", item(&service, watched));
        separator = ",";
        Some(piece)
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("invariant: strings and numbers become JSON in memory")
}
