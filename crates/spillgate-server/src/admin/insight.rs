//! `GET /insight` and `GET /top`: say what each limit does to its callers, and who they are.
//!
//! Counters show how much a limit refuses. Only these pages show whether it should.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use spillgate::Clock;
use spillgate::insight::{Reading, Report, TopCallers};

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
}

#[derive(Serialize)]
struct LimitInsight<'a> {
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
struct LimitTop<'a> {
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
    fn of((rule, limit, _): Watched<'a>) -> LimitName<'a> {
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
    limits(state, "limits", move |service, watched| {
        let (rule, limit, insight) = watched;
        let mut reading = insight.read(service.limiter().now());
        let mut report = reading.clone().report();
        hide(service, [&mut report.top_allowed, &mut report.top_refused]);
        hide(service, [&mut reading.top_allowed, &mut reading.top_refused]);
        let reading = readings.then_some(reading);
        let suggested_rules = report.suggestion.map(|suggestion| suggestion.to_yaml(rule, limit));
        json(&LimitInsight { limit: LimitName::of(watched), report, suggested_rules, reading })
    })
}

pub(super) async fn top<C: Clock + 'static>(State(state): State<AdminState<C>>) -> Response {
    limits(state, "limits", |service, watched| {
        let Reading { top_allowed: mut allowed, top_refused: mut refused, .. } =
            watched.2.read(service.limiter().now());
        hide(service, [&mut allowed, &mut refused]);
        json(&LimitTop { limit: LimitName::of(watched), allowed, refused })
    })
}

/// Removes the callers if the settings do not show them.
fn hide<C: Clock>(service: &Service<C>, tops: [&mut TopCallers; 2]) {
    if service.options().insight.keys == CallerKeys::Off {
        tops.into_iter().for_each(|top| top.callers.clear());
    }
}

/// Answers with a list that has one item for each watched limit. The page is built in pieces of one limit.
fn limits<C, F>(state: AdminState<C>, name: &'static str, item: F) -> Response
where
    C: Clock + 'static,
    F: Fn(&Service<C>, Watched<'_>) -> String + Send + Unpin + 'static,
{
    let (service, loaded) = (Arc::clone(&state.service), Arc::clone(&state.service.rules()));
    let mut next = Some(0);
    state.pages.page("application/json", move || {
        let index = next?;
        let begin = if index == 0 { format!("{{\"{name}\":[") } else { String::new() };
        let piece = loaded.watched().nth(index).map(|watched| item(&service, watched));
        next = piece.is_some().then_some(index + 1);
        Some(match piece {
            Some(piece) => format!("{begin}{}{piece}", if index > 0 { "," } else { "" }),
            None => format!("{begin}]}}"),
        })
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("invariant: strings and numbers become JSON in memory")
}
