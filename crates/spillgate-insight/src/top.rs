//! The callers that take the most in the current and the previous half hour, in memory of fixed size.
//!
//! Each half hour has a list of its own, so no count is halved, and the counts of both together are true of a time with
//! a known beginning. A list has a count for each of its callers. When the list is full, the median count is subtracted from all counts,
//! and callers whose count is then 0 leave. Counts are therefore too low, by at most the sum of what was subtracted. If
//! all callers together took `N` units, this sum is below `N` / [`KEPT`], because each subtraction takes its amount
//! from at least [`KEPT`] callers. So every caller with more than `N` / [`KEPT`] units is in the list.
//!
//! This is the algorithm of Misra and Gries (1982) with the faster subtraction of Anderson and others, "A
//! high-performance algorithm for identifying frequent items in data streams" (2017). Space-Saving gives the same
//! guarantee, but it searches for the smallest count at each new caller.

use super::LONGEST_SPAN_NS;
use super::name::CallerName;
use super::positions::Positions;
use super::reading::{CallerId, TopCaller, TopCallers};

/// After a subtraction, at most this many callers still have a count above 0.
pub(super) const KEPT: usize = 48;
const CAPACITY: usize = 2 * KEPT;
/// A list covers this time. Half hours begin at its multiples since the epoch.
pub(super) const HALF_HOUR_NS: u64 = LONGEST_SPAN_NS / 2;

#[derive(Debug)]
pub(super) struct Top {
    /// The list of the current half hour.
    now: List,
    /// Where a caller is in `now`.
    positions: Positions,
    /// The list of the previous half hour. It is only read, so it needs no positions.
    before: List,
    /// The number of the current half hour, counted from the epoch.
    half: u64,
}

#[derive(Debug)]
struct List {
    counted: Vec<Counted>,
    /// Whether names are kept.
    named: bool,
    /// The names of the callers, at the same positions as in `counted`. Empty if names are not kept.
    names: Vec<CallerName>,
    /// How many callers have no name, because they were counted before names were kept. Such a caller gets its name
    /// when it is counted again.
    unnamed: usize,
    /// The sum of what was subtracted from each count. Counts are too low by at most this much.
    missing: u64,
    units: u64,
    /// The units that another limit refused.
    elsewhere: u64,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    hash: u64,
    units: u64,
}

impl Top {
    /// Makes an empty list for each half hour. `named` says whether they keep the names of callers.
    pub(super) fn new(named: bool) -> Top {
        let [now, before] = [(); 2].map(|()| List::new(named));
        Top { now, positions: Positions::new(CAPACITY), before, half: 0 }
    }

    /// Sets whether the lists keep the names of callers. Counts stay. If names are not kept any more, they are forgotten.
    pub(super) fn keep_names(&mut self, named: bool) {
        self.now.keep_names(named);
        self.before.keep_names(named);
    }

    pub(super) fn clear(&mut self) {
        self.now.clear();
        self.before.clear();
        self.positions.rebuild(std::iter::empty());
        self.half = 0;
    }

    /// Adds units of a caller. `name` makes the name of the caller, if the list keeps names.
    #[inline]
    pub(super) fn add(&mut self, now_ns: u64, hash: u64, units: u64, name: impl FnOnce() -> CallerName) {
        self.pass(now_ns);
        let list = &mut self.now;
        list.units = list.units.saturating_add(units);
        if let Some(position) = self.positions.find(hash, |position| list.counted[position].hash) {
            let counted = &mut list.counted[position];
            counted.units = counted.units.saturating_add(units);
            if list.unnamed > 0 {
                list.name_late(position, name);
            }
            return;
        }
        if list.counted.len() == CAPACITY {
            list.subtract_median(&mut self.positions);
        }
        self.positions.add(hash, list.counted.len());
        list.counted.push(Counted { hash, units });
        if list.named {
            list.push_name(name());
        }
    }

    /// Adds units that another limit refused. They are of no caller.
    pub(super) fn add_elsewhere(&mut self, now_ns: u64, units: u64) {
        self.pass(now_ns);
        self.now.elsewhere = self.now.elsewhere.saturating_add(units);
    }

    /// Lets time pass until `now_ns`.
    #[inline]
    fn pass(&mut self, now_ns: u64) {
        let half = now_ns / HALF_HOUR_NS;
        if half > self.half {
            self.begin_half(half);
        }
    }

    #[cold]
    fn begin_half(&mut self, half: u64) {
        std::mem::swap(&mut self.now, &mut self.before);
        if half > self.half + 1 {
            self.before.clear();
        }
        self.now.clear();
        self.positions.rebuild(std::iter::empty());
        self.half = half;
    }

