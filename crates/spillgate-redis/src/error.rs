//! The errors of the store: their kinds, and how errors of the client library map to them.
//!
//! Metrics, policies and log lines need a small fixed set of kinds instead of the many texts that servers send.
//!
//! What the kinds of this store mean for its caller:
//!
//! | kind | was the request sent | may it have been charged | what helps |
//! |---|---|---|---|
//! | `Timeout`, `Disconnected` | yes | yes | wait; look at the server's load and its log |
//! | `NotSent`, `CircuitOpen` | no | no | look at the error before it ([`RedisStore::last_error`](crate::RedisStore::last_error)) |
//! | `Overloaded` | no | no | raise [`Settings::max_in_flight`](crate::Settings::max_in_flight), or send less |
//! | `ReadOnly`, `Loading`, `Busy`, `ClusterDown` | yes | no | wait: the breaker is open until the server serves again |
//! | `OutOfMemory` | yes | no | raise `maxmemory`, or let the server evict keys that expire (`volatile-ttl`) |
//! | `NoPermission` | perhaps | no | check the login, and the rights that [`Settings::commands`](crate::Settings::commands) lists |
//! | `WrongType` | yes | no | delete the key that the error names |
//! | `Moved` | yes | no | wait; for a single server, write its URL as that of a cluster |
//! | `NoScript` | yes | no | find the client that sends SCRIPT FLUSH |
//! | `Malformed` | no | no | change the request: the store does not [support](crate::supports) it |
//! | `Garbled` | yes | yes | delete the key that the error names, or report a bug |
//! | `Other` | perhaps | no | read the detail |

use std::borrow::Cow;
use std::fmt;

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerError};
use spillgate_core::StoreError;

/// The kind of an [`Error`]: the same for every store.
pub use spillgate_core::StoreErrorKind as ErrorKind;

/// The kind of an error that a server returned.
fn kind_of(error: &ServerError) -> ErrorKind {
    // Some versions have no code for a command that the user of a script may not run.
    let beginnings = ["The user executing the script can't", "ACL failure in script"];
    match kind_of_code(error.code()) {
        ErrorKind::Other
            if error.details().is_some_and(|text| beginnings.iter().any(|start| text.starts_with(start))) =>
        {
            ErrorKind::NoPermission
        }
        kind => kind,
    }
}

/// The kind of an error that begins with `code`.
fn kind_of_code(code: &str) -> ErrorKind {
    match code {
        "READONLY" | "NOREPLICAS" | "MISCONF" => ErrorKind::ReadOnly,
        "LOADING" | "MASTERDOWN" => ErrorKind::Loading,
        "BUSY" => ErrorKind::Busy,
        "OOM" => ErrorKind::OutOfMemory,
        "NOPERM" | "NOAUTH" | "WRONGPASS" => ErrorKind::NoPermission,
        "WRONGTYPE" => ErrorKind::WrongType,
        "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => ErrorKind::Moved,
        "CLUSTERDOWN" => ErrorKind::ClusterDown,
        "NOSCRIPT" => ErrorKind::NoScript,
        _ => ErrorKind::Other,
    }
}

/// Whether another node of a cluster may serve a request that failed with this kind of error.
pub(crate) fn another_node_may_serve(kind: ErrorKind) -> bool {
    let is_unreachable =
        matches!(kind, ErrorKind::Timeout | ErrorKind::Disconnected | ErrorKind::NotSent | ErrorKind::CircuitOpen);
    let does_not_serve =
        matches!(kind, ErrorKind::ReadOnly | ErrorKind::Loading | ErrorKind::Moved | ErrorKind::ClusterDown);
    is_unreachable || does_not_serve
}

/// Whether a server that returns this kind of error serves no request at all.
pub(crate) fn means_node_is_down(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ReadOnly | ErrorKind::Loading | ErrorKind::Busy | ErrorKind::ClusterDown)
}

/// An error of the store.
///
/// ```
/// use spillgate_redis::{ErrorKind, RedisStore, Settings};
///
/// let error = RedisStore::new(&Settings::new("http://redis")).err().ok_or("not a store")?;
/// assert_eq!(error.kind, ErrorKind::Other);
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its kind.
    pub kind: ErrorKind,
    /// What the server or the system reported, for logs.
    pub detail: Cow<'static, str>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, detail: impl Into<Cow<'static, str>>) -> Error {
        Error { kind, detail: detail.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.detail)
    }
}

impl std::error::Error for Error {}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        // If there are several errors, the first one is the cause, or all say the same.
        if let Some((_, error)) = error.clone().into_server_errors().as_deref().and_then(<[_]>::first) {
            return Error::new(kind_of(error), error.to_string());
        }
        let kind = match error.kind() {
            // After an unreadable reply, no later reply can be found. The store closes the connection.
            RedisErrorKind::Io | RedisErrorKind::Parse => ErrorKind::Disconnected,
            RedisErrorKind::Client => ErrorKind::Overloaded,
            _ => ErrorKind::Other,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::new(ErrorKind::Disconnected, error.to_string())
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> StoreError {
        StoreError::new(error.kind, error.detail)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        Error::new(error.kind(), error.into_detail())
    }
}

#[cfg(test)]
mod tests;
