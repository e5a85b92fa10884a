//! A clock for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate_core::Time;

use super::Clock;

/// A clock that shows the same time until a test sets or advances it. All clones of a clock show the same time.
///
/// ```
/// use spillgate::{Clock, ManualClock, Time};
/// use std::time::Duration;
/// let clock = ManualClock::at(Time::EPOCH);
/// clock.advance(Duration::from_millis(5));
/// assert_eq!(clock.now().as_nanos(), 5_000_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Makes a clock that shows `time`.
    #[must_use]
    pub fn at(time: Time) -> ManualClock {
        ManualClock(Arc::new(AtomicU64::new(time.as_nanos())))
    }

    /// Sets the time. The new time can be earlier than the old time.
    pub fn set(&self, time: Time) {
        self.0.store(time.as_nanos(), Ordering::SeqCst);
    }

    /// Advances the time by `duration`, but at most to [`Time::MAX`].
    pub fn advance(&self, duration: Duration) {
        let advanced = |now| Some(Time::from_nanos(now).after(duration).as_nanos());
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, advanced);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::SeqCst))
    }
}
