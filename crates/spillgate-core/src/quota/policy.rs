//! What a quota does about refusals and about a store that fails.
//!
//! Every algorithm has the same choices, so they stand apart from the algorithms.

/// What a refused take costs; [`QuotaBuilder::denied`](super::QuotaBuilder::denied) has an example.
///
/// Exhaustive on purpose: a store must support each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Denied {
    /// A refused take costs nothing.
    #[default]
    Free,
    /// A refused take costs as much as an admitted one, but at most the capacity. A caller that retries without a pause
    /// stays refused.
    Charged,
}

/// What to answer for a limit while the shared store fails.
///
/// [`QuotaBuilder::on_store_failure`](super::QuotaBuilder::on_store_failure) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnStoreFailure {
    /// Allow every take.
    Allow,
    /// Refuse every take.
    Deny,
    /// Return the error of the store, so that the caller decides.
    Error,
    /// Decide by this node's [share](super::Quota::share) of the limit, in a local store.
    #[default]
    Local,
}

impl OnStoreFailure {
    /// All choices.
    pub const ALL: [OnStoreFailure; 4] =
        [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Error, OnStoreFailure::Local];

    /// The name in rules files.
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
