//! `POST /explain`: says why a request would be allowed or refused now. Nothing is taken.
//!
//! An operator uses this route when a client complains. `spillgate check --json` writes the same format without a
//! server.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use spillgate::Clock;
use spillgate::rules::{self, Action};
use spillgate_http::json::{Entries, Text, object};
use spillgate_http::problem::Problem;
use spillgate_http::read_body;
use spillgate_service::explain::{Explanation, Pairs};

use super::{AdminState, BODY_BYTES, in_force};

const EXAMPLE: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}],"cost":1}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explain<'a> {
    #[serde(borrow)]
    domain: Text<'a>,
    #[serde(borrow)]
    descriptors: Vec<Entries<'a>>,
    #[serde(default = "one")]
    cost: u64,
}

fn one() -> u64 {
    1
}

pub(super) async fn explain<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, Problem> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let wire: Explain<'_> = object(&body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let descriptors: Pairs<'_> = wire.descriptors.iter().map(|entries| entries.iter().collect()).collect();
    let mut request = rules::Request::new(&wire.domain);
    for entries in &descriptors {
        request.add(entries.iter().copied(), Action::Take(wire.cost), None);
    }
    let _permit = match state.question() {
        Ok(permit) => permit,
        Err(response) => return Ok(*response),
    };
    let loaded = state.service.rules();
    let explained = state.service.explain(&loaded, &request, wire.cost).await?;
    let explanation = Explanation {
        shadow: state.service.options().shadow,
        domain: &wire.domain,
        costs: &[wire.cost],
        store: state.store.clone(),
        takes: false,
        descriptors: &descriptors,
        explained: &[explained],
        value_bytes: state.service.options().bounds.value_bytes,
    };
    let mut explanation = explanation.json(&loaded);
    if let Some(explained) = explanation["descriptors"].as_array_mut() {
        for (explained, entries) in explained.iter_mut().zip(&descriptors) {
            in_force::explain(&state.service, &loaded, (&wire.domain, entries), explained);
        }
    }
    Ok(Json(explanation).into_response())
}
