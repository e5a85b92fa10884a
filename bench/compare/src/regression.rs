//! Checks whether a server needs more CPU time for a decision than at an earlier commit.
//!
//! A single ratio varies from run to run. So this check uses a confidence interval: of the median over many rounds.

use kit::median_interval;

use crate::Cli;
use crate::measure::{Comparison, Run};

/// The ratio is CPU time at the base commit divided by CPU time now. A median below this number is a regression.
pub(crate) const LEAST: f64 = 0.97;
/// The smallest number of rounds. With fewer rounds, the interval of the median is too wide for a verdict.
const ROUNDS_MIN: usize = 31;
/// While the verdict is unclear, more rounds follow. Their total is at most this factor times the option
/// `--repetitions`, or times [`ROUNDS_MIN`] if that is larger.
const ROUNDS_FACTOR_MAX: usize = 5;

/// The verdict of all rounds. It depends on the interval that contains the true median with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The whole interval is above [`LEAST`], so there is no regression.
    Held,
    /// The whole interval is below [`LEAST`], so there is a regression.
    Regressed,
    /// [`LEAST`] is inside the interval.
    Unclear,
}

impl Verdict {
    pub(crate) fn of(comparison: &Comparison) -> Verdict {
        Verdict::by(&ratios(&comparison.runs))
    }

    fn by(ratios: &[f64]) -> Verdict {
        match median_interval(ratios.iter().copied()) {
            Some((low, _)) if low > LEAST => Verdict::Held,
            Some((_, high)) if high < LEAST => Verdict::Regressed,
            _ => Verdict::Unclear,
        }
    }
}

/// Returns, for each round, the CPU time of a decision at the base commit divided by the CPU time now.
pub(crate) fn ratios(runs: &[Vec<Run>]) -> Vec<f64> {
    let [now, base] = runs else { return Vec::new() };
    now.iter().zip(base).map(|(now, base)| base.server_cpu_us / now.server_cpu_us).collect()
}

/// Returns whether the measurement can end after this number of rounds.
pub(crate) fn enough(cli: &Cli, rounds: usize, runs: &[Vec<Run>]) -> bool {
    if cli.base.is_none() {
        return rounds >= cli.repetitions;
    }
    let asked = cli.repetitions.max(ROUNDS_MIN);
    rounds >= asked && (Verdict::by(&ratios(runs)) != Verdict::Unclear || rounds >= asked * ROUNDS_FACTOR_MAX)
}

#[cfg(test)]
mod tests {
    use super::Verdict;

    #[test]
    fn a_verdict_is_that_of_the_interval_and_not_of_the_median() {
        let around =
            |middle: f64, step: f64| (0..31).map(|i| middle + (f64::from(i) - 15.0) * step).collect::<Vec<_>>();
        assert_eq!(Verdict::by(&around(1.0, 0.001)), Verdict::Held);
        assert_eq!(Verdict::by(&around(1.0, 0.01)), Verdict::Unclear);
        assert_eq!(Verdict::by(&around(0.9, 0.001)), Verdict::Regressed);
        assert_eq!(Verdict::by(&[1.0; 5]), Verdict::Unclear);
    }
}
