//! Why a store did not decide.
//!
//! Callers, metrics and fallbacks use the kind of an error, so every store uses the same kinds.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use core::fmt;

/// Declares the enum and the list of its kinds. Both come from the same lines, so the list has every kind, and the
/// position of a kind in the list is its discriminant.
macro_rules! kinds {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $kind:ident,)+ }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $kind,)+
        }

        impl $name {
            /// All kinds, in the order of their declaration. `ALL[kind as usize]` is `kind`.
            pub const ALL: &'static [$name] = &[$($name::$kind),+];
        }
    };
}

kinds! {
    /// The kind of a [`StoreError`].
    ///
    /// Metrics count errors by the [name](StoreErrorKind::as_str) of their kind. A store does not have to use all
    /// kinds.
    ///
    /// ```
    /// use spillgate_core::StoreErrorKind;
    ///
    /// assert_eq!(StoreErrorKind::Timeout.as_str(), "timeout");
    /// assert!(StoreErrorKind::Timeout.is_transient());
    /// assert!(!StoreErrorKind::NoPermission.is_transient());
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum StoreErrorKind {
        /// No answer came before the deadline.
        Timeout,
        /// The connection ended before the answer came.
        Disconnected,
        /// The request was not sent, because there was no connection before the deadline, or no time left.
        NotSent,
        /// The request was not sent, because too many requests or answers are already pending.
        Overloaded,
        /// The request was not sent, because the circuit breaker is open.
        CircuitOpen,
        /// The node (a Redis server) refuses writes. It may be a replica, have too few replicas of its own, or be
        /// unable to save its data.
        ReadOnly,
        /// The node is loading its data, or it waits for the data of its primary.
        Loading,
        /// The node is busy with a slow script.
        Busy,
        /// The node has no memory left.
        OutOfMemory,
        /// The user of the connection has no permission for this command, or cannot log in.
        NoPermission,
        /// The key holds a value of another type.
        WrongType,
        /// Another node holds the key.
        Moved,
        /// The whole cluster is down.
        ClusterDown,
        /// The node did not have the script, even directly after the script was loaded.
        NoScript,
        /// The store takes no new keys of a limit now, because it got too many of them. Nothing was applied. A store that
        /// returns this kind marks the hits whose keys would be new: their decisions have the reason
        /// [`NotAsked`](crate::Reason::NotAsked), and no other decision has it.
        NewKeys,
        /// The request is invalid, or the store does not support it. The request was not sent.
        Malformed,
        /// The answer does not fit the request, or only a part of the request was executed.
        Garbled,
        /// Any other error.
        Other,
    }
}

impl StoreErrorKind {
    /// Returns the name of this kind in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            StoreErrorKind::Timeout => "timeout",
            StoreErrorKind::Disconnected => "disconnected",
            StoreErrorKind::NotSent => "unasked",
            StoreErrorKind::Overloaded => "overloaded",
            StoreErrorKind::CircuitOpen => "open",
            StoreErrorKind::ReadOnly => "readonly",
            StoreErrorKind::Loading => "loading",
            StoreErrorKind::Busy => "busy",
            StoreErrorKind::OutOfMemory => "oom",
            StoreErrorKind::NoPermission => "noperm",
            StoreErrorKind::WrongType => "wrongtype",
            StoreErrorKind::Moved => "moved",
            StoreErrorKind::ClusterDown => "clusterdown",
            StoreErrorKind::NoScript => "noscript",
            StoreErrorKind::NewKeys => "new_keys",
            StoreErrorKind::Malformed => "malformed",
            StoreErrorKind::Garbled => "garbled",
            StoreErrorKind::Other => "other",
        }
    }

    /// Explains this kind to a user. The text continues the words "the store is unavailable: ".
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        match self {
            StoreErrorKind::Timeout => "it did not answer in time",
            StoreErrorKind::Disconnected => "the connection to it ended",
            StoreErrorKind::NotSent => "the request was not sent, because there was no connection or no time left",
            StoreErrorKind::Overloaded => "too many requests already wait for it",
            StoreErrorKind::CircuitOpen => "it failed, and requests are sent to it again only after a probe succeeds",
            StoreErrorKind::ReadOnly => "it refuses writes",
            StoreErrorKind::Loading => "it is still loading its data",
            StoreErrorKind::Busy => "it is busy with a slow script",
            StoreErrorKind::OutOfMemory => "its memory is full",
            StoreErrorKind::NoPermission => {
                "spillgate's user at the store has no permission for this command, or cannot log in"
            }
            StoreErrorKind::WrongType => "a key of spillgate holds a value of another type",
            StoreErrorKind::Moved => "another node of its cluster has the key",
            StoreErrorKind::ClusterDown => "its cluster is down",
            StoreErrorKind::NoScript => "it lost the script again after the script was loaded",
            StoreErrorKind::NewKeys => "it takes no new keys of this limit now, because too many were made",
            StoreErrorKind::Malformed => "it does not support this request",
            StoreErrorKind::Garbled => "its answer is invalid",
            StoreErrorKind::Other => "it answered with an error",
        }
    }

    /// Returns whether the same request may succeed later, without a change of settings, permissions or programs.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        match self {
            StoreErrorKind::Timeout
            | StoreErrorKind::Disconnected
            | StoreErrorKind::NotSent
            | StoreErrorKind::Overloaded
            | StoreErrorKind::CircuitOpen
            | StoreErrorKind::ReadOnly
            | StoreErrorKind::Loading
            | StoreErrorKind::Busy
            | StoreErrorKind::OutOfMemory
            | StoreErrorKind::Moved
            | StoreErrorKind::ClusterDown
            | StoreErrorKind::NoScript
            | StoreErrorKind::NewKeys => true,
            StoreErrorKind::NoPermission
            | StoreErrorKind::WrongType
            | StoreErrorKind::Malformed
            | StoreErrorKind::Garbled
            | StoreErrorKind::Other => false,
        }
    }

    /// Returns whether an error of this kind is only the consequence of an earlier error. Such an error says only that
    /// the request was not sent. The earlier error says why the store fails.
    #[must_use]
    pub const fn is_consequence(self) -> bool {
        matches!(self, StoreErrorKind::NotSent | StoreErrorKind::CircuitOpen)
    }

    /// Returns whether the store may have charged the request although it returned this kind of error. If the result is
    /// false, the store has not charged the request.
    ///
    /// There is one exception: a request over several hash slots of a Redis Cluster. After any kind of error in one
    /// slot, it is possible that other slots have charged the request and have not refunded it yet.
    #[must_use]
    pub const fn may_have_been_applied(self) -> bool {
        matches!(self, StoreErrorKind::Timeout | StoreErrorKind::Disconnected | StoreErrorKind::Garbled)
    }
}

