//! `GET /insight` and `GET /top`: say what each limit does to its callers, and who these callers are.
//!
//! Counters show how much a limit refuses. Only these pages show whether it should refuse that much.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillgate::Clock;
use spillgate::insight::{Reading, Report, TopCallers};
use spillgate::rules::{LimitDescription, Rule};
use spillgate_http::problem::Problem;
use spillgate_service::{CallerKeys, Service, Watched};

use super::page::json;
use super::{AdminState, query_error};

/// The server that has sent the answer.
#[derive(Serialize)]
struct Server {
    /// A random number of the process. It shows whether two addresses belong to one server.
    id: String,
    /// Equal on two servers if they hash keys with the same secret, so that a caller of both has the same hash. The
    /// secret is not public.
    key_check: String,
    /// The number of limits that are not watched, because `insight.max_callers` is too low for them.
    unwatched_limits: usize,
}

#[derive(Serialize)]
struct InsightOfLimit {
    #[serde(flatten)]
    limit: LimitDescription,
    #[serde(flatten)]
    report: Report,
    /// What an operator can do.
    advice: &'static str,
    /// The suggestion as a rules file.
    suggested_rules: Option<String>,
    /// What was counted, for `spillgate insight`, which merges the readings of several servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<Reading>,
}

#[derive(Serialize)]
struct TopOfLimit {
    #[serde(flatten)]
    limit: LimitDescription,
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
    /// The domain of the limits. Limits of other domains are left out.
    domain: Option<String>,
    /// The path of the rule. Limits of other rules are left out.
    rule: Option<String>,
}

impl InsightQuery {
    fn asks_for(&self, rule: &Rule) -> bool {
        let is = |asked: &Option<String>, name: &str| asked.as_deref().is_none_or(|asked| asked == name);
        is(&self.domain, &rule.domain) && is(&self.rule, &rule.path)
    }
}

pub(super) async fn insight<C: Clock + 'static>(
    State(state): State<Arc<AdminState<C>>>,
    query: Result<Query<InsightQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(error) => {
            let help = "use /insight or /insight?readings=true; the parameters `domain` and `rule` choose limits";
            return Problem::bad_request(query_error(&error), help).into_response();
        }
    };
    let server = Server {
        id: format!("{:016x}", state.service.number()),
        key_check: state.service.caller_check(),
        unwatched_limits: state.service.rules().unwatched(),
    };
    limits(&state, &json!({ "server": server }), move |service, watched| {
        let (rule, limit, insight) = watched;
        if !query.asks_for(rule) {
            return None;
        }
        let mut reading = insight.read(service.limiter().now());
        let mut report = reading.report();
        hide(service, [&mut report.top_allowed, &mut report.top_refused]);
        hide(service, [&mut reading.top_allowed, &mut reading.top_refused]);
        let reading = query.readings.then_some(reading);
        let suggested_rules = report.suggestion.map(|suggestion| suggestion.to_yaml(rule, limit));
        Some(json(&InsightOfLimit {
            limit: LimitDescription::of(rule, limit).on_server(service.options().shadow),
            advice: report.verdict.advice(),
            report,
            suggested_rules,
            reading,
        }))
    })
}

pub(super) async fn top<C: Clock + 'static>(State(state): State<Arc<AdminState<C>>>) -> Response {
    limits(&state, &json!({}), |service, (rule, limit, insight)| {
        let Reading { top_allowed: mut allowed, top_refused: mut refused, .. } = insight.read(service.limiter().now());
        hide(service, [&mut allowed, &mut refused]);
        Some(json(&TopOfLimit {
            limit: LimitDescription::of(rule, limit).on_server(service.options().shadow),
            allowed,
            refused,
        }))
    })
}

/// Removes the callers if the settings do not show them.
fn hide<C: Clock>(service: &Service<C>, tops: [&mut TopCallers; 2]) {
    if service.options().insight.keys == CallerKeys::Off {
        tops.into_iter().for_each(|top| top.callers.clear());
    }
}

/// Answers with the members of `head`, and with a list that has one item for each watched limit, unless `item` returns none.
fn limits<C, F>(state: &AdminState<C>, head: &Value, item: F) -> Response
where
    C: Clock + 'static,
    F: Fn(&Service<C>, Watched<'_>) -> Option<String> + Send + Unpin + 'static,
{
    let (service, loaded) = (Arc::clone(&state.service), Arc::clone(&state.service.rules()));
    let mut position = Some((0, 0));
    // A reading is the work of some milliseconds, so each batch has only one.
    state.pages.list(head, "limits", move || {
        while let Some((watched, next)) = position.and_then(|position| loaded.watched_from(position)) {
            position = Some(next);
            if let Some(item) = item(&service, watched) {
                return vec![item];
            }
        }
        position = None;
        Vec::new()
    })
}
