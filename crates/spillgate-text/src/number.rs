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
}
