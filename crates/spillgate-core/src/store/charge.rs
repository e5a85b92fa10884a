//! What one region tells the shared store of another: the units that it has admitted under one limit of both.
//!
//! A server adds up what it admitted of each state and span, and tells this total. The other region's store charges what
//! is new in it. So a total may be lost, late, repeated or out of order: the next one corrects it.

use alloc::string::String;
use core::future::Future;
use core::time::Duration;

use super::StoreError;
use crate::{Quota, Span};

/// The largest number of charges in one call.
pub const MAX_CHARGES: usize = 32;

/// The total of units that one server admitted of one state in one span.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'q> {
    /// The key of the hits, as [`Hit::key`](crate::Hit::key).
    pub key: u128,
    /// The shared quota that charged last.
    pub quota: &'q Quota,
    /// The span of the takes.
    pub span: Span,
    /// Who has counted this total. An id never counts a state and a span from zero twice.
    pub id: u64,
    /// The units, at most [`MAX_UNITS`](crate::MAX_UNITS).
    pub total: u64,
}

/// What the store of another region did with a [`Charge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Charged {
    /// The units that were new are charged.
    New,
    /// All units were known already.
    Known,
    /// The window has not begun by the clock of the store. Nothing is charged, so the total has to be told again.
    NotBegun,
    /// The window has ended by the clock of the store. Nothing is charged, and nothing has to be told again.
    Ended,
    /// The state or what was told of it could not be read or written, so nothing is charged. Other charges of the same
    /// call do not suffer.
    Failed,
}

impl Charged {
    /// All results, in the order of metrics.
    pub const ALL: [Charged; 5] = [Charged::New, Charged::Known, Charged::NotBegun, Charged::Ended, Charged::Failed];

    /// Returns the name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Charged::New => "charged",
            Charged::Known => "repeated",
            Charged::NotBegun => "window_not_begun",
            Charged::Ended => "window_ended",
            Charged::Failed => "failed",
        }
    }
}

/// The shared store of another region, as a server of this region sees it.
pub trait ChargedStore: Send + Sync {
    /// Returns how many charges fit into one call: at most [`MAX_CHARGES`].
    fn charges_per_call(&self) -> usize {
        MAX_CHARGES
    }

    /// Tells the totals, each on its own: one that fails does not change what becomes of the others. There are at most
    /// [`charges_per_call`](ChargedStore::charges_per_call) charges, and `results` must have as many elements. The call
    /// fails if it takes longer than `within`, and is not sent any more then.
    ///
    /// # Errors
    /// Returns an error if no result is known. The charges may have been made nevertheless; it does no harm to tell them
    /// again.
    fn charge(
        &self,
        within: Duration,
        charges: &[Charge<'_>],
        results: &mut [Charged],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reads what the servers of the other region have written about themselves into their store, or `None` if they have
    /// written nothing.
    ///
    /// # Errors
    /// The store did not answer, or may not be read.
    fn about(&self, within: Duration) -> impl Future<Output = Result<Option<String>, StoreError>> + Send;
}
