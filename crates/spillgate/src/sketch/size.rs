//! How much traffic a sketch of a given size can serve.

use spillgate_core::{Algorithm, Quota};

use super::bloom::LINE_BYTES;
use super::data::wrong_hits;
use super::locks::Locks;
use super::rows::DEPTH;
use super::windows::FILTER_PART;
use super::{MIN_BYTES, Sketch};

/// While a sketch admits this part of a unit for each cell of a row and each T, about 5 % of its cells are too high.
const LOAD: f64 = 0.05;

/// What a sketch of some size does under some load, as [`Sketch::forecast`] computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Forecast {
    /// The share of keys (0 to 1) that are refused although they have used nothing.
    pub wrong_refusals: f64,
    /// The units that the sketch can admit in a second while at most about 5 % of its cells are too high.
    pub units_per_second: f64,
}

impl Sketch {
    /// Computes what a sketch of `bytes` bytes does if it admits `rate` units each second, from keys that each come once.
    ///
    /// The letters: T is the time between two units at the full rate of the limit, B is the burst, w is the number of
    /// cells in a row, and a = rate * T / w.
    ///
    /// * A sketch of buckets: let c_1 = 1 - e^(-a) be the share of cells with a debt, and c_k = 1 - e^(-a * c_(k-1)^4) the
    ///   share of cells whose debt is longer than (k - 1) * T. A key is refused with the probability c_B^4.
    /// * A sketch of windows with the limit L: a cell has a mean of n = rate * W * p / w units, because only keys that the
    ///   Bloom filter seems to know are counted, and p is its share of such keys. Such a key has an estimate of 1 plus the
    ///   smallest of its cells, so it is refused if each of them has L - 1 units or more. By Markov's inequality, this has a
    ///   probability of at most n/(L - 1) for each cell. So a window refuses a key with a probability of at most
    ///   r = p * (n/(L - 1))^4, or p if L is 1. A sliding counter counts two windows: 1 - (1 - r)^2.
    ///
    /// Keys that come more than once make more cells higher. So these figures are for an attack with new keys.
    ///
    /// ```
    /// use spillgate::Quota;
    /// use spillgate::sketch::Sketch;
    ///
    /// let forecast = Sketch::forecast(&Quota::per_second(10).burst(1).constant(), 64 << 20, 1_000_000.0);
    /// assert!(forecast.wrong_refusals < 1e-5);
    /// assert!(forecast.units_per_second > 1_000_000.0);
    /// ```
    #[must_use]
    pub fn forecast(quota: &Quota, bytes: usize, rate: f64) -> Forecast {
        let bytes = bytes.max(MIN_BYTES) - Locks::BYTES;
        let limit = quota.hard_capacity() as f64;
        if matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            let (interval, width) = (quota.interval_ns() as f64 / 1e9, width(bytes));
            let load = rate * interval / width;
            let mut share = 1.0 - (-load).exp();
            // With each further unit of the burst, the share becomes smaller. After a few of them, it no longer changes.
            for _ in 1..quota.hard_capacity().min(64) {
                share = 1.0 - (-load * share.powi(DEPTH as i32)).exp();
            }
            let wrong_refusals = if quota.limit() == 0 { 1.0 } else { share.powi(DEPTH as i32) };
            return Forecast { wrong_refusals, units_per_second: LOAD * width / interval };
        }
        let (window, generation) = (quota.window_ns() as f64 / 1e9, bytes / 2);
        let (filter, width) = (generation / FILTER_PART, width(generation - generation / FILTER_PART));
        let seen = wrong_hits((rate * window) as u64, (filter / LINE_BYTES).max(1) as u64);
        let count = rate * window * seen / width;
        let beyond_first = (limit - 1.0).max(1.0);
        let high = if limit < 2.0 { 1.0 } else { (count / beyond_first).min(1.0) };
        let in_window = seen * high.powi(DEPTH as i32);
        let wrong_refusals = match quota.algorithm() {
            _ if quota.limit() == 0 => 1.0,
            Algorithm::SlidingWindowCounter { .. } => 1.0 - (1.0 - in_window).powi(2),
            _ => in_window,
        };
        Forecast { wrong_refusals, units_per_second: LOAD * width * beyond_first / window }
    }
}

impl Sketch {
    /// Returns the number of bytes with which a sketch can admit `rate` units each second, while at most about 5 % of its
    /// cells are too high. [`Forecast::units_per_second`] is the inverse.
    ///
    /// ```
    /// use spillgate::Quota;
    /// use spillgate::sketch::Sketch;
    ///
    /// const QUOTA: Quota = Quota::per_second(10).constant();
    /// let bytes = Sketch::bytes_for(&QUOTA, 1_000_000.0);
    /// assert_eq!(bytes / 1_000_000, 64);
    /// assert!(Sketch::forecast(&QUOTA, bytes, 0.0).units_per_second >= 1_000_000.0);
    /// ```
    #[must_use]
    pub fn bytes_for(quota: &Quota, rate: f64) -> usize {
        let row = |width: f64| width.ceil() * (size_of::<u64>() * DEPTH) as f64;
        let cells = if matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            row(rate * quota.interval_ns() as f64 / 1e9 / LOAD)
        } else {
            let beyond_first = quota.hard_capacity().saturating_sub(1).max(1) as f64;
            let width = rate * quota.window_ns() as f64 / 1e9 / LOAD / beyond_first;
            // There are two windows, and the filter has a part of each.
            2.0 * row(width) * FILTER_PART as f64 / (FILTER_PART - 1) as f64
        };
        (cells as usize).saturating_add(Locks::BYTES + 64 * DEPTH).max(MIN_BYTES)
    }
}

/// Returns the number of cells in each row.
fn width(bytes: usize) -> f64 {
    (bytes / size_of::<u64>() / DEPTH).max(1) as f64
}
