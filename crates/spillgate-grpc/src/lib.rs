//! gRPC: Envoy's rate limit service (RLS v3), over which Envoy and other proxies ask for decisions, and the standard
//! services for health and reflection.

mod answer;
mod health;
mod lossy;
mod message;
mod rls;
mod status;
mod streams;
mod timeout;

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use spillgate::Time;
use tokio::time::Instant;
use tonic::Status;
use tonic::service::Routes;
use tower::{BoxError, Service as _};

pub use answer::AnswerBody;
pub use streams::OPEN_CALLS_BYTES;

use health::Health;
use rls::RateLimits;
use spillgate_service::{Grants, Service};
use timeout::CallDeadline;

/// The code that the compiler of protobuf generated from `proto/`.
#[allow(clippy::all, missing_debug_implementations, unreachable_pub)]
pub mod proto {
    tonic::include_proto!("rls");

    /// The protobuf descriptors of these messages and services, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rls.fds"));
}

/// The method of RLS. It has to be fast, so its calls do not go through tonic.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The services of one gRPC listener.
#[derive(Clone, Debug)]
pub struct Grpc {
    service: Arc<Service>,
    grants: Grants,
    max_message_bytes: usize,
    others: Routes,
    open: streams::OfListener,
}

/// The services of one gRPC connection. Each connection has a copy of its own. If all connections shared one copy, the
/// cores would write the same reference counts at each call.
#[derive(Debug)]
pub struct GrpcConnection {
    rls: RateLimits,
    others: Routes,
    open: streams::OfConnection,
}

impl Grpc {
    /// Returns the services of a listener, which get their decisions from `service`. A message can have at most
    /// `max_message_bytes` bytes. `grants` says whether callers may send refunds, and limits of their own.
    ///
    /// # Errors
    /// The compiled descriptors cannot be read.
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
        let of_reflection = max_message_bytes.min(streams::REFLECTION_MESSAGE_BYTES);
        let v1 = reflection().build_v1()?.max_decoding_message_size(of_reflection);
        let v1alpha = reflection().build_v1alpha()?.max_decoding_message_size(of_reflection);
        let others = Routes::new(health).add_service(v1).add_service(v1alpha).prepare();
        let open = streams::OfListener::new(service.metrics().grpc_open_calls.clone());
        Ok(Grpc { service, grants, max_message_bytes, others, open })
    }

    #[must_use]
    pub fn connection(&self) -> GrpcConnection {
        let rls = RateLimits::new(Arc::clone(&self.service), self.grants, self.max_message_bytes);
        GrpcConnection { rls, others: self.others.clone(), open: self.open.connection() }
    }
}

/// A call whose head was read. This type has to be small, because the future that answers the call contains it.
#[derive(Debug)]
pub struct Call<B>(Kind<B>);

#[derive(Debug)]
enum Kind<B> {
    ShouldRateLimit {
        now: Option<Time>,
        deadline: CallDeadline,
        body: B,
    },
    /// A call whose message is compressed. The status says that compression is not supported.
    Refused(Box<Status>),
    /// A call of another method, which tonic answers.
    Other(Box<Request<B>>),
    /// A request that is not gRPC.
    NotGrpc,
}

impl<B> Call<B> {
    /// Returns the call of `request`, which arrived at the time `came`. All calls of a batch get the same time `now`,
    /// so that the connection reads the clock only once for the whole batch. A call without `now` reads the clock
    /// itself.
    pub fn of(request: Request<B>, came: Instant, now: Option<Time>) -> Call<B> {
        Call(if !is_grpc(request.headers()) {
            Kind::NotGrpc
        } else if request.uri().path() != SHOULD_RATE_LIMIT {
            Kind::Other(Box::new(request))
        } else if let Err(status) = message::is_uncompressed(request.headers()) {
            Kind::Refused(Box::new(status))
        } else {
            Kind::ShouldRateLimit {
                now,
                deadline: CallDeadline::of(request.headers(), came),
                body: request.into_body(),
            }
        })
    }
}

impl GrpcConnection {
    /// Answers one call.
    ///
    /// This is not an `async fn`, because the future of an `async fn` would contain the call twice.
    pub fn answer<B>(&self, call: Call<B>) -> impl Future<Output = Response<AnswerBody>> + Send
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Display + Send,
    {
        let Call(kind) = call;
        async move {
            match kind {
                Kind::ShouldRateLimit { now, deadline, body } => {
                    match self.rls.should_rate_limit(now, deadline, body).await {
                        Ok(message) => answer::of_message(message),
                        Err(status) => status.into_http(),
                    }
                }
                Kind::Refused(status) => status.into_http(),
                Kind::Other(request) => {
                    let place = match self.open.take(request.uri().path()) {
                        Ok(place) => place,
                        Err(status) => return status.into_http(),
                    };
                    let answered = self.others.clone().call(*request).await.unwrap_or_else(|never| match never {});
                    // The body owns the place, so that the place is free again when the answer has ended or is dropped.
                    let placed = move |frame| {
                        let _ = &place;
                        frame
                    };
                    answered.map(|body| AnswerBody::Other(tonic::body::Body::new(body.map_frame(placed))))
                }
                Kind::NotGrpc => answer::unsupported(),
            }
        }
    }

    /// Returns the current time of the limiter's clock. A connection uses it for all calls of one batch.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        self.rls.now()
    }

    /// Returns the answer to a call whose handler panicked.
    #[must_use]
    pub fn failure() -> Response<AnswerBody> {
        Status::internal("the server failed while it answered this call").into_http()
    }
}

/// Returns whether the content type is `application/grpc`, with or without a message format.
fn is_grpc(headers: &HeaderMap) -> bool {
    let content = headers.get(CONTENT_TYPE).and_then(|content| content.as_bytes().strip_prefix(b"application/grpc"));
    content.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

#[cfg(test)]
mod tests;
