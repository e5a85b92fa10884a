//! Finds out whether one limit of a rule makes another limit of the rule useless.
//!
//! For example, a rule can have a limit of 10 requests a second and a limit of 600 requests a minute. The first limit
//! allows at most 600 requests in a minute, so the second limit never refuses a request. The author of the rule
//! probably meant other numbers, so the author gets a warning.

use spillgate_core::{Algorithm, Anchor, Quota};

/// Returns whether `loose` can never refuse a request that `strict` allows, at whatever times requests arrive.
///
/// The function compares the most units that `strict` can admit with the units that `loose` allows. If this comparison
/// does not prove that `loose` never refuses, the function returns false. A missing warning does less harm than a wrong
/// warning.
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
        // This algorithm still counts units that are almost two windows old, with a smaller weight.
        Algorithm::SlidingWindowCounter { .. } => {
            admitted(window_ns.saturating_mul(2)).is_some_and(|admitted| admitted <= capacity)
        }
        Algorithm::TokenBucket => bucket_never_binds(loose, strict),
        // A leaky bucket delays callers, so it is useful even if it refuses no caller. A concurrency limit counts the
        // permits that are in use now, and not the units in a window, so there is nothing to compare.
        Algorithm::LeakyBucket | Algorithm::Concurrency => false,
    }
}

/// Returns whether each window of `loose` consists of whole windows of `strict`. The caller has checked that the
/// windows of `loose` begin at multiples of their length since the epoch.
fn nested_windows(loose: &Quota, strict: &Quota) -> bool {
    strict.algorithm() == Algorithm::FixedWindow(Anchor::Epoch) && loose.window_ns().is_multiple_of(strict.window_ns())
}

/// Returns whether the token bucket `loose` can never refuse a request that `strict` allows.
///
/// The capacity of `loose` has to be at least the largest burst that `strict` allows. And `loose` has to refill at
/// least as fast as `strict` allows requests in the long run.
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
        // `L` is `capacity`, and `W` is the window of `strict`. These algorithms admit at most `L * (s/W + 2)` units in
        // a time `s`. This is a burst of `2 * L` units, and then `L` units for each `W`. So `loose` needs a capacity of
        // `2 * L`, and it has to refill `L` units in `W`: `T * L <= W`, where `T` is the time in which `loose` refills
        // one unit.
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter { .. } => {
            capacity * 2 <= loose_capacity && u128::from(strict.window_ns()) >= interval_ns * capacity
        }
    }
}

/// Returns an upper bound of the number of units that `quota` admits in `span_ns` nanoseconds, whenever this time
/// begins. Units at both ends of this time are included. The docs of [`Algorithm`] have the bound of each algorithm.
/// Returns `None` for a concurrency limit, because its permits are not counted in a window.
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
