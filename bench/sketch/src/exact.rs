//! The exact debts of some keys, to find out whether a sketch was right.
//!
//! The arithmetic is written here once more, so that a mistake in the library would be found.

use spillgate::Quota;

/// The exact state of one token bucket: when its debt is paid, in nanoseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Debt(u64);

impl Debt {
    /// Returns the debt at `now`, in nanoseconds.
    pub(crate) fn left(self, now: u64) -> u64 {
        self.0.saturating_sub(now)
    }

    /// Returns whether one more unit fits at `now`.
    pub(crate) fn fits(self, quota: &Quota, now: u64) -> bool {
        self.left(now) + quota.interval_ns() <= quota.capacity() * quota.interval_ns()
    }

    /// Counts one unit.
    pub(crate) fn charge(&mut self, quota: &Quota, now: u64) {
        self.0 = self.0.max(now) + quota.interval_ns();
    }
}
