//! The cells in which the sketch of a full store keeps what keys owe, whatever the rates of their limits are.
//!
//! A key owes a number of units, which falls to 0 at a constant rate. On paper this is a line: it ends at the time
//! `paid_at`, and falls by one unit in each `interval`. Limits with other rates can charge the same key, so a time alone
//! does not say how many units a key owes. A cell therefore has both numbers of a line.
//!
//! **Each cell is a line that is nowhere below the line of a key with this cell**, from now on. To charge a key, a line
//! is added to each of its four cells. If neither the line of the cell nor the new line is above the other one, the cell
//! becomes the line from the larger number of units now to the later end. No line above both falls faster.
//!
//! The cell also has the time of the last charge that made it fall more slowly than one of its lines. Since then, and
//! for some time after, the cell does not show how many units were charged in the past: see [`Debt::units_since`].

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use spillgate_core::Time;

use crate::sketch::{DEPTH, Mixed};

/// The cells that share one lock. More cells would make threads wait for each other, fewer would need more memory for
/// their locks: a lock takes 8 bytes.
const CHUNK: usize = 32;
/// The unit of [`Cell::mixed_at`]: 2^31 ns, about 2 s. A longer one would keep keys in the sketch for longer, with a
/// shorter one the times of this century would not fit.
const TICK_BITS: u32 = 31;
/// Rounding errors of a few operations on doubles are smaller. The results are rounded so that a key never owes less.
const MARGIN: f64 = 1e-12;

/// What a key owes, or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// In nanoseconds since the epoch.
    pub(super) paid_at: u64,
    /// The time in which one unit is paid, in nanoseconds. Use [`interval`] to make it from an integer.
    pub(super) interval: f32,
}

/// Rounds a time between two units up to one that a [`Line`] can have. It grows by less than a millionth.
pub(super) fn interval_above(ns: u64) -> u64 {
    let near = ns as f32;
    if (near as u64) < ns { near.next_up() as u64 } else { near as u64 }
}

/// Returns the time between two units, rounded down: a line that falls faster from an earlier height to the same end.
pub(super) fn interval(ns: f64) -> f32 {
    let near = ns as f32;
    if f64::from(near) > ns { near.next_down() } else { near }
}

/// Returns `ns * times / parts`, rounded up.
fn scaled(ns: u64, times: u64, parts: u64) -> u64 {
    let product = u128::from(ns) * u128::from(times);
    u64::try_from(product.div_ceil(u128::from(parts))).unwrap_or(u64::MAX)
}

impl Line {
    fn debt_ns(self, now: u64) -> f64 {
        self.paid_at.saturating_sub(now) as f64
    }

    /// Returns how many units are owed at `now`. The result is exact up to [`MARGIN`].
    fn units(self, now: u64) -> f64 {
        self.debt_ns(now) / f64::from(self.interval)
    }

    /// Returns the time until all units are paid if one unit is paid in each `interval_ns`, rounded up.
    pub(super) fn debt_in(self, interval_ns: u64, now: u64) -> u64 {
        let debt_ns = self.paid_at.saturating_sub(now);
        match self.whole_interval() {
            // Nearly always the same limit has charged the key.
            Some(own_ns) if own_ns == interval_ns => debt_ns,
            Some(own_ns) => scaled(debt_ns, interval_ns, own_ns),
            None => (self.units(now) * interval_ns as f64 * (1.0 + MARGIN)).ceil() as u64,
        }
    }

    /// Returns how long this line needs for what a line with one unit in each `interval_ns` pays in `ns`, rounded up.
    pub(super) fn time_for(self, ns: u64, interval_ns: u64) -> u64 {
        match self.whole_interval() {
            Some(own_ns) => scaled(ns, own_ns, interval_ns),
            None => (ns as f64 / interval_ns as f64 * f64::from(self.interval) * (1.0 + MARGIN)).ceil() as u64,
        }
    }

    /// Returns the time between two units if it is that of a limit. Only a line above two other ones has a fraction of
    /// a nanosecond.
    fn whole_interval(self) -> Option<u64> {
        (self.interval.fract() == 0.0 && self.interval > 0.0).then_some(self.interval as u64)
    }

    /// Returns the number of whole units between the time `start` and the end of the line.
    pub(super) fn units_since(self, start: u64) -> u64 {
        (self.units(start) * (1.0 + MARGIN)) as u64
    }

    /// Returns whether this line is nowhere below the other line, from `now` on.
    fn is_above(self, other: Line, now: u64) -> bool {
        self.paid_at >= other.paid_at
            && (self.interval == other.interval || self.units(now) > other.units(now) * (1.0 + MARGIN))
    }

