//! How the service's errors look to a gRPC client.

use spillgate::StoreError;
use tonic::Status;

use crate::service::ServiceError;

/// The one place where a service error becomes a status.
///
/// Envoy treats every status but OK as a failure of the rate limit service, and then does what
/// its `failure_mode_deny` says: it lets the request pass, or answers 500. The code tells the
/// operator who has to act.
pub(super) fn status(error: &ServiceError) -> Status {
    let text = error.to_string();
    match error {
        // The caller's configuration has to change; asking again will not help.
        ServiceError::BadRequest(_) | ServiceError::TooLarge { .. } => Status::invalid_argument(text),
        ServiceError::UnknownLimit => Status::not_found(text),
        // The listener's `allow` has to change.
        ServiceError::Forbidden(_) => Status::permission_denied(text),
        // A mistake of ours: asking again gives the same.
        ServiceError::Store(StoreError::Malformed(_)) => Status::internal(text),
        // Passing trouble of ours: the caller's failure mode decides, and may ask again.
        ServiceError::Store(_) => Status::unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_store_that_fails_is_unavailable_so_that_the_failure_mode_of_the_proxy_decides() {
        let error = ServiceError::Store(StoreError::Unavailable("timed out".into()));
        assert_eq!(status(&error).code(), Code::Unavailable);
    }

    #[test]
    fn a_question_that_we_put_wrongly_is_no_trouble_of_the_store() {
        assert_eq!(status(&ServiceError::Store(StoreError::Malformed("hits"))).code(), Code::Internal);
    }

    #[test]
    fn the_callers_mistakes_are_not_the_stores() {
        assert_eq!(status(&ServiceError::BadRequest("no domain".into())).code(), Code::InvalidArgument);
        assert_eq!(status(&ServiceError::TooLarge { what: "entries", max: 1 }).code(), Code::InvalidArgument);
        assert_eq!(status(&ServiceError::Forbidden("no refunds")).code(), Code::PermissionDenied);
    }
}
