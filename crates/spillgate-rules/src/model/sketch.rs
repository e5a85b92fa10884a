//! The sketch of a limit with `representation: sketch`.
//!
//! A rules file gives only the size of the sketch. A program allocates the sketch when it begins to use the rules, so
//! that a check of the rules does not need this memory.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::{Limit, Origin, Rule};
use spillgate_limiter::sketch::{Sketch, SketchError};
use spillgate_limiter::units::format_bytes;

/// The sketch of a limit, for any number of keys. [`Rules::open_sketches`](crate::Rules::open_sketches) has an
/// example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitSketch {
    /// The size of the sketch in bytes, whether it is open or not.
    pub bytes: usize,
    opened: Option<Arc<Sketch>>,
}

impl LimitSketch {
    /// The largest sketch in bytes: 64 GiB.
    pub const MAX_BYTES: u64 = 64 << 30;
    /// A rules file is rejected if the [`highest_rate`](Sketch::highest_rate) of a sketch is below this rate, in units
    /// per second.
    pub const LEAST_UNITS_PER_SECOND: f64 = 1.0;
    /// The size of a sketch if the limit has no `sketch_memory`: 64 MiB.
    pub(in super::super) const DEFAULT_BYTES: usize = 64 << 20;

    pub(in super::super) const fn new(bytes: usize) -> LimitSketch {
        LimitSketch { bytes, opened: None }
    }

    /// Returns the sketch. `None` if the program has not opened it. The limit then counts in the store, exactly.
    #[must_use]
    #[inline]
    pub fn opened(&self) -> Option<&Sketch> {
        self.opened.as_deref()
    }
}

impl Limit {
    /// Returns whether the limit can go on with the sketch of `before`: both sketches have the same size, and both
    /// quotas are equal.
    #[must_use]
    pub fn shares_sketch(&self, before: &Limit) -> bool {
        match (&self.sketch, &before.sketch) {
            (Some(sketch), Some(earlier)) => sketch.bytes == earlier.bytes && self.quota == before.quota,
            _ => false,
        }
    }
}

/// The operating system does not have enough memory for a sketch of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoMemory {
    /// The file and the line of the limit.
    pub origin: Option<Origin>,
    /// The size of the sketch in bytes.
    pub bytes: usize,
}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        write!(f, "the operating system has no memory for a sketch of {}", format_bytes(self.bytes as u64))
    }
}

impl Error for NoMemory {}

/// Opens the sketches of a rule. If a limit has not changed since `before`, it keeps its sketch.
pub(in super::super) fn open(rule: &mut Rule, before: Option<&Rule>, nodes: NonZeroU32) -> Result<(), NoMemory> {
    for limit in &mut rule.limits {
        let Some(bytes) = limit.sketch.as_ref().map(|sketch| sketch.bytes) else { continue };
        limit.quota = limit.quota.share(nodes);
        let earlier = before.into_iter().flat_map(|rule| &rule.limits).find(|before| limit.shares_sketch(before));
        let earlier = earlier.and_then(|limit| limit.sketch.as_ref()?.opened.clone());
        let opened = match earlier {
            Some(earlier) => Some(earlier),
            None => match Sketch::new(&limit.quota, bytes) {
                Ok(sketch) => Some(Arc::new(sketch)),
                Err(SketchError::Memory) => return Err(NoMemory { origin: limit.origin.clone(), bytes }),
                // Other errors do not happen: the quota was checked when the rules were read, and a share has the same
                // options.
                Err(_) => None,
            },
        };
        limit.sketch = Some(LimitSketch { bytes, opened });
    }
    Ok(())
}
