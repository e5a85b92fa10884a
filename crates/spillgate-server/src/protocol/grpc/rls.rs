//! ShouldRateLimit: the wire's request becomes the service's, its answer the wire's.

use std::sync::Arc;

use smallvec::SmallVec;
use spillgate::rules::{Action, Descriptor, Limit, Request, Unit};
use tonic::Status;

use crate::service::{Service, ServiceError, Status as DescriptorAnswer};
use crate::settings::Grants;

use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as WireUnit;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::proto::envoy::r#type::v3::RateLimitUnit;
use super::status::status;

/// RLS v3 on top of the service.
#[derive(Clone, Debug)]
pub(super) struct RateLimits {
    service: Arc<Service>,
    grants: Grants,
}

impl RateLimits {
    pub(super) fn new(service: Arc<Service>, grants: Grants) -> RateLimits {
        RateLimits { service, grants }
    }

    async fn judge(&self, wire: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
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
            descriptors.push(Descriptor { entries: own, action: action(descriptor, wire.hits_addend), limit });
        }
        // RLS has no way to say "later", so nothing can wait.
        let request = Request { domain: &wire.domain, descriptors: &descriptors, max_wait_ns: 0 };
        let rules = self.service.rules();
        let answer = self.service.decide(&rules, &request, self.grants).await.map_err(|error| status(&error))?;
        Ok(RateLimitResponse {
            overall_code: code(!answer.verdict.allowed).into(),
            statuses: answer.statuses.iter().map(descriptor_status).collect(),
            ..RateLimitResponse::default()
        })
    }

    /// The limits that descriptors bring along, in their order. Of descriptors beyond the bound
    /// none is built: the service refuses such a request anyway.
    fn overrides(&self, descriptors: &[RateLimitDescriptor]) -> Result<Vec<Limit>, Status> {
        let bounded = descriptors.iter().take(self.service.options().bounds.descriptors);
        let limits: Result<_, _> = bounded.filter_map(|descriptor| descriptor.limit.as_ref()).map(overriding).collect();
        limits.map_err(|error| status(&self.service.rejected(error)))
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        Ok(tonic::Response::new(self.judge(request.get_ref()).await?))
    }
}

/// The descriptor's own number of hits goes before the request's, where 0 means one.
fn action(descriptor: &RateLimitDescriptor, of_request: u32) -> Action {
    let hits = descriptor.hits_addend.unwrap_or(u64::from(of_request.max(1)));
    if descriptor.is_negative_hits { Action::Refund(hits) } else { Action::Take(hits) }
}

fn overriding(wire: &RateLimitOverride) -> Result<Limit, ServiceError> {
    let unit = match RateLimitUnit::try_from(wire.unit) {
        Ok(RateLimitUnit::Second) => Unit::Second,
        Ok(RateLimitUnit::Minute) => Unit::Minute,
        Ok(RateLimitUnit::Hour) => Unit::Hour,
        Ok(RateLimitUnit::Day) => Unit::Day,
        Ok(RateLimitUnit::Month) => Unit::Month,
        Ok(RateLimitUnit::Year) => Unit::Year,
        Ok(RateLimitUnit::Unknown) | Err(_) => {
            let text = format!("the limit of a descriptor has the unknown unit {}", wire.unit);
            return Err(ServiceError::BadRequest(text));
        }
    };
    Ok(Limit::overriding(unit, wire.requests_per_unit))
}

fn descriptor_status(answer: &DescriptorAnswer<'_>) -> DescriptorStatus {
    let mut status = DescriptorStatus { code: code(answer.enforced_over).into(), ..DescriptorStatus::default() };
    if answer.unlimited {
        status.limit_remaining = u32::MAX;
    }
    let Some(limit) = answer.limit else { return status };
    let decision = &answer.decision;
    status.current_limit = Some(RateLimit {
        requests_per_unit: saturated(limit.requests_per_unit),
        unit: limit.unit.map_or(WireUnit::Unknown, wire_unit).into(),
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
    });
    status.limit_remaining = saturated(decision.remaining);
    // Whole seconds, since Envoy cuts the rest off, and up, since a wait that is cut is too short.
    let seconds = match decision.allowed {
        true => Some(decision.reset_after_ns.div_ceil(1_000_000_000)),
        false => decision.retry_after.secs_ceil(),
    };
    status.duration_until_reset =
        seconds.map(|seconds| prost_types::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 });
    status
}

fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
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
