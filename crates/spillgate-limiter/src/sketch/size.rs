//! How much traffic a sketch of a given size can serve.

use spillgate_core::{Algorithm, Quota};

use super::bloom::Filter;
use super::data::wrong_hits;
use super::locks::Locks;
use super::rows::{DEPTH, Rows};
use super::windows::FILTER_PART;
use super::{MIN_BYTES, Sketch};

/// A sketch cannot use more bytes: it has at most 2^32 - 1 cells in a row.
const MAX_BYTES: u64 = 1 << 40;
/// Let `T` be the time between two units at the full rate. Under the highest load, a sketch of buckets admits a little
/// more than this number of units in each `T`, for each cell of a row. A larger burst does not change this.
const ADMITTED: f64 = 2.0;

impl Sketch {
    /// A sketch is large enough for a rate if at most this share of new keys is refused wrongly: 1 in 100,000.
    pub const FEW_WRONG_REFUSALS: f64 = 1e-5;

    /// Computes an upper bound of the wrong refusals of a sketch of `bytes` bytes: the share of new keys (0 to 1) that
    /// are refused although they have used nothing.
    ///
    /// All keys together ask for `rate` units in a second. The bound assumes an attack with new keys: the rate is
    /// steady, and each key comes once and takes one unit. Keys that come more often make some cells higher than the
    /// bound assumes. A rate below 0 counts as 0.
    ///
    /// The letters: `T` is the time between two units at the full rate of the limit, `B` is the burst, `w` is the
    /// number of cells in a row, `a = rate * T / w` is the load, and `e` is Euler's number. The debt of a cell is how
    /// far its time is after the current time.
    ///
    /// * A sketch of buckets: let `c_1 = 1 - e^(-a)`, and `c_k = 1 - e^(-a * c_(k-1)^4)` for `k` from 2 to `B`. The
    ///   result is `c_B^4`, or `1 - 2/a` if that is more. For `B = 1`, this bound is proved: a cell has a debt only if
    ///   a key with this cell was admitted within the last `T`. So at most the share `c_1` of the cells is too high.
    ///   For a larger `B`, the bound is measured by the test
    ///   `buckets_refuse_no_more_new_keys_than_their_forecast_says`. The sketch admits up to about 2.1 units in each
    ///   `T`, for each cell of a row. Below this load, less than the share `c_k` of the cells has a debt above
    ///   `(k - 1) * T`.
    /// * A sketch of queues: the same with `B = 1`, because [`take_now`](Sketch::take_now) does not wait for a turn.
    ///   This bound holds only if no caller waits.
    /// * A sketch of windows, for `L` units in the window `W`: let `p` be the share of new keys that the Bloom filter
    ///   finds by mistake. Only these keys are counted in cells, so the mean of a cell is `n = rate * W * p / w` units.
    ///   The estimate of such a key is 1 plus the smallest of its cells. So the estimate is `u` or more if each of its
    ///   cells has `u - 1` units or more. By Markov's inequality, the probability of this is at most
    ///   `q(u) = p * (n/(u - 1))^4`, and `q(1) = p`. A fixed window refuses at most the share `q(L)`. A sliding counter
    ///   refuses only in two cases: one of its two windows has an estimate of `L` or more, or one has at least half of
    ///   `L` and the other at least 1. So it refuses at most the share `2 * q(L) + 2 * q(L/2) * q(1)`, where `L/2` is
    ///   rounded up.
    ///
    /// ```
    /// use spillgate::Quota;
    /// use spillgate::sketch::Sketch;
    ///
    /// const QUOTA: Quota = Quota::per_second(10).constant();
    /// assert!(Sketch::forecast(&QUOTA, 2 << 20, 1_000_000.0) < 1e-5);
    /// assert!(Sketch::forecast(&QUOTA, 1 << 20, 1_000_000.0) > 0.3);
    /// ```
    #[must_use]
    pub fn forecast(quota: &Quota, bytes: usize, rate: f64) -> f64 {
        if quota.limit() == 0 {
            return 1.0;
        }
        let (bytes, rate, limit) = (Sketch::cell_bytes(bytes), rate.max(0.0), quota.hard_capacity());
        let in_windows = |units| in_window(bytes / 2, rate * quota.window_ns() as f64 / 1e9, units);
        match quota.algorithm() {
            Algorithm::SlidingWindowCounter { .. } => {
                (2.0 * in_windows(limit) + 2.0 * in_windows(limit.div_ceil(2)) * in_windows(1)).min(1.0)
            }
            Algorithm::FixedWindow(_) => in_windows(limit),
            algorithm => {
                let load = rate * quota.interval_ns() as f64 / 1e9 / Rows::width_of(bytes) as f64;
                in_buckets(load, if algorithm == Algorithm::LeakyBucket { 1 } else { limit })
            }
        }
    }

