//! What can go wrong between a request and its decision.

use std::borrow::Cow;
use std::fmt;

use redis::{ErrorKind, RedisError, ServerError};
use spillgate_core::StoreError;

/// A class of failures; metrics and policies go by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// No answer before the deadline.
    Timeout,
    /// The connection ended before the answer.
    Disconnected,
    /// There was no connection before the deadline, or no time at all: the server was not asked.
    Unasked,
    /// As many requests as may be are in flight already, or as many answers as may be are awaited on the connection.
    Overloaded,
    /// The circuit breaker is open: the server was not asked.
    Open,
    /// The server refuses writes: it is a replica, lacks replicas of its own, or cannot save. The primary has to be found
    /// anew.
    Readonly,
    /// The server reads its data, or waits for its primary's.
    Loading,
    /// The server runs somebody's slow script.
    Busy,
    /// The server's memory is full.
    Oom,
    /// The user may not do this, or is none.
    Noperm,
    /// The key holds something else.
    Wrongtype,
    /// The key is on another server.
    Moved,
    /// The cluster serves nobody.
    Clusterdown,
    /// The server loses its scripts as fast as it gets them.
    Noscript,
    /// The request is none that scripts can serve: the server was not asked.
    Malformed,
    /// The answer is none to what was asked, or only a part of it was done.
    Garbled,
    /// Any other error.
    Other,
}

impl Failure {
    /// All of them, in the order of their declaration.
    pub const ALL: [Failure; 17] = [
        Failure::Timeout,
        Failure::Disconnected,
        Failure::Unasked,
        Failure::Overloaded,
        Failure::Open,
        Failure::Readonly,
        Failure::Loading,
        Failure::Busy,
        Failure::Oom,
        Failure::Noperm,
        Failure::Wrongtype,
        Failure::Moved,
        Failure::Clusterdown,
        Failure::Noscript,
        Failure::Malformed,
        Failure::Garbled,
        Failure::Other,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::Disconnected => "disconnected",
            Failure::Unasked => "unasked",
            Failure::Overloaded => "overloaded",
            Failure::Open => "open",
            Failure::Readonly => "readonly",
            Failure::Loading => "loading",
            Failure::Busy => "busy",
            Failure::Oom => "oom",
            Failure::Noperm => "noperm",
            Failure::Wrongtype => "wrongtype",
            Failure::Moved => "moved",
            Failure::Clusterdown => "clusterdown",
            Failure::Noscript => "noscript",
            Failure::Malformed => "malformed",
            Failure::Garbled => "garbled",
            Failure::Other => "other",
        }
    }

    /// What it means, in words for people that go on after "the store did not decide:".
    #[must_use]
    pub fn explained(self) -> &'static str {
        match self {
            Failure::Timeout => "it did not answer in time",
            Failure::Disconnected => "the connection to it ended",
            Failure::Unasked => "there was no connection to it, or no time left to ask",
            Failure::Overloaded => "too many requests wait for it already",
            Failure::Open => "it failed just before, and is left alone until it answers again",
            Failure::Readonly => "it refuses writes",
            Failure::Loading => "it reads its data",
            Failure::Busy => "it runs a slow script",
            Failure::Oom => "its memory is full",
            Failure::Noperm => "its user may not do this, or cannot log in",
            Failure::Wrongtype => "a key of ours holds something else",
            Failure::Moved => "another node of its cluster has the key",
            Failure::Clusterdown => "its cluster serves nobody",
            Failure::Noscript => "it loses its scripts",
            Failure::Malformed => "it cannot be asked this",
            Failure::Garbled => "its answer makes no sense",
            Failure::Other => "it answered with an error",
        }
    }

    /// Whether it only follows from an earlier failure, which is the cause: the server was not asked.
    #[must_use]
    pub fn is_consequence(self) -> bool {
        matches!(self, Failure::Unasked | Failure::Open)
    }

    /// Whether the server may have charged nevertheless. After all others it has not; but of a request with hits in
    /// several slots of a cluster the other slots may have, after any failure, until they have given it back.
    #[must_use]
    pub fn is_in_doubt(self) -> bool {
        matches!(self, Failure::Timeout | Failure::Disconnected | Failure::Garbled)
    }

    /// The class of what a server answered.
    fn of_error(error: &ServerError) -> Failure {
        // What a script's user may not do has no code of its own in every version.
        let refusals = ["The user executing the script can't", "ACL failure in script"];
        match Failure::of_code(error.code()) {
            Failure::Other if error.details().is_some_and(|said| refusals.iter().any(|no| said.starts_with(no))) => {
                Failure::Noperm
            }
            class => class,
        }
    }

    /// The class of an error that begins with `code`.
    fn of_code(code: &str) -> Failure {
        match code {
            "READONLY" | "NOREPLICAS" | "MISCONF" => Failure::Readonly,
            "LOADING" | "MASTERDOWN" => Failure::Loading,
            "BUSY" => Failure::Busy,
            "OOM" => Failure::Oom,
            "NOPERM" | "NOAUTH" | "WRONGPASS" => Failure::Noperm,
            "WRONGTYPE" => Failure::Wrongtype,
            "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => Failure::Moved,
            "CLUSTERDOWN" => Failure::Clusterdown,
            "NOSCRIPT" => Failure::Noscript,
            _ => Failure::Other,
        }
    }

    /// Whether another node of a cluster may serve in place of the one that was asked.
    pub(crate) fn may_be_elsewhere(self) -> bool {
        let unreachable = matches!(self, Failure::Timeout | Failure::Disconnected | Failure::Unasked | Failure::Open);
        unreachable || matches!(self, Failure::Readonly | Failure::Loading | Failure::Moved | Failure::Clusterdown)
    }

    /// Whether the server as a whole serves nobody, by its own word.
    pub(crate) fn is_of_the_server(self) -> bool {
        matches!(self, Failure::Readonly | Failure::Loading | Failure::Busy | Failure::Clusterdown)
    }
}

