//! The errors of a pacer.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use spillgate_core::StoreError;

/// Why a caller of a [`Pacer`](super::Pacer) gets no turn.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaceError {
    /// The turn would come after the deadline of the caller.
    TooLate {
        /// How long the caller would have to wait, if this is known.
        wait: Option<Duration>,
    },
    /// As many callers wait as [`max_waiters`](super::Pacer::max_waiters) allows.
    Full,
    /// No wait would help: the call needs more units than a quota can ever have.
    Never,
    /// The store failed.
    Store(StoreError),
    /// The runtime of the task that served the queue has ended, or has no timers.
    Stopped,
}

impl fmt::Display for PaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PaceError::TooLate { wait: Some(wait) } => write!(f, "the turn comes in {wait:?}, after the deadline"),
            PaceError::TooLate { wait: None } => f.write_str("the turn did not come before the deadline"),
            PaceError::Full => f.write_str("too many callers wait; raise max_waiters, or call less often"),
            PaceError::Never => f.write_str("no wait helps: the call needs more units than the quota can have"),
            PaceError::Store(error) => write!(f, "the store failed: {error}"),
            PaceError::Stopped => {
                f.write_str("the runtime that served the queue has ended, or has no timers (enable_time)")
            }
        }
    }
}

impl Error for PaceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            PaceError::Store(error) => Some(error),
            _ => None,
        }
    }
}
