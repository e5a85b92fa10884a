//! `GET /insight` and `GET /top`: say what each limit does to its callers, and who these callers are.
//!
//! Counters show how much a limit refuses. Only these pages show whether it should refuse that much.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillgate::Clock;
use spillgate::insight::{OtherLimit, Reading, Report, TopCallers};
use spillgate::rules::{LimitDescription, Rule};
use spillgate_http::problem::Problem;
use spillgate_service::{CallerKeys, Loaded, Service, Watched};

use super::page::json;
use super::{AdminState, page, query_error};

/// The server that has sent the answer.
#[derive(Serialize)]
struct Server {
    /// A random number of the process. If two addresses of a fleet answer with the same number, they belong to one
    /// server.
    id: String,
    /// A text that is equal on two servers if they give the same caller the same hash. This needs the same key secret
    /// in the settings of both: servers without a key secret have different texts. The text does not reveal the secret.
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
    /// Whether all requests of the rule share one counter, so that insight knows only one caller.
    shared: bool,
    by: Option<By>,
    /// What an operator can do.
    advice: &'static str,
    /// A rules file with the suggested limit. `None` if insight suggests none.
    suggested_rules: Option<String>,
    /// What another limit would have changed. `None` if the query names none, or if nobody can know.
    #[serde(skip_serializing_if = "Option::is_none")]
    with_limit: Option<OtherLimit>,
    /// The counts behind the report. `spillgate insight` merges them with those of other servers. `None` unless the
    /// query asks for readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<Reading>,
}

#[derive(Serialize)]
struct TopOfLimit {
    #[serde(flatten)]
    limit: LimitDescription,
    allowed: TopCallers,
    refused: TopCallers,
    /// Requests over the limit in the last hour, as in the spans of `/insight`.
    refused_requests: u64,
    /// Those of them that the limit only would have refused.
    unenforced_requests: u64,
    shared: bool,
    by: Option<By>,
}

/// The values of the entry that the `insight_by` of a rule names.
#[derive(Serialize)]
struct By {
    key: String,
    allowed: TopCallers,
    refused: TopCallers,
}

/// What a URL of `GET /insight` can ask for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InsightQuery {
    /// `?readings=true` adds the reading of each limit to the answer.
    #[serde(default)]
    readings: bool,
    /// `?limit=200` adds what this limit would have changed.
    limit: Option<u64>,
    /// If set, limits of other domains are left out.
    domain: Option<String>,
    /// If set, limits of rules with another path are left out.
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
            let help = "use /insight or /insight?readings=true; the parameters `domain` and `rule` choose limits, and `limit` is another limit as a whole number";
            return Problem::bad_request(query_error(&error), help).into_response();
        }
    };
    let server = Server {
        id: format!("{:016x}", state.service.number()),
        key_check: state.service.caller_check(),
        unwatched_limits: state.service.rules().unwatched(),
    };
    let has_readings = query.readings;
    let page = limits(&state, &json!({ "server": server }), move |service, loaded, (rule, limit, insight)| {
        if !query.asks_for(rule) {
            return None;
        }
        let mut reading = insight.read(service.limiter().now());
        if loaded.caller_keys() == CallerKeys::Off {
            reading.hide_callers();
        }
        let report = reading.report();
        let with_limit = query.limit.and_then(|limit| reading.with_limit(limit));
        let reading = query.readings.then_some(reading);
        let suggested_rules = report.suggestion.map(|suggestion| suggestion.to_yaml(rule, limit));
        Some(json(&InsightOfLimit {
            limit: LimitDescription::of(rule, limit).on_server(service.is_in_shadow(rule)),
            shared: rule.is_shared(),
            advice: report.verdict.advice(report.who),
            report,
            by: By::of(service, loaded, rule),
            suggested_rules,
            with_limit,
            reading,
        }))
    });
    if has_readings { page::with_readings(page) } else { page }
}

pub(super) async fn top<C: Clock + 'static>(State(state): State<Arc<AdminState<C>>>) -> Response {
    limits(&state, &json!({}), |service, loaded, (rule, limit, insight)| {
        let reading = insight.read(service.limiter().now());
        let Reading { top_allowed: mut allowed, top_refused: mut refused, spans: [.., hour], .. } = reading;
        if loaded.caller_keys() == CallerKeys::Off {
            [&mut allowed, &mut refused].into_iter().for_each(|top| top.callers.clear());
        }
        Some(json(&TopOfLimit {
            limit: LimitDescription::of(rule, limit).on_server(service.is_in_shadow(rule)),
            allowed,
            refused,
            refused_requests: hour.counts.refused_requests,
            unenforced_requests: hour.counts.unenforced_requests,
            shared: rule.is_shared(),
            by: By::of(service, loaded, rule),
        }))
    })
}

impl By {
    fn of<C: Clock>(service: &Service<C>, loaded: &Loaded, rule: &Rule) -> Option<By> {
        let (key, [mut allowed, mut refused]) = loaded.fillers(rule, service.limiter().now())?;
        if loaded.caller_keys() == CallerKeys::Off {
            [&mut allowed, &mut refused].into_iter().for_each(|top| top.callers.clear());
        }
        Some(By { key: key.to_string(), allowed, refused })
    }
}

/// Answers with the members of `head`, and with the list `limits`. The list has one item for each watched limit, except
/// those for which `item` returns `None`.
fn limits<C, F>(state: &AdminState<C>, head: &Value, item: F) -> Response
where
    C: Clock + 'static,
    F: Fn(&Service<C>, &Loaded, Watched<'_>) -> Option<String> + Send + Unpin + 'static,
{
    let (service, loaded) = (Arc::clone(&state.service), Arc::clone(&state.service.rules()));
    let mut position = Some((0, 0));
    // Reading the insight of one limit takes some milliseconds. So each call returns only one item. If the client reads
    // slowly, the server then reads only a few limits ahead of it.
    page::list(head, "limits", move || {
        while let Some((watched, next)) = position.and_then(|position| loaded.watched_from(position)) {
            position = Some(next);
            if let Some(item) = item(&service, &loaded, watched) {
                return vec![item];
            }
        }
        position = None;
        Vec::new()
    })
}
