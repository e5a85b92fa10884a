//! Single values: words, numbers, durations, shares, and choices.

use std::time::Duration;

use super::super::yaml::{Node, Value};
use super::errors::Reporter;
use super::nearest::nearest;
use super::section::{found, shown};

/// The longest key, value or name, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// A text that is not empty.
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

/// A whole number from 0.
pub(super) fn integer(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<u64> {
    if let Value::Text { text, quoted: false } = &node.value {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        if let (true, Ok(number)) = (digits, text.parse()) {
            return Some(number);
        }
        let help = match text.as_bytes() {
            [b'-', ..] => "it cannot be negative; 0 refuses everything".to_owned(),
            _ if digits => "use at most 9007199254740991".to_owned(),
            _ => format!("write digits only, such as `{key}: 100`"),
        };
        let (message, label) = match digits {
            true => (format!("`{key}` is too large: `{}`", shown(text)), "too large"),
            false => (format!("`{key}` has to be a whole number, not `{}`", shown(text)), "no whole number"),
        };
        reporter.error(node.at, message, label, help);
        return None;
    }
    let help = match &node.value {
        Value::Text { .. } => format!("remove the quotes: `{key}: 100`"),
        _ => format!("write a number: `{key}: 100`"),
    };
    reporter.error(node.at, format!("`{key}` has to be a whole number"), found(node), help);
    None
}

/// `true` or `false`.
pub(super) fn boolean(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<bool> {
    match &node.value {
        Value::Text { text, quoted: false } if text.eq_ignore_ascii_case("true") => return Some(true),
        Value::Text { text, quoted: false } if text.eq_ignore_ascii_case("false") => return Some(false),
        _ => {}
    }
    let help = format!("write `{key}: true` or `{key}: false`");
    reporter.error(node.at, format!("`{key}` has to be true or false"), "neither of them", help);
    None
}

/// One of a few words, in any case.
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

/// A duration such as `500ms`, `10s` or `1m30s`.
pub(super) fn duration(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<Duration> {
    let word = text(node, key, reporter)?;
    match parse_duration(word) {
        Some(duration) => Some(duration),
        None => {
            let message = format!("`{key}` has to be a duration, not `{}`", shown(word));
            let help = match word.bytes().all(|byte| byte.is_ascii_digit()) {
                true => format!("add the unit: `{word}s` or `{word}ms`"),
                false => "write whole numbers with units: 500ms, 10s, 1m30s, 2h, 1d (also ns, us, w)".to_owned(),
            };
            reporter.error(node.at, message, "no duration", help);
            None
        }
    }
}

/// Whole numbers, each with its unit, added up; `None` for anything else or an overflow.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total_ns: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(|byte| !byte.is_ascii_digit()).count();
        let (unit, tail) = tail.split_at(letters);
        let unit_ns: u64 = match unit.trim() {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            "w" => 604_800_000_000_000,
            _ => return None,
        };
        total_ns = total_ns.checked_add(number.parse::<u64>().ok()?.checked_mul(unit_ns)?)?;
        rest = tail;
    }
    (!text.trim().is_empty()).then(|| Duration::from_nanos(total_ns))
}

/// A share such as `20%`, in millionths; more than nothing and at most tenfold.
pub(super) fn share_ppm(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<u32> {
    let word = text(node, key, reporter)?;
    let ppm = word.strip_suffix('%').and_then(parse_percent_ppm);
    if let Some(ppm @ 1..=10_000_000) = ppm {
        return Some(ppm);
    }
    let message = format!("`{key}` has to be a share above 0% and at most 1000%, not `{}`", shown(word));
    reporter.error(node.at, message, "no share", format!("write a percentage, such as `{key}: 20%`"));
    None
}

/// Percent with up to four decimals, in millionths.
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
    fn durations_add_up() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("1d 12h"), Some(Duration::from_secs(36 * 3600)));
        for wrong in ["", "10", "s", "1.5s", "-1s", "1 fortnight", "99999999999999999999s", "400000w", "1sµ"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

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
