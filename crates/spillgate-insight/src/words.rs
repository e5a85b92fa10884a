//! How sentences write times and numbers.

use std::time::Duration;

use spillgate_limiter::units::format_duration;

/// Returns a time as text. It is cut to whole seconds, or below a second to whole milliseconds.
pub(super) fn rounded_time(ns: u64) -> String {
    let time = Duration::from_nanos(ns);
    format_duration(match (time.as_secs(), time.subsec_millis()) {
        (0, 0) => time,
        (0, ms) => Duration::from_millis(ms.into()),
        (seconds, _) => Duration::from_secs(seconds),
    })
}

/// Returns a share in percent, to one digit after the point. Only nothing is 0 %, and only everything is 100 %.
pub(super) fn percent(share: f64) -> f64 {
    // A sum of nothing is -0, which would be shown with its sign.
    let rounded = (share * 1000.0).round() / 10.0 + 0.0;
    match share {
        0.0 | 1.0.. => rounded,
        _ => rounded.clamp(0.1, 99.9),
    }
}

/// Returns a range of shares: `92.5 %`, or `between 92.5 and 93.1 %`.
pub(super) fn between(at_least: f64, at_most: f64) -> String {
    if at_least == at_most {
        return format!("{} %", percent(at_least));
    }
    let low = (at_least * 1000.0).floor() / 10.0;
    let high = ((at_most * 1000.0).ceil() / 10.0).min(100.0);
    format!("between {low} and {high} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_times_are_short() {
        assert_eq!(
            [-0.0, 0.0, 1e-9, 0.352, 0.999_999, 1.0].map(|share| percent(share).to_string()),
            ["0", "0", "0.1", "35.2", "99.9", "100"]
        );
        assert_eq!([999, 80_469_575, 3_999_999_999].map(rounded_time), ["999ns", "80ms", "3s"]);
    }
}