    /// Returns the lowest line that is nowhere below the two lines, from `now` on.
    fn above_both(self, other: Line, now: u64) -> Line {
        if other.paid_at <= now || self.is_above(other, now) {
            return self;
        }
        if self.paid_at <= now || other.is_above(self, now) {
            return other;
        }
        let paid_at = self.paid_at.max(other.paid_at);
        let units = self.units(now).max(other.units(now));
        let debt_ns = paid_at.saturating_sub(now) as f64;
        Line { paid_at, interval: interval(debt_ns / units * (1.0 - MARGIN)) }
    }
}

/// The fields of a [`Line`] are here on their own, because a cell with a `Line` would take half as much memory again.
#[derive(Clone, Copy, Debug)]
struct Cell {
    paid_at: u64,
    interval: f32,
    /// When the line was last made less steep than one of the lines in it, in ticks since the epoch, rounded up. 0 is
    /// never.
    mixed_at: u32,
}

const EMPTY: Cell = Cell { paid_at: 0, interval: 1.0, mixed_at: 0 };

fn tick_after(ns: u64) -> u32 {
    u32::try_from((ns >> TICK_BITS) + 1).unwrap_or(u32::MAX)
}

impl Cell {
    fn line(self) -> Line {
        Line { paid_at: self.paid_at, interval: self.interval }
    }

    /// Adds the line of a key. Units that were charged more than `remembered_ns` ago count nowhere any more.
    fn add(&mut self, line: Line, now: u64, remembered_ns: u64) {
        let sum = self.line().above_both(line, now);
        let is_remembered = self.paid_at.saturating_add(remembered_ns) > now && self.paid_at > 0;
        if is_remembered && sum.interval > self.interval.min(line.interval) {
            self.mixed_at = tick_after(now);
        }
        (self.paid_at, self.interval) = (sum.paid_at, sum.interval);
    }

    /// Lowers a cell that is ahead of the clock by more than any debt can be, because the clock was set back.
    fn lower(&mut self, now: u64, greatest_ns: u64) {
        self.paid_at = self.paid_at.min(now.saturating_add(greatest_ns));
        self.mixed_at = self.mixed_at.min(tick_after(now));
    }

    fn is_mixed_since(self, ns: u64) -> bool {
        u64::from(self.mixed_at) << TICK_BITS > ns
    }
}

/// The pages about sketches say so, and how much more memory that is than a sketch of one limit needs.
const _: () = assert!(size_of::<Cell>() == 16);

/// The cells of one part of the sketch.
pub(super) struct Cells {
    chunks: Box<[Mutex<[Cell; CHUNK]>]>,
    /// The number of cells in a row.
    width: u32,
    /// No debt is greater than this, in nanoseconds.
    greatest_ns: AtomicU64,
    /// For how long a unit counts after it was charged, at most, in nanoseconds.
    remembered_ns: AtomicU64,
}

/// What the cells of a key show.
pub(super) struct Debt {
    cells: [Cell; DEPTH],
    places: [usize; DEPTH],
}

impl Debt {
    /// Returns the line with the fewest units at `now`.
    pub(super) fn line(&self, now: Time) -> Line {
        lowest(self.cells.iter(), now.as_nanos()).unwrap_or(EMPTY.line())
    }

    /// Returns the line from which the number of units that were charged since the time `start_ns` can be read, or
    /// `None` if no cell shows it.
    ///
    /// Each unit made the line end later by the time that this unit takes to be paid. If no unit since the start was
    /// paid faster than the line falls, then at most `(paid_at - start) / interval` units were charged. If faster units
    /// were mixed in, more could have been.
    pub(super) fn units_since(&self, start_ns: u64) -> Option<Line> {
        lowest(self.cells.iter().filter(|cell| !cell.is_mixed_since(start_ns)), start_ns)
    }
}

/// Returns the line of the cell with the fewest units at `time_ns`.
fn lowest<'c>(cells: impl Iterator<Item = &'c Cell>, time_ns: u64) -> Option<Line> {
    cells.map(|cell| cell.line()).min_by(|a, b| a.units(time_ns).total_cmp(&b.units(time_ns)))
}

impl Cells {
    /// Makes empty cells in at most `bytes` bytes, but at least 32 cells. All their memory is written now, so that the
    /// memory of the process does not grow later.
    pub(super) fn with_bytes(bytes: usize) -> Cells {
        let most = u32::MAX as usize / CHUNK * DEPTH;
        let chunks = (bytes / size_of::<Mutex<[Cell; CHUNK]>>()).clamp(1, most);
        Cells {
            chunks: (0..chunks).map(|_| Mutex::new([EMPTY; CHUNK])).collect(),
            width: (chunks * CHUNK / DEPTH) as u32,
            greatest_ns: AtomicU64::new(0),
            remembered_ns: AtomicU64::new(0),
        }
    }

