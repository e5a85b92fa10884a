//! What a decision looks like over HTTP: the body and the header fields.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use smallvec::SmallVec;
use spillgate::headers::{HeaderStyle, Policy, write_fields};
use spillgate::{Binding, Decision, Op, Reason, Verdict};

use crate::service::{Answer, Judged};

use super::lease::{Lease, is_leased};
use super::problem::{NO_STORE, PROBLEM_JSON};

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The most limits that one answer's header fields tell of: proxies bound header sizes.
const MAX_POLICIES: usize = 8;

/// One request's answer, as far as HTTP clients are told.
pub(super) struct Told<'a> {
    pub(super) verdict: Verdict,
    /// The limits that can refuse, never those that are only watched.
    pub(super) policies: SmallVec<[Policy<'a>; 4]>,
    /// Which of `policies` binds.
    pub(super) binding: Option<usize>,
    /// Whose numbers the body shows.
    pub(super) shown: Option<&'a Decision>,
    pub(super) rule: Option<&'a str>,
    pub(super) soft_over: bool,
    /// What was taken and can be released.
    pub(super) leases: SmallVec<[Lease; 1]>,
}

/// The answer's members; the first five make a refusal an RFC 9457 problem at the same time.
#[derive(Serialize)]
struct Members<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'static str>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<Vec<Cow<'a, str>>>,
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    delay_ms: u64,
    soft_over: bool,
    lease_id: Option<&'a str>,
    rule: Option<&'a str>,
    source: &'static str,
}

impl<'a> Told<'a> {
    /// What there is to tell of a service's answer.
    pub(super) fn of(answer: &'a Answer<'_>) -> Told<'a> {
        let bound = answer.binding();
        let is_bound = |judged: &Judged<'_, '_>| bound.as_ref().is_some_and(|(_, b)| std::ptr::eq(b.hit, judged.hit));
        let mut told = Told {
            verdict: answer.verdict,
            policies: SmallVec::new(),
            binding: None,
            shown: None,
            rule: None,
            soft_over: false,
            leases: SmallVec::new(),
        };
        let mut seen: SmallVec<[*const spillgate::Hit<'_>; 8]> = SmallVec::new();
        for judged in (0..answer.statuses.len()).flat_map(|index| answer.limits(index)) {
            // Descriptors that ask the same share a hit; it is told of once.
            if seen.contains(&std::ptr::from_ref(judged.hit)) {
                continue;
            }
            seen.push(judged.hit);
            told.add(&judged, is_bound(&judged));
        }
        let descriptor = bound.map(|(index, _)| &answer.statuses[index]);
        let descriptor = descriptor.or_else(|| answer.statuses.iter().find(|status| status.limit.is_some()));
        told.shown = descriptor.map(|status| &status.decision);
        if let (Some(index), true) = (told.binding, bound.is_some()) {
            told.shown = told.policies.get(index).map(|policy| policy.decision).or(told.shown);
        }
        let matched = || answer.statuses.iter().find(|status| status.rule.is_some());
        told.rule = descriptor.or_else(matched).and_then(|status| status.rule).map(|rule| &*rule.path);
        told
    }

    fn add(&mut self, judged: &Judged<'a, '_>, binds: bool) {
        self.soft_over |= judged.decision.soft_over;
        if let (true, Some(receipt), Op::Take { cost: places, .. }) =
            (is_leased(&judged.limit.quota), judged.decision.receipt, judged.hit.op)
        {
            let quota = judged.limit.quota.clone();
            self.leases.push(Lease { key: judged.hit.key, quota, places, receipt });
        }
        if judged.hit.binding == Binding::Shadow {
            return;
        }
        if self.policies.len() == MAX_POLICIES {
            if !binds {
                return;
            }
            self.policies.pop();
        }
        if binds {
            self.binding = Some(self.policies.len());
        }
        let name = judged.limit.name.as_deref();
        self.policies.push(Policy { name, quota: judged.hit.quota, decision: judged.decision });
    }

    /// Writes the body; `status` is given where a refusal is a response of its own.
    pub(super) fn write_json(&self, status: Option<StatusCode>, lease_id: Option<&str>, out: &mut Vec<u8>) {
        let refused = !self.verdict.allowed;
        let problem = status.filter(|_| refused);
        let retry_after_ms = if refused { self.verdict.retry_after.millis_ceil() } else { Some(0) };
        let members = Members {
            kind: problem.map(|_| QUOTA_EXCEEDED),
            title: problem.map(|_| "Request cannot be satisfied as assigned quota has been exceeded"),
            status: problem.map(|status| status.as_u16()),
            detail: problem.map(|_| self.detail()),
            violated_policies: problem.map(|_| self.violated()),
            allowed: self.verdict.allowed,
            limit: self.shown.map(|decision| decision.limit),
            remaining: self.shown.map(|decision| decision.remaining),
            retry_after_ms,
            reset_after_ms: self.shown.map(|decision| decision.reset_after_ns.div_ceil(1_000_000)),
            delay_ms: self.verdict.delay_ns.div_ceil(1_000_000),
            soft_over: self.soft_over,
            lease_id,
            rule: self.rule,
            source: self.verdict.source.as_str(),
        };
        serde_json::to_writer(out, &members).expect("invariant: strings and numbers become JSON in memory");
    }

    fn violated(&self) -> Vec<Cow<'a, str>> {
        self.policies.iter().filter(|policy| !policy.decision.allowed).map(Policy::label).collect()
    }

    fn detail(&self) -> &'static str {
        if self.shown.is_some_and(|decision| decision.limit == 0 && decision.reason != Reason::StoreFull) {
            return "the limit is 0: it refuses everything";
        }
        match self.shown.map(|decision| decision.reason) {
            Some(Reason::CostAboveCapacity) => "the cost is above what the limit can ever hold; ask for less",
            Some(Reason::Penalty) => "the limit was exceeded before, and the penalty for that is not over",
            Some(Reason::WaitTooLong) => "the turn of this request comes later than it can wait",
            Some(Reason::StoreFull) => "the server counts as many keys as it can",
            _ => "the limit is used up",
        }
    }

    /// Adds the header fields that tell of the limits.
    pub(super) fn write_fields(&self, style: HeaderStyle, headers: &mut HeaderMap) {
        write_fields(style, &self.policies, self.binding, self.verdict.retry_after, |name, value| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        });
    }

    /// A whole response: 200, or `denied` as a problem.
    pub(super) fn respond(&self, style: HeaderStyle, denied: StatusCode, lease_id: Option<&str>) -> Response {
        let (status, kind) = if self.verdict.allowed { (StatusCode::OK, JSON) } else { (denied, PROBLEM_JSON) };
        let mut body = Vec::with_capacity(if self.verdict.allowed { 256 } else { 512 });
        self.write_json(Some(status), lease_id, &mut body);
        let mut response = json(status, body);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        self.write_fields(style, response.headers_mut());
        response
    }
}

/// A response that no cache keeps.
pub(super) fn json(status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    // With the fields that tell of the limits and those that hyper adds: one allocation.
    response.headers_mut().reserve(8);
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
    response
}
