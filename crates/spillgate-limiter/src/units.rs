//! Reads and prints durations and counts, with one grammar for rules, settings, flags and queries.
//!
//! A printed duration can be read again.

use std::fmt;
use std::time::Duration;

/// The units of a duration, in nanoseconds. [`format_duration`] needs the longest unit first.
const UNITS: [(&str, u64); 8] = [
    ("w", 604_800_000_000_000),
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Why a text is not a duration or a count.
///
/// ```
/// use spillgate::units::{UnitError, parse_duration};
/// assert_eq!(parse_duration("10"), Err(UnitError::Malformed), "the unit is missing");
/// assert_eq!(parse_duration("600y"), Err(UnitError::Malformed), "years have no fixed length");
/// assert_eq!(parse_duration("400000w"), Err(UnitError::TooLarge));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnitError {
    /// The text is not a number with a known unit.
    Malformed,
    /// The count, or the duration in nanoseconds, is 2^64 or more.
    TooLarge,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnitError::Malformed => "not a number with a unit",
            UnitError::TooLarge => "too large",
        })
    }
}

impl std::error::Error for UnitError {}

/// Reads a duration: one or several numbers, each with its unit (`500ms`, `1.5s`, `1m30s`, `1d 12h`).
///
/// The units are ns, us, ms, s, m, h, d and w. A number can have up to 15 decimals, not counting zeros at the end, if
/// the duration is a whole number of nanoseconds.
///
/// # Errors
/// The text is not a duration, or the duration is 2^64 nanoseconds (584 years) or more.
///
/// ```
/// use std::time::Duration;
/// use spillgate::units::parse_duration;
/// assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
/// assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let mut rest = text.trim();
    let mut total_ns: u64 = 0;
    if rest.is_empty() {
        return Err(UnitError::Malformed);
    }
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit = if unit.trim() == "µs" { "us" } else { unit.trim() };
        let (_, unit_ns) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(UnitError::Malformed)?;
        let part_ns = scaled(number, *unit_ns)?;
        total_ns = total_ns.checked_add(part_ns).ok_or(UnitError::TooLarge)?;
        rest = tail;
    }
    Ok(Duration::from_nanos(total_ns))
}

/// Multiplies a number with decimals by `scale`. The error is `Malformed` if the result is not a whole number.
fn scaled(number: &str, scale: u64) -> Result<u64, UnitError> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return Err(UnitError::Malformed);
    }
    let decimals = decimals.trim_end_matches('0');
    // The longest unit is shorter than 10^15 ns, so the sixteenth decimal is worth less than one nanosecond.
    if decimals.len() > 15 {
        return Err(UnitError::Malformed);
    }
    let whole: u64 = whole.parse().map_err(|_| UnitError::TooLarge)?;
    let places = 10u128.pow(u32::try_from(decimals.len()).map_err(|_| UnitError::Malformed)?);
    let fraction = decimals.parse::<u128>().unwrap_or(0) * u128::from(scale);
    if !fraction.is_multiple_of(places) {
        return Err(UnitError::Malformed);
    }
    let fraction = u64::try_from(fraction / places).map_err(|_| UnitError::TooLarge)?;
    whole.checked_mul(scale).and_then(|whole| whole.checked_add(fraction)).ok_or(UnitError::TooLarge)
}

/// Prints a duration exactly: `0s`, `1.5ms`, `59.94s`, `1h30m`, `1d0.5s`. [`parse_duration`] reads the text as the same
/// duration.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(spillgate::units::format_duration(Duration::from_millis(90_500)), "1m30.5s");
/// ```
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut text = String::new();
    let mut rest_ns = ns;
    for (unit, unit_ns) in &UNITS[1..4] {
        if rest_ns >= *unit_ns {
            text.push_str(&format!("{}{unit}", rest_ns / unit_ns));
            rest_ns %= unit_ns;
        }
    }
    // The loop has printed the days, hours and minutes. What is left is printed as one number. The unit of this number
    // is `s` if the loop has printed anything. Otherwise it is the largest unit that is not longer than what is left.
    let beside = !text.is_empty();
    let unit = UNITS[4..].iter().find(|(_, unit_ns)| beside || rest_ns >= *unit_ns);
    match unit {
        _ if rest_ns == 0 && beside => text,
        Some((unit, unit_ns)) => {
            let places = unit_ns.ilog10() as usize;
            let (whole, fraction) = (rest_ns / unit_ns, rest_ns % unit_ns);
            let number = if places > 0 { format!("{whole}.{fraction:0places$}") } else { whole.to_string() };
            let number = if places > 0 { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
            text + number + unit
        }
        None => "0s".to_owned(),
    }
}

/// Reads a count: `500`, `1_000`, `10k`, `10M`, `1G`.
///
/// # Errors
/// The text is not a count, or the number is more than 2^64 - 1.
///
/// ```
/// assert_eq!(spillgate::units::parse_count("10k"), Ok(10_000));
/// ```
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    parse_with_units(text, &[("", 1), ("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)])
}

/// The units of a number of bytes. [`format_bytes`] uses KiB, MiB and GiB, which it finds by their positions.
const BYTES: [(&str, u64); 9] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Reads a number of bytes: `256`, `64KiB`, `1MB`.
///
/// # Errors
/// The text is not a number of bytes, or the number is more than 2^64 - 1.
///
/// ```
/// assert_eq!(spillgate::units::parse_bytes("64KiB"), Ok(65_536));
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    parse_with_units(text, &BYTES)
}

/// Prints a number of bytes with the largest of the units B, KiB, MiB and GiB that is not larger than the number. If
/// the number is not a multiple of this unit, the text has two decimals, and [`parse_bytes`] rejects it.
///
/// ```
/// use spillgate::units::format_bytes;
/// assert_eq!((format_bytes(65_536), format_bytes(1_500_000)), ("64KiB".to_owned(), "1.43MiB".to_owned()));
/// ```
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let unit = BYTES[2..5].iter().rev().find(|(_, size)| bytes >= *size);
    match unit {
        None => format!("{bytes}B"),
        Some((unit, size)) if bytes.is_multiple_of(*size) => format!("{}{unit}", bytes / size),
        Some((unit, size)) => format!("{:.2}{unit}", bytes as f64 / *size as f64),
    }
}

/// Reads a whole number with one of `units`. Each unit comes with its factor.
///
/// # Errors
/// The text is not a whole number with one of `units`, or the number is more than 2^64 - 1.
///
/// ```
/// assert_eq!(spillgate::units::parse_with_units("4KiB", &[("B", 1), ("KiB", 1_024)]), Ok(4_096));
/// ```
pub fn parse_with_units(text: &str, units: &[(&str, u64)]) -> Result<u64, UnitError> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, unit) = (text[..split].replace('_', ""), text[split..].trim());
    let (_, scale) = units.iter().find(|(name, _)| *name == unit).ok_or(UnitError::Malformed)?;
    if digits.is_empty() || text.starts_with('_') {
        return Err(UnitError::Malformed);
    }
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(*scale)).ok_or(UnitError::TooLarge)
}

#[cfg(test)]
mod tests;
