//! Reads when the far side (the service that a program calls) resets a limit. Each service writes this time in its own
//! way.
//!
//! | text | meaning | used by, for example |
//! |---|---|---|
//! | a number from 100,000,000,000 on | milliseconds since 1970 | trading services |
//! | a number from 1,000,000,000 on | seconds since 1970, also with a fraction | GitHub, GitLab, Okta, Discord |
//! | a number below 2,678,400 (31 days) | seconds from now, also with a fraction | the standard, Reddit, Zendesk |
//! | any number between | milliseconds from now | |
//! | numbers with `h`, `m`, `s` or `ms` | a time from now | OpenAI (`6m0s`, `120ms`) |
//! | a date of RFC 3339, also without seconds | that time | Anthropic, Atlassian, Vimeo |
//! | a date of HTTP | that time | `Retry-After` |
//!
//! The size of a number shows which row applies: no service resets a limit years from now, and no service has a clock
//! that is still at 2001.

use std::time::{Duration, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

/// The longest time that is read: 366 days. A longer time is cut to this length.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
const LEAST_EPOCH_MS: u64 = 100_000_000_000;
const LEAST_EPOCH_S: u64 = 1_000_000_000;
const LEAST_DELTA_MS: u64 = 2_678_400;

/// When all units of a limit are available again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reset {
    /// The time from now until the reset.
    pub(super) after: Duration,
    /// Whether the text has only whole seconds. Most services round them up, so the reset can come one second earlier.
    pub(super) is_whole: bool,
}

/// A reset in whole seconds can be one second earlier than it says.
const ROUNDED: Duration = Duration::from_secs(1);
/// A time is known well enough if it is longer than this many times its possible error.
const EXACT: u32 = 4;

impl Reset {
    /// Returns how much earlier the reset can come than its text says.
    pub(super) const fn rounded(self) -> Duration {
        if self.is_whole { ROUNDED } else { Duration::ZERO }
    }

    /// Returns whether the time is still known well enough when the next calls arrive, if a call takes `elapsed`.
    pub(super) fn is_exact_after(self, elapsed: Duration) -> bool {
        self.after > (elapsed + self.rounded()).saturating_mul(EXACT)
    }

    /// Returns a reset that is a whole number of seconds away.
    pub(super) const fn after_seconds(seconds: u64) -> Reset {
        Reset { after: Duration::from_secs(seconds), is_whole: true }
    }
}

/// Reads a reset in one of the forms that the table of this module lists.
pub(super) fn reset(text: &str, now: Duration) -> Option<Reset> {
    let is_ms = match number(text.trim()) {
        Some((whole, _)) => whole >= LEAST_EPOCH_MS || (LEAST_DELTA_MS..LEAST_EPOCH_S).contains(&whole),
        None => text.contains("ms"),
    };
    until(text, now).map(|after| Reset { after, is_whole: !is_ms && !text.contains('.') })
}

/// Reads the time from `now` until the time that `text` names. A time in the past gives 0. `now` is the time on the
/// clock of the far side, since 1970.
fn until(text: &str, now: Duration) -> Option<Duration> {
    let text = text.trim();
    let at = |at: Duration| at.saturating_sub(now);
    let found = if let Some((whole, ns)) = number(text) {
        match whole {
            LEAST_EPOCH_MS.. => at(Duration::from_millis(whole)),
            LEAST_EPOCH_S.. => at(Duration::new(whole, ns)),
            LEAST_DELTA_MS.. => Duration::from_millis(whole),
            _ => Duration::new(whole, ns),
        }
    } else if let Some(span) = span(text) {
        span
    } else {
        let date = rfc3339(text).or_else(|| http_date(text))?;
        at(date)
    };
    Some(found.min(LONGEST))
}

/// Reads a field in which a number is always the seconds from now. Any other text is read by [`until`].
pub(super) fn seconds_or_date(text: &str, now: Duration) -> Option<Duration> {
    match number(text.trim()) {
        Some((whole, ns)) => Some(Duration::new(whole, ns).min(LONGEST)),
        None => until(text, now),
    }
}

/// Returns the time of an HTTP date since 1970.
pub(super) fn http_date(text: &str) -> Option<Duration> {
    httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()
}

/// Reads a number: its whole part, and its fraction in nanoseconds.
fn number(text: &str) -> Option<(u64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return None;
    }
    let ns: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    // A number with too many digits is read as a very late time.
    Some((whole.parse().unwrap_or(u64::MAX), ns.parse().ok()?))
}

/// Reads numbers with units, such as `1h2m3.5s`.
fn span(text: &str) -> Option<Duration> {
    let (mut rest, mut sum) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let end = rest.find(|byte: char| !byte.is_ascii_digit() && byte != '.')?;
        let (whole, ns) = number(&rest[..end])?;
        let value = Duration::new(whole.min(LONGEST.as_secs()), ns);
        rest = &rest[end..];
        let (unit, after) = rest.split_at(rest.find(|byte: char| !byte.is_ascii_alphabetic()).unwrap_or(rest.len()));
        rest = after;
        sum += match unit {
            "d" => value * 86_400,
            "h" => value * 3_600,
            "m" => value * 60,
            "s" => value,
            "ms" => value / 1_000,
            _ => return None,
        }
        .min(LONGEST);
        sum = sum.min(LONGEST);
    }
    (!text.is_empty()).then_some(sum)
}

