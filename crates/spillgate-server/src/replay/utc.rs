//! Times as text in UTC, for all outputs of a replay.

const DAY_S: u64 = 86_400;

/// Returns a time such as `2026-03-01 12:00:00`, without fractions of a second.
#[must_use]
pub fn utc(time_ns: u64) -> String {
    let seconds = time_ns / 1_000_000_000;
    let (year, month, day) = date(seconds / DAY_S);
    let [hour, minute, second] = [seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60];
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Returns the date of a day that is counted from 1970-01-01. A year of this computation begins in March, so that a leap day is the
/// last day of a year.
const fn date(days: u64) -> (u64, u64, u64) {
    // 0000-03-01 is this many days before 1970-01-01.
    let days = days + 719_468;
    // 400 years have 146,097 days.
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + later, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_772_366_400, "2026-03-01 12:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (7_258_118_399, "2199-12-31 23:59:59"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000 + 999_999_999), text);
        }
    }

    #[test]
    fn each_day_follows_the_day_before() {
        let mut before = date(0);
        for day in 1..84_000 {
            let (year, month, day) = date(day);
            let next = (year, month, day);
            let is_next = next == (before.0, before.1, before.2 + 1)
                || next == (before.0, before.1 + 1, 1)
                || next == (before.0 + 1, 1, 1) && before.1 == 12;
            assert!(is_next && day <= 31 && month <= 12, "{before:?} {next:?}");
            before = next;
        }
    }
}
