//! What can be wrong with a quota.
//!
//! Each error contains the values that its message needs to say how to fix the quota.

use core::fmt;

/// What is wrong with a quota, and what would be right.
///
/// ```
/// use spillgate_core::{Quota, QuotaError};
///
/// let error = Quota::per_second(10).burst(0).build().unwrap_err();
/// assert_eq!(error, QuotaError::NoBurst);
/// assert!(error.to_string().starts_with("burst has to be at least 1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// A field is too large.
    TooLarge {
        /// For example `burst`.
        field: &'static str,
        /// What was given, in units.
        value: u64,
        /// The largest valid value, in units.
        max: u64,
    },
    /// A duration is zero or longer than 2^62 ns.
    Span {
        /// `window`, `lease` or `penalty`.
        field: &'static str,
    },
    /// The time between two units has to be rounded up to whole nanoseconds. This rounding would reduce the limit by
    /// more than a thousandth.
    Inexact {
        /// The limit that was given.
        limit: u64,
        /// The nearest smaller limit that rounding reduces by at most a thousandth.
        below: u64,
        /// The nearest larger limit that rounding reduces by at most a thousandth, if there is one.
        above: Option<u64>,
    },
    /// The bucket takes too long to refill: twice the capacity, times the time between two units, is longer than 2^62
    /// ns.
    TooDeep {
        /// The hard capacity, in units.
        capacity: u64,
        /// The time between two units, in nanoseconds.
        interval_ns: u64,
    },
    /// Regions cannot share such a limit.
    NotShared {
        /// What it is, for example `a queue`.
        what: &'static str,
    },
    /// A bucket that regions share would take too long to refill.
    TooDeepForRegions {
        /// The largest burst that works, in units. It can be 0.
        capacity: u64,
        /// How many regions share the bucket.
        regions: u8,
    },
    /// There are fewer permits than regions, so some regions would have none.
    NothingToSplit {
        /// The permits that were given.
        limit: u64,
        /// How many regions share them.
        regions: u8,
    },
    /// The burst is 0, but the limit is not 0.
    NoBurst,
    /// The number of segments is not between 1 and 128.
    Segments {
        /// What was given.
        segments: u8,
    },
    /// The window cannot be divided into this many segments of whole nanoseconds.
    Indivisible {
        /// The window in nanoseconds.
        window_ns: u64,
        /// The number of segments.
        segments: u8,
    },
    /// The algorithm does not have this option.
    NotFor {
        /// For example `burst`.
        field: &'static str,
        /// The name of the algorithm, as in [`Algorithm::as_str`](super::Algorithm::as_str).
        algorithm: &'static str,
    },
}

impl QuotaError {
    /// Returns the text without the values, because a message of the compiler cannot contain numbers.
    pub(super) const fn short_text(&self) -> &'static str {
        match self {
            QuotaError::TooLarge { .. } => "the limit, the burst or the queue is too large",
            QuotaError::Span { .. } => "the window, lease or penalty has to be longer than 0 and at most 146 years",
            QuotaError::Inexact { .. } => {
                "this limit needs fractions of nanoseconds between units; `build()` names the nearest limits that work"
            }
            QuotaError::TooDeep { .. } => {
                "the bucket takes over 73 years to refill; lower the capacity or shorten the window"
            }
            QuotaError::NotShared { .. } => "regions cannot share this limit; use split or each",
            QuotaError::TooDeepForRegions { .. } => {
                "the bucket takes too long to refill for several regions; lower the burst or shorten the window"
            }
            QuotaError::NothingToSplit { .. } => "some regions would have no permit; allow more permits or use each",
            QuotaError::NoBurst => NO_BURST,
            QuotaError::Segments { .. } => "segments has to be 1 to 128",
            QuotaError::Indivisible { .. } => {
                "the window cannot be cut into equal segments; choose a number of segments that divides the window"
            }
            QuotaError::NotFor { .. } => {
                "an option does not belong to this algorithm; remove it or choose another algorithm"
            }
        }
    }
}

const NO_BURST: &str = "burst has to be at least 1; to refuse everything, set the limit to 0";

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            QuotaError::TooLarge { field, value, max } => {
                write!(f, "{field} is {value}; it has to be at most {max}")
            }
            QuotaError::Span { field } => {
                write!(f, "{field} has to be longer than 0 and at most 146 years")
            }
            QuotaError::Inexact { limit, below, above } => {
                write!(
                    f,
                    "a limit of {limit} in this window needs fractions of nanoseconds between units; use {below}"
                )?;
                above.map_or(Ok(()), |above| write!(f, " or {above}"))
            }
            QuotaError::TooDeep { capacity, interval_ns } => {
                write!(
                    f,
                    "a capacity of {capacity} at one unit every {interval_ns} ns takes over 73 years to refill; lower the capacity or shorten the window"
                )
            }
            QuotaError::NotShared { what } => {
                write!(f, "{what} cannot be shared by regions; use across_regions: split or each")
            }
            QuotaError::TooDeepForRegions { capacity: 0, regions } => {
                write!(f, "a unit takes too long for a bucket that {regions} regions share; shorten the window")
            }
            QuotaError::TooDeepForRegions { capacity, regions } => {
                write!(
                    f,
                    "a bucket that {regions} regions share can have a burst of at most {capacity} here; lower the burst or shorten the window"
                )
            }
            QuotaError::NothingToSplit { limit, regions } => {
                write!(
                    f,
                    "{limit} permits cannot be split among {regions} regions, because some would have none; allow more permits or use across_regions: each"
                )
            }
            QuotaError::NoBurst => f.write_str(NO_BURST),
            QuotaError::Segments { segments } => write!(f, "segments is {segments}; it has to be 1 to 128"),
            QuotaError::Indivisible { window_ns, segments } => {
                write!(
                    f,
                    "a window of {window_ns} ns cannot be cut into {segments} equal segments; choose a number of segments that divides the window"
                )
            }
            QuotaError::NotFor { field, algorithm } => {
                write!(f, "{field} is not an option of {algorithm}; remove it or choose another algorithm")
            }
        }
    }
}

impl core::error::Error for QuotaError {}
