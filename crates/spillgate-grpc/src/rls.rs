//! ShouldRateLimit: translates Envoy's request for the service, and the answer of the service for Envoy.
//!
//! This is the main path of the server, so the code avoids copies and allocations.

use std::fmt::Display;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body::Body;
use prost::{DecodeError, Message};
use spillgate::rules::{Action, Limit, Request, Unit};
use spillgate::{Time, Timing};
use spillgate_service::rls::{ReportedLimit, action, overriding};
use spillgate_service::{Client, Grants, Protocol, Service, ServiceError, Status as DescriptorAnswer};
use tonic::Status;

use super::lossy;
use super::message::{self, Writer};
use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as WireUnit;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::status::status;
use super::timeout::CallDeadline;

/// Answers calls of RLS v3 (Envoy's rate limit service) with decisions of the service.
#[derive(Debug)]
pub(super) struct RateLimits {
    service: Arc<Service>,
    client: Client,
    max_message_bytes: usize,
    writer: Writer<RateLimitResponse>,
}

impl RateLimits {
    pub(super) fn new(service: Arc<Service>, grants: Grants, max_message_bytes: usize) -> RateLimits {
        RateLimits {
            service,
            client: Client::new(Protocol::Grpc, grants),
            max_message_bytes,
            writer: Writer::default(),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.service.limiter().now()
    }

    /// Reads the message of a call, decides the request in the message, and returns the framed answer.
    ///
    /// `now` is the time of all calls in the batch of this call. If the message of this call arrives later than its
    /// batch, the call is decided with the time when the message has arrived.
    pub(super) async fn should_rate_limit<B>(
        &self,
        now: Option<Time>,
        deadline: CallDeadline,
        body: B,
    ) -> Result<Bytes, Status>
    where
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        // This block drops the future that reads the message. So the future of the decision, which begins after the
        // block, can use the same memory.
        let (wire, is_late) = {
            let (mut read, mut is_late) = (pin!(message::read(body, self.max_message_bytes)), false);
            let message = poll_fn(|cx| {
                let polled = read.as_mut().poll(cx);
                is_late |= polled.is_pending();
                polled
            });
            let message = message.await?;
            let decoded = RateLimitRequest::decode(&*message);
            let decoded = decoded.or_else(|error| lossy::decode(&message).ok_or(error));
            (decoded.map_err(|error| self.undecodable(&error))?, is_late)
        };
        let now = now.filter(|_| !is_late);
        self.decide(&wire, now, deadline).await
    }

    /// Returns the status for a message that is not a request.
    fn undecodable(&self, error: &DecodeError) -> Status {
        let text = format!("the message is not a RateLimitRequest: {error}");
        status(&self.service.rejected(ServiceError::BadRequest(text)))
    }

    async fn decide(
        &self,
        wire: &RateLimitRequest,
        now: Option<Time>,
        deadline: CallDeadline,
    ) -> Result<Bytes, Status> {
        let limits = self.overrides(&wire.descriptors)?;
        let mut limits = &limits[..];
        let rules = self.service.rules();
        // The `max_wait_ns` of this request stays 0, because RLS cannot tell a client to wait for its turn. So a leaky
        // bucket (a queue) allows only a request whose turn is now.
        let mut request = Request::new(&wire.domain);
        request.reserve(wire.descriptors.len());
        for descriptor in &wire.descriptors {
            let mut limit = None;
            if let (Some(_), Some((first, rest))) = (descriptor.limit, limits.split_first()) {
                (limit, limits) = (Some(first), rest);
            }
            let action = action(descriptor.hits_addend, wire.hits_addend.into(), descriptor.is_negative_hits);
            let entries = descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value));
            request.add(entries, action, limit);
        }
        let mut timing = Timing::default();
        (timing.now, timing.timeout) = (now, deadline.left());
        let answer = self.service.decide_in(timing, &rules, &request, self.client).await;
        let answer = answer.map_err(|error| status(&error))?;
        if request.descriptors().any(|descriptor| descriptor.action == Action::Take(0)) {
            self.service.count_peeks(&rules, &request, &answer);
        }
        self.writer.framed(|response| {
            response.set_overall_code(code(!answer.verdict.allowed));
            let statuses = answer.statuses.iter().map(|status| descriptor_status(status, answer.verdict.now));
            response.statuses.extend(statuses);
        })
    }

    /// Returns the limits that descriptors bring, in the order of the descriptors. Descriptors beyond the bound
    /// `limits.descriptors` are skipped, because the service rejects the whole request if it has so many.
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
    let Some(reported) = ReportedLimit::of(answer, now) else { return status };
    status.current_limit = reported.exposed.then(|| RateLimit {
        requests_per_unit: reported.requests_per_unit,
        unit: reported.unit.map_or(WireUnit::Unknown, wire_unit).into(),
        name: reported.name.to_owned(),
    });
    status.limit_remaining = reported.remaining;
    status.duration_until_reset = reported
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
