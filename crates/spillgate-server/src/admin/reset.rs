//! `POST /reset`: forgets what was used, and any penalty, of one key.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::IgnoredAny;
use smallvec::SmallVec;
use spillgate::{Binding, Clock, Decision, Hit, Op};

use crate::protocol::http::hit::WireHit;
use crate::protocol::http::json::{Entries, Text, object};
use crate::protocol::http::problem::Problem;
use crate::protocol::http::received;

use super::{AdminState, BODY_BYTES};

const EXAMPLE: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}, or what was sent to /v1/hit"#;

/// Tells the two kinds of body apart, so that an error in either is told as it is.
#[derive(Deserialize)]
struct Kind {
    bucket: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfRules<'a> {
    #[serde(borrow)]
    domain: Text<'a>,
    #[serde(borrow)]
    descriptors: Vec<Entries<'a>>,
}

pub(super) async fn reset<C: Clock>(State(state): State<AdminState<C>>, request: Request) -> Result<Response, Problem> {
    let body = received(request.into_body(), BODY_BYTES).await?;
    let kind: Kind = object(&body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let reset = if kind.bucket.is_some() { of_hit(&state, &body).await? } else { of_rules(&state, &body).await? };
    tracing::info!(limits = reset, "an operator reset what was counted");
    Ok(Json(serde_json::json!({ "reset": reset })).into_response())
}

/// The limits of every rule that the descriptors match; says how many.
async fn of_rules<C: Clock>(state: &AdminState<C>, body: &[u8]) -> Result<usize, Problem> {
    let wire: OfRules<'_> = object(body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    if wire.descriptors.is_empty() {
        return Err(Problem::bad_request("there are no descriptors", "name whose counts to forget"));
    }
    let mut reset = 0;
    for descriptor in &wire.descriptors {
        let entries: SmallVec<[(&str, &str); 4]> = descriptor.iter().collect();
        reset += state.service.reset(&wire.domain, &entries).await?;
    }
    Ok(reset)
}

/// One limit that came with a call.
async fn of_hit<C: Clock>(state: &AdminState<C>, body: &[u8]) -> Result<usize, Problem> {
    let wire = WireHit::parse(body)?;
    let quota = wire.quota()?;
    let hits = [Hit::new(wire.key(&state.service)?, &quota, Op::Reset, Binding::Enforce)];
    state.service.hit(Some(wire.names()), &hits, &mut [Decision::default()]).await?;
    Ok(1)
}
