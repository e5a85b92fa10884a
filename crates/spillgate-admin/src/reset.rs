//! `POST /reset`: deletes the counts and penalties of limits for given descriptors, for example for one customer.
//!
//! With a reset, the requests of a customer are allowed again at once. Without it, the customer would have to wait
//! until the window or the penalty ends.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use spillgate::rules::Rules;
use spillgate::{Binding, Clock, Decision, Hit, Op};
use spillgate_http::hit::WireHit;
use spillgate_http::json::{Entries, Text, object};
use spillgate_http::problem::Problem;
use spillgate_http::read_body;
use spillgate_service::explain::{Pairs, unknown_names};
use spillgate_service::metrics::Protocol;
use spillgate_service::{Reset, ResetLimit, ServiceError, not_reset};

use super::writes::Change;
use super::{AdminState, BODY_BYTES, regions};

const EXAMPLE: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}, or the body of a request to /v1/hit"#;

/// The log shows at most this many characters of `bucket`, the name in a request to `/v1/hit`.
const BUCKET_CHARS_MAX: usize = 64;

/// Finds out which kind of body was sent. One kind has descriptors, and the other kind is the body of a request to
/// `/v1/hit`, which has the member `bucket`. Then the body is parsed again as its kind, so that an error fits what the
/// client wrote.
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

#[derive(Serialize)]
struct Answer<'a> {
    /// The number of limits that were reset.
    reset: usize,
    /// The other regions, if they share one of the limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_also_in: Option<Vec<String>>,
    /// The limits of rules among them.
    limits: &'a [ResetLimit],
    limits_left_out: usize,
}

pub(super) async fn reset<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, Problem> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let kind: Kind = object(&body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let mut reset = Reset::default();
    let outcome = match kind.bucket {
        Some(_) => reset_hit(&state, &body, &mut reset).await,
        None => reset_rules(&state, &body, &mut reset).await,
    };
    let change = Extension(Change(reset.to_string()));
    Ok(match outcome {
        Ok(()) => {
            // A reset clears only what this region has counted.
            let reset_also_in = reset.is_shared.then(|| regions::names(&state.service));
            let (limits, limits_left_out) = (&reset.named[..], reset.unnamed);
            (change, Json(Answer { reset: reset.limits, reset_also_in, limits, limits_left_out })).into_response()
        }
        Err(problem) => (change, problem).into_response(),
    })
}

/// Returns the answer to a reset that failed. If the store failed, it says what was reset.
fn failed(error: ServiceError, reset: &Reset) -> Problem {
    let (detail, is_known) = (error.to_string(), reset.asked == reset.done);
    let problem = Problem::from(error);
    if problem.status != StatusCode::SERVICE_UNAVAILABLE {
        return problem;
    }
    Problem::new(problem.status, detail, how_much(reset.done, is_known))
}

/// Says how many descriptors were reset before the store failed, and what to do. `is_known` is false if the next one may
/// have been reset too.
fn how_much(done: usize, is_known: bool) -> String {
    match (done, is_known) {
        (0, true) => "nothing was reset; try again when the store answers".to_owned(),
        (0, false) => {
            "the reset may have been made: look at POST /peek, or reset again when the store answers".to_owned()
        }
        (1, true) => "only the first descriptor was reset; reset again when the store answers".to_owned(),
        (done, true) => format!("only the first {done} descriptors were reset; reset again when the store answers"),
        (1, false) => {
            "the first descriptor was reset, and the next one may have been; reset again when the store answers"
                .to_owned()
        }
        (done, false) => format!(
            "the first {done} descriptors were reset, and the next one may have been; reset again when the store answers"
        ),
    }
}

/// For each descriptor, resets all limits of the rule that the descriptor matches.
async fn reset_rules<C: Clock>(state: &AdminState<C>, body: &[u8], reset: &mut Reset) -> Result<(), Problem> {
    let wire: ResetByRules<'_> = object(body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    if wire.descriptors.is_empty() {
        return Err(Problem::bad_request("there are no descriptors", "add the descriptors to reset to `descriptors`"));
    }
    let descriptors: Vec<Vec<_>> = wire.descriptors.iter().map(|entries| entries.iter().collect()).collect();
    match state.service.reset(&wire.domain, &descriptors, reset).await {
        Err(error @ ServiceError::UnknownLimit(_)) => {
            Err(unknown(&error, &state.service.rules(), &wire.domain, &descriptors))
        }
        outcome => outcome.map_err(|error| failed(error, reset)),
    }
}

/// Returns the problem of a descriptor without a limit. It names the domain or the key that no rule has.
fn unknown(error: &ServiceError, rules: &Rules, domain: &str, descriptors: &Pairs<'_>) -> Problem {
    let detail = error.to_string();
    match unknown_names(rules, domain, descriptors).into_iter().next() {
        Some(name) => Problem::new(StatusCode::NOT_FOUND, format!("{detail}: {}", name.message), name.help),
        None => {
            let help = "compare the descriptor with the loaded rules: `spillgate explain`, or GET /rules";
            Problem::new(StatusCode::NOT_FOUND, detail, help)
        }
    }
}

/// Resets the limit that a request to `/v1/hit` with the same body would use.
async fn reset_hit<C: Clock>(state: &AdminState<C>, body: &[u8], reset: &mut Reset) -> Result<(), Problem> {
    let wire = WireHit::parse(body)?;
    let quota = wire.quota()?;
    let key = wire.key(&state.service)?;
    let bucket: String = wire.names().0.chars().take(BUCKET_CHARS_MAX).collect();
    reset.callers.push(format!("caller {} of bucket {bucket}", state.service.caller_of(key)));
    reset.asked = 1;
    let hits = [Hit::new(key, &quota, Op::Reset, Binding::Enforce)];
    let decided = state.service.hit(Protocol::Http, Some(wire.names()), &hits, &mut [Decision::default()]).await;
    let verdict = decided.map_err(|error| {
        state.service.end_failed(reset, &hits, &error);
        failed(error, reset)
    })?;
    if !verdict.allowed {
        return Err(not_reset().into());
    }
    (reset.done, reset.limits) = (1, 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_that_failed_says_how_much_was_reset() {
        assert!(how_much(0, true).starts_with("nothing was reset"));
        assert!(how_much(0, false).starts_with("the reset may have been made"));
        assert!(how_much(1, true).starts_with("only the first descriptor was reset;"));
        assert!(how_much(2, true).starts_with("only the first 2 descriptors were reset;"));
        assert!(how_much(1, false).starts_with("the first descriptor was reset, and the next one may have been;"));
        assert!(how_much(2, false).starts_with("the first 2 descriptors were reset, and the next one may have been;"));
    }
}
