//! `POST /json`: what RLS v3 asks over gRPC, in protobuf's JSON; the answer too. 200 or 429.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use smallvec::SmallVec;
use spillgate::rules::{Action, Descriptor, Limit, Request, Unit};
use spillgate::{Clock, Wait};

use crate::service::Status;

use super::answer::{JSON, Told, json};
use super::json::{Object, Text, object};
use super::problem::Problem;
use super::proto_json::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, UnitNumber};
use super::{HttpState, Received, received};

const EXAMPLE: &str = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user_id","value":"7"}]}]}"#;

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
    /// Protobuf writes a duration as seconds with an s behind.
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

pub(super) async fn should_rate_limit<C: Clock + 'static>(
    State(state): State<HttpState<C>>,
    body: Received,
) -> Result<Response, Problem> {
    let body = received(body)?;
    let wire: RateLimitRequest<'_> = object(&body).map_err(|error| Problem::bad_json(&error, EXAMPLE))?;
    let wire_descriptors: SmallVec<[&RateLimitDescriptor<'_>; 4]> =
        wire.descriptors.iter().flatten().map(|Object(descriptor)| descriptor).collect();
    let limits: Vec<Option<Limit>> = wire_descriptors
        .iter()
        .map(|descriptor| descriptor.limit.as_ref().map(|Object(limit)| overriding(limit)).transpose())
        .collect::<Result<_, Problem>>()?;
    let entries: SmallVec<[(&str, &str); 8]> = wire_descriptors
        .iter()
        .flat_map(|descriptor| entries_of(descriptor))
        .map(|Object(entry)| (text(&entry.key), text(&entry.value)))
        .collect();
    let mut rest = &entries[..];
    let mut descriptors: SmallVec<[Descriptor<'_>; 4]> = SmallVec::with_capacity(wire_descriptors.len());
    for (descriptor, limit) in wire_descriptors.iter().zip(&limits) {
        let (own, others) = rest.split_at(entries_of(descriptor).len());
        rest = others;
        let of_request = wire.hits_addend.map_or(0, |hits| hits.0);
        descriptors.push(Descriptor { entries: own, action: action(descriptor, of_request), limit: limit.as_ref() });
    }
    let request = Request { domain: text(&wire.domain), descriptors: &descriptors, max_wait_ns: 0 };
    let rules = state.0.service.rules();
    let answer = state.0.service.decide(&rules, &request, state.0.grants).await?;
    let allowed = answer.verdict.allowed;
    let members = RateLimitResponse {
        overall_code: code(!allowed),
        statuses: answer.statuses.iter().map(descriptor_status).collect(),
    };
    let body = serde_json::to_vec(&members).expect("invariant: strings and numbers become JSON in memory");
    let mut response = json(if allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }, body);
    Told::of(&answer).write_fields(state.0.headers, response.headers_mut());
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    Ok(response)
}

fn entries_of<'a, 'b>(descriptor: &'b RateLimitDescriptor<'a>) -> &'b [Object<Entry<'a>>] {
    descriptor.entries.as_deref().unwrap_or_default()
}

fn text<'b>(text: &'b Option<Text<'_>>) -> &'b str {
    text.as_deref().unwrap_or_default()
}

/// The descriptor's own number of hits goes before the request's, where 0 means one.
fn action(descriptor: &RateLimitDescriptor<'_>, of_request: u64) -> Action {
    let hits = descriptor.hits_addend.map_or(of_request.max(1), |hits| hits.0);
    if descriptor.is_negative_hits == Some(true) { Action::Refund(hits) } else { Action::Take(hits) }
}

fn overriding(wire: &RateLimitOverride) -> Result<Limit, Problem> {
    let unit = match wire.unit {
        Some(UnitNumber(1)) => Unit::Second,
        Some(UnitNumber(2)) => Unit::Minute,
        Some(UnitNumber(3)) => Unit::Hour,
        Some(UnitNumber(4)) => Unit::Day,
        Some(UnitNumber(5)) => Unit::Month,
        Some(UnitNumber(6)) => Unit::Year,
        _ => {
            return Err(Problem::bad_request(
                "a descriptor's limit has no unit",
                "give it one: SECOND, MINUTE, HOUR, DAY, MONTH or YEAR",
            ));
        }
    };
    let requests_per_unit = wire.requests_per_unit.map_or(0, |units| saturated(units.0));
    Ok(Limit::overriding(unit, requests_per_unit))
}

fn descriptor_status<'a>(status: &Status<'a>) -> DescriptorStatus<'a> {
    let decision = &status.decision;
    let Some(limit) = status.limit else {
        return DescriptorStatus {
            code: code(status.enforced_over),
            current_limit: None,
            limit_remaining: status.unlimited.then_some(u32::MAX),
            duration_until_reset: None,
        };
    };
    // Whole seconds, rounded up, as over gRPC.
    let until = if decision.allowed { Wait::After(decision.reset_after_ns) } else { decision.retry_after };
    DescriptorStatus {
        code: code(status.enforced_over),
        current_limit: Some(RateLimit {
            name: limit.name.as_deref().unwrap_or_default(),
            requests_per_unit: saturated(limit.requests_per_unit),
            unit: limit.unit.map_or("UNKNOWN", unit_name),
        }),
        limit_remaining: Some(saturated(decision.remaining)),
        duration_until_reset: until.secs_ceil().map(|secs| format!("{secs}s")),
    }
}

fn code(over: bool) -> &'static str {
    if over { "OVER_LIMIT" } else { "OK" }
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
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