    /// Returns the highest rate, in units a second, for which a sketch of `bytes` bytes is large enough: its
    /// [forecast](Sketch::forecast) is at most [`FEW_WRONG_REFUSALS`](Sketch::FEW_WRONG_REFUSALS).
    ///
    /// ```
    /// use spillgate::Quota;
    /// use spillgate::sketch::Sketch;
    ///
    /// // A bucket of 10 units a second, of which one can be used at once.
    /// let rate = Sketch::highest_rate(&Quota::per_second(10).burst(1).constant(), 64 << 20);
    /// assert_eq!(rate as u64 / 10_000, 121);
    /// ```
    #[must_use]
    pub fn highest_rate(quota: &Quota, bytes: usize) -> f64 {
        if quota.limit() == 0 {
            return 0.0;
        }
        // The rate is a power of 2, and the loop searches for its exponent. Each step halves the range.
        let (mut low, mut high) = (-64.0_f64, 128.0_f64);
        for _ in 0..64 {
            let middle = low.midpoint(high);
            let is_few = Sketch::forecast(quota, bytes, middle.exp2()) <= Sketch::FEW_WRONG_REFUSALS;
            if is_few { low = middle } else { high = middle }
        }
        low.exp2()
    }

    /// Returns the number of bytes of the smallest sketch that is large enough for `rate` units in a second: its
    /// [forecast](Sketch::forecast) is at most [`FEW_WRONG_REFUSALS`](Sketch::FEW_WRONG_REFUSALS). Returns `usize::MAX`
    /// if no sketch is large enough.
    ///
    /// ```
    /// use spillgate::Quota;
    /// use spillgate::sketch::Sketch;
    ///
    /// const QUOTA: Quota = Quota::per_second(10).constant();
    /// let bytes = Sketch::bytes_for(&QUOTA, 1_000_000.0);
    /// assert_eq!(bytes / 100_000, 16);
    /// assert!(Sketch::highest_rate(&QUOTA, bytes) >= 999_999.0);
    /// ```
    #[must_use]
    pub fn bytes_for(quota: &Quota, rate: f64) -> usize {
        let is_enough = |bytes: u64| match usize::try_from(bytes) {
            Ok(bytes) => Sketch::forecast(quota, bytes, rate) <= Sketch::FEW_WRONG_REFUSALS,
            Err(_) => true,
        };
        let (mut lowest, mut highest) = (MIN_BYTES as u64, MAX_BYTES + 1);
        while lowest < highest {
            let middle = lowest + (highest - lowest) / 2;
            if is_enough(middle) { highest = middle } else { lowest = middle + 1 }
        }
        if lowest > MAX_BYTES { usize::MAX } else { usize::try_from(lowest).unwrap_or(usize::MAX) }
    }

    /// Returns how many of the `bytes` of a sketch are left for its cells.
    pub(super) fn cell_bytes(bytes: usize) -> usize {
        bytes.max(MIN_BYTES) - Locks::BYTES - size_of::<Sketch>()
    }
}

/// Returns an upper bound of the share of new keys that buckets with this load refuse.
pub(super) fn in_buckets(load: f64, burst: u64) -> f64 {
    let mut share = 1.0 - (-load).exp();
    // The share changes only in the first few steps. A smaller burst only makes the bound higher, so a burst above 64
    // may count as 64.
    for _ in 1..burst.min(64) {
        share = 1.0 - (-load * share.powi(DEPTH as i32)).exp();
    }
    share.powi(DEPTH as i32).max(1.0 - ADMITTED / load)
}

/// Returns an upper bound of the probability that a new key has an estimate of at least `units`, if `keys` new keys
/// take one unit each in a window. `bytes` is the memory for one window.
fn in_window(bytes: usize, keys: f64, units: u64) -> f64 {
    let filter = bytes / FILTER_PART;
    let seen = wrong_hits(keys as u64, Filter::lines_of(filter) as u64);
    let mean = keys * seen / Rows::width_of(bytes - filter) as f64;
    let high = if units < 2 { 1.0 } else { (mean / (units - 1) as f64).min(1.0) };
    seen * high.powi(DEPTH as i32)
}
