//! Counts requests over time, in memory of fixed size.
//!
//! The length of a log is known only at its end. So the steps begin short, and become longer when there are too many.

use super::report::{Counts, Timeline};

/// The most steps of a timeline. A picture cannot show more.
const POINTS: usize = 240;
const SECOND_NS: u64 = 1_000_000_000;
/// A step of one second grows by these factors to lengths that people use: 5 s, 15 s, 30 s, a minute, ..., a day. Then
/// it doubles.
const FACTORS: [u64; 12] = [5, 3, 2, 2, 5, 3, 2, 2, 3, 2, 2, 2];

/// A timeline to which requests are still added.
#[derive(Clone, Debug)]
pub(super) struct Counting {
    step_ns: u64,
    /// How many times the step has become longer.
    longer: usize,
    /// The number of the first step, counted from 1970. Steps begin at multiples of their length.
    first: u64,
    points: Vec<Counts>,
}

impl Counting {
    pub(super) const fn new() -> Counting {
        Counting { step_ns: SECOND_NS, longer: 0, first: 0, points: Vec::new() }
    }

    /// Counts a request. A time before the first step counts in the first step.
    #[inline]
    pub(super) fn add(&mut self, time_ns: u64, refused: bool) {
        if self.points.is_empty() {
            self.first = time_ns / self.step_ns;
        }
        let mut index = (time_ns / self.step_ns).saturating_sub(self.first);
        while index >= POINTS as u64 {
            self.lengthen();
            index = (time_ns / self.step_ns).saturating_sub(self.first);
        }
        let index = index as usize;
        if index >= self.points.len() {
            self.points.resize(index + 1, Counts::default());
        }
        self.points[index].add(refused);
    }

    #[cold]
    fn lengthen(&mut self) {
        let factor = FACTORS.get(self.longer).copied().unwrap_or(2);
        self.longer += 1;
        self.step_ns = self.step_ns.saturating_mul(factor);
        let first = self.first / factor;
        let mut points: Vec<Counts> = Vec::new();
        for (point, number) in self.points.iter().zip(self.first..) {
            let index = (number / factor - first) as usize;
            if index >= points.len() {
                points.resize(index + 1, Counts::default());
            }
            points[index].allowed += point.allowed;
            points[index].refused += point.refused;
        }
        (self.first, self.points) = (first, points);
    }

    pub(super) fn finish(self) -> Timeline {
        let begin_ns = self.first.saturating_mul(self.step_ns);
        Timeline { begin_ns, step_ns: self.step_ns, points: self.points }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_NS: u64 = 86_400 * SECOND_NS;

    fn timeline(times_ns: impl IntoIterator<Item = u64>) -> Timeline {
        let mut counting = Counting::new();
        times_ns.into_iter().for_each(|time_ns| counting.add(time_ns, time_ns % 3 == 0));
        counting.finish()
    }

    #[test]
    fn steps_become_longer_and_no_request_is_lost() {
        let begin_ns = 20_000 * DAY_NS + 12_345 * SECOND_NS;
        for (length_ns, step_s) in [
            (239 * SECOND_NS, 1),
            (240 * SECOND_NS, 5),
            (3_600 * SECOND_NS, 30),
            (DAY_NS, 900),
            (200 * DAY_NS, 86_400),
            (1_000 * DAY_NS, 8 * 86_400),
        ] {
            let timeline = timeline((0..=1_000).map(|step| begin_ns + length_ns / 1_000 * step));
            assert_eq!(timeline.points.iter().map(|point| point.allowed + point.refused).sum::<u64>(), 1_001);
            assert!(timeline.points.len() <= POINTS);
            assert_eq!(timeline.step_ns / SECOND_NS, step_s, "{length_ns}");
            assert_eq!(timeline.begin_ns % timeline.step_ns, 0);
            assert!((timeline.begin_ns..timeline.begin_ns + timeline.step_ns).contains(&begin_ns));
        }
    }

    #[test]
    fn a_jump_over_all_of_time_needs_no_memory() {
        let timeline = timeline([0, u64::MAX, 5]);
        assert!(timeline.points.len() <= POINTS);
        assert_eq!(timeline.points[0], Counts { allowed: 1, refused: 1 });
    }
}
