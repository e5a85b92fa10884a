//! What the service needs from a store that several servers share. So the service depends on these traits, and not on a
//! particular store.
//!
//! Decisions do not use these traits: a shared store also implements [`Store`], and
//! [`Backend::with_fallback`](crate::Backend::with_fallback) compiles the `decide` of this store. The methods here may
//! be slower, because they are called seldom, or take little time compared with a round trip on the network.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use spillgate::regions::{Peers, RegionStore, not_supported};
use spillgate::{Hit, NodeMemory, Span, Store, StoreError, StoreErrorKind, StoreHealth};

/// The future of a method that is called through `dyn`.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What readiness, metrics, the log and commands need from a store that servers share.
pub trait SharedStore: fmt::Debug + Send + Sync {
    /// Returns the kind of the store, for the admin API: for example `redis`.
    fn kind(&self) -> &'static str;

    /// Returns the longest time that a request waits for the store. A client can set only a shorter timeout.
    fn timeout(&self) -> Duration;

    /// Returns whether the store decides all these hits in one atomic step.
    fn is_atomic(&self, hits: &[Hit<'_>]) -> bool;

    /// Returns why the store does not support one of these hits. Returns `None` if it supports all of them.
    fn unsupported(&self, hits: &[Hit<'_>]) -> Option<String>;

    fn health(&self) -> StoreHealth;

    /// Returns how many requests have failed with this kind of error since the start, without probes.
    fn failures(&self, kind: StoreErrorKind) -> u64;

    /// Returns the first error of this kind since the last call for this kind. The log shows it. Errors of probes are
    /// not included.
    fn take_first_error(&self, kind: StoreErrorKind) -> Option<StoreError>;

    /// Returns the error of the last attempt to connect, or the error that opened the circuit breaker. `None` while the
    /// store works.
    fn last_error(&self) -> Option<SharedError>;

    /// Returns the address of the primary, if the store finds it by sentinels and has found one.
    fn primary(&self) -> Option<String>;

    /// Waits until there is a connection, at most for the connect timeout of the store.
    fn wait_connected(&self) -> Asked<'_, Result<(), SharedError>>;

    /// Asks the store for one decision, only to see whether it answers. In a cluster, probes with different numbers can
    /// reach different nodes.
    fn probe(&self, number: u32, within: Duration) -> Asked<'_, Result<(), SharedError>>;

    /// Asks the nodes of the store how full they are. A node without a connection is left out.
    fn memory(&self, within: Duration) -> Asked<'_, Result<Vec<NodeMemory>, SharedError>>;

    /// Waits until the circuit breaker of a node opens. Returns at once if one has opened since the last call returned.
    fn circuit_opened(&self) -> Asked<'_, ()>;

    /// Returns what servers of other regions have charged of the state of `hit` in a span: for each server, its id and its
    /// total. By default, there are no other regions.
    fn charged<'a>(
        &'a self,
        _hit: &'a Hit<'a>,
        _span: Span,
        _within: Duration,
    ) -> Asked<'a, Result<Vec<(u64, u64)>, SharedError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns the other regions that are told what this store admits, and how many requests the guaranteed shares of this
    /// region have admitted. `None` if nobody is told.
    fn regions(&self) -> Option<(&Peers, u64)> {
        None
    }
}

/// The store of a region is that of its own store, for everything but decisions.
impl<S: Store + SharedStore> SharedStore for RegionStore<S> {
    fn kind(&self) -> &'static str {
        self.inner().kind()
    }

    fn timeout(&self) -> Duration {
        self.inner().timeout()
    }

    fn is_atomic(&self, hits: &[Hit<'_>]) -> bool {
        self.inner().is_atomic(hits)
    }

    fn unsupported(&self, hits: &[Hit<'_>]) -> Option<String> {
        let why = hits.iter().find_map(not_supported);
        why.map(str::to_owned).or_else(|| self.inner().unsupported(hits))
    }

    fn health(&self) -> StoreHealth {
        self.inner().health()
    }

    fn failures(&self, kind: StoreErrorKind) -> u64 {
        self.inner().failures(kind)
    }

    fn take_first_error(&self, kind: StoreErrorKind) -> Option<StoreError> {
        self.inner().take_first_error(kind)
    }

    fn last_error(&self) -> Option<SharedError> {
        self.inner().last_error()
    }

    fn primary(&self) -> Option<String> {
        self.inner().primary()
    }

    fn wait_connected(&self) -> Asked<'_, Result<(), SharedError>> {
        self.inner().wait_connected()
    }

    fn probe(&self, number: u32, within: Duration) -> Asked<'_, Result<(), SharedError>> {
        self.inner().probe(number, within)
    }

    fn memory(&self, within: Duration) -> Asked<'_, Result<Vec<NodeMemory>, SharedError>> {
        self.inner().memory(within)
    }

    fn circuit_opened(&self) -> Asked<'_, ()> {
        self.inner().circuit_opened()
    }

