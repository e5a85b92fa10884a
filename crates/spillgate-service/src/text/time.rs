//! Times of the calendar, in UTC.

const SECOND_NS: u64 = 1_000_000_000;
const DAY_S: u64 = 86_400;

/// The short names of the months.
pub const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A second of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

/// Converts nanoseconds since 1970 to a second of the calendar, in UTC.
pub fn utc(time_ns: u64) -> Utc {
    let seconds = time_ns / SECOND_NS;
    // The algorithm is `civil_from_days` of Howard Hinnant. In it a year begins in March, so that a leap day is the last day.
    let days = seconds / DAY_S + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    Utc {
        year: era * 400 + year_of_era + u64::from(month <= 2),
        month,
        day: of_year - (153 * from_march + 2) / 5 + 1,
        hour: seconds / 3_600 % 24,
        minute: seconds / 60 % 60,
        second: seconds % 60,
    }
}

impl Utc {
    /// Returns the date: `2026-03-01`.
    pub fn date(&self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }

    /// Returns the time of the day: `12:00:05`.
    pub fn time(&self) -> String {
        format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_772_366_400, "2026-03-01 12:00:00"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (u64::MAX / SECOND_NS, "2554-07-21 23:34:33"),
        ];
        for (seconds, expected) in cases {
            let at = utc(seconds * SECOND_NS);
            assert_eq!(format!("{} {}", at.date(), at.time()), expected);
        }
        let mut before = utc(0);
        for day in 1..200_000 {
            let at = utc(day % 213_000 * DAY_S * SECOND_NS);
            let next = (at.year, at.month, at.day) > (before.year, before.month, before.day);
            assert!(next && at.day <= 31 && at.month <= 12, "{at:?} follows {before:?}");
            before = at;
        }
    }
}
