//! A gRPC server on tonic that answers without a decision.

use std::net::SocketAddr;

use tonic::{Request, Response, Status};

use crate::Outcome;
use crate::answer::pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use crate::answer::{self, pb};

struct Always;

#[tonic::async_trait]
impl RateLimitService for Always {
    async fn should_rate_limit(
        &self,
        request: Request<pb::RateLimitRequest>,
    ) -> Result<Response<pb::RateLimitResponse>, Status> {
        let request = request.into_inner();
        if request.domain.is_empty() {
            return Err(Status::invalid_argument("no domain"));
        }
        Ok(Response::new(answer::response(request.descriptors.len())))
    }
}

pub(crate) async fn serve(address: SocketAddr) -> Outcome {
    let service = RateLimitServiceServer::new(Always);
    tonic::transport::Server::builder().add_service(service).serve(address).await?;
    Ok(())
}
