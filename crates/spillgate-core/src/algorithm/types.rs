//! What the algorithms share: a refusal, what a state shows, and the latest time that a state can hold.
//!
//! They stand below the states, so that an algorithm needs to know no other one.

use crate::quota::MAX_SPAN_NS;
use crate::{Reason, Time, Wait};

/// The latest time that a state can hold, in nanoseconds since the epoch: the longest span after [`Time::MAX`].
pub(crate) const LATEST_NS: u64 = Time::MAX.as_nanos() + MAX_SPAN_NS;

/// Why a take does not fit, and how long until it does.
pub(crate) type Refusal = (Reason, Wait);

/// What a state shows to a caller.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Whole units below the capacity.
    pub(crate) remaining: u64,
    /// Nanoseconds until the state equals an empty one.
    pub(crate) reset_after_ns: u64,
    /// More than the capacity is used. With a soft limit, that is the capacity below the soft share.
    pub(crate) over: bool,
}
