//! Numbers and durations as people read them.

use std::time::Duration;

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
    let ns = duration.as_nanos();
    match ns {
        0 => "0s".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => scaled(ns, 1_000, "us"),
        1_000_000..1_000_000_000 => scaled(ns, 1_000_000, "ms"),
        1_000_000_000..60_000_000_000 => scaled(ns, 1_000_000_000, "s"),
        _ => {
            let ms = ns.div_ceil(1_000_000);
            let (minutes, rest_ms) = (ms / 60_000, ms % 60_000);
            let parts = [(minutes / 1_440, "d"), (minutes / 60 % 24, "h"), (minutes % 60, "m")];
            let mut text: String = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
            if rest_ms > 0 {
                text.push_str(&scaled(rest_ms, 1_000, "s"));
            }
            text
        }
    }
}

/// `ns` in units of `unit_ns` with at most three places, rounded up.
fn scaled(ns: u128, unit_ns: u128, unit: &str) -> String {
    let thousandths = (ns * 1_000).div_ceil(unit_ns);
    let (whole, fraction) = (thousandths / 1_000, thousandths % 1_000);
    let text = format!("{whole}.{fraction:03}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
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
            (59_999_999_999, "60s"),
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
