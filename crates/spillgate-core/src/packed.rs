//! A packed state: a state in three integers.
//!
//! A store that keeps millions of keys has too little memory for a full [`State`](crate::State) for each key. Most
//! states fit the smaller packed form.

use crate::Time;
use crate::quota::MAX_SPAN_NS;

/// A state in three integers. The state of a fixed window, of a sliding window counter with one segment, and of [almost
/// every](crate::Quota::packs) bucket fits this form, if the key has no penalty.
///
/// A store keeps the three integers and passes them back unchanged. It must not interpret `first` and `second`, because
/// their meaning depends on the algorithm. All fields are public, and there will never be a fourth field, because
/// stores write exactly these three integers to files.
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
    /// The time from which a store may drop the state, in nanoseconds since the epoch. 0 if the state is empty.
    ///
    /// From this time on, the state decides like an empty state. The state of a `sliding_window_counter` can decide
    /// like an empty state up to one window earlier.
    pub expires_at: u64,
    /// In a window or a counter: the units in the current window. In a bucket: a number below 2^38 that contains `T`
    /// (the time between two units) and an upper bound of the debt (the time that the bucket needs to refill).
    pub first: u64,
    /// The units in the previous window (`sliding_window_counter`), or else 0.
    pub second: u64,
}

impl Packed {
    /// Returns whether these integers are within the bounds of a state that is not empty.
    ///
    /// A store calls this method when it reads a state from a source that it does not trust.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        let time = self.expires_at > 0 && self.expires_at <= Time::MAX.as_nanos();
        // The meaning of `first` and `second` depends on the algorithm, which is not known here. So they are checked
        // only against a bound that holds for every algorithm. Up to this bound, no sum in a decision wraps around.
        time && self.first <= MAX_SPAN_NS && self.second <= MAX_SPAN_NS
    }
}
