//! Reads `representation` and `sketch_memory` of a limit, and reports options that a sketch does not support.
//!
//! If these options were ignored, the limit would count in another way than its author thinks. So they are errors when
//! the file is loaded.

use spillgate_core::Quota;

use super::errors::Reporter;
use super::limit::LimitContext;
use super::scalar::{bytes, choice};
use super::section::Fields;
use crate::model::LimitSketch;
use spillgate_limiter::sketch::{MIN_BYTES, Sketch, SketchError};
use spillgate_limiter::units::format_bytes;

/// A sketch gets a warning if it is too small for this rate. The rate is in units per second, of all keys of the limit
/// together.
const FEW_UNITS_PER_SECOND: f64 = 1_000.0;

/// Reads the two fields. Returns `None` if the limit has a state for each key, or after an error.
pub(super) fn read(
    quota: &Quota,
    fields: &Fields<'_>,
    around: &LimitContext<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<LimitSketch> {
    let words = [("exact", false), ("sketch", true)];
    let node = fields.get("representation");
    let is_sketch = node.and_then(|node| choice(node, "representation", &words, reporter)).unwrap_or(false);
    let memory = fields.get("sketch_memory");
    let Some(node) = node.filter(|_| is_sketch) else {
        if let Some(at) = fields.key_at("sketch_memory") {
            let help = "add `representation: sketch`, or remove `sketch_memory`";
            reporter.error(
                at,
                "`sketch_memory` has no effect without `representation: sketch`",
                "without a sketch",
                help,
            );
        }
        return None;
    };
    let bytes = match memory {
        Some(node) => bytes(node, "sketch_memory", (MIN_BYTES as u64, LimitSketch::MAX_BYTES), reporter)?,
        None => LimitSketch::DEFAULT_BYTES as u64,
    };
    for (key, why) in [
        ("slot_by", "a sketch is in the memory of each server, and in no slot of a Redis Cluster"),
        ("on_store_failure", "a sketch does not use the shared store, so it goes on while the store fails"),
    ] {
        if let Some(at) = fields.key_at(key) {
            let message = format!("`{key}` has no effect with `representation: sketch`");
            reporter.error(at, message, "not with a sketch", format!("remove `{key}`: {why}"));
        }
    }
    if let Err(error) = SketchError::check(quota) {
        let (keys, help) = cause(error);
        let at = keys.iter().find_map(|key| fields.key_at(key)).unwrap_or(node.at);
        reporter.error(at, error.to_string(), "not with a sketch", help);
        return None;
    }
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    check_size(quota, bytes, fields, around, reporter);
    Some(LimitSketch::new(bytes))
}

/// Returns the fields that can cause the error, and its fix.
fn cause(error: SketchError) -> (&'static [&'static str], &'static str) {
    match error {
        SketchError::Log => (&["algorithm"], "write `algorithm: sliding_window_counter`, or remove `representation`"),
        SketchError::Leases => (&["algorithm"], "remove `representation`"),
        SketchError::Segments => (&["segments"], "remove `segments`, or remove `representation`"),
        SketchError::FirstHit => (&["anchor"], "remove `anchor`, or remove `representation`"),
        SketchError::Penalty => (&["penalty"], "remove `penalty`, or remove `representation`"),
        SketchError::Charged => (
            &["denied"],
            "write `denied: free`, or remove `representation`; with `compat: envoy`, the default of `denied` is `charged`",
        ),
        SketchError::Memory => (&["sketch_memory"], "lower it"),
        SketchError::TooManyUnits => (&["requests_per_unit", "limit"], "lower it, or write `algorithm: token_bucket`"),
        // [`SketchError`] may get new variants.
        _ => (&["representation"], "remove `representation`"),
    }
}

/// Reports a sketch that is too small for its limit. A long window needs a large sketch, because the cells that an
/// admitted unit raises stay high for a long time.
fn check_size(
    quota: &Quota,
    bytes: usize,
    fields: &Fields<'_>,
    around: &LimitContext<'_>,
    reporter: &mut Reporter<'_>,
) {
    let can = Sketch::highest_rate(quota, bytes);
    if quota.limit() == 0 || can >= FEW_UNITS_PER_SECOND {
        return;
    }
    let at = fields.key_at("sketch_memory").or_else(|| fields.key_at("representation")).unwrap_or(around.at);
    let message = format!(
        "a sketch of {} is large enough for only {can:.1} units of this limit in a second, from all keys together; beyond \
         that, more than 1 in 100,000 new keys can be refused",
        format_bytes(bytes as u64)
    );
    let help = "raise `sketch_memory`, shorten the window, or remove `representation`; `spillgate size` computes what is \
                needed";
    if can < LimitSketch::LEAST_UNITS_PER_SECOND {
        reporter.error(at, message, "too small", help);
    } else {
        reporter.warning(at, message, "small", help.to_owned());
    }
}
