//! What can go wrong between a request and its decision.

use std::borrow::Cow;
use std::fmt;

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerError};
use spillgate_core::StoreError;

/// A class of failures; metrics and policies go by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No answer before the deadline.
    Timeout,
    /// The connection ended before the answer.
    Disconnected,
    /// There was no connection before the deadline, or no time at all: the server was not asked.
    NotSent,
    /// As many requests as may be are in flight already, or as many answers as may be are awaited on the connection.
    Overloaded,
    /// The circuit breaker is open: the server was not asked.
    CircuitOpen,
    /// The server refuses writes: it is a replica, lacks replicas of its own, or cannot save. The primary has to be found
    /// anew.
    ReadOnly,
    /// The server reads its data, or waits for its primary's.
    Loading,
    /// The server runs somebody's slow script.
    Busy,
    /// The server's memory is full.
    OutOfMemory,
    /// The user may not do this, or is none.
    NoPermission,
    /// The key holds something else.
    WrongType,
    /// The key is on another server.
    Moved,
    /// The cluster serves nobody.
    ClusterDown,
    /// The server loses its scripts as fast as it gets them.
    NoScript,
    /// The request is none that scripts can serve: the server was not asked.
    Malformed,
    /// The answer is none to what was asked, or only a part of it was done.
    Garbled,
    /// Any other error.
    Other,
}

impl ErrorKind {
    /// All of them, in the order of their declaration.
    pub const ALL: [ErrorKind; 17] = [
        ErrorKind::Timeout,
        ErrorKind::Disconnected,
        ErrorKind::NotSent,
        ErrorKind::Overloaded,
        ErrorKind::CircuitOpen,
        ErrorKind::ReadOnly,
        ErrorKind::Loading,
        ErrorKind::Busy,
        ErrorKind::OutOfMemory,
        ErrorKind::NoPermission,
        ErrorKind::WrongType,
        ErrorKind::Moved,
        ErrorKind::ClusterDown,
        ErrorKind::NoScript,
        ErrorKind::Malformed,
        ErrorKind::Garbled,
        ErrorKind::Other,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Timeout => "timeout",
            ErrorKind::Disconnected => "disconnected",
            ErrorKind::NotSent => "unasked",
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::CircuitOpen => "open",
            ErrorKind::ReadOnly => "readonly",
            ErrorKind::Loading => "loading",
            ErrorKind::Busy => "busy",
            ErrorKind::OutOfMemory => "oom",
            ErrorKind::NoPermission => "noperm",
            ErrorKind::WrongType => "wrongtype",
            ErrorKind::Moved => "moved",
            ErrorKind::ClusterDown => "clusterdown",
            ErrorKind::NoScript => "noscript",
            ErrorKind::Malformed => "malformed",
            ErrorKind::Garbled => "garbled",
            ErrorKind::Other => "other",
        }
    }

    /// What it means, in words for people that go on after "the store did not decide:".
    #[must_use]
    pub fn explanation(self) -> &'static str {
        match self {
            ErrorKind::Timeout => "it did not answer in time",
            ErrorKind::Disconnected => "the connection to it ended",
            ErrorKind::NotSent => "there was no connection to it, or no time left to ask",
            ErrorKind::Overloaded => "too many requests wait for it already",
            ErrorKind::CircuitOpen => "it failed just before, and is left alone until it answers again",
            ErrorKind::ReadOnly => "it refuses writes",
            ErrorKind::Loading => "it reads its data",
            ErrorKind::Busy => "it runs a slow script",
            ErrorKind::OutOfMemory => "its memory is full",
            ErrorKind::NoPermission => "its user may not do this, or cannot log in",
            ErrorKind::WrongType => "a key of ours holds something else",
            ErrorKind::Moved => "another node of its cluster has the key",
            ErrorKind::ClusterDown => "its cluster serves nobody",
            ErrorKind::NoScript => "it loses its scripts",
            ErrorKind::Malformed => "it cannot be asked this",
            ErrorKind::Garbled => "its answer makes no sense",
            ErrorKind::Other => "it answered with an error",
        }
    }

    /// Whether it only follows from an earlier failure, which is the cause: the server was not asked.
    #[must_use]
    pub fn is_consequence(self) -> bool {
        matches!(self, ErrorKind::NotSent | ErrorKind::CircuitOpen)
    }

    /// Whether the server may have charged nevertheless. After all others it has not; but of a request with hits in
    /// several slots of a cluster the other slots may have, after any failure, until they have given it back.
    #[must_use]
    pub fn may_have_been_applied(self) -> bool {
        matches!(self, ErrorKind::Timeout | ErrorKind::Disconnected | ErrorKind::Garbled)
    }

    /// The class of what a server answered.
    fn of_error(error: &ServerError) -> ErrorKind {
        // What a script's user may not do has no code of its own in every version.
        let refusals = ["The user executing the script can't", "ACL failure in script"];
        match ErrorKind::of_code(error.code()) {
            ErrorKind::Other if error.details().is_some_and(|said| refusals.iter().any(|no| said.starts_with(no))) => {
                ErrorKind::NoPermission
            }
            kind => kind,
        }
    }

    /// The class of an error that begins with `code`.
    fn of_code(code: &str) -> ErrorKind {
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

    /// Whether another node of a cluster may serve in place of the one that was asked.
    pub(crate) fn another_node_may_serve(self) -> bool {
        let unreachable =
            matches!(self, ErrorKind::Timeout | ErrorKind::Disconnected | ErrorKind::NotSent | ErrorKind::CircuitOpen);
        unreachable
            || matches!(self, ErrorKind::ReadOnly | ErrorKind::Loading | ErrorKind::Moved | ErrorKind::ClusterDown)
    }

    /// Whether the server as a whole serves nobody, by its own word.
    pub(crate) fn means_node_is_down(self) -> bool {
        matches!(self, ErrorKind::ReadOnly | ErrorKind::Loading | ErrorKind::Busy | ErrorKind::ClusterDown)
    }
}