    fn cell<R>(&self, place: usize, f: impl FnOnce(&mut Cell) -> R) -> R {
        f(&mut self.chunks[place / CHUNK].lock()[place % CHUNK])
    }

    /// Reads the cells of a key.
    pub(super) fn of(&self, key: Mixed, now: Time) -> Debt {
        let now = now.as_nanos();
        let places = array::from_fn(|row| row * self.width as usize + key.below(row, self.width));
        let cells = places.map(|place| {
            self.cell(place, |cell| {
                // The bound is read after the lock. So it includes each debt that a thread has written to this cell.
                cell.lower(now, self.greatest_ns.load(Ordering::Relaxed));
                *cell
            })
        });
        Debt { cells, places }
    }

    /// Adds the line of a key to its cells. The debt of its limit is at most `greatest_ns`, and its units count for at
    /// most `remembered_ns`.
    ///
    /// Between the call of [`of`](Cells::of) and this call, no other thread may charge the same key.
    pub(super) fn add(&self, debt: &Debt, line: Line, now: Time, (greatest_ns, remembered_ns): (u64, u64)) {
        let greatest_ns = greatest_ns.max(line.paid_at.saturating_sub(now.as_nanos()));
        self.greatest_ns.fetch_max(greatest_ns, Ordering::Relaxed);
        let before = self.remembered_ns.fetch_max(remembered_ns, Ordering::Relaxed);
        for place in debt.places {
            self.cell(place, |cell| cell.add(line, now.as_nanos(), remembered_ns.max(before)));
        }
    }
}

#[cfg(test)]
mod tests {
    use spillgate_testkit::Random;

    use super::*;

    const NOW: u64 = 1_770_000_000_000_000_000;

    fn some_line(random: &mut Random) -> Line {
        let bits = random.below(45);
        let interval_ns = interval_above(1 + random.below(1 << bits));
        let units = random.below(1_000);
        Line { paid_at: NOW + interval_ns * units + random.below(interval_ns), interval: interval(interval_ns as f64) }
    }

    #[test]
    fn a_cell_is_nowhere_below_the_lines_of_its_keys() {
        let mut random = Random(11);
        for _ in 0..20_000 {
            let lines: Vec<Line> = (0..1 + random.below(5)).map(|_| some_line(&mut random)).collect();
            let mut cell = EMPTY;
            lines.iter().for_each(|line| cell.add(*line, NOW, 0));
            let sum = cell.line();
            for line in &lines {
                for part in [0.0, 0.1, 0.5, 0.9, 1.0] {
                    let at = NOW + ((line.paid_at - NOW) as f64 * part) as u64;
                    assert!(
                        sum.units(at) >= line.units(at) * (1.0 - 2.0 * MARGIN),
                        "{sum:?} is below {line:?} at {at}"
                    );
                }
                assert!(sum.paid_at >= line.paid_at);
            }
            let ends = lines.iter().map(|line| line.paid_at);
            assert_eq!(ends.max(), Some(sum.paid_at), "no line above all of them ends earlier");
        }
    }

    #[test]
    fn an_interval_of_a_substitute_is_kept_exactly_and_rounded_up_by_less_than_a_millionth() {
        let mut random = Random(12);
        for _ in 0..20_000 {
            let bits = random.below(62);
            let ns = 1 + random.below(1 << bits);
            let above = interval_above(ns);
            assert!(above >= ns && above - ns <= ns / 1_000_000, "{ns}: {above}");
            let line = Line { paid_at: NOW + 3 * (above >> 2), interval: interval(above as f64) };
            assert_eq!(line.whole_interval(), Some(above));
            assert_eq!(line.debt_in(above, NOW), 3 * (above >> 2));
        }
    }

    #[test]
    fn a_cell_knows_when_a_line_with_a_shorter_interval_was_mixed_in() {
        let second = 1_000_000_000;
        let line =
            |seconds: u64, interval_ns: u64| Line { paid_at: NOW + seconds * second, interval: interval_ns as f32 };
        let mixed = |lines: &[Line]| {
            let mut cell = EMPTY;
            lines.iter().for_each(|line| cell.add(*line, NOW, 60 * second));
            cell.is_mixed_since(NOW)
        };
        assert!(!mixed(&[line(1, second), line(2, second), line(1, second)]), "one limit");
        assert!(!mixed(&[line(5, second), line(6, second / 1_000)]), "the faster line is above the other one");
        assert!(mixed(&[line(6, second / 1_000), line(7, second)]), "the slower line ends later");
        assert!(mixed(&[line(5, second), line(1, second / 1_000)]), "two lines that cross");
        assert!(
            mixed(&[line(5, second), line(1, second / 2)]),
            "the slower line is above, but more units were charged"
        );
    }
}
