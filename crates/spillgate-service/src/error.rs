//! The errors of a request that was not decided. Each protocol translates these errors to its own status codes.

use spillgate::{StoreError, StoreErrorKind};

use crate::metrics::Rejection;

/// Why a request was not decided. A refusal is not an error.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The request is invalid. The text says why.
    #[error("{0}")]
    BadRequest(String),
    /// A reset names a descriptor that no limit matches. The number is the position of this descriptor in the request,
    /// counted from 1.
    #[error("no limit matches descriptor {0}")]
    UnknownLimit(usize),
    /// The request exceeds a bound of the server.
    #[error("too many {what}: at most {max} are allowed")]
    TooLarge {
        /// What the request has too many of, in the plural, for the text of the error.
        what: &'static str,
        max: usize,
    },
    /// The request needs a right that its listener does not grant. The text names this right.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The store could not decide. The client gets a general explanation of this kind of error, and only the log has
    /// the exact text of the store. One kind is an exception: if the request to the store was malformed, the client
    /// gets the exact text too.
    #[error("{}", store_text(.0))]
    Store(#[from] StoreError),
}

impl ServiceError {
    /// Returns the reason under which a rejected request is counted, or `None` if the store caused the error.
    pub(super) fn rejection(&self) -> Option<Rejection> {
        match self {
            ServiceError::BadRequest(_) | ServiceError::UnknownLimit(_) => Some(Rejection::BadRequest),
            ServiceError::TooLarge { .. } => Some(Rejection::TooLarge),
            ServiceError::Forbidden(_) => Some(Rejection::Forbidden),
            ServiceError::Store(_) => None,
        }
    }
}

fn store_text(error: &StoreError) -> String {
    match error.kind() {
        StoreErrorKind::Malformed => format!("malformed request to the store: {}", error.detail()),
        kind => format!("the store is unavailable: {}", kind.explanation()),
    }
}