/// One failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its class.
    pub kind: ErrorKind,
    /// What the server or the system said, for logs.
    pub detail: Cow<'static, str>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, detail: impl Into<Cow<'static, str>>) -> Error {
        Error { kind, detail: detail.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.detail)
    }
}

impl std::error::Error for Error {}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        // Of several the first is the cause, or says the same as all others.
        if let Some((_, error)) = error.clone().into_server_errors().as_deref().and_then(<[_]>::first) {
            return Error::new(ErrorKind::of_error(error), error.to_string());
        }
        let kind = match error.kind() {
            // Who cannot read an answer cannot read the next one either: our side hangs up.
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
    fn from(failed: Error) -> StoreError {
        match failed {
            Error { kind: ErrorKind::Malformed, detail: Cow::Borrowed(what) } => StoreError::Malformed(what),
            // While the breaker is open every request ends here, and nothing is allocated.
            Error { detail: Cow::Borrowed(what), .. } => StoreError::Unavailable(Cow::Borrowed(what)),
            failed => StoreError::Unavailable(Cow::Owned(failed.to_string())),
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        match error {
            StoreError::Malformed(what) => Error::new(ErrorKind::Malformed, what),
            // So say those who read answers.
            StoreError::Unavailable(why) => Error::new(ErrorKind::Garbled, why),
            error => Error::new(ErrorKind::Other, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::ErrorKind;

    #[test]
    fn every_class_has_a_name_and_a_place_of_its_own() {
        let names: BTreeSet<&str> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ErrorKind::ALL.len());
        for (place, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place, "{kind:?}");
        }
        let explanation: BTreeSet<&str> = ErrorKind::ALL.iter().map(|kind| kind.explanation()).collect();
        assert_eq!(explanation.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn errors_of_servers_are_classed_by_their_first_word() {
        let classed = [
            ("READONLY", ErrorKind::ReadOnly),
            ("NOREPLICAS", ErrorKind::ReadOnly),
            ("MISCONF", ErrorKind::ReadOnly),
            ("LOADING", ErrorKind::Loading),
            ("MASTERDOWN", ErrorKind::Loading),
            ("BUSY", ErrorKind::Busy),
            ("OOM", ErrorKind::OutOfMemory),
            ("NOPERM", ErrorKind::NoPermission),
            ("NOAUTH", ErrorKind::NoPermission),
            ("WRONGTYPE", ErrorKind::WrongType),
            ("MOVED", ErrorKind::Moved),
            ("ASK", ErrorKind::Moved),
            ("TRYAGAIN", ErrorKind::Moved),
            ("CLUSTERDOWN", ErrorKind::ClusterDown),
            ("NOSCRIPT", ErrorKind::NoScript),
            ("ERR", ErrorKind::Other),
        ];
        for (code, kind) in classed {
            assert_eq!(ErrorKind::of_code(code), kind, "{code}");
        }
    }
}
