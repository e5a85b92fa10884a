//! The cells of a GCRA sketch, without locks and without a limit: the times at which the debts of all keys are paid.
//!
//! The debt of a key is the time that its bucket needs to refill. Each cell of a key is at least the time at which the
//! debt of the key is paid. So the time in a cell only rises, with one exception. After a clock was set back, this time
//! can be later than any debt can reach. Such a cell is lowered to the latest time that a debt can reach. If it stayed
//! as it is, one wrong time that is years ahead would make the cell useless for years.
//!
//! All debts of a sketch are counted in the same time between two units, because a sketch has one rate. The sketch of a
//! full memory store serves limits with any rate, so it has cells of its own (`memory/overflow/cells.rs`).

use spillgate_core::{Quota, Time};

use super::mixer::Mixed;
use super::rows::{Places, Rows};
use crate::sync::{AtomicU64, Ordering};

pub(super) struct Debts {
    pub(super) rows: Rows,
    /// No debt is greater than this, in nanoseconds. A cell that shows a greater debt was written before the clock was
    /// set back.
    greatest_ns: AtomicU64,
}

/// The time at which the debt of a key is paid, and the cells of the key.
pub(super) struct Debt {
    /// In nanoseconds since the epoch. This time is never too early, but other keys can make it too late.
    pub(super) paid_at: u64,
    places: Places,
}

impl Debts {
    /// Makes cells without debts, in at most `bytes` bytes.
    pub(super) fn with_bytes(bytes: usize) -> Debts {
        Debts { rows: Rows::with_bytes(bytes), greatest_ns: AtomicU64::new(0) }
    }

    #[inline]
    pub(super) fn of(&self, key: Mixed, now: Time) -> Debt {
        let places = self.rows.places(key);
        let paid_at = self.rows.least(&places);
        let is_possible = paid_at <= now.as_nanos() + self.greatest_ns.load(Ordering::Relaxed);
        Debt { paid_at: if is_possible { paid_at } else { self.lower(&places, now) }, places }
    }

    /// Lowers the cells that are too late for any debt, and returns the smallest cell.
    ///
    /// The greatest debt is read after the cell, because a thread that charges a greater debt first writes the greatest
    /// debt, and then the cell.
    #[cold]
    fn lower(&self, places: &Places, now: Time) -> u64 {
        let latest = || now.as_nanos() + self.greatest_ns.load(Ordering::Relaxed);
        places.map(|place| self.rows.lower(place, latest)).into_iter().min().unwrap_or(0)
    }

    /// Raises the cells of the key to `paid_at`, the time at which its debt under `quota` is paid. A later time in a
    /// cell stays.
    ///
    /// Between the call of [`of`](Debts::of) and this call, no other thread may charge the same key.
    #[inline]
    pub(super) fn raise(&self, debt: &Debt, paid_at: u64, quota: &Quota) {
        let greatest_ns = 1 << quota.debt_bits();
        if self.greatest_ns.load(Ordering::Relaxed) < greatest_ns {
            self.greatest_ns.fetch_max(greatest_ns, Ordering::Relaxed);
        }
        self.rows.raise(&debt.places, paid_at);
    }
}
