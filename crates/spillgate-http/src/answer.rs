//! A decision as an HTTP client sees it: the body and the header fields.
//!
//! Every route that decides requests uses this code, so that clients read one format. Only the body of the route
//! `/json` is written elsewhere.

use std::borrow::Cow;

use bytes::{BufMut as _, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use smallvec::SmallVec;
use spillgate::headers::{self, HeaderStyle, Policy, write_fields};
use spillgate::rules::Rule;
use spillgate::{Algorithm, Binding, Decision, Op, Quota, Reason, Verdict};
use spillgate_service::operator::BLOCKED;
use spillgate_service::{Answer, LimitDecision, Status, UNMATCHED};

use super::Response;
use super::lease::{Lease, is_leased};
use super::response::{JSON, PROBLEM_JSON, response};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The header fields of one answer show at most this many limits, because proxies bound the size of headers.
const MAX_POLICIES: usize = 8;

/// The answer to one request, as an HTTP client sees it. Limits that are not exposed are left out.
pub(super) struct Summary<'a> {
    pub(super) verdict: Verdict,
    /// The limits that could refuse the request. Limits in shadow mode are left out, and so are limits without a
    /// decision: if one limit certainly refuses the request, the store can leave the others undecided.
    pub(super) policies: SmallVec<[Policy<'a>; 4]>,
    /// The index in `policies` of the binding limit, which is the limit that the verdict names. `None` if the verdict
    /// names no limit, or if that limit is not in `policies`.
    pub(super) binding: Option<usize>,
    /// The limit and the decision whose numbers are in the body.
    pub(super) shown: Option<(&'a Quota, &'a Decision)>,
    pub(super) rule: Option<&'a str>,
    pub(super) soft_over: bool,
    /// The permits that were taken and can be released.
    pub(super) leases: SmallVec<[Lease; 1]>,
    /// The id of a reservation. `None` leaves the member out of the body, because only the answer to a reservation has
    /// it. `Some(None)` writes null, because nothing was taken.
    pub(super) reservation: Option<Option<String>>,
}

impl<'a> Summary<'a> {
    pub(super) fn of(answer: &'a Answer<'_>) -> Summary<'a> {
        // A hidden limit is one that is not exposed. If a hidden limit refuses, the answer shows no other limit
        // instead.
        let bound = answer.binding();
        let is_refused_by_hidden = !answer.verdict.allowed && bound.as_ref().is_some_and(|(_, b)| !b.limit.exposed);
        // If a hidden limit allows, the one among the others under which the fewest further requests fit is shown.
        let bound = bound.filter(|(_, b)| b.limit.exposed).or_else(|| {
            let all =
                (0..answer.statuses.len()).flat_map(|index| answer.limits(index).map(move |decided| (index, decided)));
            let is_shown = |decided: &LimitDecision<'_, '_>| {
                decided.limit.exposed
                    && decided.hit.binding != Binding::Shadow
                    && decided.decision.reason != Reason::NotAsked
            };
            let shown = all.filter(|(_, decided)| answer.verdict.allowed && is_shown(decided));
            shown.min_by(|(_, a), (_, b)| a.decision.cmp_left(a.hit.op.cost(), b.decision, b.hit.op.cost()))
        });
        let is_bound =
            |decided: &LimitDecision<'_, '_>| bound.as_ref().is_some_and(|(_, b)| std::ptr::eq(b.hit, decided.hit));
        let mut summary = Summary {
            verdict: answer.verdict,
            policies: SmallVec::new(),
            binding: None,
            shown: None,
            rule: None,
            soft_over: false,
            leases: SmallVec::new(),
            reservation: None,
        };
        let mut seen: SmallVec<[*const spillgate::Hit<'_>; 8]> = SmallVec::new();
        for decided in (0..answer.statuses.len()).flat_map(|index| answer.limits(index)) {
            // Descriptors with the same counter share a hit, which the answer shows only once.
            if seen.contains(&std::ptr::from_ref(decided.hit)) {
                continue;
            }
            seen.push(decided.hit);
            summary.add(&decided, is_bound(&decided));
        }
        let descriptor = bound.map(|(index, _)| &answer.statuses[index]);
        let shows = |status: &&Status<'_>| status.limit.is_some_and(|limit| limit.exposed);
        let descriptor = descriptor.or_else(|| answer.statuses.iter().find(shows)).filter(|_| !is_refused_by_hidden);
        summary.shown = descriptor.and_then(|status| Some((&status.limit?.quota, &status.decision)));
        if let (Some(index), true) = (summary.binding, bound.is_some()) {
            summary.shown = summary.policies.get(index).map(|policy| (policy.quota, policy.decision)).or(summary.shown);
        }
        let is_hidden = |rule: &Rule| !rule.limits.is_empty() && rule.limits.iter().all(|limit| !limit.exposed);
        let mut rules = answer.statuses.iter().filter_map(|status| status.rule);
        let matched = || rules.find(|rule| !is_hidden(rule)).filter(|_| !is_refused_by_hidden);
        summary.rule = descriptor.map_or_else(matched, |status| status.rule).map(|rule| &*rule.path);
        summary
    }

    fn add(&mut self, decided: &LimitDecision<'a, '_>, binds: bool) {
        self.soft_over |= decided.decision.soft_over && decided.limit.exposed;
        if let (true, Some(receipt), Op::Take { cost: permits, .. }) =
            (is_leased(&decided.limit.quota), decided.decision.receipt, decided.hit.op)
        {
            let quota = decided.limit.quota.clone();
            self.leases.push(Lease { key: decided.hit.key, quota, permits, receipt });
        }
        // If the store left the hit undecided, the numbers in its decision have no meaning.
        let is_known = decided.decision.reason != Reason::NotAsked;
        if decided.hit.binding == Binding::Shadow || !is_known || !decided.limit.exposed {
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
        let name = decided.limit.name.as_deref();
        self.policies.push(Policy { name, quota: decided.hit.quota, decision: decided.decision });
    }

    /// Writes the body. The body of a refusal is an RFC 9457 problem with the status `denied`, and also has all members
    /// that the body of an allowed request has.
    pub(super) fn write_json(&self, denied: StatusCode, lease_id: Option<&str>, out: &mut BytesMut) {
        out.put_u8(b'{');
        if !self.verdict.allowed {
            member(out, r#""type":"#, QUOTA_EXCEEDED);
            member(out, r#","title":"#, "Request cannot be satisfied as assigned quota has been exceeded");
            member(out, r#","status":"#, denied.as_u16());
            member(out, r#","detail":"#, self.detail());
            member(out, r#","violated-policies":"#, self.violated());
            out.put_u8(b',');
        }
        self.write_members(lease_id, out);
    }

    /// Writes the answer to one check of a list. It always has the member `status`, because the HTTP status belongs to
    /// the whole list.
    pub(super) fn write_item(&self, denied: StatusCode, lease_id: Option<&str>, out: &mut BytesMut) {
        if !self.verdict.allowed {
            return self.write_json(denied, lease_id, out);
        }
        member(out, r#"{"status":"#, StatusCode::OK.as_u16());
        out.put_u8(b',');
        self.write_members(lease_id, out);
    }

    fn write_members(&self, lease_id: Option<&str>, out: &mut BytesMut) {
        let decision = self.shown.map(|(_, decision)| decision);
        let retry_after_ms = if self.verdict.allowed { Some(0) } else { self.verdict.retry_after.millis_ceil() };
        member(out, r#""allowed":"#, self.verdict.allowed);
        member(out, r#","limit":"#, decision.map(|decision| decision.limit));
        self.write_quota(out);
        member(out, r#","remaining":"#, decision.map(|decision| decision.remaining));
        member(out, r#","retry_after_ms":"#, retry_after_ms);
        member(out, r#","reset_after_ms":"#, decision.map(|decision| decision.reset_after_ns.div_ceil(1_000_000)));
        member(out, r#","delay_ms":"#, self.verdict.delay_ns.div_ceil(1_000_000));
        member(out, r#","soft_over":"#, self.soft_over);
        member(out, r#","lease_id":"#, lease_id);
        if let Some(reservation_id) = &self.reservation {
            member(out, r#","reservation_id":"#, reservation_id);
        }
        member(out, r#","rule":"#, self.rule);
        member(out, r#","source":"#, self.verdict.source.as_str());
        out.put_u8(b'}');
    }

    /// Writes the member `quota`, which has the limit as it was configured. The other member `limit`, which is not in
    /// `quota`, is the capacity: for example the burst of a token bucket, or the queue length of a leaky bucket plus
    /// one.
    fn write_quota(&self, out: &mut BytesMut) {
        let Some((quota, _)) = self.shown else {
            out.put_slice(br#","quota":null"#);
            return;
        };
        member(out, r#","quota":{"limit":"#, quota.limit());
        if quota.window_ns() > 0 {
            member(out, r#","window_ms":"#, quota.window_ns().div_ceil(1_000_000));
        }
        match quota.algorithm() {
            Algorithm::TokenBucket => member(out, r#","burst":"#, quota.capacity()),
            Algorithm::LeakyBucket => member(out, r#","queue":"#, quota.capacity().saturating_sub(1)),
            Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter { .. }
            | Algorithm::Concurrency => {}
        }
        out.put_u8(b'}');
    }

    fn violated(&self) -> Vec<Cow<'a, str>> {
        let refusing = (0..self.policies.len()).filter(|index| !self.policies[*index].decision.allowed);
        refusing.map(|index| headers::label(&self.policies, index)).collect()
    }

    fn detail(&self) -> &'static str {
        let binding = self.binding.and_then(|index| self.policies.get(index));
        match binding.and_then(|policy| policy.name).filter(|_| self.rule.is_none()) {
            Some(UNMATCHED) => return "no rule matches, and this server refuses such requests",
            Some(BLOCKED) => return "an operator has blocked a value of this request for a time",
            _ => {}
        }
        let decision = self.shown.map(|(_, decision)| decision);
        if decision.is_some_and(|decision| decision.limit == 0 && decision.reason != Reason::StoreFull) {
            return "the limit is 0, so it refuses every request";
        }
        match decision.map(|decision| decision.reason) {
            Some(Reason::CostAboveCapacity) => "the cost is above the capacity of the limit; ask for less",
            Some(Reason::Penalty) => "the limit was exceeded before, and the penalty is not over",
            Some(Reason::WaitTooLong) => "the wait for the turn of this request is longer than the request allows",
            Some(Reason::StoreFull) => "the memory for counts is full, so the server cannot count this request",
            Some(Reason::StoreFailed) => {
                "the store of limits does not answer, and this limit refuses requests until the store answers"
            }
            _ => "the limit is used up",
        }
    }

    /// Adds the header fields about the limits. Writes their values into `buffer`.
    pub(super) fn write_fields(&self, style: HeaderStyle, buffer: &mut BytesMut, headers: &mut HeaderMap) {
        write_fields(style, &self.policies, self.binding, self.verdict.retry_after, buffer, |name, value| {
            if let Ok(value) = HeaderValue::from_maybe_shared(value.split().freeze()) {
                headers.insert(field_name(name), value);
            }
        });
    }

    /// Returns the whole response: 200, or a problem with the status `denied`. The response reuses the memory of the
    /// map `headers`.
    pub(super) fn respond(
        &self,
        style: HeaderStyle,
        denied: StatusCode,
        lease_id: Option<&str>,
        headers: HeaderMap,
    ) -> Response {
        let (status, kind) = if self.verdict.allowed { (StatusCode::OK, JSON) } else { (denied, PROBLEM_JSON) };
        // The body and the values of the header fields share one allocation.
        let mut buffer = BytesMut::with_capacity(if self.verdict.allowed { 448 } else { 832 });
        self.write_json(denied, lease_id, &mut buffer);
        let mut response = response(status, kind, buffer.split().freeze(), headers);
        self.write_fields(style, &mut buffer, response.headers_mut());
        response
    }
}

fn member(out: &mut BytesMut, name: &'static str, value: impl Serialize) {
    out.put_slice(name.as_bytes());
    serde_json::to_writer(out.writer(), &value).expect("invariant: strings and numbers become JSON in memory");
}

/// Returns the name of a header field. The names of the default style are constants, so that most answers need not
/// parse any name.
fn field_name(name: &'static str) -> HeaderName {
    const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
    const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
    match name {
        "ratelimit-policy" => POLICY,
        "ratelimit" => LIMIT,
        other => HeaderName::from_static(other),
    }
}
