//! ShouldRateLimit: the wire's request becomes the service's, its answer the wire's.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use http_body::Body;
use prost::Message;
use smallvec::SmallVec;
use spillgate::Time;
use spillgate::rules::{Action, Descriptor, Limit, Request, Unit};
use tonic::Status;

use crate::service::rls::{Shown, action, overriding};
use crate::service::{Moment, Service, ServiceError, Status as DescriptorAnswer, Timing};
use crate::settings::Grants;

use super::message::{self, Writer};
use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as WireUnit;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::status::status;
use super::timeout::Patience;

/// RLS v3 on top of the service.
#[derive(Debug)]
pub(super) struct RateLimits {
    service: Arc<Service>,
    grants: Grants,
    max_message_bytes: usize,
    moment: Moment,
    writer: Writer<RateLimitResponse>,
}

impl RateLimits {
    pub(super) fn new(service: Arc<Service>, grants: Grants, max_message_bytes: usize) -> RateLimits {
        RateLimits { service, grants, max_message_bytes, moment: Moment::default(), writer: Writer::default() }
    }

    /// Runs `row`; whatever is decided in it is decided at one time.
    pub(super) fn at_one_time(&self, row: impl FnOnce()) {
        self.moment.hold(self.service.limiter().now(), row);
    }

    /// One call: its message in, the answer out, framed.
    pub(super) async fn should_rate_limit<B>(&self, patience: Patience, body: B) -> Result<Bytes, Status>
    where
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        let message = message::read(body, self.max_message_bytes).await?;
        let wire = RateLimitRequest::decode(&*message).map_err(|error| {
            let text = format!("the message is no RateLimitRequest: {error}");
            status(&self.service.rejected(ServiceError::BadRequest(text)))
        })?;
        self.judge(&wire, patience).await
    }

    async fn judge(&self, wire: &RateLimitRequest, patience: Patience) -> Result<Bytes, Status> {
        let entries: SmallVec<[(&str, &str); 8]> = wire
            .descriptors
            .iter()
            .flat_map(|descriptor| descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)))
            .collect();
        let limits = self.overrides(&wire.descriptors)?;
        let (mut entries, mut limits) = (&entries[..], &limits[..]);
        let mut descriptors: SmallVec<[Descriptor<'_>; 4]> = SmallVec::with_capacity(wire.descriptors.len());
        for descriptor in &wire.descriptors {
            let (own, rest) = entries.split_at(descriptor.entries.len());
            entries = rest;
            let mut limit = None;
            if let (Some(_), Some((first, rest))) = (descriptor.limit, limits.split_first()) {
                (limit, limits) = (Some(first), rest);
            }
            let action = action(descriptor.hits_addend, wire.hits_addend.into(), descriptor.is_negative_hits);
            descriptors.push(Descriptor { entries: own, action, limit });
        }
        // RLS has no way to say "later", so nothing can wait.
        let request = Request { domain: &wire.domain, descriptors: &descriptors, max_wait_ns: 0 };
        let rules = self.service.rules();
        let timing = Timing { moment: Some(&self.moment), timeout: patience.left() };
        let answer = self.service.decide_in(timing, &rules, &request, self.grants).await;
        let answer = answer.map_err(|error| status(&error))?;
        if descriptors.iter().any(|descriptor| descriptor.action == Action::Take(0)) {
            self.service.looked(&rules, &descriptors, &answer);
        }
        self.writer.framed(|response| {
            response.set_overall_code(code(!answer.verdict.allowed));
            let statuses = answer.statuses.iter().map(|status| descriptor_status(status, answer.verdict.now));
            response.statuses.extend(statuses);
        })
    }

    /// The limits that descriptors bring along, in their order. Of descriptors beyond the bound
    /// none is built: the service refuses such a request anyway.
    fn overrides(&self, descriptors: &[RateLimitDescriptor]) -> Result<Vec<Limit>, Status> {
        let bounded = descriptors.iter().take(self.service.options().bounds.descriptors);
        let limits = bounded.filter_map(|descriptor| descriptor.limit.as_ref());
        let policy = self.service.options().on_store_failure;
        let limits: Result<_, _> = limits.map(|wire| overriding(wire.requests_per_unit, wire.unit, policy)).collect();
        limits.map_err(|error| status(&self.service.rejected(error)))
    }
}

fn descriptor_status(answer: &DescriptorAnswer<'_>, now: Time) -> DescriptorStatus {
    let mut status = DescriptorStatus { code: code(answer.enforced_over).into(), ..DescriptorStatus::default() };
    if answer.unlimited {
        status.limit_remaining = u32::MAX;
    }
    let Some(shown) = Shown::of(answer, now) else { return status };
    status.current_limit = shown.exposed.then(|| RateLimit {
        requests_per_unit: shown.requests_per_unit,
        unit: shown.unit.map_or(WireUnit::Unknown, wire_unit).into(),
        name: shown.name.to_owned(),
    });
    status.limit_remaining = shown.remaining;
    status.duration_until_reset = shown
        .until_reset_secs
        .map(|secs| prost_types::Duration { seconds: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 });
    status
}

fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

fn wire_unit(unit: Unit) -> WireUnit {
    match unit {
        Unit::Second => WireUnit::Second,
        Unit::Minute => WireUnit::Minute,
        Unit::Hour => WireUnit::Hour,
        Unit::Day => WireUnit::Day,
        Unit::Week => WireUnit::Week,
        Unit::Month => WireUnit::Month,
        Unit::Year => WireUnit::Year,
    }
}
