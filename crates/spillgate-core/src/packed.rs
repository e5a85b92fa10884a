//! A state in three integers.
//!
//! A store that keeps millions of keys cannot afford a full [`State`](crate::State) for each. Most states fit this
//! form.

use crate::Time;
use crate::quota::MAX_SPAN_NS;

/// A state in three integers: a bucket, a window, or a counter of one segment, without a penalty.
///
/// A store keeps the integers and gives them back. Only the state itself knows what `first` and `second` mean. All
/// fields are public and there will be no others, because a store writes down exactly these three.
///
/// ```
/// use spillgate_core::{Binding, Decision, Hit, Op, Packed, Quota, Time};
///
/// let quota = Quota::per_second(10).build()?;
/// let hit = Hit::new(7, &quota, Op::take(4), Binding::Enforce);
/// let (mut packed, mut decision) = (Packed::default(), Decision::default());
/// assert!(packed.decide(&hit, Time::EPOCH, &mut decision));
/// assert_eq!(decision.remaining, 6);
/// assert_eq!(packed.expires_at, 400_000_000); // four units, one every 100 ms
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Packed {
    /// When the state may be dropped, in nanoseconds since the epoch.
    ///
    /// It is no earlier than the time at which the state equals an empty one, and less than one window later. 0 if the
    /// state already equals an empty one.
    pub expires_at: u64,
    /// The units in the current window. A bucket keeps T and the bound of its debt here, as a number below 2^38.
    pub first: u64,
    /// The units in the window before (`sliding_window_counter`), else 0.
    pub second: u64,
}

impl Packed {
    /// Whether these can be the integers of a state that is not empty.
    ///
    /// A store checks this when it reads a state from a place that it does not trust.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        let time = self.expires_at > 0 && self.expires_at <= Time::MAX.as_nanos();
        // Whether an integer is a time span or a number of units depends on the quota. Spans have the larger bound.
        time && self.first <= MAX_SPAN_NS && self.second <= MAX_SPAN_NS
    }
}
