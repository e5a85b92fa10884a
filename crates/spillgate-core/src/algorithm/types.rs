//! Types that all algorithms use: a refusal, the report of a state, and the latest time in a state.
//!
//! These types are in a file of their own, so that no algorithm has to import another algorithm.

use crate::quota::MAX_SPAN_NS;
use crate::{Reason, Time, Wait};

/// The latest time that a state can contain, in nanoseconds since the epoch: [`Time::MAX`] plus the longest span.
pub(crate) const LATEST_NS: u64 = Time::MAX.as_nanos() + MAX_SPAN_NS;

/// Why a take does not fit, and how long the caller has to wait until it fits.
pub(crate) type Refusal = (Reason, Wait);

/// What a state reports to a caller.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// The whole units that are left below the capacity.
    pub(crate) remaining: u64,
    /// Nanoseconds until the state equals an empty state.
    pub(crate) reset_after_ns: u64,
    /// Whether more than [`Quota::capacity`](crate::Quota::capacity) is used. A soft limit allows more than this
    /// capacity.
    pub(crate) over: bool,
}
