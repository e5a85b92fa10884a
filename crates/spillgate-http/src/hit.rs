//! `POST /v1/hit` decides a request that contains its own limit. `POST /v1/release` and `POST /v1/renew` end and extend
//! the leases that a `concurrency` limit has granted, here or over `POST /v1/check`.
//!
//! With these routes, a program needs no rules files.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use smallvec::{SmallVec, smallvec};
use spillgate::headers::Policy;
use spillgate::{Algorithm, Anchor, Binding, Clock, Decision, Denied, Hit, MAX_HITS, Op, Quota, QuotaBuilder};
use spillgate_service::{Protocol, Service, ServiceError};

use super::answer::Summary;
use super::give_back::Pending;
use super::json::{self, Scalar, Text};
use super::lease::{Lease, is_leased};
use super::problem::{Failure, Problem};
use super::response::object;
use super::wait::wait_for_turn;
use super::{HttpState, Response};

const EXAMPLE: &str = r#"{"bucket":"login","key":"user-7","limit":5,"window_ms":60000}"#;
const LEASE_EXAMPLE: &str = r#"{"lease_id":"AQ..."}"#;

/// A hit as a client sends it. `bucket` and `key` are names that the client chooses: together they name the counter.
/// The other members are the cost and the limit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireHit<'a> {
    #[serde(borrow)]
    bucket: Text<'a>,
    #[serde(borrow)]
    key: Scalar<'a>,
    limit: u64,
    window_ms: Option<u64>,
    cost: Option<u64>,
    #[serde(default, deserialize_with = "algorithm")]
    algorithm: Option<Algorithm>,
    burst: Option<u64>,
    anchor: Option<AnchorName>,
    denied: Option<DeniedName>,
    penalty_ms: Option<u64>,
    segments: Option<u8>,
    queue: Option<u64>,
    lease_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnchorName {
    Epoch,
    FirstHit,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DeniedName {
    Free,
    Charged,
}

fn algorithm<'de, D: Deserializer<'de>>(member: D) -> Result<Option<Algorithm>, D::Error> {
    let Some(name) = Option::<Text<'de>>::deserialize(member)? else { return Ok(None) };
    let unknown = || {
        let names = Algorithm::NAMES.map(|(name, _)| name).join(", ");
        D::Error::custom(format!("unknown variant `{}`, expected one of {names}", &*name))
    };
    Algorithm::parse(&name).map(Some).ok_or_else(unknown)
}

impl<'a> WireHit<'a> {
    pub fn parse(body: &'a [u8]) -> Result<WireHit<'a>, Problem> {
        json::object(body).map_err(|error| Problem::bad_json(&error, EXAMPLE))
    }

    pub fn quota(&self) -> Result<Quota, Problem> {
        let algorithm = self.algorithm.unwrap_or(Algorithm::SlidingWindowLog);
        let help = "a limit is a number of units for each window of window_ms; concurrency has no window";
        let window = match (self.window_ms, algorithm == Algorithm::Concurrency) {
            (None, true) => Duration::ZERO,
            (Some(_), true) => {
                return Err(Problem::bad_request("window_ms is not an option of concurrency", help));
            }
            (None, false) => return Err(Problem::bad_request("missing field `window_ms`", help)),
            (Some(ms), false) => Duration::from_millis(ms),
        };
        let mut builder = QuotaBuilder::new(algorithm, self.limit, window);
        if let Some(burst) = self.burst {
            builder = builder.burst(burst);
        }
        if let Some(queue) = self.queue {
            builder = builder.queue(queue);
        }
        if let Some(segments) = self.segments {
            builder = builder.segments(segments);
        }
        if let Some(anchor) = self.anchor {
            builder = builder.anchor(match anchor {
                AnchorName::Epoch => Anchor::Epoch,
                AnchorName::FirstHit => Anchor::FirstHit,
            });
        }
        if let Some(DeniedName::Charged) = self.denied {
            builder = builder.denied(Denied::Charged);
        }
        if let Some(ms) = self.penalty_ms {
            builder = builder.penalty(Duration::from_millis(ms));
        }
        if let Some(ms) = self.lease_ms {
            builder = builder.lease(Duration::from_millis(ms));
        }
        builder.build().map_err(|error| Problem::bad_request(format!("this limit is invalid: {error}"), ""))
    }

    pub fn names(&self) -> (&str, &str) {
        (&self.bucket, &self.key)
    }

    pub fn key<C: Clock>(&self, service: &Service<C>) -> Result<u128, ServiceError> {
        service.key_of_hit(&self.bucket, &self.key)
    }
}

pub(super) async fn hit<C: Clock + 'static>(
    state: &HttpState<C>,
    body: &[u8],
    max_wait_ns: u64,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let wire = WireHit::parse(body)?;
    let quota = wire.quota()?.with_on_store_failure(state.0.service.options().on_store_failure);
    let (key, cost) = (wire.key(&state.0.service)?, wire.cost.unwrap_or(1));
    let mut decisions = [Decision::default()];
    let op = if cost == 0 { Op::Peek } else { Op::Take { cost, max_wait_ns } };
    let hits = [Hit::new(key, &quota, op, Binding::Enforce)];
    let verdict = state.0.service.hit(Protocol::Http, Some(wire.names()), &hits, &mut decisions).await?;
    let [decision] = decisions;
    let lease = decision.receipt.filter(|_| is_leased(&quota));
    let summary = Summary {
        verdict,
        policies: smallvec![Policy { name: Some(&wire.bucket), quota: &quota, decision: &decision }],
        binding: Some(0),
        shown: Some((&quota, &decision)),
        rule: None,
        soft_over: decision.soft_over,
        leases: lease.map(|receipt| Lease { key, quota: quota.clone(), permits: cost, receipt }).into_iter().collect(),
        reservation: None,
    };
    let lease_id = state.lease_id(&summary);
    let response = summary.respond(state.0.headers, StatusCode::TOO_MANY_REQUESTS, lease_id.as_deref(), headers);
    let mut pending = Pending::new(state);
    if verdict.delay_ns > 0 {
        pending.add_hit(&hits[0], &decision);
    }
    wait_for_turn(pending, verdict.delay_ns).await;
    Ok(response)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireLease<'a> {
    #[serde(borrow)]
    lease_id: Text<'a>,
}

#[derive(Debug, Serialize)]
struct Released {
    /// How many permits were released.
    released: u64,
}

#[derive(Debug, Serialize)]
struct Renewed {
    renewed: bool,
    /// The time from now until the first of the renewed leases expires.
    lease_ms: u64,
}

/// Releases the permits of all leases of a lease id. Leases that have expired are left out. If all have expired, the
/// answer is 410.
pub(super) async fn release<C: Clock>(state: &HttpState<C>, body: &[u8]) -> Result<Response, Failure> {
    let leases = leases(state, body)?;
    let mut released: Option<u64> = None;
    // Each lease needs two hits, and one request to the store can have at most MAX_HITS hits.
    for leases in leases.chunks(MAX_HITS / 2) {
        // A refund does not say whether the lease had expired. So each lease is renewed and refunded in one request:
        // the renewal, which is decided before the refund takes effect, fails if the lease had expired.
        let hits: SmallVec<[Hit<'_>; 4]> = leases
            .iter()
            .flat_map(|Lease { key, quota, permits, receipt }| {
                let refund = Op::Refund { cost: *permits, receipt: Some(*receipt) };
                [Op::Renew { receipt: *receipt }, refund].map(|op| Hit::new(*key, quota, op, Binding::Shadow))
            })
            .collect();
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
        state.0.service.hit(Protocol::Http, None, &hits, &mut decisions).await?;
        let alive = leases.iter().zip(decisions.chunks(2)).filter(|(_, of_lease)| of_lease[0].allowed);
        for (lease, _) in alive {
            released = Some(released.unwrap_or(0).saturating_add(lease.permits));
        }
    }
    match released {
        Some(released) => Ok(object(&Released { released })),
        None => Err(gone(FREE).into()),
    }
}

/// Renews all leases of a lease id, each for its whole duration from now on. If one of the leases has expired, none is
/// renewed.
pub(super) async fn renew<C: Clock>(state: &HttpState<C>, body: &[u8]) -> Result<Response, Failure> {
    let leases = leases(state, body)?;
    // Each lease needs one hit, and an id has at most MAX_HITS leases. So one request to the store is enough, and it
    // renews all leases or none.
    let hits: SmallVec<[Hit<'_>; 4]> = leases
        .iter()
        .map(|Lease { key, quota, receipt, .. }| {
            Hit::new(*key, quota, Op::Renew { receipt: *receipt }, Binding::Enforce)
        })
        .collect();
    let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
    if !state.0.service.hit(Protocol::Http, None, &hits, &mut decisions).await?.allowed {
        return Err(gone("ask for a new lease").into());
    }
    let shortest_ns = leases.iter().map(|lease| lease.quota.lease_ns()).min().unwrap_or(0);
    Ok(object(&Renewed { renewed: true, lease_ms: shortest_ns / 1_000_000 }))
}

fn leases<C: Clock>(state: &HttpState<C>, body: &[u8]) -> Result<Vec<Lease>, Problem> {
    let wire: WireLease<'_> = json::object(body).map_err(|error| Problem::bad_json(&error, LEASE_EXAMPLE))?;
    state.0.lease_key.open(&wire.lease_id).map_err(|_| {
        let help =
            "send a lease_id as it was returned; a server that restarted without a snapshot does not know its old ids";
        Problem::bad_request(
            "this lease_id was not made by this server, nor by another server with the same key secret",
            help,
        )
    })
}

const FREE: &str = "its permits are free already. One exception: if another server granted the lease while the shared store failed, \
                    only that server can release it";

fn gone(help: &'static str) -> Problem {
    Problem::new(StatusCode::GONE, "the lease has expired or was released", help)
}

impl<C: Clock> HttpState<C> {
    /// Returns one lease id for all permits that the request has taken, or `None` if it has taken none.
    pub(super) fn lease_id(&self, summary: &Summary<'_>) -> Option<String> {
        (!summary.leases.is_empty()).then(|| self.0.lease_key.sign(&summary.leases))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_an_algorithm_is_accepted() {
        for (name, algorithm) in Algorithm::NAMES {
            let window = if algorithm == Algorithm::Concurrency { "" } else { r#","window_ms":1000"# };
            let body = format!(r#"{{"bucket":"b","key":"k","limit":5,"algorithm":"{name}"{window}}}"#);
            let quota = WireHit::parse(body.as_bytes()).and_then(|hit| hit.quota()).expect(name);
            assert_eq!(quota.algorithm(), algorithm);
        }
    }
}
