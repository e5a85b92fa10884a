//! `POST /v1/check`: decides requests by the rules.
//!
//! A program calls this route before it serves a request of its own clients.

use bytes::{BufMut as _, BytesMut};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use smallvec::SmallVec;
use spillgate::Clock;
use spillgate::rules::{Action, Request};
use spillgate_service::ServiceError;

use super::answer::Summary;
use super::give_back::Pending;
use super::json::{Entries, OneOrMany, Text, one_or_many};
use super::problem::{Failure, Problem};
use super::response::{JSON, response};
use super::wait::wait_for_turn;
use super::{HttpState, Response};

const EXAMPLE: &str = concat!(
    r#"{"domain":"api","descriptors":[{"user_id":"7"}],"cost":1}; the order of a descriptor's entries counts: "#,
    r#"if your JSON library changes it, write [["key","value"], ...] instead of {"key":"value", ...}"#
);

/// The maximum number of checks in one body.
const MAX_CHECKS: usize = 256;

/// One check, as a client sends it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check<'a> {
    #[serde(borrow)]
    pub(crate) domain: Text<'a>,
    #[serde(borrow)]
    pub(crate) descriptors: SmallVec<[Entries<'a>; 1]>,
    /// How many units each descriptor takes. A cost of 0 is a peek.
    #[serde(default = "one")]
    cost: u64,
}

fn one() -> u64 {
    1
}

pub(super) async fn check<C: Clock + 'static>(
    state: &HttpState<C>,
    body: &[u8],
    max_wait_ns: u64,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    match one_or_many::<Check<'_>>(body).map_err(|error| Problem::bad_json(&error, EXAMPLE))? {
        OneOrMany::One(check) => {
            let mut pending = Pending::new(state);
            // Only a client that waits can hang up before its answer, so other requests allocate nothing here.
            let taken = (max_wait_ns > 0).then_some(&mut pending);
            let (response, delay_ns) = decide(state, &check, max_wait_ns, taken, |summary| {
                let lease_id = state.lease_id(summary);
                summary.respond(state.0.headers, StatusCode::TOO_MANY_REQUESTS, lease_id.as_deref(), headers)
            })
            .await?;
            wait_for_turn(pending, delay_ns).await;
            Ok(response)
        }
        OneOrMany::Many(checks) => Box::pin(many(state, &checks, max_wait_ns, headers)).await,
    }
}

/// Answers a list of checks with a list. Each check is decided independently of the others, and each item of the answer
/// has a status of its own.
///
/// The response has the status 200, even if checks were refused. If checks could not be decided, the response has the
/// highest status of these checks.
async fn many<C: Clock + 'static>(
    state: &HttpState<C>,
    checks: &[Check<'_>],
    max_wait_ns: u64,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    if checks.len() > MAX_CHECKS {
        return Err(Problem::bad_request(
            format!("there are {} checks in one body", checks.len()),
            format!("send at most {MAX_CHECKS} at once"),
        )
        .into());
    }
    let (mut body, mut status, mut longest_ns) = (BytesMut::with_capacity(2 + checks.len() * 256), StatusCode::OK, 0);
    let mut pending = Pending::new(state);
    // The client gets all answers at once. If it hangs up between two checks, it has none of them. A memory store decides
    // all checks without a pause, so there only a wait gives the client time to hang up.
    let can_hang_up = max_wait_ns > 0 || state.0.service.limiter().store().is_shared();
    body.put_u8(b'[');
    for (i, check) in checks.iter().enumerate() {
        if i > 0 {
            body.put_u8(b',');
        }
        let item = |summary: &Summary<'_>| {
            summary.write_item(StatusCode::TOO_MANY_REQUESTS, state.lease_id(summary).as_deref(), &mut body);
        };
        let taken = can_hang_up.then_some(&mut pending);
        match decide(state, check, max_wait_ns, taken, item).await {
            Ok(((), delay_ns)) => longest_ns = longest_ns.max(delay_ns),
            Err(error) => {
                let problem = Problem::from(error);
                status = status.max(problem.status);
                problem.write_json(&mut body);
            }
        }
    }
    body.put_u8(b']');
    wait_for_turn(pending, longest_ns).await;
    Ok(response(status, JSON, body.freeze(), headers))
}

/// Decides a check. Returns the result of `write`, and how long the request has to wait for its turn, in nanoseconds.
/// What the request has taken is added to `taken`.
async fn decide<C: Clock + 'static, R>(
    state: &HttpState<C>,
    check: &Check<'_>,
    max_wait_ns: u64,
    taken: Option<&mut Pending<'_, C>>,
    write: impl FnOnce(&Summary<'_>) -> R,
) -> Result<(R, u64), ServiceError> {
    let rules = state.0.service.rules();
    let mut request = Request::new(&check.domain).with_max_wait_ns(max_wait_ns);
    request.reserve(check.descriptors.len());
    for descriptor in &check.descriptors {
        request.add(descriptor.iter(), Action::Take(check.cost), None);
    }
    let answer = state.0.service.decide(&rules, &request, state.0.client).await?;
    if let Some(taken) = taken {
        taken.add(&answer);
    }
    Ok((write(&Summary::of(&answer)), answer.verdict.delay_ns))
}
