//! A point in time, as whole nanoseconds since the Unix epoch.
//!
//! The kernel has no clock, so its caller passes every time. A time has an upper bound, so that sums of times fit in 64
//! bits.

use core::fmt;
use core::time::Duration;

/// Nanoseconds since the Unix epoch, from 0 to [`Time::MAX`] (the year 2262).
///
/// A state can contain times that are up to 2^62 ns in the future, because no window, lease or penalty of a
/// [`Quota`](crate::Quota) is longer. Even [`Time::MAX`] plus 2^62 ns fits in 64 bits, so no sum of times can wrap
/// around.
///
/// ```
/// use spillgate_core::Time;
/// use core::time::Duration;
/// let t = Time::from_nanos(1_000);
/// assert_eq!(t.after(Duration::from_nanos(500)).as_nanos(), 1_500);
/// assert_eq!(Time::from_nanos(u64::MAX), Time::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The start of 1970 in UTC.
    pub const EPOCH: Time = Time(0);
    /// The latest time, in the year 2262.
    pub const MAX: Time = Time(i64::MAX as u64);

    /// Returns the time that is `nanos` nanoseconds after the epoch, but at most [`Time::MAX`].
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Time {
        if nanos > Time::MAX.0 { Time::MAX } else { Time(nanos) }
    }

    /// Returns the whole nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time that is `duration` after this time, but at most [`Time::MAX`].
    #[must_use]
    pub fn after(self, duration: Duration) -> Time {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time::from_nanos(self.0.saturating_add(nanos))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}
