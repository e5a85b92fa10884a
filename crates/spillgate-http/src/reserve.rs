//! `POST /v1/reserve` takes an estimate. `POST /v1/commit` and `POST /v1/cancel` settle it.
//!
//! A program uses these routes if it knows the cost of its work only after the work.

use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use spillgate::Clock;
use spillgate::rules::{Action, Request};
use spillgate_service::Settlement;

use super::answer::Summary;
use super::json::{self, Entries, Text};
use super::problem::{Failure, Problem};
use super::response::object;
use super::{HttpState, Response};

const RESERVE_EXAMPLE: &str = r#"{"domain":"llm","descriptors":[{"team":"red"}],"estimate":3000}"#;
const COMMIT_EXAMPLE: &str = r#"{"reservation_id":"AQ...","used":2150}"#;
const CANCEL_EXAMPLE: &str = r#"{"reservation_id":"AQ..."}"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireReserve<'a> {
    #[serde(borrow)]
    domain: Text<'a>,
    #[serde(borrow)]
    descriptors: SmallVec<[Entries<'a>; 1]>,
    estimate: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireCommit<'a> {
    #[serde(borrow)]
    reservation_id: Text<'a>,
    used: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireCancel<'a> {
    #[serde(borrow)]
    reservation_id: Text<'a>,
}

#[derive(Debug, Serialize)]
struct Settled {
    settled: bool,
    /// The units that are now counted instead of the estimate.
    used: u64,
}

pub(super) async fn reserve<C: Clock>(
    state: &HttpState<C>,
    body: &[u8],
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let wire: WireReserve<'_> = json::object(body).map_err(|error| Problem::bad_json(&error, RESERVE_EXAMPLE))?;
    let context = &state.0;
    let rules = context.service.rules();
    let mut request = Request::new(&wire.domain);
    request.reserve(wire.descriptors.len());
    for descriptor in &wire.descriptors {
        request.add(descriptor.iter(), Action::Take(wire.estimate), None);
    }
    let asked = (wire.estimate, &context.records);
    let (answer, reserved) = context.service.reserve(&rules, &request, context.client, asked).await?;
    let mut summary = Summary::of(&answer);
    let reserved = reserved.filter(|reserved| !reserved.claims.is_empty());
    summary.reservation = Some(reserved.map(|reserved| context.reservation_key.sign(&reserved)));
    Ok(summary.respond(context.headers, StatusCode::TOO_MANY_REQUESTS, None, headers))
}

pub(super) async fn commit<C: Clock + 'static>(state: &HttpState<C>, body: &[u8]) -> Result<Response, Failure> {
    let wire: WireCommit<'_> = json::object(body).map_err(|error| Problem::bad_json(&error, COMMIT_EXAMPLE))?;
    settle(state, &wire.reservation_id, wire.used).await
}

pub(super) async fn cancel<C: Clock + 'static>(state: &HttpState<C>, body: &[u8]) -> Result<Response, Failure> {
    let wire: WireCancel<'_> = json::object(body).map_err(|error| Problem::bad_json(&error, CANCEL_EXAMPLE))?;
    settle(state, &wire.reservation_id, 0).await
}

async fn settle<C: Clock + 'static>(state: &HttpState<C>, id: &str, used: u64) -> Result<Response, Failure> {
    let reserved = state.0.reservation_key.open(id).map_err(|_| {
        Problem::bad_request(
            "this reservation_id was not made by this server, nor by another server with the same key secret",
            "send a reservation_id as it was returned; a server that restarted without a snapshot does not know its old ids",
        )
    })?;
    match state.0.service.settle(reserved, used).await? {
        Settlement::Settled => Ok(object(&Settled { settled: true, used })),
        Settlement::Gone => {
            let help = "nothing was changed; if it was not settled before, its estimate stays charged";
            let detail = "the reservation was settled before, or its life has ended";
            Err(Problem::new(StatusCode::GONE, detail, help).into())
        }
        Settlement::Elsewhere => {
            let help = "nothing was changed; send this request to the server that made the reservation; if that server was \
                        restarted, its estimate is not counted any more";
            let detail = "another server has this reservation in its own memory, because the shared store failed";
            Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail, help).into())
        }
    }
}
