//! Reads single values: texts, numbers, durations, percentages, and words from a list.
//!
//! YAML readers disagree about values such as `010` or `yes`. Here each value has only one meaning. If other readers
//! understand a value differently, it is an error or gets a warning.
//!
//! Each function reads the value of `key`. If the value is wrong, the function reports an error and returns `None`.

use std::time::Duration;

use super::errors::Reporter;
use super::section::{found, shown};
use spillgate_limiter::units::{UnitError, format_bytes, parse_bytes, parse_count, parse_duration};
use spillgate_text::nearest;
use spillgate_text::yaml::{Node, Value};

/// The maximum number of bytes of a key, a value or a name.
const MAX_TEXT_BYTES: usize = 4096;

/// Reads a text, which has to have 1 to 4,096 bytes.
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

/// Reads a whole number, for example `500`, `1_000`, `10k` or `1M`. The quota checks later whether the number is in its
/// bounds.
///
/// The number must not be in quotes. `010` is an error, because some readers read it as 8 and other readers as 10.
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
            // Envoy's reference rate limit server reads YAML 1.1, in which a number with a leading zero has base eight.
            Some(octal) if octal != number => (
                format!(
                    "`{key}: {}` means {octal} for the reference server, but {number} for other readers",
                    shown(text)
                ),
                "two meanings",
                format!("write `{key}: {octal}` or `{key}: {number}`"),
            ),
            _ => return Some(number),
        },
        Err(UnitError::TooLarge) => {
            let help = "use at most 9007199254740991".to_owned();
            (format!("`{key}` is too large: `{}`", shown(text)), "too large", help)
        }
        Err(_) => {
            let help = match text.as_bytes() {
                [b'-', ..] => "write 0 or more; 0 refuses every request".to_owned(),
                _ => format!("write a number such as `{key}: 100`, 10k or 1M"),
            };
            (format!("`{key}` has to be a whole number, not `{}`", shown(text)), "not a whole number", help)
        }
    };
    reporter.error(node.at, message, label, help);
    None
}

/// Reads a number of bytes, for example `64MiB`. It has to be in `bounds`, which include both ends.
pub(super) fn bytes(node: &Node, key: &str, bounds: (u64, u64), reporter: &mut Reporter<'_>) -> Option<u64> {
    let text = match &node.value {
        Value::Text { text, .. } => parse_bytes(text),
        Value::List(_) | Value::Map(_) | Value::Null => Err(UnitError::Malformed),
    };
    let (message, label) = match text {
        Ok(bytes) if (bounds.0..=bounds.1).contains(&bytes) => return Some(bytes),
        Ok(_) | Err(UnitError::TooLarge) => (format!("`{key}` is out of its bounds"), "out of bounds"),
        Err(_) => (format!("`{key}` has to be a number of bytes"), "not a number of bytes"),
    };
    let help = format!("write `{key}: 64MiB`, from {} to {}", format_bytes(bounds.0), format_bytes(bounds.1));
    reporter.error(node.at, message, label, help);
    None
}

/// Reads a number that begins with a zero, and interprets its digits in base eight. Returns `None` for any other text.
fn octal(text: &str) -> Option<u64> {
    u64::from_str_radix(&text.strip_prefix('0')?.replace('_', ""), 8).ok()
}

/// Reads `true` or `false`. YAML 1.1 has other words with the same meaning, such as `yes` and `off`. These words are
/// accepted with a warning.
pub(super) fn boolean(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<bool> {
    if let Value::Text { text, quoted: false } = &node.value {
        let word = text.to_ascii_lowercase();
        match &*word {
            "true" => return Some(true),
            "false" => return Some(false),
            "yes" | "on" | "y" | "no" | "off" | "n" => {
                let means = matches!(&*word, "yes" | "on" | "y");
                let message = format!("`{key}: {}` is read as {means}", shown(text));
                let help = format!("write `{key}: {means}`, because most YAML readers read `{}` as text", shown(text));
                reporter.warning(node.at, message, "not true or false", help);
                return Some(means);
            }
            _ => {}
        }
    }
    let help = format!("write `{key}: true` or `{key}: false`");
    reporter.error(node.at, format!("`{key}` has to be true or false"), "not true or false", help);
    None
}

/// Reads a word that has to be in `choices`, in upper or lower case. An error names the most similar word. If no word
/// is similar, it names all words.
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

/// Reads a duration such as `500ms`, `1.5s` or `1m30s`.
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
        _ => "write numbers with units, such as 500ms, 1.5s or 1m30s; the units are ns, us, ms, s, m, h, d and w"
            .to_owned(),
    };
    reporter.error(node.at, message, "not a duration", help);
    None
}

/// Reads a percentage such as `20%`. It has to be above 0% and at most 1000%. Returns it in millionths: `20%` is
/// 200,000.
pub(super) fn share_ppm(node: &Node, key: &str, reporter: &mut Reporter<'_>) -> Option<u32> {
    let word = text(node, key, reporter)?;
    let ppm = word.strip_suffix('%').and_then(parse_percent_ppm);
    if let Some(ppm @ 1..=10_000_000) = ppm {
        return Some(ppm);
    }
    let message = format!("`{key}` has to be a percentage above 0% and at most 1000%, not `{}`", shown(word));
    reporter.error(node.at, message, "not such a percentage", format!("write a percentage, such as `{key}: 20%`"));
    None
}

/// Reads a percentage without its `%`, and returns it in millionths: `20` is 200,000. At most four decimals are
/// allowed, because 0.0001 % is one millionth.
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
