//! How sentences write times and numbers.

use std::time::Duration;

use spillgate_limiter::units::format_duration;

/// Returns a time as text. A time of a second or more is cut to whole seconds.
pub(super) fn rounded_time(ns: u64) -> String {
    let time = Duration::from_nanos(ns);
    format_duration(if time.as_secs() > 0 { Duration::from_secs(time.as_secs()) } else { time })
}

/// Returns a share in percent, to one digit after the point. Only nothing is 0 %, and only everything is 100 %.
pub(super) fn percent(share: f64) -> f64 {
    let rounded = (share * 1000.0).round() / 10.0;
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
