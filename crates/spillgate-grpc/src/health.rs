//! The service grpc.health.v1: reports whether the server is ready. `Check` reports it once, and `Watch` at each
//! change.
//!
//! Envoy and Kubernetes stop sending requests to a server that is not ready.

use std::sync::Arc;

use spillgate_service::{Readiness, Service};
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health as HealthApi, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// The services that a health check can name. The empty name is the whole server. `ratelimit` is the name in Envoy's
/// reference server.
const NAMES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// Answers health checks with the readiness of the service.
#[derive(Debug)]
pub(super) struct Health {
    service: Arc<Service>,
}

impl Health {
    pub(super) fn server(service: Arc<Service>) -> HealthServer<Health> {
        HealthServer::new(Health { service })
    }
}

#[tonic::async_trait]
impl HealthApi for Health {
    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !NAMES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("no such service"));
        }
        Ok(Response::new(response(serving(self.service.readiness()))))
    }

    /// Sends the status now and at each change. The stream ends when the server drains, because an open stream would
    /// delay the drain.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        if !NAMES.contains(&request.get_ref().service.as_str()) {
            // For an unknown service, the protocol demands a stream that stays open, because a server can add the
            // service later. This server never adds a service, so it ends the stream after the status `ServiceUnknown`.
            let unknown = response(ServingStatus::ServiceUnknown);
            sender.try_send(Ok(unknown)).map_err(|_| Status::internal("a new channel is full"))?;
            return Ok(Response::new(ReceiverStream::new(receiver)));
        }
        let mut readiness = self.service.watch_readiness();
        tokio::spawn(async move {
            loop {
                let now = *readiness.borrow_and_update();
                if sender.send(Ok(response(serving(now)))).await.is_err() || now == Readiness::Draining {
                    return;
                }
                let changed = tokio::select! {
                    changed = readiness.changed() => changed.is_ok(),
                    () = sender.closed() => false,
                };
                if !changed {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn serving(readiness: Readiness) -> ServingStatus {
    match readiness {
        Readiness::Ready => ServingStatus::Serving,
        Readiness::StoreDown | Readiness::Draining => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
