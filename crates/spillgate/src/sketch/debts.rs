//! The cells of a GCRA sketch, without locks and without a limit.
//!
//! A full memory store keeps the keys for which it has no space in such cells. Its own locks serialize the requests on
//! one key.

use super::mixer::Mixer;
use super::rows::{Places, Rows};

/// For any number of keys: the times at which their debts are paid. The debt is the time that a bucket needs to refill.
pub(crate) struct Debts {
    mixer: Mixer,
    rows: Rows,
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
        Debts { mixer: Mixer::random(), rows: Rows::with_bytes(bytes) }
    }

    /// Returns the debt of a key.
    pub(crate) fn of(&self, key: u128) -> Debt {
        let places = self.rows.places(self.mixer.mix(key));
        Debt { paid_at: self.rows.least(&places), places }
    }

    /// Sets the time at which a debt is paid. The debt of a key never becomes less.
    ///
    /// Between the call of [`of`](Debts::of) and this call, no other thread may charge the same key.
    pub(crate) fn raise(&self, debt: &Debt, paid_at: u64) {
        self.rows.raise(&debt.places, paid_at);
    }
}
