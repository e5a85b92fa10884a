//! The cells of a GCRA sketch, without locks and without a limit: the times at which the debts of all keys are paid.
//!
//! The debt of a key is the time that its bucket needs to refill. Each cell of a key is at least the time at which the
//! debt of the key is paid. So a cell only rises, with one exception. After a clock was set back, a cell can be later
//! than the debt of any key allows. Such a cell is lowered to the latest time that a debt can reach. Otherwise, a clock
//! that was ahead once would make cells useless until it reaches that time again.
//!
//! A full memory store has such cells for the debts of keys for which it has no space. The locks of the memory store
//! serialize the requests on one key.

use spillgate_core::{Quota, Time};

use super::mixer::Mixed;
use super::rows::{Places, Rows};
use crate::sync::{AtomicU64, Ordering};

pub(crate) struct Debts {
    pub(super) rows: Rows,
    /// The greatest debt that a key can have, in nanoseconds, unless the clock was set back.
    greatest_ns: AtomicU64,
}

/// The time at which the debt of a key is paid, and the cells of the key.
pub(crate) struct Debt {
    /// In nanoseconds since the epoch. It is never too early, but other keys can make it too late.
    pub(crate) paid_at: u64,
    places: Places,
}

impl Debts {
    /// Makes cells without debts, in at most `bytes` bytes.
    pub(crate) fn with_bytes(bytes: usize) -> Debts {
        Debts { rows: Rows::with_bytes(bytes), greatest_ns: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn of(&self, key: Mixed, now: Time) -> Debt {
        let places = self.rows.places(key);
        let paid_at = self.rows.least(&places);
        let is_possible = paid_at <= now.as_nanos() + self.greatest_ns.load(Ordering::Relaxed);
        Debt { paid_at: if is_possible { paid_at } else { self.lower(&places, now) }, places }
    }

    /// Lowers the cells that are too late for any debt, and returns the smallest cell.
    ///
    /// The greatest debt is read after the cell, because a thread that charges a greater debt writes them in the other
    /// order.
    #[cold]
    fn lower(&self, places: &Places, now: Time) -> u64 {
        let latest = || now.as_nanos() + self.greatest_ns.load(Ordering::Relaxed);
        places.map(|place| self.rows.lower(place, latest)).into_iter().min().unwrap_or(0)
    }

    /// Sets the time at which a debt under `quota` is paid. The debt of the key never becomes less.
    ///
    /// Between the call of [`of`](Debts::of) and this call, no other thread may charge the same key.
    #[inline]
    pub(crate) fn raise(&self, debt: &Debt, paid_at: u64, quota: &Quota) {
        let greatest_ns = 1 << quota.debt_bits();
        if self.greatest_ns.load(Ordering::Relaxed) < greatest_ns {
            self.greatest_ns.fetch_max(greatest_ns, Ordering::Relaxed);
        }
        self.rows.raise(&debt.places, paid_at);
    }
}
