//! The interface of every store: what a store has to do, and what it reports.
//!
//! The kernel receives states and does not keep them: a [`Store`] does. So a program can replace a store in memory with
//! a database, and change nothing else.

mod charge;
mod error;
mod health;
mod timing;

use core::future::Future;

use crate::{Decision, Hit, OpKind, Quota, Verdict};

pub use charge::{Charge, Charged, ChargedStore, MAX_CHARGES};
pub use error::{StoreError, StoreErrorKind, UnclaimedCharge};
pub use health::{Circuit, NodeMemory, StoreCalls, StoreHealth};
pub use timing::Timing;

/// A place that keeps states and decides atomically.
///
/// One call decides *all* hits of one request. Every limit is checked before any limit is charged, in one atomic step.
///
/// For the same requests at the same times, every store decides like [`decide`](crate::decide), as long as the times
/// never go back. A request is late if its time is before that of an earlier decision. A store may decide late requests
/// like [`decide_late`](crate::decide_late) instead.
///
/// `MemoryStore` and `RedisStore` are the stores of this project. The documentation of each store begins with an
/// example.
pub trait Store: Send + Sync {
    /// Returns whether this store can apply `op` to `quota`. Call `supports` when rules are loaded: then a rule that
    /// cannot work is an error at once, and not only at the first request.
    fn supports(&self, quota: &Quota, op: OpKind) -> bool;

    /// Returns whether the store decides by a clock of its own, which all users of the store share. If so, callers pass
    /// no time.
    fn has_clock(&self) -> bool {
        false
    }

    /// Decides all `hits` of one request. There can be at most [`MAX_HITS`](crate::MAX_HITS) hits, and `decisions` must
    /// have as many elements as `hits`.
    ///
    /// # Errors
    /// Returns an error if the store did not decide. The store may have charged the hits nevertheless:
    /// [`StoreErrorKind::may_have_been_applied`] says whether this is possible. A refusal is not an error.
    fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Decides the rest of a request that [`decide`](Store::decide) failed as
    /// [`NewKeys`](crate::StoreErrorKind::NewKeys), without the hits whose keys are new. The store does not look for keys
    /// again. It waits for half of the timeout, because the failed request could take the other half. A store that never
    /// fails in this way just decides.
    ///
    /// # Errors
    /// The errors of [`decide`](Store::decide), except `NewKeys`.
    fn decide_known_keys(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        self.decide(timing, hits, decisions)
    }

    /// Decides like [`decide`](Store::decide), but without a future. Returns `None` if the store would have to wait.
    /// The caller then calls [`decide`](Store::decide).
    ///
    /// A store in memory never has to wait. Its callers need no memory for a future, and no async runtime.
    fn try_decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Option<Result<Verdict, StoreError>> {
        let _ = (timing, hits, decisions);
        None
    }
}
