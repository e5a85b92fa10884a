//! Reads times in the forms that are usual in logs.
//!
//! Most lines have the same second as the line before. So the last text is kept together with its time.

use std::ops::Range;

use spillgate::Time;

use crate::calendar::day_s;

const SECOND_NS: u64 = 1_000_000_000;
/// 1990 to 2200. No web server is older than 1990, and a device whose clock is not set writes the year 1970.
const VALID_S: Range<i64> = 631_152_000..7_289_654_400;
/// Longer texts are not kept, so each of them is parsed, even if it is the same as the one before.
const KEPT_BYTES_MAX: usize = 40;

const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    text: Vec<u8>,
    time: Time,
}

impl Times {
    /// Reads `10/Oct/2000:13:55:36 -0700`, RFC 3339, or a number of seconds, milliseconds, microseconds or nanoseconds.
    /// The size of the number says its unit. A time without an offset is UTC.
    pub(super) fn read(&mut self, text: &[u8]) -> Option<Time> {
        if text == self.text.as_slice() && !text.is_empty() {
            return Some(self.time);
        }
        let time = parse(text)?;
        if text.len() <= KEPT_BYTES_MAX {
            self.text.clear();
            self.text.extend_from_slice(text);
            self.time = time;
        }
        Some(time)
    }
}

fn parse(text: &[u8]) -> Option<Time> {
    let text = text.trim_ascii();
    let text = text.strip_prefix(b"[").unwrap_or(text);
    let text = text.strip_suffix(b"]").unwrap_or(text);
    let (seconds, nanos) = match (text.get(2), text.get(4)) {
        (Some(b'/'), _) => common(text)?,
        (_, Some(b'-' | b'/')) => rfc3339(text)?,
        _ => number(text)?,
    };
    let valid = VALID_S.contains(&seconds);
    valid.then(|| Time::from_nanos(seconds.unsigned_abs() * SECOND_NS + nanos))
}

/// Reads `10/Oct/2000:13:55:36.123 -0700`. Apache and HAProxy can write a fraction of the second.
fn common(text: &[u8]) -> Option<(i64, u64)> {
    let month = MONTHS.iter().position(|name| text.get(3..6) == Some(name))? as i64 + 1;
    if text.get(6) != Some(&b'/') || text.get(11) != Some(&b':') {
        return None;
    }
    let day_s = day_s(digits(text, 7..11)?, month, digits(text, 0..2)?)?;
    let (nanos, rest) = after_seconds(text.get(20..)?)?;
    let offset_s = offset_s(rest.trim_ascii_start())?;
    Some((day_s + time_of_day_s(text.get(12..20)?)? - offset_s, nanos))
}

/// Reads a fraction of a second, if there is one. Returns it with the text after it.
fn after_seconds(text: &[u8]) -> Option<(u64, &[u8])> {
    match text {
        [b'.' | b',', rest @ ..] => fraction_ns(rest),
        rest => Some((0, rest)),
    }
}

/// Returns the length of the form `10/Oct/2000:13:55:36.123 -0700` at the beginning of a text. The fraction and the
/// offset can be missing.
pub(super) fn common_bytes(text: &[u8]) -> Option<usize> {
    let is_date = text.get(2) == Some(&b'/') && text.get(6) == Some(&b'/') && text.get(11) == Some(&b':');
    time_of_day_s(text.get(12..20)?).filter(|_| is_date)?;
    let (_, rest) = after_seconds(&text[20..]).unwrap_or((0, &text[20..]));
    let has_offset = matches!(rest, [b' ', b'+' | b'-', ..]) && digits(rest, 2..6).is_some();
    Some(text.len() - rest.len() + if has_offset { " -0700".len() } else { 0 })
}

/// Returns whether a text is a time of day, such as `13:55:36` or `13:55:36.123`. The date of such a time is elsewhere.
pub(super) fn is_time_of_day(text: &[u8]) -> bool {
    text.get(..8).and_then(time_of_day_s).is_some()
}

