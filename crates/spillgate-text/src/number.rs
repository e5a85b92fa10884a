//! Numbers for people.

use std::fmt::Display;

/// Returns a whole number with commas: `10,000,000`.
#[doc(hidden)] // Only for the other crates of spillgate.
#[must_use]
pub fn thousands(number: impl Display) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number with its noun: `1 unit`, `2 units`. The plural of the noun ends with `s`.
#[doc(hidden)] // Only for the other crates of spillgate.
#[must_use]
pub fn count(number: impl Display, noun: &str) -> String {
    let mut text = number.to_string();
    let is_one = text == "1";
    text.push(' ');
    text.push_str(noun);
    if !is_one {
        text.push('s');
    }
    text
}

/// Returns a part in percent, with one digit after the point: `33.3 %`. Only nothing is `0.0 %`, and only everything is
/// `100.0 %`.
#[doc(hidden)] // Only for the other crates of spillgate.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    let exact = 100.0 * part as f64 / whole.max(1) as f64;
    let shown = if part == 0 || part >= whole { exact } else { exact.clamp(0.1, 99.9) };
    format!("{shown:.1} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1_000, 10_000_000].map(thousands), ["0", "999", "1,000", "10,000,000"]);
        assert_eq!(thousands(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([0, 1, 2, 11].map(|number| count(number, "unit")), ["0 units", "1 unit", "2 units", "11 units"]);
        assert_eq!(count(thousands(1_001), "unit"), "1,001 units");
    }

    #[test]
    fn only_nothing_and_everything_are_round_percentages() {
        let parts = [(0, 0), (0, 7), (1, 100_000), (1, 3), (99_999, 100_000), (7, 7)];
        let expected = ["0.0 %", "0.0 %", "0.1 %", "33.3 %", "99.9 %", "100.0 %"];
        assert_eq!(parts.map(|(part, whole)| percent(part, whole)), expected);
    }
}
