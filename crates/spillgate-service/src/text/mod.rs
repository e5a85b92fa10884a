//! Durations that users write, and text of unknown origin that people read on a terminal or on a page.

mod clean;
mod duration;

pub use clean::{clean, clean_json};
pub use duration::duration;
