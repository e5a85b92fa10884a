//! Whether one limit of a rule makes another one useless.
//!
//! A rule may have one limit for each second and another for each minute. With 10 a second, no minute has more than 600
//! requests. A limit of 600 or more a minute then never refuses. Its author probably meant other numbers, and gets a
//! warning.

use spillgate_core::{Algorithm, Anchor, Quota};

/// Whether `loose` can never refuse a request that `strict` allows, whenever requests arrive.
///
/// It compares the bounds of the algorithms, not their whole behaviour. If the bounds do not decide, it returns false:
/// a warning that is missing does less harm than a wrong one.
pub(in super::super) fn never_binds(loose: &Quota, strict: &Quota) -> bool {
    let window_ns = loose.window_ns();
    let admitted = |span_ns: u64| admitted_at_most(strict, span_ns);
    let capacity = u128::from(loose.capacity());
    match loose.algorithm() {
        Algorithm::FixedWindow(Anchor::Epoch) if nested_windows(loose, strict) => {
            u128::from(strict.hard_capacity()) * u128::from(window_ns / strict.window_ns()) <= capacity
        }
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindowLog => {
            admitted(window_ns - 1).is_some_and(|admitted| admitted <= capacity)
        }
        // Units that are almost two windows old still count, with a smaller weight.
        Algorithm::SlidingWindowCounter { .. } => {
            admitted(window_ns.saturating_mul(2)).is_some_and(|admitted| admitted <= capacity)
        }
        Algorithm::TokenBucket => bucket_never_binds(loose, strict),
        // A queue delays callers, so it is useful even if it never refuses. Permits are not counted in a time.
        Algorithm::LeakyBucket | Algorithm::Concurrency => false,
    }
}

/// Whether both have windows that begin at the epoch, and windows of `strict` fill a window of `loose` exactly.
fn nested_windows(loose: &Quota, strict: &Quota) -> bool {
    strict.algorithm() == Algorithm::FixedWindow(Anchor::Epoch) && loose.window_ns().is_multiple_of(strict.window_ns())
}

/// Whether the token bucket `loose` can never refuse a request that `strict` allows.
///
/// That is so if `loose` has at least the depth of the largest burst that `strict` allows, and refills at least as fast
/// as `strict` allows requests in the long run.
fn bucket_never_binds(loose: &Quota, strict: &Quota) -> bool {
    let (loose_capacity, interval_ns) = (u128::from(loose.capacity()), u128::from(loose.interval_ns()));
    let capacity = u128::from(strict.hard_capacity());
    if capacity == 0 {
        return true;
    }
    match strict.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            capacity <= loose_capacity && u128::from(strict.interval_ns()) >= interval_ns
        }
        Algorithm::Concurrency => false,
        // Each of the other algorithms has windows and admits at most L * (s/W + 2) in a time s.
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter { .. } => {
            capacity * 2 <= loose_capacity && u128::from(strict.window_ns()) >= interval_ns * capacity
        }
    }
}

/// The most units that `quota` admits in any closed interval of `span_ns` nanoseconds. These are the bounds of
/// [`Algorithm`]. `None` for permits, which are not counted in a time.
fn admitted_at_most(quota: &Quota, span_ns: u64) -> Option<u128> {
    let limit = u128::from(quota.hard_capacity());
    if limit == 0 {
        return Some(0);
    }
    let (span, window) = (u128::from(span_ns), u128::from(quota.window_ns()));
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => Some(limit + span / u128::from(quota.interval_ns())),
        Algorithm::SlidingWindowLog => Some(limit * (span / window + 1)),
        Algorithm::SlidingWindowCounter { segments: 1 } => Some(limit + (limit * span).div_ceil(window)),
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindowCounter { .. } => Some(limit * (span / window + 2)),
        Algorithm::Concurrency => None,
    }
}

#[cfg(test)]
mod tests;