    /// Adds the callers of both half hours to `top`.
    pub(super) fn read(&mut self, now_ns: u64, top: &mut TopCallers) {
        self.pass(now_ns);
        for list in [&self.before, &self.now] {
            top.refused_elsewhere = top.refused_elsewhere.saturating_add(list.elsewhere);
            top.add(list.read());
        }
    }
}

impl List {
    fn new(named: bool) -> List {
        List {
            counted: Vec::with_capacity(CAPACITY),
            named,
            names: Vec::with_capacity(if named { CAPACITY } else { 0 }),
            unnamed: 0,
            missing: 0,
            units: 0,
            elsewhere: 0,
        }
    }

    fn clear(&mut self) {
        self.counted.clear();
        self.names.clear();
        (self.missing, self.units, self.elsewhere, self.unnamed) = (0, 0, 0, 0);
    }

    fn keep_names(&mut self, named: bool) {
        if named == self.named {
            return;
        }
        self.named = named;
        self.names = Vec::new();
        self.unnamed = 0;
        if named {
            self.names.reserve_exact(CAPACITY);
            self.names.resize(self.counted.len(), CallerName::of([]));
            self.unnamed = self.counted.len();
        }
    }

    #[inline]
    fn push_name(&mut self, name: CallerName) {
        self.unnamed += usize::from(name.is_empty());
        self.names.push(name);
    }

    /// Names the caller at this position if it has no name yet.
    #[cold]
    fn name_late(&mut self, position: usize, name: impl FnOnce() -> CallerName) {
        if self.names[position].is_empty() {
            self.names[position] = name();
            self.unnamed -= usize::from(!self.names[position].is_empty());
        }
    }

    /// Subtracts the median count from all counts, and removes the callers whose count is then 0.
    fn subtract_median(&mut self, positions: &mut Positions) {
        let mut counts = [0; CAPACITY];
        for (count, counted) in counts.iter_mut().zip(&self.counted) {
            *count = counted.units;
        }
        let (_, median, _) = counts.select_nth_unstable(KEPT);
        let median = *median;
        self.missing = self.missing.saturating_add(median);
        let mut kept = 0;
        for position in 0..self.counted.len() {
            let Counted { hash, units } = self.counted[position];
            if units > median {
                self.counted[kept] = Counted { hash, units: units - median };
                if !self.names.is_empty() {
                    self.names[kept] = self.names[position];
                }
                kept += 1;
            }
        }
        self.counted.truncate(kept);
        self.names.truncate(kept);
        if self.unnamed > 0 {
            self.unnamed = self.names.iter().filter(|name| name.is_empty()).count();
        }
        positions.rebuild(self.counted.iter().map(|counted| counted.hash));
    }

    fn read(&self) -> (u64, u64, impl Iterator<Item = TopCaller>) {
        let callers = self.counted.iter().enumerate().map(|(position, counted)| TopCaller {
            id: CallerId(counted.hash),
            name: self.names.get(position).filter(|name| !name.is_empty()).map(CallerName::to_string),
            units: counted.units,
        });
        (self.units, self.missing, callers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(hash: u64) -> CallerName {
        CallerName::of([hash.to_string().as_str()])
    }

    fn read(top: &mut Top) -> Vec<TopCaller> {
        let mut callers = TopCallers::default();
        top.read(0, &mut callers);
        callers.callers
    }

    #[test]
    fn a_name_that_comes_late_is_that_of_its_caller() {
        let mut top = Top::new(false);
        (1..=40).for_each(|hash| top.add(0, hash, 1000 - hash, || name(hash)));
        top.keep_names(true);
        // Some callers come again, and new ones fill the list several times over.
        (1..=40).step_by(2).for_each(|hash| top.add(0, hash, 1000, || name(hash)));
        (100..400).for_each(|hash| top.add(0, hash, 1, || name(hash)));
        let callers = read(&mut top);
        for caller in &callers {
            let is_named = caller.id.0 % 2 == 1 || caller.id.0 >= 100;
            assert_eq!(caller.name, is_named.then(|| caller.id.0.to_string()), "{caller:?}");
        }
        assert!(callers.iter().filter(|caller| caller.name.is_none()).count() == 20, "{callers:?}");
        top.keep_names(true);
        assert_eq!(read(&mut top), callers, "nothing has changed");
        top.keep_names(false);
        assert!(read(&mut top).iter().all(|caller| caller.name.is_none()));
    }
}
