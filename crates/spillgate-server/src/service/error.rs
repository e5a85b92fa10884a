//! Why a request was not judged.

use spillgate::StoreError;

use crate::metrics::Rejection;

/// Why a request was not judged. A refusal is none of these.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The request makes no sense; the text says why.
    #[error("{0}")]
    BadRequest(String),
    /// Nothing limits what was named.
    #[error("no limit matches")]
    UnknownLimit,
    /// The request is beyond a bound.
    #[error("too many {what}: at most {max} are allowed")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// The most there may be.
        max: usize,
    },
    /// This listener may not do that.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ServiceError {
    /// What it is counted as; `None` where the store is at fault and not the caller.
    pub(super) fn rejection(&self) -> Option<Rejection> {
        match self {
            ServiceError::BadRequest(_) | ServiceError::UnknownLimit => Some(Rejection::BadRequest),
            ServiceError::TooLarge { .. } => Some(Rejection::TooLarge),
            ServiceError::Forbidden(_) => Some(Rejection::Forbidden),
            ServiceError::Store(_) => None,
        }
    }
}
