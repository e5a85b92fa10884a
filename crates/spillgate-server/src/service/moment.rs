//! The time of a call: one reading of the clock for those that are answered in a row, and how long they have.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate::Time;

/// When a call is decided, and in how long.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing<'m> {
    /// The row that the call is in, if it is in one.
    pub moment: Option<&'m Moment>,
    /// How long it has, if that is less than the store has anyway.
    pub timeout: Option<Duration>,
}

/// The time of a row of calls, while it lasts.
#[derive(Debug, Default)]
pub struct Moment {
    /// In nanoseconds; 0 where there is no row.
    now: AtomicU64,
}

impl Moment {
    /// Runs `row`, in which the time is `now`.
    pub fn hold(&self, now: Time, row: impl FnOnce()) {
        self.now.store(now.as_nanos(), Ordering::Relaxed);
        row();
        self.now.store(0, Ordering::Relaxed);
    }

    /// The time of the row that runs, if one does: a call that has waited longer is none of it.
    pub fn get(&self) -> Option<Time> {
        let now = self.now.load(Ordering::Relaxed);
        (now > 0).then(|| Time::from_nanos(now))
    }
}
