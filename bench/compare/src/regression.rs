//! Whether a server takes more CPU time a decision than it did at an earlier commit.

use kit::median_interval;

use crate::Cli;
use crate::measure::{Comparison, Run};

/// CPU time at the base over that of now: below this it is a regression.
pub(crate) const LEAST: f64 = 0.97;
/// Fewer rounds prove nothing.
const ROUNDS_MIN: usize = 31;
/// While the interval does not tell, rounds go on, up to this many times what was asked for.
const ROUNDS_FACTOR_MAX: usize = 5;

/// What the rounds say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The interval of the median is above the least ratio.
    Held,
    /// It is below.
    Regressed,
    /// The least ratio lies in it.
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

/// CPU time a decision at the base over that of now, round by round.
pub(crate) fn ratios(runs: &[Vec<Run>]) -> Vec<f64> {
    let [now, base] = runs else { return Vec::new() };
    now.iter().zip(base).map(|(now, base)| base.server_cpu_us / now.server_cpu_us).collect()
}

/// Whether this many rounds will do.
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
