//! Translates errors of the service to gRPC status codes.
//!
//! From the code, an operator can see where the error has to be fixed: at the client, in this server or in its store.

use spillgate::StoreErrorKind;
use spillgate_service::ServiceError;
use tonic::Status;

/// Returns the gRPC status of a service error.
///
/// Envoy treats every status except OK as a failure of the rate limit service. Envoy's setting `failure_mode_deny`
/// then decides whether Envoy allows the request or answers 500.
pub(super) fn status(error: &ServiceError) -> Status {
    let text = error.to_string();
    match error {
        // The configuration of the client has to change. The same request would fail again.
        ServiceError::BadRequest(_) | ServiceError::TooLarge { .. } => Status::invalid_argument(text),
        ServiceError::UnknownLimit(_) => Status::not_found(text),
        // The setting `allow` of the listener has to permit refunds, or limits that a request brings.
        ServiceError::Forbidden(_) => Status::permission_denied(text),
        // A bug of this server. The same request would fail again.
        ServiceError::Store(error) if error.kind() == StoreErrorKind::Malformed => Status::internal(text),
        // The store failed. The failure mode of the client decides what happens, and the client can try again.
        ServiceError::Store(_) => Status::unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use spillgate::StoreError;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_store_that_fails_is_unavailable_so_that_the_failure_mode_of_the_proxy_decides() {
        let error = ServiceError::Store(StoreError::new(StoreErrorKind::Timeout, "timed out"));
        assert_eq!(status(&error).code(), Code::Unavailable);
    }

    #[test]
    fn a_malformed_request_of_ours_is_not_blamed_on_the_store() {
        assert_eq!(status(&ServiceError::Store(StoreError::malformed("hits"))).code(), Code::Internal);
    }

    #[test]
    fn mistakes_of_the_caller_are_not_blamed_on_the_store() {
        assert_eq!(status(&ServiceError::BadRequest("no domain".into())).code(), Code::InvalidArgument);
        assert_eq!(status(&ServiceError::TooLarge { what: "entries", max: 1 }).code(), Code::InvalidArgument);
        assert_eq!(status(&ServiceError::Forbidden("no refunds")).code(), Code::PermissionDenied);
    }
}
