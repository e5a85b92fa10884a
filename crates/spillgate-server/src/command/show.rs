//! Numbers and durations as people read them.

use std::time::Duration;

use spillgate::units::format_duration;

/// `1 rule`, `2 rules`.
pub(super) fn count(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// `10,000,000`.
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration to three places, rounded up: `0s`, `1.5ms`, `59.94s`, `1h30m`.
pub(super) fn duration(duration: Duration) -> String {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let step_ns = match ns {
        0..1_000_000 => 1,
        1_000_000..1_000_000_000 => 1_000,
        _ => 1_000_000,
    };
    format_duration(Duration::from_nanos(ns.div_ceil(step_ns).saturating_mul(step_ns)))
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
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1_000, 10_000_000].map(thousands), ["0", "999", "1,000", "10,000,000"]);
    }

    #[test]
    fn nouns_agree_with_their_number() {
        assert_eq!([count(0, "file"), count(1, "file"), count(2, "file")], ["0 files", "1 file", "2 files"]);
    }
}