    fn charged<'a>(
        &'a self,
        hit: &'a Hit<'a>,
        span: Span,
        within: Duration,
    ) -> Asked<'a, Result<Vec<(u64, u64)>, SharedError>> {
        self.inner().charged(hit, span, within)
    }

    fn regions(&self) -> Option<(&Peers, u64)> {
        Some((self.peers()?, self.guaranteed()))
    }
}

/// An entry of a list: its name and its text.
pub type ListEntry = (Vec<u8>, Vec<u8>);

/// The outcome of [`SharedLists::put_in_list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListWrite {
    /// The version of the lists before the write. `None` if there was none, or if nothing was written.
    pub before: Option<Vec<u8>>,
    /// False if the list was full, so that nothing was written.
    pub is_done: bool,
}

/// Small lists that the servers of a fleet share: blocks, and shadow switches. All lists together have one version. A
/// write gives the lists a new version, so that other servers see that they have to read them again.
pub trait SharedLists: fmt::Debug + Send + Sync {
    /// Returns the version of the lists. `None` if nothing was written yet.
    fn list_version(&self, within: Duration) -> Asked<'_, Result<Option<Vec<u8>>, SharedError>>;

    /// Sets the version of the lists, which the store then keeps for the given time. With `if_missing`, does so only if the
    /// lists have no version. Returns whether the version was set.
    fn set_list_version<'a>(
        &'a self,
        version: (&'a [u8], Duration),
        if_missing: bool,
        within: Duration,
    ) -> Asked<'a, Result<bool, SharedError>>;

    /// Returns how many entries a list has.
    fn list_length<'a>(&'a self, name: &'a str, within: Duration) -> Asked<'a, Result<usize, SharedError>>;

    /// Adds, replaces and removes entries of a list in one step, and keeps the list for the time `life`. The version stays
    /// the same.
    fn change_list<'a>(
        &'a self,
        name: &'a str,
        put: &'a [(&'a [u8], &'a [u8])],
        removed: &'a [&'a [u8]],
        life: Duration,
        within: Duration,
    ) -> Asked<'a, Result<(), SharedError>>;

    /// Returns all entries of a list, in any order. A list with more than `max` entries is an error.
    fn read_list<'a>(
        &'a self,
        name: &'a str,
        max: usize,
        within: Duration,
    ) -> Asked<'a, Result<Vec<ListEntry>, SharedError>>;

    /// Adds an entry to a list, or replaces the entry with this name. `list` has the name of the list and the maximum
    /// number of its entries. `version` has the new version of the lists, and how long the store keeps them at least.
    fn put_in_list<'a>(
        &'a self,
        list: (&'a str, usize),
        entry: (&'a [u8], &'a [u8]),
        version: (&'a [u8], Duration),
        within: Duration,
    ) -> Asked<'a, Result<ListWrite, SharedError>>;

    /// Removes entries, and returns the version that the lists had before.
    fn remove_from_list<'a>(
        &'a self,
        name: &'a str,
        entries: &'a [&'a [u8]],
        version: (&'a [u8], Duration),
        within: Duration,
    ) -> Asked<'a, Result<Option<Vec<u8>>, SharedError>>;

    /// Removes entries and returns their texts: `None` for an entry that the list does not have. The version stays the
    /// same.
    fn take_from_list<'a>(
        &'a self,
        name: &'a str,
        entries: &'a [&'a [u8]],
        within: Duration,
    ) -> Asked<'a, Result<Vec<Option<Vec<u8>>>, SharedError>>;
}

/// The error of a shared store, with advice for an operator if the store has some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedError {
    error: StoreError,
    forbidden_command: Option<String>,
    help: &'static str,
}

impl SharedError {
    /// Returns an error without advice.
    #[must_use]
    pub const fn new(error: StoreError) -> SharedError {
        SharedError { error, forbidden_command: None, help: "" }
    }

    /// Adds the name of the command for which the store's user lacks the permission.
    #[must_use]
    pub fn with_forbidden_command(self, command: Option<String>) -> SharedError {
        SharedError { forbidden_command: command, ..self }
    }

    /// Adds what an operator can do if the store cannot be reached.
    #[must_use]
    pub fn with_help(self, help: &'static str) -> SharedError {
        SharedError { help, ..self }
    }

    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.error.kind()
    }

    /// Returns the command for which the store's user lacks the permission. `None` if the error has another cause.
    #[must_use]
    pub fn forbidden_command(&self) -> Option<&str> {
        self.forbidden_command.as_deref()
    }

    /// Returns what an operator can do if the store cannot be reached. Empty if the store has no advice.
    #[must_use]
    pub const fn help(&self) -> &'static str {
        self.help
    }
}

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for SharedError {}
