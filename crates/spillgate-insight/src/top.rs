//! The callers that take the most, in memory of fixed size.
//!
//! A list has a count for each of its callers. When the list is full, the median count is subtracted from all counts,
//! and callers whose count is then 0 leave. Counts are therefore too low, by at most the sum of what was subtracted. If
//! all callers together took `N` units, this sum is below `N` / [`KEPT`], because each subtraction takes its amount
//! from at least [`KEPT`] callers. So every caller with more than `N` / [`KEPT`] units is in the list.
//!
//! This is the algorithm of Misra and Gries (1982) with the faster subtraction of Anderson and others, "A
//! high-performance algorithm for identifying frequent items in data streams" (2017). Space-Saving gives the same
//! guarantee, but it searches for the smallest count at each new caller.

use super::positions::Positions;
use super::reading::{CallerId, CallerName, TopCaller, TopCallers};

/// After a subtraction, at most this many callers still have a count above 0.
pub(super) const KEPT: usize = 48;
const CAPACITY: usize = 2 * KEPT;
/// All counts are halved at each multiple of this time since the epoch, so that old units do not hide new ones.
pub(super) const HALF_LIFE_NS: u64 = 600_000_000_000;

#[derive(Debug)]
pub(super) struct Top {
    counted: Vec<Counted>,
    positions: Positions,
    /// The names of the callers, at the same positions as in `counted`. Empty if names are not kept.
    names: Vec<CallerName>,
    /// The sum of what was subtracted from each count. Counts are too low by at most this much.
    missing: u64,
    units: u64,
    half_life: u64,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    hash: u64,
    units: u64,
}

impl Top {
    /// Makes a list. `named` says whether it keeps the names of callers.
    pub(super) fn new(named: bool) -> Top {
        Top {
            counted: Vec::with_capacity(CAPACITY),
            positions: Positions::new(CAPACITY),
            names: Vec::with_capacity(if named { CAPACITY } else { 0 }),
            missing: 0,
            units: 0,
            half_life: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.keep(|_| 0);
        (self.missing, self.units, self.half_life) = (0, 0, 0);
    }

    /// Adds units of a caller. `name` makes the name of the caller, if the list keeps names.
    #[inline]
    pub(super) fn add(&mut self, now_ns: u64, hash: u64, units: u64, name: impl FnOnce() -> CallerName) {
        self.decay(now_ns);
        self.units = self.units.saturating_add(units);
        if let Some(position) = self.positions.find(hash, |position| self.counted[position].hash) {
            let counted = &mut self.counted[position];
            counted.units = counted.units.saturating_add(units);
            return;
        }
        if self.counted.len() == CAPACITY {
            self.subtract_median();
        }
        self.positions.add(hash, self.counted.len());
        self.counted.push(Counted { hash, units });
        if self.names.capacity() > 0 {
            self.names.push(name());
        }
    }

    fn subtract_median(&mut self) {
        let mut counts = [0; CAPACITY];
        for (count, counted) in counts.iter_mut().zip(&self.counted) {
            *count = counted.units;
        }
        let (_, median, _) = counts.select_nth_unstable(KEPT);
        let median = *median;
        self.missing = self.missing.saturating_add(median);
        self.keep(|units| units.saturating_sub(median));
    }

    #[inline]
    fn decay(&mut self, now_ns: u64) {
        let half_life = now_ns / HALF_LIFE_NS;
        if half_life > self.half_life {
            self.halve(half_life);
        }
    }

    #[cold]
    fn halve(&mut self, half_life: u64) {
        let halvings = (half_life - self.half_life).min(63) as u32;
        self.half_life = half_life;
        self.units >>= halvings;
        // It is rounded up, so that the error is not reported too small. No caller can miss more than all units.
        self.missing = self.missing.div_ceil(1 << halvings).min(self.units);
        self.keep(|units| units >> halvings);
    }

    /// Replaces each count by the result of `changed`, and removes the callers whose count is then 0.
    fn keep(&mut self, changed: impl Fn(u64) -> u64) {
        let mut kept = 0;
        for position in 0..self.counted.len() {
            let Counted { hash, units } = self.counted[position];
            let units = changed(units);
            if units > 0 {
                self.counted[kept] = Counted { hash, units };
                if !self.names.is_empty() {
                    self.names[kept] = self.names[position];
                }
                kept += 1;
            }
        }
        self.counted.truncate(kept);
        self.names.truncate(kept);
        self.positions.rebuild(self.counted.iter().map(|counted| counted.hash));
    }

    /// Returns the callers of this list, in no order.
    pub(super) fn read(&mut self, now_ns: u64) -> TopCallers {
        self.decay(now_ns);
        let callers = self.counted.iter().enumerate().map(|(position, counted)| TopCaller {
            id: CallerId(counted.hash),
            name: self.names.get(position).map(CallerName::to_string),
            units: counted.units,
        });
        let highest = self.counted.iter().map(|counted| counted.units).max().unwrap_or(0);
        let highest = (highest, highest.saturating_add(self.missing));
        TopCallers { units: self.units, missing: self.missing, highest, callers: callers.collect() }
    }
}
