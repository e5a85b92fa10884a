//! The sketch of a limit with `representation: sketch`.
//!
//! A rules file says only how large the sketch is. The program makes it when it begins to use the rules, because a check
//! of the rules must not need this memory.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::{Limit, Rule};
use crate::sketch::Sketch;

/// The sketch of a limit, for any number of keys. [`Rules::open_sketches`](crate::rules::Rules::open_sketches) has an
/// example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitSketch {
    /// The size of the sketch in bytes.
    pub bytes: usize,
    opened: Option<Arc<Sketch>>,
}

impl LimitSketch {
    /// The size of a sketch without `sketch_memory`.
    pub(in super::super) const DEFAULT_BYTES: usize = 64 << 20;

    pub(in super::super) const fn new(bytes: usize) -> LimitSketch {
        LimitSketch { bytes, opened: None }
    }

    /// Returns the sketch. `None` if the program has not opened it: the limit then counts in the store, exactly.
    #[must_use]
    #[inline]
    pub fn opened(&self) -> Option<&Sketch> {
        self.opened.as_deref()
    }
}

impl Limit {
    /// Returns whether the limit and `before` can use the same sketch: the sketch has the same size, and what it counts has
    /// the same meaning.
    #[must_use]
    pub fn shares_sketch(&self, before: &Limit) -> bool {
        match (&self.sketch, &before.sketch) {
            (Some(sketch), Some(earlier)) => sketch.bytes == earlier.bytes && self.quota == before.quota,
            _ => false,
        }
    }
}

/// Opens the sketches of a rule. If a limit has not changed since `before`, it keeps its sketch.
pub(in super::super) fn open(rule: &mut Rule, before: Option<&Rule>, nodes: NonZeroU32) {
    for limit in &mut rule.limits {
        let Some(bytes) = limit.sketch.as_ref().map(|sketch| sketch.bytes) else { continue };
        limit.quota = limit.quota.share(nodes);
        let earlier = before.into_iter().flat_map(|rule| &rule.limits).find(|before| limit.shares_sketch(before));
        let earlier = earlier.and_then(|limit| limit.sketch.as_ref()?.opened.clone());
        // The reader of the rules has checked the quota. A share has the same options.
        let opened = earlier.or_else(|| Sketch::new(&limit.quota, bytes).ok().map(Arc::new));
        limit.sketch = Some(LimitSketch { bytes, opened });
    }
}
