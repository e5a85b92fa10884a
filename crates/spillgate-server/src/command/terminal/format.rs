//! Numbers, durations and limits as text for people.
//!
//! All commands write them in the same way.

use std::time::Duration;

use spillgate::rules::Limit;
use spillgate::units::format_duration;
use spillgate::{Algorithm, Anchor, Denied};

/// Returns a number with its noun: `1 rule`, `2 rules`.
pub(crate) fn count(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// Returns a duration with three decimal places at most, rounded up: `0s`, `1.5ms`, `59.94s`, `1h30m`.
pub(crate) fn duration(duration: Duration) -> String {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let step_ns = match ns {
        0..1_000_000 => 1,
        1_000_000..1_000_000_000 => 1_000,
        _ => 1_000_000,
    };
    format_duration(Duration::from_nanos(ns.div_ceil(step_ns).saturating_mul(step_ns)))
}

/// Returns the name of a limit. `at` is the index of the limit in its rule, from 0. A limit without a name is called
/// `#1`, `#2`, ...
pub(crate) fn limit_label(limit: &Limit, at: usize) -> String {
    limit.name.as_deref().map_or_else(|| format!("#{}", at + 1), str::to_owned)
}

/// Returns a text such as `100 per 1m, token_bucket, burst 20, refusals charged, penalty 5m, post-paid`.
pub(crate) fn quota(limit: &Limit) -> String {
    let quota = &limit.quota;
    let mut text = match quota.algorithm() {
        Algorithm::Concurrency => format!("{} at once", quota.limit()),
        Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindowLog
        | Algorithm::SlidingWindowCounter { .. } => {
            format!("{} per {}", quota.limit(), window(quota.window_ns()))
        }
    };
    text.push_str(&format!(", {}", quota.algorithm().as_str()));
    let more = match quota.algorithm() {
        Algorithm::FixedWindow(Anchor::FirstHit) => ", from the first hit".to_owned(),
        Algorithm::TokenBucket => format!(", burst {}", quota.capacity()),
        Algorithm::LeakyBucket => format!(", queue {}", quota.capacity().saturating_sub(1)),
        Algorithm::SlidingWindowCounter { segments } if segments > 1 => format!(", {segments} segments"),
        Algorithm::Concurrency => format!(", lease {}", window(quota.lease_ns())),
        Algorithm::FixedWindow(Anchor::Epoch)
        | Algorithm::SlidingWindowLog
        | Algorithm::SlidingWindowCounter { .. } => String::new(),
    };
    text.push_str(&more);
    if quota.hard_capacity() > quota.capacity() {
        text.push_str(&format!(", soft: up to {}", quota.hard_capacity()));
    }
    if quota.denied() == Denied::Charged {
        text.push_str(", refusals charged");
    }
    if quota.penalty_ns() > 0 {
        text.push_str(&format!(", penalty {}", window(quota.penalty_ns())));
    }
    if limit.post_paid {
        text.push_str(", post-paid");
    }
    if !limit.exposed {
        text.push_str(", not shown to clients");
    }
    text
}

/// Returns a duration in the form that rules files use.
fn window(ns: u64) -> String {
    format_duration(Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_and_rounded_up() {
        let cases = [
            (0, "0s"),
            (1, "1ns"),
            (1_500_000, "1.5ms"),
            (1_500_001, "1.501ms"),
            (20_000_000, "20ms"),
            (59_940_000_000, "59.94s"),
            (10_000_000_000, "10s"),
            (60_000_000_000, "1m"),
            (5_400_000_000_000, "1h30m"),
            (86_400_500_000_000, "1d0.5s"),
            (59_999_999_999, "1m"),
        ];
        for (ns, expected) in cases {
            assert_eq!(duration(Duration::from_nanos(ns)), expected);
        }
    }

    #[test]
    fn nouns_agree_with_their_number() {
        assert_eq!([count(0, "file"), count(1, "file"), count(2, "file")], ["0 files", "1 file", "2 files"]);
    }
}