/// Joins a date and a time of day to a text that [`Times::read`] knows.
pub(super) fn join(date: &[u8], time_of_day: &[u8], joined: &mut Vec<u8>) {
    let between = if date.get(2) == Some(&b'/') { b':' } else { b' ' };
    joined.clear();
    joined.extend_from_slice(date);
    joined.push(between);
    joined.extend_from_slice(time_of_day);
}

/// Reads `2000-10-10T13:55:36.123-07:00`. A space can replace the `T`, a comma the point, and slashes the
/// dashes of the date.
fn rfc3339(text: &[u8]) -> Option<(i64, u64)> {
    if text.get(7) != text.get(4) || !matches!(text.get(10), Some(b'T' | b't' | b' ')) {
        return None;
    }
    let day_s = day_s(digits(text, 0..4)?, digits(text, 5..7)?, digits(text, 8..10)?)?;
    let seconds = day_s + time_of_day_s(text.get(11..19)?)?;
    let (nanos, rest) = after_seconds(text.get(19..)?)?;
    Some((seconds - offset_s(rest.trim_ascii_start())?, nanos))
}

/// Reads `1700000000.123`, or a whole number of smaller units. The units cannot be confused, because 10^11 seconds are
/// in the year 5138, and 10^11 milliseconds are in 1973.
fn number(text: &[u8]) -> Option<(i64, u64)> {
    let (whole, part) = match text.iter().position(|byte| *byte == b'.') {
        Some(at) => (&text[..at], Some(fraction_ns(&text[at + 1..])?)),
        None => (text, None),
    };
    if part.is_some_and(|(_, rest)| !rest.is_empty()) || whole.is_empty() || whole.len() > 19 {
        return None;
    }
    let mut count = 0u64;
    for byte in whole {
        count = count * 10 + u64::from(byte.is_ascii_digit().then(|| byte - b'0')?);
    }
    let unit_ns = match count {
        0..100_000_000_000 => SECOND_NS,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    };
    let per_second = SECOND_NS / unit_ns;
    let part_ns = part.map_or(0, |(nanos, _)| nanos / per_second);
    let seconds = i64::try_from(count / per_second).ok()?;
    Some((seconds, count % per_second * unit_ns + part_ns))
}

/// Reads the digits after a decimal point as billionths, and returns the text after them. Returns `None` if there is no
/// digit.
fn fraction_ns(text: &[u8]) -> Option<(u64, &[u8])> {
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(len);
    let billionths = (0..9).fold(0, |sum, at| sum * 10 + u64::from(digits.get(at).map_or(0, |byte| byte - b'0')));
    (len > 0).then_some((billionths, rest))
}

/// Reads `13:55:36`. A leap second (60) counts as the first second of the next minute.
fn time_of_day_s(text: &[u8]) -> Option<i64> {
    let (hour, minute, second) = (digits(text, 0..2)?, digits(text, 3..5)?, digits(text, 6..8)?);
    let valid = text[2] == b':' && text[5] == b':' && hour < 24 && minute < 60 && second <= 60;
    valid.then_some(hour * 3600 + minute * 60 + second)
}

