//! Numbers, times and texts of unknown origin as text for people. The terminal and the pages show them in the same way.

mod clean;
mod duration;

pub use clean::{clean, clean_json};
pub use duration::duration;
