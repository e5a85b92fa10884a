//! Single values: words, numbers, durations, shares, and choices.
//!
//! YAML readers disagree about values such as `007` or `yes`. Here each value has one meaning, and a value with two
//! common meanings is an error or a warning.
//!
//! Each function reads the value of `key`. It returns `None` after it has reported an error.

use std::time::Duration;

use super::errors::Reporter;
use super::section::{found, shown};
use crate::text::nearest;
use crate::text::yaml::{Node, Value};
use crate::units::{UnitError, parse_count, parse_duration};

/// The longest key, value or name, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// A text that is not empty and has at most 4,096 bytes.
pub(super) fn text<'n>(node: &'n Node, key: &str, reporter: &mut Reporter<'_>) -> Option<&'n str> {
    match &node.value {
        Value::Text { text, .. } if text.len() > MAX_TEXT_BYTES => {
            let message = format!("`{key}` is {} bytes long", text.len());
            reporter.error(node.at, message, "too long", format!("use at most {MAX_TEXT_BYTES} bytes"));
        }
        Value::Text { text, .. } if !text.is_empty() => return Some(text),
        Value::Text { .. } | Value::Null => {
            let message = format!("`{key}` is empty");
            let help = match key {
                "value" => "remove the line to match any value, or write the value".to_owned(),
                _ => format!("write a text after `{key}:`"),
            };
            reporter.error(node.at, message, "nothing is here", help);
        }
        Value::List(_) | Value::Map(_) => {
            let help = format!("write `{key}: TEXT`");
            reporter.error(node.at, format!("`{key}` has to be a text"), found(node), help);
        }
    }
    None
}

/// A whole number below 2^64: `500`, `1_000`, `10k`, `1M`. The quota checks its own bounds later.
///
/// The number must not be in quotes. `010` is an error, because some readers take it for 8 and others for 10.
pub(super) fn integer(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<u64> {
    let Value::Text { text, quoted: false } = &node.value else {
        let help = match &node.value {
            Value::Text { .. } => format!("remove the quotes: `{key}: 100`"),
            _ => format!("write a number: `{key}: 100`"),
        };
        reporter.error(node.at, format!("`{key}` has to be a whole number"), found(node), help);
        return None;
    };
    let (message, label, help) = match parse_count(text) {
        Ok(number) => match octal(text) {
            // In YAML 1.1, which the reference server reads, a number with a leading zero has base eight.
            Some(octal) if octal != number => (
                format!("`{key}: {}` is {octal} to the reference server and {number} to most readers", shown(text)),
                "two readings",
                format!("write `{key}: {octal}` or `{key}: {number}`"),
            ),
            _ => return Some(number),
        },
        Err(UnitError::TooLarge) => {
            let help = "use at most 9007199254740991".to_owned();
            (format!("`{key}` is too large: `{}`", shown(text)), "too large", help)
        }
        Err(UnitError::Malformed) => {
            let help = match text.as_bytes() {
                [b'-', ..] => "it cannot be negative; 0 refuses everything".to_owned(),
                _ => format!("write a number such as `{key}: 100`, 10k or 1M"),
            };
            (format!("`{key}` has to be a whole number, not `{}`", shown(text)), "not a whole number", help)
        }
    };
    reporter.error(node.at, message, label, help);
    None
}

/// The value of a number with a leading zero, read in base eight. `None` for any other text.
fn octal(text: &str) -> Option<u64> {
    u64::from_str_radix(&text.strip_prefix('0')?.replace('_', ""), 8).ok()
}

/// `true` or `false`. The other words that YAML 1.1 has for them are accepted with a warning.
pub(super) fn boolean(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<bool> {
    if let Value::Text { text, quoted: false } = &node.value {
        let word = text.to_ascii_lowercase();
        match &*word {
            "true" => return Some(true),
            "false" => return Some(false),
            "yes" | "on" | "y" | "no" | "off" | "n" => {
                let means = matches!(&*word, "yes" | "on" | "y");
                let message = format!("`{key}: {}` is read as {means}", shown(text));
                let help = format!("write `{key}: {means}`: to most readers of YAML `{}` is a text", shown(text));
                reporter.warning(node.at, message, "not true or false", help);
                return Some(means);
            }
            _ => {}
        }
    }
    let help = format!("write `{key}: true` or `{key}: false`");
    reporter.error(node.at, format!("`{key}` has to be true or false"), "neither of them", help);
    None
}

/// One of a few words, in upper or lower case. An error names the nearest word, or all of them.
pub(super) fn choice<T: Copy>(
    node: &Node,
    key: &str,
    choices: &[(&'static str, T)],
    reporter: &mut Reporter<'_>,
) -> Option<T> {
    let word = text(node, key, reporter)?;
    if let Some((_, chosen)) = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)) {
        return Some(*chosen);
    }
    let help = match nearest(word, choices.iter().map(|(name, _)| *name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("use {}", choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")),
    };
    reporter.error(node.at, format!("`{key}` cannot be `{}`", shown(word)), "not known", help);
    None
}

/// A duration such as `500ms`, `1.5s` or `1m30s`.
pub(super) fn duration(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<Duration> {
    let word = text(node, key, reporter)?;
    let error = match parse_duration(word) {
        Ok(duration) => return Some(duration),
        Err(error) => error,
    };
    let message = format!("`{key}` has to be a duration, not `{}`", shown(word));
    let help = match error {
        UnitError::TooLarge => "write at most 213503d".to_owned(),
        UnitError::Malformed if word.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("add the unit: `{word}s` or `{word}ms`")
        }
        UnitError::Malformed => "write numbers with units: 500ms, 1.5s, 1m30s, 2h, 1d (also ns, us, w)".to_owned(),
    };
    reporter.error(node.at, message, "not a duration", help);
    None
}

/// A share such as `20%`, in millionths. It is above 0% and at most 1000%.
pub(super) fn share_ppm(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<u32> {
    let word = text(node, key, reporter)?;
    let ppm = word.strip_suffix('%').and_then(parse_percent_ppm);
    if let Some(ppm @ 1..=10_000_000) = ppm {
        return Some(ppm);
    }
    let message = format!("`{key}` has to be a share above 0% and at most 1000%, not `{}`", shown(word));
    reporter.error(node.at, message, "not a share", format!("write a percentage, such as `{key}: 20%`"));
    None
}

/// A percentage with up to four decimals, in millionths: `20` is 200,000. More decimals would be less than a millionth.
fn parse_percent_ppm(text: &str) -> Option<u32> {
    let (whole, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || decimals.len() > 4 || !digits(whole) || !digits(decimals) {
        return None;
    }
    let padded = format!("{whole}{decimals:0<4}");
    padded.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_four_decimals() {
        assert_eq!(parse_percent_ppm("20"), Some(200_000));
        assert_eq!(parse_percent_ppm("0.5"), Some(5_000));
        assert_eq!(parse_percent_ppm("0.0001"), Some(1));
        for wrong in ["", ".5", "1.23456", "-1", "1e3", "99999999999"] {
            assert_eq!(parse_percent_ppm(wrong), None, "{wrong}");
        }
    }
}
