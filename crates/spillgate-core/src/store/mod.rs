//! The storage seam: what a store has to do, and what it reports.
//!
//! The kernel decides on states that it is given. A [`Store`] keeps the states, so that a program can replace memory by a
//! database without another change.

mod error;
mod health;
mod timing;

use core::future::Future;

use crate::{Decision, Hit, OpKind, Quota, Verdict};

pub use error::{StoreError, StoreErrorKind};
pub use health::{Circuit, StoreHealth};
pub use timing::Timing;

/// A place that keeps states and decides atomically.
///
/// One call decides *all* hits of one request, all or nothing. Every limit is checked before any limit is charged, in one
/// atomic step.
///
/// Every store decides as [`decide`](crate::decide) does on the same trace with the same times, as long as time does not
/// go back. If a late request changes how fast debt drains, a store may know more than the kernel: see
/// [`decide_late`](crate::decide_late).
///
/// `MemoryStore` and `RedisStore` are the stores of this project. The documentation of each begins with an example.
pub trait Store: Send + Sync {
    /// Whether this store can apply `op` to `quota`. Ask this when rules are loaded, so that a rule that cannot work is an
    /// error then and not at the first request.
    fn supports(&self, quota: &Quota, op: OpKind) -> bool;

    /// Whether the store decides by a clock of its own, which all its users share. A caller then passes no time.
    fn has_clock(&self) -> bool {
        false
    }

    /// Decides all `hits` of one request, at most [`MAX_HITS`](crate::MAX_HITS). `decisions` has the same length.
    ///
    /// `timing` says when the request is decided and how long the caller waits.
    ///
    /// # Errors
    /// The store did not decide. [`StoreErrorKind::may_have_been_applied`] says whether it may have charged nevertheless.
    /// A refusal is not an error.
    fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;
}
