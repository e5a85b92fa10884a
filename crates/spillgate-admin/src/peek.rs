//! `POST /peek`: shows how much is left of each limit that matches the given descriptors. Nothing is taken.
//!
//! An operator uses this route before and after a reset, to see what the reset has changed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use spillgate::rules::{self, Action, Limit, LimitDescription, Rule};
use spillgate::{Clock, Decision, Reason};
use spillgate_http::json::{Entries, Text, object};
use spillgate_http::problem::Problem;
use spillgate_http::read_body;
use spillgate_service::Grants;
use spillgate_service::explain::Pairs;

use super::{AdminState, BODY_BYTES};

const EXAMPLE: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Peek<'a> {
    #[serde(borrow)]
    domain: Text<'a>,
    #[serde(borrow)]
    descriptors: Vec<Entries<'a>>,
}

#[derive(Serialize)]
struct Peeked<'a> {
    domain: &'a str,
    descriptors: Vec<PeekedDescriptor<'a>>,
}

#[derive(Serialize)]
struct PeekedDescriptor<'a> {
    entries: &'a [(&'a str, &'a str)],
    /// `None` if no rule matches.
    rule: Option<&'a str>,
    limits: Vec<PeekedLimit>,
}

#[derive(Serialize)]
struct PeekedLimit {
    /// `None` if no rule matches the descriptor. Such a descriptor has a limit only if the server refuses all
    /// descriptors without a rule.
    limit: Option<LimitDescription>,
    capacity: u64,
    remaining: u64,
    reset_after_ns: u64,
    /// How much longer a penalty will refuse every request, in nanoseconds. 0 if there is no penalty.
    penalty_ns: u64,
}

pub(super) async fn peek<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, Problem> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let wire: Peek<'_> = object(&body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let pairs: Pairs<'_> = wire.descriptors.iter().map(|entries| entries.iter().collect()).collect();
    let mut request = rules::Request::new(&wire.domain);
    for entries in &pairs {
        request.add(entries.iter().copied(), Action::Take(0), None);
    }
    let _permit = match state.question() {
        Ok(permit) => permit,
        Err(response) => return Ok(*response),
    };
    let loaded = state.service.rules();
    let plan = state.service.plan(&loaded, &request, Grants::default())?;
    let seen = state.service.peek_at(&plan).await?;
    let shadow = state.service.options().shadow;
    let describe = |rule: &Rule, limit: &Limit| LimitDescription::of(rule, limit).on_server(shadow);
    let descriptors = plan.descriptors.iter().zip(&pairs).map(|(planned, entries)| {
        let peeked = |(hit, limit): &(usize, &Limit)| {
            PeekedLimit::of(planned.rule.map(|rule| describe(rule, limit)), &seen[*hit])
        };
        let limits = planned.hits.iter().map(peeked).collect();
        PeekedDescriptor { entries, rule: planned.rule.map(|rule| &*rule.path), limits }
    });
    Ok(Json(Peeked { domain: &wire.domain, descriptors: descriptors.collect() }).into_response())
}

impl PeekedLimit {
    fn of(limit: Option<LimitDescription>, seen: &Decision) -> PeekedLimit {
        PeekedLimit {
            limit,
            capacity: seen.limit,
            remaining: seen.remaining,
            reset_after_ns: seen.reset_after_ns,
            penalty_ns: if seen.reason == Reason::Penalty { seen.retry_after.nanos().unwrap_or(0) } else { 0 },
        }
    }
}
