//! Numbers and durations as text for people.
//!
//! All commands write them in the same way.

use std::time::Duration;

use spillgate::units::format_duration;
use spillgate_replay::utc;

/// Returns a duration with three decimal places at most, rounded up: `0s`, `1.5ms`, `59.94s`, `1h30m`.
pub(crate) fn duration(duration: Duration) -> String {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let step_ns = match ns {
        0..1_000_000 => 1,
        1_000_000..1_000_000_000 => 1_000,
        _ => 1_000_000,
    };
    format_duration(Duration::from_nanos(ns.div_ceil(step_ns).saturating_mul(step_ns)))
}

/// Returns a date with its time in UTC. `ns` are nanoseconds since 1970.
pub(crate) fn date_time(ns: u64) -> String {
    let at = utc(ns);
    format!("{} {}", at.date(), at.time())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_and_rounded_up() {
        let cases = [
            (0, "0s"),
            (1, "1ns"),
            (1_500_000, "1.5ms"),
            (1_500_001, "1.501ms"),
            (20_000_000, "20ms"),
            (59_940_000_000, "59.94s"),
            (10_000_000_000, "10s"),
            (60_000_000_000, "1m"),
            (5_400_000_000_000, "1h30m"),
            (86_400_500_000_000, "1d0.5s"),
            (59_999_999_999, "1m"),
        ];
        for (ns, expected) in cases {
            assert_eq!(duration(Duration::from_nanos(ns)), expected);
        }
    }
}
