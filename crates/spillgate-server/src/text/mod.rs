//! Numbers, times and texts of unknown origin as text for people. The terminal and the pages show them in the same way.

mod clean;
mod duration;
mod number;
mod time;

pub(crate) use clean::{clean, clean_json};
pub(crate) use duration::duration;
pub(crate) use number::thousands;
pub(crate) use time::{MONTHS, utc};
