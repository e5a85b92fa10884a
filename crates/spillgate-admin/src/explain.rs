//! `POST /explain`: says why a request would be allowed or refused now. Nothing is taken.
//!
//! An operator uses this route when a client complains. `spillgate check --json` writes the same format without a
//! server. A body can be a request of `/v1/check`, a request as Envoy sends it, or the hash of a caller.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use spillgate::Clock;
use spillgate::rules::{self, Action};
use spillgate_http::json::{Entries, Text, object};
use spillgate_http::problem::Problem;
use spillgate_http::read_body;
use spillgate_http::rls;
use spillgate_service::explain::{Explanation, Pairs};
use spillgate_service::seek::Entry;
use spillgate_service::{CallerKeys, Service};

use super::access::Proof;
use super::{AdminState, BODY_BYTES, hash, in_force, regions};

const EXAMPLE: &str = concat!(
    r#"{"domain":"api","descriptors":[{"user_id":"7"}],"cost":1}, as /v1/check takes it, "#,
    r#"or {"domain":"api","descriptors":[{"entries":[{"key":"user_id","value":"7"}]}]}, as Envoy writes it"#
);

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

/// A question about the next request of a caller.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfHash<'a> {
    #[serde(borrow)]
    hash: Text<'a>,
    #[serde(default = "one")]
    cost: u64,
}

fn one() -> u64 {
    1
}

/// A request to explain.
struct Asked {
    domain: String,
    /// The entries of each descriptor, and its units.
    descriptors: Vec<(Vec<Entry>, u64)>,
}

impl Asked {
    /// Reads a body. `reads_only` says whether its sender has only the read token.
    async fn read<C: Clock>(service: &Service<C>, body: &[u8], reads_only: bool) -> Result<Asked, Problem> {
        if let Ok(OfHash { hash, cost }) = object(body) {
            // Hashes hide the values of callers from everybody who may only read.
            if reads_only && service.rules().caller_keys() != CallerKeys::Plain {
                let help = "send the text of admin_token_file: an explanation shows the values behind the hash";
                return Err(Problem::new(StatusCode::FORBIDDEN, "this admin token may only read", help));
            }
            let seen = hash::caller(service, &hash).await?;
            let descriptors = seen.descriptors.into_iter().map(|entries| (entries, cost)).collect();
            return Ok(Asked { domain: seen.domain, descriptors });
        }
        let error = match object::<Explain<'_>>(body) {
            Ok(Explain { domain, descriptors, cost }) => {
                let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
                let descriptors = descriptors.iter().map(|entries| (entries.iter().map(owned).collect(), cost));
                return Ok(Asked { domain: domain.to_string(), descriptors: descriptors.collect() });
            }
            Err(error) => error,
        };
        // Only Envoy's form has a member `entries`, so its errors are those of this form.
        if body.windows(ENTRIES.len()).any(|text| text == ENTRIES) {
            let rls::Question { domain, descriptors } = rls::question(body)?;
            return Ok(Asked { domain, descriptors });
        }
        Err(Problem::bad_json(&error, EXAMPLE))
    }
}

const ENTRIES: &[u8] = br#""entries""#;

pub(super) async fn explain<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, Problem> {
    let reads_only = request.extensions().get::<Proof>() == Some(&Proof::Read);
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let Asked { domain, descriptors } = Asked::read(&state.service, &body, reads_only).await?;
    let mut entries: Pairs<'_> = Vec::with_capacity(descriptors.len());
    for (owned, _) in &descriptors {
        entries.push(owned.iter().map(|(key, value)| (&**key, &**value)).collect());
    }
    let mut request = rules::Request::new(&domain);
    for (entries, (_, cost)) in entries.iter().zip(&descriptors) {
        request.add(entries.iter().copied(), Action::Take(*cost), None);
    }
    // The descriptors of Envoy can have several costs. The answer shows the highest one as that of the request.
    let cost = descriptors.iter().map(|(_, cost)| *cost).max().unwrap_or(1);
    let _permit = match state.question() {
        Ok(permit) => permit,
        Err(response) => return Ok(*response),
    };
    let loaded = state.service.rules();
    let explained = state.service.explain(&loaded, &request, cost).await?;
    let regions = regions::names(&state.service);
    let explanation = Explanation {
        regions: &regions,
        shadow: state.service.options().shadow,
        domain: &domain,
        costs: &[cost],
        store: state.store.clone(),
        takes: false,
        descriptors: &entries,
        explained: &[explained],
        value_bytes: state.service.options().bounds.value_bytes,
    };
    let mut explanation = explanation.json(&loaded);
    if let Some(explained) = explanation["descriptors"].as_array_mut() {
        for (explained, entries) in explained.iter_mut().zip(&entries) {
            in_force::explain(&state.service, &loaded, (&domain, entries), explained);
        }
    }
    Ok(Json(explanation).into_response())
}
