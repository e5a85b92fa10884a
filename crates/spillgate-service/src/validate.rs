//! Checks a request before it is compared with the rules.
//!
//! Clients decide how large a request is. These bounds limit the time and memory that one request can cost.

use spillgate::Clock;
use spillgate::rules::{Action, Request};

use super::{Grants, Service, ServiceError};
impl<C: Clock> Service<C> {
    /// Checks everything in a request that can be checked without the rules: its size, and the rights of its listener.
    pub(super) fn validate(&self, request: &Request<'_>, grants: Grants) -> Result<(), ServiceError> {
        let bounds = &self.options.bounds;
        if request.domain.is_empty() {
            return Err(ServiceError::BadRequest("the domain is empty: name a domain of the rules".into()));
        }
        let descriptors = request.descriptors();
        if descriptors.len() == 0 {
            return Err(ServiceError::BadRequest("there are no descriptors: send at least one".into()));
        }
        within("bytes in the domain", request.domain.len(), bounds.key_bytes)?;
        within("descriptors", descriptors.len(), bounds.descriptors)?;
        for descriptor in descriptors {
            within("entries in a descriptor", descriptor.entries.len(), bounds.entries)?;
            for (key, _) in descriptor.entries {
                within("bytes in an entry's key", key.len(), bounds.key_bytes)?;
            }
            if matches!(descriptor.action, Action::Refund(_)) && !grants.refund {
                return Err(ServiceError::Forbidden("a request on this listener may not give units back"));
            }
            if descriptor.limit.is_some() && !grants.overriding {
                return Err(ServiceError::Forbidden("a request on this listener may not contain a limit of its own"));
            }
        }
        Ok(())
    }
}

/// Checks that `count` is at most `max`. Otherwise the error names `what` there is too much of, such as `descriptors`.
#[inline]
pub(super) fn within(what: &'static str, count: usize, max: usize) -> Result<(), ServiceError> {
    if count > max { Err(ServiceError::TooLarge { what, max }) } else { Ok(()) }
}
