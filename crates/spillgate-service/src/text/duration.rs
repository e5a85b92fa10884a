//! Reads durations that users write.

use std::time::Duration;

use spillgate::units::{UnitError, parse_duration};

/// Reads a duration in the form that rules files use: `0s`, `10ms`, `1.5s`, `1m30s`.
///
/// # Errors
/// The error says what is wrong and how to fix it.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).map_err(|error| match error {
        UnitError::TooLarge => "too long, at most 213503d",
        _ => "write a number and a unit (ns, us, ms, s, m, h, d, w): 10ms, 1.5s, 1m30s",
    })
}