/// Reads a date such as `2026-01-31T10:20:30.5Z`, `2026-01-31T10:20Z` or `2026-01-31T10:20:30+02:00`, as the time since 1970.
fn rfc3339(text: &str) -> Option<Duration> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut date = date.split('-');
    let year = date.next()?.parse().ok()?;
    let mut part = || date.next()?.parse().ok();
    let (month, day) = (part()?, part()?);
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone);
    let mut clock = clock.split(':');
    let mut whole = || clock.next().and_then(|part| part.parse::<i64>().ok());
    let (hour, minute) = (whole()?, whole()?);
    let (second, ns) = clock.next().map_or(Some((0, 0)), number)?;
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || second > 60 {
        return None;
    }
    let offset_minutes = match zone.split_at(1) {
        ("Z" | "z", "") => 0,
        (sign, offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
            if sign == "-" { -minutes } else { minutes }
        }
    };
    let date = Date::new(year, month, day).ok()?;
    let midnight = Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).unwrap_or(Timestamp::MAX).as_second();
    let seconds = midnight + (hour * 60 + minute - offset_minutes) * 60 + second as i64;
    Some(Duration::new(u64::try_from(seconds).ok()?, ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-31T10:20:30Z
    const NOW: Duration = Duration::from_secs(1_769_854_830);

    fn ms(text: &str) -> Option<u128> {
        until(text, NOW).map(|time| time.as_millis())
    }

    #[test]
    fn the_forms_of_known_services_are_read() {
        for (service, text, expected) in [
            ("GitHub, GitLab, Okta, X", "1769854890", 60_000),
            ("Discord", "1769854831.125", 1_125),
            ("a trading service", "1769854831500", 1_500),
            ("the standard, Zendesk", "58", 58_000),
            ("Reddit", "543", 543_000),
            ("Discord, reset-after", "1.375", 1_375),
            ("OpenAI, requests", "1s", 1_000),
            ("OpenAI, tokens", "6m0s", 360_000),
            ("OpenAI, a short time", "120ms", 120),
            ("OpenAI, a long time", "1h2m3.5s", 3_723_500),
            ("Anthropic", "2026-01-31T10:21:00Z", 30_000),
            ("Atlassian", "2026-01-31T10:22Z", 90_000),
            ("Vimeo", "2026-01-31T12:20:31+02:00", 1_000),
            ("Retry-After", "Sat, 31 Jan 2026 10:20:45 GMT", 15_000),
            ("milliseconds from now", "3600000", 3_600_000),
            ("a time in the past", "1769854800", 0),
            ("a date in the past", "2026-01-31T10:20:29.5Z", 0),
        ] {
            assert_eq!(ms(text), Some(expected), "{service}: {text}");
        }
    }

    #[test]
    fn only_whole_seconds_can_be_rounded_up() {
        let is_whole = |text: &str| reset(text, NOW).map(|reset| reset.is_whole);
        for text in ["58", "1769854890", "1s", "6m0s", "2026-01-31T10:21:00Z", "Sat, 31 Jan 2026 10:20:45 GMT"] {
            assert_eq!(is_whole(text), Some(true), "{text}");
        }
        for text in
            ["1.375", "2.000", "1769854831.125", "1769854831000", "3600000", "990ms", "1.5s", "2026-01-31T10:20:31.5Z"]
        {
            assert_eq!(is_whole(text), Some(false), "{text}");
        }
    }

    #[test]
    fn the_ranges_of_numbers_meet() {
        let s = |text: &str| until(text, NOW).map(|time| time.as_secs());
        assert_eq!(s("2678399"), Some(2_678_399));
        assert_eq!(s("2678400"), Some(2_678));
        assert_eq!(s("999999999"), Some(999_999));
        assert_eq!(s("1000000000"), Some(0), "September 2001");
        assert_eq!(s("99999999999"), Some(LONGEST.as_secs()));
        assert_eq!(s("100000000000"), Some(0), "March 1973");
        assert_eq!(s("99999999999999999999999"), Some(LONGEST.as_secs()));
    }

    #[test]
    fn other_texts_are_no_time() {
        for text in [
            "",
            "-1",
            "+1",
            ".",
            "1.",
            ".5",
            "1e9",
            "soon",
            "1 s",
            "5x",
            "1s2",
            "2026-01-31",
            "2026-13-01T00:00Z",
            "2026-01-31T10:20",
            "2026-01-31T25:00:00Z",
            "T:Z",
            "2026-01-31T10:20:30+2",
            "\u{663}",
        ] {
            assert_eq!(until(text, NOW), None, "{text:?}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (text, days) in [
            ("1970-01-01T00:00Z", 0),
            ("1972-02-29T00:00Z", 789),
            ("2000-03-01T00:00Z", 11_017),
            ("2100-03-01T00:00Z", 47_541),
            ("9999-12-30T00:00Z", 2_932_895),
        ] {
            assert_eq!(rfc3339(text), Some(Duration::from_secs(days * 86_400)), "{text}");
        }
        assert_eq!(until("9999-12-31T23:59:59Z", NOW), Some(LONGEST), "it means never");
        assert_eq!([rfc3339("2026-02-30T00:00Z"), rfc3339("2026-13-01T00:00Z")], [None; 2]);
    }

    #[test]
    fn retry_after_is_always_from_now() {
        assert_eq!(seconds_or_date("2.0", NOW), Some(Duration::from_secs(2)));
        assert_eq!(seconds_or_date("1000000000", NOW), Some(LONGEST));
        assert_eq!(seconds_or_date("Sat, 31 Jan 2026 10:20:45 GMT", NOW), Some(Duration::from_secs(15)));
    }
}
