//! Whether one limit of a rule makes another one useless.
//!
//! A rule may have a limit for a second and one for a minute. If the first is so strict that the second can never
//! refuse, the author probably meant other numbers, and gets a warning.

use spillgate_core::{Algorithm, Anchor, Quota};

/// Whether `loose` can never refuse a request that `strict` allows, whenever requests arrive.
///
/// It compares the bounds of the algorithms, not their whole behaviour. If it is not sure, it answers no.
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
        // Units that are almost two windows old still count with their weight.
        Algorithm::SlidingWindowCounter { .. } => {
            admitted(window_ns.saturating_mul(2)).is_some_and(|admitted| admitted <= capacity)
        }
        Algorithm::TokenBucket => bucket_never_binds(loose, strict),
        // A queue delays callers that it does not refuse. Permits are not units in a time.
        Algorithm::LeakyBucket | Algorithm::Concurrency => false,
    }
}

/// Whether both have windows that begin at the epoch, and windows of `strict` fill a window of `loose` exactly.
fn nested_windows(loose: &Quota, strict: &Quota) -> bool {
    strict.algorithm() == Algorithm::FixedWindow(Anchor::Epoch) && loose.window_ns().is_multiple_of(strict.window_ns())
}

/// The same for a token bucket `loose`: it never refuses if it is as deep and as fast as `strict` allows.
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

/// The most units that are admitted in any closed interval of `span_ns`. These are the bounds of [`Algorithm`].
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
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_loose_minute_behind_a_strict_second() {
        let second = Quota::fixed_window(10, SECOND).build().unwrap();
        let minute = |limit| Quota::fixed_window(limit, MINUTE).build().unwrap();
        assert!(never_binds(&minute(600), &second));
        assert!(!never_binds(&minute(599), &second));
        assert!(!never_binds(&second, &minute(600)), "60 could come in one second");
        assert!(never_binds(&second, &minute(5)), "5 a minute, even twice over, is below 10");
    }

    #[test]
    fn buckets_compare_by_depth_and_rate() {
        let bucket = |limit, burst| Quota::token_bucket(limit, SECOND).burst(burst).build().unwrap();
        assert!(never_binds(&bucket(10, 10), &bucket(5, 10)));
        assert!(!never_binds(&bucket(10, 10), &bucket(5, 11)));
        assert!(!never_binds(&bucket(5, 10), &bucket(10, 10)));
    }

    #[test]
    fn a_ban_leaves_nothing_to_bind() {
        let ban = Quota::fixed_window(0, SECOND).build().unwrap();
        assert!(never_binds(&Quota::fixed_window(1, MINUTE).build().unwrap(), &ban));
        assert!(never_binds(&Quota::token_bucket(1, MINUTE).build().unwrap(), &ban));
    }
}
