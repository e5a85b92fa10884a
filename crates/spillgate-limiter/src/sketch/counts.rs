//! A Count-Min sketch in which each cell stores the number of its window.
//!
//! A cell has 64 bits: the number of its window in the upper half, and a count in the lower half. A cell with the
//! number of another window counts as 0. So no memory has to be cleared when a new window begins.
//!
//! A cell stores only the lowest 32 bits of the number, which repeat after 2^32 windows. A cell that was not written
//! since then looks as if it belonged to the current window. This can make an estimate too high, but never too low.

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

    /// Returns the counts that cells have in the window, from low to high. Each count comes with a share: of all keys
    /// that were never counted in the window, this share has at least this estimate.
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

    /// Returns an estimate of the count of `key` in the window. If the true count is at most [`MAX_COUNT`], the
    /// estimate is never too low.
    #[inline]
    pub(super) fn estimate(&self, key: Mixed, window: u64) -> u64 {
        let counts = self.0.places(key).map(|place| {
            let cell = self.0.cell(place).load(Ordering::Acquire);
            if cell >> 32 == window & MAX_COUNT { cell & MAX_COUNT } else { 0 }
        });
        counts.into_iter().min().unwrap_or(0)
    }

    /// Raises the count of `key` in the window to at least `count`.
    ///
    /// A cell below `count` becomes `count`, and a higher cell stays as it is (conservative update). If the units were
    /// added to each cell instead, a cell that is too high already because of other keys would rise too.
    ///
    /// If a cell has the number of another window, this function calls `is_older`, after it has read the cell. True
    /// means that the other window is older, so the cell is replaced. False means that the other window can be newer.
    /// The cell then stays as it is, because this count no longer matters.
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
