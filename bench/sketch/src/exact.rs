//! The exact debts of some keys, to find out whether a sketch was right. A debt is the time until all used units of a
//! token bucket are free again.
//!
//! This file computes debts without the code of the library, so that a mistake in the library would be found.

use spillgate::Quota;

/// The exact state of one token bucket: the virtual time at which its debt is paid, in nanoseconds.
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

    /// Adds one unit to the debt.
    pub(crate) fn charge(&mut self, quota: &Quota, now: u64) {
        self.0 = self.0.max(now) + quota.interval_ns();
    }
}
