//! A clock for tests that pause the time of tokio.

use spillgate_core::Time;
use tokio::time::Instant;

use super::{Clock, SystemClock};

/// A clock that advances with tokio's time.
///
/// In a test that pauses tokio's time, limits with this clock agree with sleeps and timeouts, because
/// `tokio::time::advance` and automatic advances move this clock too. Read this clock in the runtime of the test,
/// because tokio's time is not paused on other threads. While the time is not paused, this clock advances as the
/// monotonic clock of the system does.
///
/// ```
/// use std::time::Duration;
/// use spillgate::{Limiter, MemoryOptions, MemoryStore, Quota, TokioClock};
///
/// const MAIL: Quota = Quota::per_minute(1).constant();
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// // In a test with `#[tokio::test(start_paused = true)]`:
/// let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), TokioClock::start());
/// assert!(limiter.take_now(&MAIL, "ann", 1).allowed);
/// assert!(!limiter.take_now(&MAIL, "ann", 1).allowed);
/// tokio::time::sleep(Duration::from_secs(60)).await; // ends at once, because the time is paused
/// assert!(limiter.take_now(&MAIL, "ann", 1).allowed);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    started: Time,
    origin: Instant,
}

impl TokioClock {
    /// Starts a clock that agrees with the wall clock now.
    #[must_use]
    pub fn start() -> TokioClock {
        TokioClock::at(SystemClock::start().now())
    }

    /// Starts a clock that shows `time` at the moment of this call, so that a test does not depend on the time of day.
    #[must_use]
    pub fn at(time: Time) -> TokioClock {
        TokioClock { started: time, origin: Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Time {
        self.started.after(self.origin.elapsed())
    }
}
