//! The cells of a sketch: a few rows of atomic numbers.
//!
//! Each key has one cell in each row, and shares it with other keys. A cell is never below the value of any key that
//! has this cell. The smallest cell of a key is therefore the best estimate of the key's value.

use super::mixer::Mixed;
use crate::sync::{AtomicU64, Ordering};

/// The number of rows. A new key is refused wrongly if its cell is too high in every row. So the share of wrong
/// refusals is the share of high cells to the power of the number of rows. But more rows of the same length would cost
/// time, and more rows in the same memory would be shorter.
pub(crate) const DEPTH: usize = 4;

/// The smallest page of memory that an operating system gives to a process.
pub(super) const PAGE_BYTES: usize = 4096;

/// The highest number of cells in a row. [`Mixed::below`] cannot choose among more cells.
const MAX_WIDTH: usize = u32::MAX as usize;

/// Rows of cells, one row after the other.
pub(super) struct Rows {
    cells: Box<[AtomicU64]>,
    /// The number of cells in a row.
    width: u32,
}

/// The cells of one key: the index of its cell in each row.
pub(super) type Places = [usize; DEPTH];

impl Rows {
    /// Makes rows of cells that are 0, in at most `bytes` bytes. The memory of the process does not grow later.
    pub(super) fn with_bytes(bytes: usize) -> Rows {
        let width = Rows::width_of(bytes);
        let cells: Box<[AtomicU64]> = (0..width * DEPTH).map(|_| AtomicU64::new(0)).collect();
        // Writes to each page once. The operating system can delay giving the process a page of zeros until the first
        // write to it. Without these writes, the memory of the process would grow later.
        cells.iter().step_by(PAGE_BYTES / size_of::<AtomicU64>()).for_each(|cell| cell.store(0, Ordering::Relaxed));
        Rows { cells, width: width as u32 }
    }

    /// Returns the number of cells in a row, if all rows have at most this many bytes.
    pub(super) fn width_of(bytes: usize) -> usize {
        (bytes / size_of::<AtomicU64>() / DEPTH).clamp(1, MAX_WIDTH)
    }

    pub(super) fn width(&self) -> u64 {
        u64::from(self.width)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.cells)
    }

    #[inline]
    pub(super) fn places(&self, key: Mixed) -> Places {
        std::array::from_fn(|row| row * self.width as usize + key.below(row, self.width))
    }

    #[inline]
    pub(super) fn cell(&self, place: usize) -> &AtomicU64 {
        &self.cells[place]
    }

    #[inline]
    pub(super) fn get(&self, place: usize) -> u64 {
        self.cells[place].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn least(&self, places: &Places) -> u64 {
        places.map(|place| self.get(place)).into_iter().min().unwrap_or(0)
    }

    /// Raises these cells to `value`. A cell that is higher stays as it is.
    #[inline]
    pub(super) fn raise(&self, places: &Places, value: u64) {
        for place in places {
            let cell = &self.cells[*place];
            // Another thread may raise the cell at the same time, for another key that shares the cell.
            if cell.load(Ordering::Relaxed) < value {
                cell.fetch_max(value, Ordering::Release);
            }
        }
    }

    /// Lowers a cell to `highest()` if the cell is higher, and returns the value that the cell has then. `highest` is
    /// called after the cell was read.
    pub(super) fn lower(&self, place: usize, highest: impl Fn() -> u64) -> u64 {
        let cell = &self.cells[place];
        let mut old = cell.load(Ordering::Acquire);
        loop {
            let new = old.min(highest());
            if new == old {
                return old;
            }
            match cell.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return new,
                Err(changed) => old = changed,
            }
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = u64> {
        self.cells.iter().map(|cell| cell.load(Ordering::Relaxed))
    }

    /// Returns the share of the cells for which `is_high` returns true.
    pub(super) fn share(&self, is_high: impl Fn(u64) -> bool) -> f64 {
        self.values().filter(|cell| is_high(*cell)).count() as f64 / self.cells.len() as f64
    }
}
