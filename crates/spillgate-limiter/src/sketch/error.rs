//! Why a quota cannot have a sketch.
//!
//! All reasons are checked when the sketch is made. So a program learns of a limit that cannot work at its start.

use std::error::Error;
use std::fmt;

use spillgate_core::{Algorithm, Anchor, Denied, Quota};

use super::counts::MAX_COUNT;

/// The reason why a sketch cannot be made: the quota needs something that a sketch does not have, or there is not
/// enough memory.
///
/// ```
/// use std::time::Duration;
/// use spillgate::Quota;
/// use spillgate::sketch::{Sketch, SketchError};
///
/// let quota = Quota::sliding_window_log(10, Duration::from_secs(1)).build()?;
/// let error = Sketch::new(&quota, 1 << 20).unwrap_err();
/// assert_eq!(error, SketchError::Log);
/// assert!(error.to_string().contains("sliding_window_counter"));
/// # Ok::<(), spillgate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SketchError {
    /// A `sliding_window_log` needs the time of each unit.
    Log,
    /// A `concurrency` limit needs to know who has a permit.
    Leases,
    /// A `sliding_window_counter` of several segments needs a count for each segment.
    Segments,
    /// A `fixed_window` that starts at the first hit needs a start for each key.
    FirstHit,
    /// A penalty needs to know which key was refused.
    Penalty,
    /// With charged refusals, the refused requests of one key would also use up the limits of other keys that share its
    /// cells.
    Charged,
    /// In a window, a sketch counts at most 2^32 - 2 units for a key.
    TooManyUnits,
    /// The operating system does not give the program that much memory.
    Memory,
}

impl SketchError {
    /// Returns an error if a sketch does not support `quota`.
    ///
    /// ```
    /// use spillgate::Quota;
    /// use spillgate::sketch::SketchError;
    /// assert_eq!(SketchError::check(&Quota::per_second(10).constant()), Ok(()));
    /// ```
    ///
    /// # Errors
    /// The first thing that the quota needs and a sketch does not have.
    pub fn check(quota: &Quota) -> Result<(), SketchError> {
        let counts = match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => false,
            Algorithm::FixedWindow(Anchor::Epoch) | Algorithm::SlidingWindowCounter { segments: 1 } => true,
            Algorithm::FixedWindow(Anchor::FirstHit) => return Err(SketchError::FirstHit),
            Algorithm::SlidingWindowCounter { .. } => return Err(SketchError::Segments),
            Algorithm::SlidingWindowLog => return Err(SketchError::Log),
            Algorithm::Concurrency => return Err(SketchError::Leases),
        };
        match () {
            () if quota.penalty_ns() > 0 => Err(SketchError::Penalty),
            () if quota.denied() == Denied::Charged => Err(SketchError::Charged),
            () if counts && quota.hard_capacity() >= MAX_COUNT => Err(SketchError::TooManyUnits),
            () => Ok(()),
        }
    }
}

impl fmt::Display for SketchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SketchError::Log => {
                "a sketch cannot keep the time of each unit, so it has no sliding_window_log: use sliding_window_counter"
            }
            SketchError::Leases => "a sketch cannot know who has a permit, so it has no concurrency limit",
            SketchError::Segments => "a sketch has two windows for each key, so a sliding_window_counter has one segment",
            SketchError::FirstHit => {
                "a sketch has the same windows for all keys, so a fixed_window cannot start at the first hit of a key"
            }
            SketchError::Penalty => "a sketch cannot know which key was refused, so it has no penalty",
            SketchError::Charged => {
                "a sketch cannot charge refused requests, because keys that share its cells would refuse each other"
            }
            SketchError::Memory => "the operating system has not so much memory for a sketch: make it smaller",
            SketchError::TooManyUnits => "a sketch counts at most 4294967294 units in a window",
        })
    }
}

impl Error for SketchError {}
