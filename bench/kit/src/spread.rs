//! The median, the minimum and the maximum of measured numbers, and quantiles.
//!
//! A single number says little on a busy machine. So a report shows how much the repetitions differ.

use std::fmt;

/// The median of several numbers, with the smallest and the largest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl fmt::Display for Spread {
    /// Prints `median (min to max)`, with the precision of the format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", self.median, self.min, self.max)
    }
}

/// Returns the median and the range of `figures`. For an even number of figures, the median is the mean of the two in
/// the middle.
pub fn spread(figures: impl IntoIterator<Item = f64>) -> Spread {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    let (Some(&min), Some(&max)) = (figures.first(), figures.last()) else {
        return Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN };
    };
    let middle = figures.len() / 2;
    let lower = if figures.len().is_multiple_of(2) { middle - 1 } else { middle };
    Spread { median: f64::midpoint(figures[lower], figures[middle]), min, max }
}

/// Returns the quantile of `share`, for example the 99th percentile for 0.99. This is the smallest figure that is at
/// least as large as the given share of the figures. The figures must be `sorted`.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Returns an interval that contains the true median with a confidence of at least 95 %. `None` if there are fewer than
/// six figures.
///
/// Each figure is below the true median with a probability of one half. So the interval can be computed from the order
/// of the figures alone, whatever their distribution is.
pub fn median_interval(figures: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    // The interval leaves out `n` figures at each end. `n` is the largest number for which at most `n` heads in `count`
    // coin tosses have a probability of at most 2.5 %.
    let (count, mut outside) = (figures.len(), 0);
    let mut chance = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut tail = chance;
    while tail <= 0.025 {
        chance *= (count - outside) as f64 / (outside + 1) as f64;
        (outside, tail) = (outside + 1, tail + chance);
    }
    let lowest = outside.checked_sub(1)?;
    Some((figures[lowest], figures[count - 1 - lowest]))
}

#[cfg(test)]
mod tests {
    use super::{median_interval, quantile, spread};

    #[test]
    fn medians_of_odd_and_even_counts() {
        let odd = spread([3.0, 1.0, 2.0]);
        assert_eq!((odd.min, odd.median, odd.max), (1.0, 2.0, 3.0));
        assert_eq!(spread([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert!(spread([]).median.is_nan());
    }

    #[test]
    fn a_spread_is_printed_with_the_precision_of_the_format() {
        assert_eq!(format!("{:.1}", spread([1.0, 2.0, 4.0])), "2.0 (1.0 to 4.0)");
        assert_eq!(spread([1.0, 2.0, 4.0]).to_string(), "2 (1 to 4)");
    }

    #[test]
    fn quantiles_are_figures_that_were_seen() {
        let figures: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(quantile(&figures, 0.5), 500.0);
        assert_eq!(quantile(&figures, 0.999), 999.0);
        assert_eq!(quantile(&figures, 1.0), 1000.0);
        assert_eq!(quantile(&figures, 0.0), 1.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_interval_of_a_median_agrees_with_published_tables() {
        let interval = |count: u32| median_interval((1..=count).rev().map(f64::from));
        assert_eq!(interval(5), None);
        assert_eq!(interval(6), Some((1.0, 6.0)));
        assert_eq!(interval(20), Some((6.0, 15.0)));
        assert_eq!(interval(31), Some((10.0, 22.0)));
        assert_eq!(interval(100), Some((40.0, 61.0)));
    }
}