/// The error of a store that did not decide: a kind for programs, and a detail for people.
///
/// ```
/// use spillgate_core::{StoreError, StoreErrorKind};
///
/// let error = StoreError::new(StoreErrorKind::Timeout, "no answer within 20 ms");
/// assert_eq!(error.kind(), StoreErrorKind::Timeout);
/// assert_eq!(error.to_string(), "timeout: no answer within 20 ms");
/// ```
pub struct StoreError {
    kind: StoreErrorKind,
    detail: Cow<'static, str>,
    unclaimed: Option<Box<dyn UnclaimedCharge>>,
}

/// What a store may have charged for a request that it failed. The store gives it back when this value is dropped.
pub trait UnclaimedCharge: Send + Sync {
    /// Keeps the charge of the hits that their [policy](crate::OnStoreFailure) allowed. The policy `Error` allows hits in
    /// shadow mode.
    fn keep(&mut self);
}

impl Clone for StoreError {
    /// Copies the kind and the detail. The charge stays with the original error, because it has one owner.
    fn clone(&self) -> StoreError {
        StoreError { kind: self.kind, detail: self.detail.clone(), unclaimed: None }
    }
}

impl PartialEq for StoreError {
    fn eq(&self, other: &StoreError) -> bool {
        (self.kind, &self.detail) == (other.kind, &other.detail)
    }
}

impl Eq for StoreError {}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError").field("kind", &self.kind).field("detail", &self.detail).finish()
    }
}

impl StoreError {
    /// Builds an error of this kind. `detail` is the message of the store or of the operating system.
    pub fn new(kind: StoreErrorKind, detail: impl Into<Cow<'static, str>>) -> StoreError {
        StoreError { kind, detail: detail.into(), unclaimed: None }
    }

    /// Builds the error for a request that is invalid, or that the store does not support.
    #[must_use]
    pub const fn malformed(detail: &'static str) -> StoreError {
        StoreError { kind: StoreErrorKind::Malformed, detail: Cow::Borrowed(detail), unclaimed: None }
    }

    /// Returns the same error with the charge that the store may have made. A store calls this function.
    #[must_use]
    pub fn with_unclaimed(self, charge: Box<dyn UnclaimedCharge>) -> StoreError {
        StoreError { unclaimed: Some(charge), ..self }
    }

    /// Says that the request passes although the store failed. If the store learns later that it has charged the
    /// request, the charge of each hit that its [policy](crate::OnStoreFailure) allowed stays, because the caller does
    /// the work. Without this call, the store gives the whole charge back.
    ///
    /// The store gives a charge back only when the error is dropped, so do not keep the error.
    pub fn keep_charge(&mut self) {
        if let Some(charge) = &mut self.unclaimed {
            charge.keep();
        }
    }

    /// Returns the kind of the error, by which callers decide what to do.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns the message of the store or of the operating system, for logs.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the same text as [`detail`](StoreError::detail), without a copy.
    #[must_use]
    pub fn into_detail(self) -> Cow<'static, str> {
        self.detail
    }

    /// Returns whether the same request may succeed later: see [`StoreErrorKind::is_transient`].
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        self.kind.is_transient()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.detail)
    }
}

impl core::error::Error for StoreError {}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::StoreErrorKind;

    #[test]
    fn every_kind_has_a_name_an_explanation_and_a_number_of_its_own() {
        let all = StoreErrorKind::ALL;
        let names: BTreeSet<&str> = all.iter().map(|kind| kind.as_str()).collect();
        let explained: BTreeSet<&str> = all.iter().map(|kind| kind.explanation()).collect();
        assert_eq!((names.len(), explained.len()), (all.len(), all.len()));
        for (number, kind) in all.iter().enumerate() {
            assert_eq!(*kind as usize, number, "{kind:?}");
        }
    }

    #[test]
    fn a_request_that_was_not_sent_was_not_applied() {
        let consequences = StoreErrorKind::ALL.iter().filter(|kind| kind.is_consequence());
        assert_eq!(consequences.filter(|kind| kind.may_have_been_applied()).count(), 0);
    }
}
