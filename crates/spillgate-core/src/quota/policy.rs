//! What a quota does when it refuses a take, and what it does when the store fails.
//!
//! These two choices do not depend on the algorithm, with one exception: a concurrency limit cannot charge refusals.

/// What a refused take costs; [`QuotaBuilder::denied`](super::QuotaBuilder::denied) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Denied {
    /// A refused take costs nothing.
    #[default]
    Free,
    /// A refused take costs as much as an allowed take, but at most the capacity. So a caller that retries without a
    /// pause stays refused.
    Charged,
}

impl Denied {
    /// Returns the name of the choice in rules files and answers: `free` or `charged`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Denied::Free => "free",
            Denied::Charged => "charged",
        }
    }
}

/// What to answer for a limit while the shared store fails.
///
/// [`QuotaBuilder::on_store_failure`](super::QuotaBuilder::on_store_failure) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnStoreFailure {
    /// Allow every take, unless its cost is above the hard capacity.
    Allow,
    /// Refuse every take.
    Deny,
    /// Return the error of the store, so that the caller decides.
    Error,
    /// Decide in a local store, by the [share](super::Quota::share) of the limit that belongs to this server.
    #[default]
    Local,
}

impl OnStoreFailure {
    /// All choices, in the order of their declaration.
    pub const ALL: [OnStoreFailure; 4] =
        [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Error, OnStoreFailure::Local];

    /// Returns the name in rules files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
            OnStoreFailure::Error => "error",
            OnStoreFailure::Local => "local",
        }
    }
}