/// Reads an offset from UTC: nothing, `Z`, `UTC`, `GMT`, `-0700`, `-07:00` or `-07`.
fn offset_s(text: &[u8]) -> Option<i64> {
    let (sign, rest) = match text {
        [] | [b'Z' | b'z'] | b"UTC" | b"GMT" => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let minutes = match rest.len() {
        2 => 0,
        4 => digits(rest, 2..4)?,
        5 if rest[2] == b':' => digits(rest, 3..5)?,
        _ => return None,
    };
    let hours = digits(rest, 0..2)?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn digits(text: &[u8], range: Range<usize>) -> Option<i64> {
    let mut number = 0;
    for byte in text.get(range)? {
        number = number * 10 + i64::from(byte.is_ascii_digit().then(|| byte - b'0')?);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    fn nanos(text: &str) -> Option<u64> {
        Times::default().read(text.as_bytes()).map(Time::as_nanos)
    }

    #[test]
    fn all_forms_of_one_time_are_equal() {
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "[10/Oct/2000:20:55:36 +0000]",
            "10/Oct/2000:20:55:36",
            "2000-10-10T13:55:36-07:00",
            "2000-10-10 20:55:36Z",
            "2000-10-10T20:55:36",
            "2000-10-10T22:25:36+0130",
            "2000-10-10T22:55:36+02",
            "2000-10-10T20:55:36.000Z",
            "2000-10-10T20:55:36,0",
            "2000/10/10 20:55:36",
            "2000-10-10 20:55:36.000 UTC",
            "10/Oct/2000:20:55:36.000",
            "10/Oct/2000:13:55:36.0 -0700",
            "971211336",
            "971211336.000",
            "971211336000",
            "971211336000000",
            "971211336000000000",
        ] {
            assert_eq!(nanos(text), Some(971_211_336_000_000_000), "{text}");
        }
    }

    #[test]
    fn fractions_are_read() {
        for (text, nanoseconds) in [
            ("2000-10-10T20:55:36.5Z", 500_000_000),
            ("2000-10-10T20:55:36.1234567899999Z", 123_456_789),
            ("2000-10-10 20:55:36.123 UTC", 123_000_000),
            ("10/Oct/2000:13:55:36.123 -0700", 123_000_000),
            ("10/Oct/2000:20:55:36.726", 726_000_000),
            ("971211336.123", 123_000_000),
            ("971211336123", 123_000_000),
            ("971211336123.5", 123_500_000),
            ("971211336123456", 123_456_000),
            ("971211336123456789", 123_456_789),
        ] {
            assert_eq!(nanos(text), Some(971_211_336_000_000_000 + nanoseconds), "{text}");
        }
    }

    #[test]
    fn invalid_times_are_refused() {
        for text in [
            "",
            "-",
            "[]",
            "29/Feb/2001:00:00:00 +0000",
            "00/Jan/2001:00:00:00 +0000",
            "10/Oct/2000:24:00:00 +0000",
            "10/Oct/2000:13:60:00 +0000",
            "10/Oct/2000:13:55:61 +0000",
            "10/Oct/2000:13:55:36 +2400",
            "10/Oct/2000:13:55:36 0000",
            "10/Oct/0000:13:55:36 +0000",
            "10/Oct/9999:13:55:36 +0000",
            "10/oct/2000:13:55:36 +0000",
            "10/Oct/2000:13:55:36. +0000",
            "10/Oct/2000:13:55:36 CET",
            "13:55:36",
            "2000-13-10T20:55:36Z",
            "2000-10-10T20:55:36.Z",
            "2000-10/10T20:55:36Z",
            "1989-12-31T23:59:59Z",
            "2201-01-01T00:00:00Z",
            "631151999",
            "7289654400",
            "99999999999999999999",
            "-971211336",
            "971211336.",
            "971211336.5x",
            "9.71e8",
        ] {
            assert_eq!(nanos(text), None, "{text}");
        }
        assert_eq!(nanos("1990-01-01T00:00:00Z"), Some(631_152_000 * SECOND_NS));
        assert_eq!(nanos("2200-12-31T23:59:59Z"), Some(7_289_654_399 * SECOND_NS));
    }

    proptest! {
        /// The crate httpdate computes dates with its own calendar.
        #[test]
        fn the_calendar_is_that_of_another_crate(seconds in 631_152_000u64..7_289_654_400) {
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
            // `Tue, 10 Oct 2000 20:55:36 GMT`
            let text = format!("{}/{}/{}:{} +0000", &date[5..7], &date[8..11], &date[12..16], &date[17..25]);
            prop_assert_eq!(nanos(&text), Some(seconds * SECOND_NS), "{}", text);
        }

        #[test]
        fn no_text_makes_it_panic(text in prop::collection::vec(any::<u8>(), 0..50), like in "[0-9:/. TZ+-]{0,30}") {
            let _ = Times::default().read(&text);
            let _ = Times::default().read(like.as_bytes());
        }
    }
}
