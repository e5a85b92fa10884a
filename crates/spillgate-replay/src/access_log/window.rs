//! The lines of one file, sorted by time. Each waits here until no earlier line can follow.
//!
//! A server writes a line when a request ends, but some servers write the time at which the request began. So lines are
//! a little out of order.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use super::fields::Fields;

/// The memory of a line besides its text and its values, in bytes.
const OVERHEAD_BYTES: usize = 168;
/// The memory of a line is reused only up to this size, so that short lines do not keep the large memory of long ones.
const SPARE_BYTES_MAX: usize = 2048;
/// The bound for the memory of all lines that wait to be reused.
const SPARES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A line that was read.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) time_ns: u64,
    /// The position of the line in the order in which lines are read.
    pub(super) order: u64,
    /// The number of the line in its file.
    pub(super) line: u64,
    pub(super) text: Vec<u8>,
    pub(super) fields: Fields,
}

impl Stored {
    /// Returns the memory of the line, including what an earlier, longer line has allocated.
    fn bytes(&self) -> usize {
        self.text.capacity() + self.fields.capacity_bytes() + OVERHEAD_BYTES
    }
}

/// The line with the earliest time is the greatest, because [`BinaryHeap`] returns the greatest.
impl Ord for Stored {
    fn cmp(&self, other: &Stored) -> Ordering {
        (other.time_ns, other.order).cmp(&(self.time_ns, self.order))
    }
}

impl PartialOrd for Stored {
    fn partial_cmp(&self, other: &Stored) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Stored) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Stored {}

/// Lines that were returned already. New lines reuse their memory, so few lines need an allocation.
#[derive(Debug, Default)]
pub(super) struct Spares {
    lines: Vec<Stored>,
    bytes: usize,
}

impl Spares {
    pub(super) fn take(&mut self) -> Stored {
        let stored = self.lines.pop().unwrap_or_default();
        self.bytes = self.bytes.saturating_sub(stored.bytes());
        stored
    }

    pub(super) fn give(&mut self, stored: Stored) {
        let bytes = stored.bytes();
        if bytes <= SPARE_BYTES_MAX && self.bytes + bytes <= SPARES_BYTES_MAX {
            self.bytes += bytes;
            self.lines.push(stored);
        }
    }
}

/// Lines that wait, sorted by time. Most lines come in order, and go to the queue `in_order`. The others go to the
/// heap, so that even a file in reverse order is sorted in little time.
#[derive(Debug, Default)]
pub(super) struct Window {
    in_order: VecDeque<Stored>,
    others: BinaryHeap<Stored>,
    bytes: usize,
}

impl Window {
    pub(super) fn push(&mut self, stored: Stored) {
        self.bytes += stored.bytes();
        if self.in_order.back().is_none_or(|last| last.time_ns <= stored.time_ns) {
            self.in_order.push_back(stored);
        } else {
            self.others.push(stored);
        }
    }

    /// Returns the time of the earliest line.
    pub(super) fn first_ns(&self) -> Option<u64> {
        let times = [self.in_order.front(), self.others.peek()].map(|stored| stored.map(|stored| stored.time_ns));
        times.into_iter().flatten().min()
    }

    /// Removes the earliest line.
    pub(super) fn pop(&mut self) -> Option<Stored> {
        let from_others = match (self.in_order.front(), self.others.peek()) {
            (Some(in_order), Some(other)) => other > in_order,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let stored = if from_others { self.others.pop() } else { self.in_order.pop_front() }?;
        self.bytes -= stored.bytes();
        Some(stored)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_leave_in_the_order_of_times_and_lines(times in prop::collection::vec(0u64..20, 0..200)) {
            let mut window = Window::default();
            for (order, time_ns) in (1..).zip(&times) {
                window.push(Stored { time_ns: *time_ns, order, ..Stored::default() });
            }
            let mut expected: Vec<_> = times.iter().copied().zip(1..).collect();
            expected.sort_unstable();
            prop_assert_eq!(window.first_ns(), expected.first().map(|(time_ns, _)| *time_ns));
            prop_assert_eq!(window.bytes(), times.len() * OVERHEAD_BYTES);
            let left: Vec<_> = std::iter::from_fn(|| window.pop()).map(|stored| (stored.time_ns, stored.order)).collect();
            prop_assert_eq!(left, expected);
            prop_assert_eq!((window.first_ns(), window.bytes()), (None, 0));
        }
    }
}
