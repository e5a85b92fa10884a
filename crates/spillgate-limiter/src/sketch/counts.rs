//! A Count-Min sketch whose cells know their window.
//!
//! A cell has the number of its window in its upper half, and a count in its lower half. A cell with the number of
//! another window counts as 0, so a new window needs no memory to be cleared.
//!
//! Only the lowest 32 bits of the number are stored. A cell that was not written for 2^32 windows is read as if it
//! belonged to the current window. The estimate is then too high, and never too low.

use std::collections::BTreeMap;

use super::mixer::Mixed;
use super::rows::{DEPTH, Rows};
use crate::sync::Ordering;

/// The highest count of a cell. A cell that has reached it does not rise any more.
pub(super) const MAX_COUNT: u64 = u32::MAX as u64;

pub(super) struct Counts(Rows);

/// Returns a cell with this count, in the window with this number.
const fn in_window(window: u64, count: u64) -> u64 {
    window << 32 | count
}

impl Counts {
    pub(super) fn with_bytes(bytes: usize) -> Counts {
        Counts(Rows::with_bytes(bytes))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    pub(super) fn width(&self) -> u64 {
        self.0.width()
    }

    /// Returns the counts that cells have in the window, from low to high. Each count comes with the share of keys that
    /// have at least this estimate although they were never counted.
    pub(super) fn shares(&self, window: u64) -> Vec<(u64, f64)> {
        let mut cells = BTreeMap::new();
        for cell in self.0.values().filter(|cell| cell >> 32 == window & MAX_COUNT && cell & MAX_COUNT > 0) {
            *cells.entry(cell & MAX_COUNT).or_insert(0_u64) += 1;
        }
        let all = (self.width() * DEPTH as u64) as f64;
        let mut higher = 0;
        let shares = cells.into_iter().rev().map(|(count, cells)| {
            higher += cells;
            (count, (higher as f64 / all).powi(DEPTH as i32))
        });
        let mut shares: Vec<_> = shares.collect();
        shares.reverse();
        shares
    }

    /// Returns an estimate of the count of `key` in the window. It is never too low, if the true count is at most
    /// [`MAX_COUNT`].
    #[inline]
    pub(super) fn estimate(&self, key: Mixed, window: u64) -> u64 {
        let counts = self.0.places(key).map(|place| {
            let cell = self.0.cell(place).load(Ordering::Acquire);
            if cell >> 32 == window & MAX_COUNT { cell & MAX_COUNT } else { 0 }
        });
        counts.into_iter().min().unwrap_or(0)
    }

    /// Sets the count of `key` in the window to at least `count`.
    ///
    /// The cells of the key never get more than `count` (conservative update). An addition to each cell would also raise
    /// the cells that are too high already because of other keys.
    ///
    /// A cell of another window is replaced only if `is_older` returns true after the cell was read. Otherwise the cell
    /// belongs to a newer window, in which this count does not matter.
    #[inline]
    pub(super) fn raise(&self, key: Mixed, window: u64, count: u64, is_older: impl Fn() -> bool) {
        let new = in_window(window, count.min(MAX_COUNT));
        for place in self.0.places(key) {
            let cell = self.0.cell(place);
            let mut old = cell.load(Ordering::Acquire);
            loop {
                let replaces = if old >> 32 == new >> 32 { old < new } else { is_older() };
                if !replaces {
                    break;
                }
                match cell.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(changed) => old = changed,
                }
            }
        }
    }
}
