//! gRPC: the rate limit service (RLS v3), health and reflection.

mod answer;
mod health;
mod message;
mod rls;
mod status;
mod timeout;

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use tokio::time::Instant;
use tonic::Status;
use tonic::service::Routes;
use tower::{BoxError, Service as _};

use crate::service::Service;
use crate::settings::Grants;

pub use answer::AnswerBody;

use health::Health;
use rls::RateLimits;
use timeout::Patience;

/// What the compiler made of `proto/`.
#[allow(clippy::all, missing_debug_implementations, unreachable_pub)]
pub mod proto {
    tonic::include_proto!("rls");

    /// The wire's own description of itself, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rls.fds"));
}

/// The one method that has to be fast, and so goes without tonic.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Everything that one gRPC listener serves.
#[derive(Clone, Debug)]
pub struct Grpc {
    service: Arc<Service>,
    grants: Grants,
    max_message_bytes: usize,
    others: Routes,
}

/// The same for one connection, whose reference counts no other core touches.
#[derive(Debug)]
pub struct GrpcConnection {
    rls: RateLimits,
    others: Routes,
}

impl Grpc {
    /// What serves `service` to callers who may do what `grants` says, in messages of at most `max_message_bytes`.
    ///
    /// # Errors
    /// The descriptors compiled in cannot be read.
    pub fn new(
        service: Arc<Service>,
        grants: Grants,
        max_message_bytes: usize,
    ) -> Result<Grpc, tonic_reflection::server::Error> {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let health = Health::server(Arc::clone(&service)).max_decoding_message_size(max_message_bytes);
        let v1 = reflection().build_v1()?.max_decoding_message_size(max_message_bytes);
        let v1alpha = reflection().build_v1alpha()?.max_decoding_message_size(max_message_bytes);
        let others = Routes::new(health).add_service(v1).add_service(v1alpha).prepare();
        Ok(Grpc { service, grants, max_message_bytes, others })
    }

    /// What one connection calls.
    #[must_use]
    pub fn connection(&self) -> GrpcConnection {
        let rls = RateLimits::new(Arc::clone(&self.service), self.grants, self.max_message_bytes);
        GrpcConnection { rls, others: self.others.clone() }
    }
}

/// A call, as far as its head tells. It is small, since the future that answers it carries it around.
#[derive(Debug)]
pub struct Call<B>(Kind<B>);

#[derive(Debug)]
enum Kind<B> {
    ShouldRateLimit {
        patience: Patience,
        body: B,
    },
    /// Its message cannot be read.
    Refused(Box<Status>),
    /// Of another method, which tonic answers.
    Other(Box<Request<B>>),
    /// No gRPC.
    Stranger,
}

impl<B> Call<B> {
    /// What `request` is, which came then.
    pub fn of(request: Request<B>, came: Instant) -> Call<B> {
        Call(if !is_grpc(request.headers()) {
            Kind::Stranger
        } else if request.uri().path() != SHOULD_RATE_LIMIT {
            Kind::Other(Box::new(request))
        } else if let Err(status) = message::is_uncompressed(request.headers()) {
            Kind::Refused(Box::new(status))
        } else {
            Kind::ShouldRateLimit { patience: Patience::of(request.headers(), came), body: request.into_body() }
        })
    }
}

impl GrpcConnection {
    /// Answers one call.
    pub async fn answer<B>(&self, call: Call<B>) -> Response<AnswerBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Display + Send,
    {
        match call.0 {
            Kind::ShouldRateLimit { patience, body } => match self.rls.should_rate_limit(patience, body).await {
                Ok(message) => answer::of_message(message),
                Err(status) => status.into_http(),
            },
            Kind::Refused(status) => status.into_http(),
            Kind::Other(request) => {
                let answered = self.others.clone().call(*request).await;
                answered.unwrap_or_else(|never| match never {}).map(AnswerBody::Other)
            }
            Kind::Stranger => answer::of_stranger(),
        }
    }

    /// Runs `row`, in which calls that were read together are answered: all that is decided in it is decided at
    /// one time.
    pub fn at_one_time(&self, row: impl FnOnce()) {
        self.rls.at_one_time(row);
    }

    /// What is answered to a call that panicked.
    #[must_use]
    pub fn failure() -> Response<AnswerBody> {
        Status::internal("the server failed while it answered this call").into_http()
    }
}

/// `application/grpc`, perhaps with the format of its messages behind it.
fn is_grpc(headers: &HeaderMap) -> bool {
    let content = headers.get(CONTENT_TYPE).and_then(|content| content.as_bytes().strip_prefix(b"application/grpc"));
    content.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

#[cfg(test)]
mod tests;
