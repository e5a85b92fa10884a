//! Times of the calendar, in UTC.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;

const SECOND_NS: u64 = 1_000_000_000;

/// Returns the second of the calendar that contains a time. `time_ns` is in nanoseconds since 1970.
pub fn utc(time_ns: u64) -> DateTime {
    // The greatest `u64` of nanoseconds is in the year 2554, and the calendar of jiff ends with the year 9999.
    let time = Timestamp::from_second((time_ns / SECOND_NS).cast_signed()).unwrap_or(Timestamp::MAX);
    Offset::UTC.to_datetime(time)
}

/// Returns the seconds from the start of 1970 to the start of a day, or `None` if the calendar does not have the day.
pub(crate) fn day_s(year: i64, month: i64, day: i64) -> Option<i64> {
    let date = Date::new(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?).ok()?;
    Some(Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).ok()?.as_second())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The crate httpdate has an own calendar.
        #[test]
        fn the_calendar_is_that_of_another_crate(seconds in 0..7_289_654_400u64) {
            let at = utc(seconds * SECOND_NS);
            let expected = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
            prop_assert_eq!(at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(), expected);
            let day = day_s(at.year().into(), at.month().into(), at.day().into());
            prop_assert_eq!(day, Some((seconds - seconds % 86_400).cast_signed()));
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (u64::MAX / SECOND_NS, "2554-07-21 23:34:33"),
        ] {
            let at = utc(seconds * SECOND_NS + 1);
            assert_eq!(format!("{} {}", at.date(), at.time()), expected);
            let (year, month, day) = (at.year().into(), at.month().into(), at.day().into());
            assert_eq!(day_s(year, month, day), Some((seconds - seconds % 86_400).cast_signed()), "{expected}");
        }
        assert_eq!([day_s(2001, 2, 29), day_s(2001, 13, 1), day_s(10_000, 1, 1)], [None; 3]);
    }
}
