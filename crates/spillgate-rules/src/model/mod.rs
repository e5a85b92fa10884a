//! The content of rules files as Rust types: domains, rules and limits.
//!
//! All values were checked when the file was read. The rest of the program therefore does not check them again, and it
//! needs no knowledge of YAML.

mod bound;
mod errors;
mod limit;
mod load;
mod pattern;
mod rule;
mod sketch;

pub use errors::RulesErrors;
pub use limit::{Limit, Unit, Unreleased};
pub use load::{Defaults, MAX_DEPTH, MAX_FILE_BYTES, MAX_LIMITS, MAX_PATH_BYTES, MAX_RULES, RulesFile};
pub use rule::{Domain, Metadata, Origin, Rule, RuleStep};
pub use sketch::{LimitSketch, NoMemory};

pub(super) use bound::never_binds;
pub(super) use errors::MAX_WARNINGS;
pub(super) use pattern::Pattern;
pub(super) use sketch::open as open_sketches;
