//! `POST /json`: RLS v3 in protobuf's JSON. The status is 200 if the request is allowed, and 429 if it is refused.
//!
//! Users of Envoy's reference server know this route: they test their rules with it.

use bytes::BytesMut;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use smallvec::SmallVec;
use spillgate::rules::{Action, Limit, Request, Unit};
use spillgate::{Clock, OnStoreFailure, Time};
use spillgate_service::rls::{ReportedLimit, action, overriding};
use spillgate_service::{ServiceError, Status};

use super::answer::Summary;
use super::json::{Object, Text, object};
use super::problem::{Failure, Problem};
use super::proto_json::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use super::response::{JSON, response};
use super::{HttpState, Response};

const EXAMPLE: &str = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user_id","value":"7"}]}]}"#;

/// A request of RLS v3 about which somebody asks. It takes units from the limits of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub domain: String,
    /// The entries of each descriptor, and its units.
    pub descriptors: Vec<(Vec<(String, String)>, u64)>,
}

/// Reads a request of RLS v3 in protobuf's JSON, as `POST /json` gets it.
///
/// # Errors
/// The body is invalid, or a descriptor brings its own limit or gives units back: no rule says what becomes of it.
pub fn question(body: &[u8]) -> Result<Question, Problem> {
    let wire: RateLimitRequest<'_> = object(body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let mut descriptors = Vec::new();
    for Object(descriptor) in wire.descriptors.iter().flatten() {
        let of_request = wire.hits_addend.map_or(0, |hits| hits.0);
        let is_negative = descriptor.is_negative_hits == Some(true);
        let action = action(descriptor.hits_addend.map(|hits| hits.0), of_request, is_negative);
        let (Action::Take(units), None) = (action, &descriptor.limit) else {
            let detail = "a descriptor has a limit of its own, or gives units back: rules do not decide it";
            return Err(Problem::bad_request(detail, "remove `limit` and `isNegativeHits`"));
        };
        let entries = entries_of(descriptor).iter();
        let entry = |Object(entry): &Object<Entry<'_>>| (text(&entry.key).to_owned(), text(&entry.value).to_owned());
        descriptors.push((entries.map(entry).collect(), units));
    }
    Ok(Question { domain: text(&wire.domain).to_owned(), descriptors })
}

/// `RateLimitResponse`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RateLimitResponse<'a> {
    overall_code: &'static str,
    statuses: Vec<DescriptorStatus<'a>>,
}

/// `RateLimitResponse.DescriptorStatus`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DescriptorStatus<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<RateLimit<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_remaining: Option<u32>,
    /// Whole seconds and the letter `s`, which is how protobuf's JSON writes a duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

/// `RateLimitResponse.RateLimit`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RateLimit<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    requests_per_unit: u32,
    unit: &'static str,
}

pub(super) async fn should_rate_limit<C: Clock>(
    state: &HttpState<C>,
    body: &[u8],
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let wire: RateLimitRequest<'_> = object(body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let wire_descriptors: SmallVec<[&RateLimitDescriptor<'_>; 4]> =
        wire.descriptors.iter().flatten().map(|Object(descriptor)| descriptor).collect();
    let policy = state.0.service.options().on_store_failure;
    let limits: Vec<Option<Limit>> = wire_descriptors
        .iter()
        .map(|descriptor| descriptor.limit.as_ref().map(|Object(limit)| override_of(limit, policy)).transpose())
        .collect::<Result<_, ServiceError>>()
        .map_err(|error| state.0.service.rejected(error))?;
    let rules = state.0.service.rules();
    let mut request = Request::new(text(&wire.domain));
    request.reserve(wire_descriptors.len());
    for (descriptor, limit) in wire_descriptors.iter().zip(&limits) {
        let (own_hits, of_request) = (descriptor.hits_addend, wire.hits_addend.map_or(0, |hits| hits.0));
        let negative = descriptor.is_negative_hits == Some(true);
        let action = action(own_hits.map(|hits| hits.0), of_request, negative);
        let entries = entries_of(descriptor).iter().map(|Object(entry)| (text(&entry.key), text(&entry.value)));
        request.add(entries, action, limit.as_ref());
    }
    let answer = state.0.service.decide(&rules, &request, state.0.client).await?;
    let allowed = answer.verdict.allowed;
    let members = RateLimitResponse {
        overall_code: code(!allowed),
        statuses: answer.statuses.iter().map(|status| descriptor_status(status, answer.verdict.now)).collect(),
    };
    let body = serde_json::to_vec(&members).expect("invariant: strings and numbers become JSON in memory");
    let status = if allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let mut response = response(status, JSON, body.into(), headers);
    Summary::of(&answer).write_fields(state.0.headers, &mut BytesMut::new(), response.headers_mut());
    Ok(response)
}

fn entries_of<'a, 'b>(descriptor: &'b RateLimitDescriptor<'a>) -> &'b [Object<Entry<'a>>] {
    descriptor.entries.as_deref().unwrap_or_default()
}

fn text<'b>(text: &'b Option<Text<'_>>) -> &'b str {
    text.as_deref().unwrap_or_default()
}

fn override_of(wire: &RateLimitOverride, policy: OnStoreFailure) -> Result<Limit, ServiceError> {
    // The conversion never fails, because `RateLimitOverride` accepts no number above `u32::MAX`.
    let units = wire.requests_per_unit.map_or(0, |units| u32::try_from(units.0).unwrap_or(u32::MAX));
    overriding(units, wire.unit.map_or(0, |unit| unit.0), policy)
}

fn descriptor_status<'a>(status: &Status<'a>, now: Time) -> DescriptorStatus<'a> {
    let reported = ReportedLimit::of(status, now);
    DescriptorStatus {
        code: code(status.enforced_over),
        current_limit: reported.filter(|limit| limit.exposed).map(|limit| RateLimit {
            name: limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit.map_or("UNKNOWN", unit_name),
        }),
        limit_remaining: reported.map(|limit| limit.remaining).or(status.unlimited.then_some(u32::MAX)),
        duration_until_reset: reported.and_then(|limit| limit.until_reset_secs).map(|secs| format!("{secs}s")),
    }
}

fn code(over: bool) -> &'static str {
    if over { "OVER_LIMIT" } else { "OK" }
}

fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Second => "SECOND",
        Unit::Minute => "MINUTE",
        Unit::Hour => "HOUR",
        Unit::Day => "DAY",
        Unit::Week => "WEEK",
        Unit::Month => "MONTH",
        Unit::Year => "YEAR",
    }
}