/// One failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its class.
    pub class: Failure,
    /// What the server or the system said, for logs.
    pub detail: Cow<'static, str>,
}

impl Failed {
    pub(crate) fn new(class: Failure, detail: impl Into<Cow<'static, str>>) -> Failed {
        Failed { class, detail: detail.into() }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class.name(), self.detail)
    }
}

impl std::error::Error for Failed {}

impl From<RedisError> for Failed {
    fn from(error: RedisError) -> Failed {
        // Of several the first is the cause, or says the same as all others.
        if let Some((_, error)) = error.clone().into_server_errors().as_deref().and_then(<[_]>::first) {
            return Failed::new(Failure::of_error(error), error.to_string());
        }
        let class = match error.kind() {
            // Who cannot read an answer cannot read the next one either: our side hangs up.
            ErrorKind::Io | ErrorKind::Parse => Failure::Disconnected,
            ErrorKind::Client => Failure::Overloaded,
            _ => Failure::Other,
        };
        Failed::new(class, error.to_string())
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed::new(Failure::Disconnected, error.to_string())
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> StoreError {
        match failed {
            Failed { class: Failure::Malformed, detail: Cow::Borrowed(what) } => StoreError::Malformed(what),
            // While the breaker is open every request ends here, and nothing is allocated.
            Failed { detail: Cow::Borrowed(what), .. } => StoreError::Unavailable(Cow::Borrowed(what)),
            failed => StoreError::Unavailable(Cow::Owned(failed.to_string())),
        }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        match error {
            StoreError::Malformed(what) => Failed::new(Failure::Malformed, what),
            // So say those who read answers.
            StoreError::Unavailable(why) => Failed::new(Failure::Garbled, why),
            error => Failed::new(Failure::Other, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Failure;

    #[test]
    fn every_class_has_a_name_and_a_place_of_its_own() {
        let names: BTreeSet<&str> = Failure::ALL.iter().map(|class| class.name()).collect();
        assert_eq!(names.len(), Failure::ALL.len());
        for (place, class) in Failure::ALL.iter().enumerate() {
            assert_eq!(*class as usize, place, "{class:?}");
        }
        let explained: BTreeSet<&str> = Failure::ALL.iter().map(|class| class.explained()).collect();
        assert_eq!(explained.len(), Failure::ALL.len());
    }

    #[test]
    fn errors_of_servers_are_classed_by_their_first_word() {
        let classed = [
            ("READONLY", Failure::Readonly),
            ("NOREPLICAS", Failure::Readonly),
            ("MISCONF", Failure::Readonly),
            ("LOADING", Failure::Loading),
            ("MASTERDOWN", Failure::Loading),
            ("BUSY", Failure::Busy),
            ("OOM", Failure::Oom),
            ("NOPERM", Failure::Noperm),
            ("NOAUTH", Failure::Noperm),
            ("WRONGTYPE", Failure::Wrongtype),
            ("MOVED", Failure::Moved),
            ("ASK", Failure::Moved),
            ("TRYAGAIN", Failure::Moved),
            ("CLUSTERDOWN", Failure::Clusterdown),
            ("NOSCRIPT", Failure::Noscript),
            ("ERR", Failure::Other),
        ];
        for (code, class) in classed {
            assert_eq!(Failure::of_code(code), class, "{code}");
        }
    }
}
