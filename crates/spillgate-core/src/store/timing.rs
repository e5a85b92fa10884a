//! What the caller of a store says about time.
//!
//! A caller that has read the clock passes that time. A caller that has a deadline passes the time that is left until
//! the deadline.

use core::time::Duration;

use crate::Time;

/// At which time a request is decided, and how long the caller waits for the answer.
///
/// ```
/// use core::time::Duration;
/// use spillgate_core::{Time, Timing};
///
/// let timing = Timing::at(Time::EPOCH).within(Duration::from_millis(5));
/// assert_eq!(timing.now, Some(Time::EPOCH));
/// assert_eq!(timing.timeout, Some(Duration::from_millis(5)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// The time of the decision. `None` for a store that [has a clock](crate::Store::has_clock).
    pub now: Option<Time>,
    /// How long the caller waits. `None` if the store's own setting applies. A store that never waits ignores this
    /// field.
    pub timeout: Option<Duration>,
}

impl Timing {
    /// The store decides by its own clock and with its own timeout.
    pub const BY_STORE: Timing = Timing { now: None, timeout: None };

    /// Returns a timing for a decision at `now`.
    #[must_use]
    pub const fn at(now: Time) -> Timing {
        Timing { now: Some(now), timeout: None }
    }

    /// Returns the same timing for a caller that waits at most `timeout`.
    #[must_use]
    pub const fn within(self, timeout: Duration) -> Timing {
        Timing { timeout: Some(timeout), ..self }
    }
}
