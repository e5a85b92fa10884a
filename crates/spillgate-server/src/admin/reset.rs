//! `POST /reset`: deletes the counts and penalties of the limits that the request names, for example all limits of one customer.
//!
//! With a reset, an operator unblocks a customer at once. Without a reset, the customer would stay blocked until the window or
//! the penalty ends.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde::de::IgnoredAny;
use spillgate::{Binding, Clock, Decision, Hit, Op};

use crate::metrics::Protocol;
use crate::protocol::http::hit::WireHit;
use crate::protocol::http::json::{Entries, Text, object};
use crate::protocol::http::problem::Problem;
use crate::protocol::http::read_body;
use crate::service::not_reset;

use super::access::Change;
use super::{AdminState, BODY_BYTES};

const EXAMPLE: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}, or the body of a request to /v1/hit"#;

/// Finds out which of the two kinds of bodies was sent: descriptors for the rules, or the body of a request to `/v1/hit`. Only
/// the second kind has the member `bucket`. The body is then parsed again as its kind, so that errors are about this kind.
#[derive(Deserialize)]
struct Kind {
    bucket: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetByRules<'a> {
    #[serde(borrow)]
    domain: Text<'a>,
    #[serde(borrow)]
    descriptors: Vec<Entries<'a>>,
}

pub(super) async fn reset<C: Clock>(State(state): State<AdminState<C>>, request: Request) -> Result<Response, Problem> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let kind: Kind = object(&body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let reset =
        if kind.bucket.is_some() { reset_hit(&state, &body).await? } else { reset_rules(&state, &body).await? };
    let change = Change(format!("{reset} {} reset", if reset == 1 { "limit" } else { "limits" }));
    Ok((Extension(change), Json(serde_json::json!({ "reset": reset }))).into_response())
}

/// Resets, for each descriptor, all limits of the rule that the descriptor matches. Returns the number of limits.
async fn reset_rules<C: Clock>(state: &AdminState<C>, body: &[u8]) -> Result<usize, Problem> {
    let wire: ResetByRules<'_> = object(body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    if wire.descriptors.is_empty() {
        return Err(Problem::bad_request("there are no descriptors", "add the descriptors to reset to `descriptors`"));
    }
    let descriptors: Vec<Vec<_>> = wire.descriptors.iter().map(|entries| entries.iter().collect()).collect();
    Ok(state.service.reset(&wire.domain, &descriptors).await?)
}

/// Resets one limit that is defined in the request itself. Returns the number of limits, which is 1.
async fn reset_hit<C: Clock>(state: &AdminState<C>, body: &[u8]) -> Result<usize, Problem> {
    let wire = WireHit::parse(body)?;
    let quota = wire.quota()?;
    let hits = [Hit::new(wire.key(&state.service)?, &quota, Op::Reset, Binding::Enforce)];
    let verdict = state.service.hit(Protocol::Http, Some(wire.names()), &hits, &mut [Decision::default()]).await?;
    if verdict.allowed { Ok(1) } else { Err(not_reset().into()) }
}
