//! The one storage seam.

use alloc::borrow::Cow;
use core::fmt;
use core::future::Future;

use crate::{Decision, Hit, OpKind, Quota, Time, Verdict};

/// Where state lives and decisions are atomic.
///
/// One call decides *all* hits of one request, all or nothing: every limit is checked before
/// any is charged, in one atomic step. Every store gives the same decisions as
/// [`decide`](crate::decide) on the same trace with the same `now`, as long as time does not go back: of a late request
/// that changes how fast debt drains it may know more ([`decide_late`](crate::decide_late)).
pub trait Store: Send + Sync {
    /// Whether this store can serve `op` on `quota`: for those who load rules to ask, so that a
    /// rule that cannot work is a load error and not a surprise.
    fn supports(&self, quota: &Quota, op: OpKind) -> bool;

    /// Whether the store decides at a time of its own, one for all that share it. A caller then passes no `now`.
    fn has_clock(&self) -> bool {
        false
    }

    /// Decides all `hits` (at most [`MAX_HITS`](crate::MAX_HITS)) of one request; `decisions`
    /// has the same length.
    ///
    /// `now` is `None` where the store's own clock decides.
    ///
    /// # Errors
    /// The store failed; then nothing is known about what was charged. A refusal is not an error.
    fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;
}

/// The store could not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The hits of the request were not well formed (too many, or lengths that differ).
    Malformed(&'static str),
    /// The store is unreachable, too slow, or answered with an error.
    Unavailable(Cow<'static, str>),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Malformed(what) => write!(f, "malformed request to the store: {what}"),
            StoreError::Unavailable(why) => write!(f, "the store is unavailable: {why}"),
        }
    }
}

impl core::error::Error for StoreError {}
