//! What a rules file says: domains, rules and their limits.
//!
//! Everything here was checked when it was read. The rest of the program can rely on it and needs to know nothing of
//! YAML.

mod bound;
mod errors;
mod limit;
mod load;
mod pattern;
mod rule;

pub use errors::RulesErrors;
pub use limit::{Limit, Unit, Unreleased};
pub use load::{Defaults, MAX_DEPTH, MAX_FILE_BYTES, MAX_LIMITS, MAX_PATH_BYTES, MAX_RULES, RulesFile};
pub use rule::{Domain, Metadata, Origin, Rule, RuleStep};

pub(super) use bound::never_binds;
pub(super) use errors::MAX_WARNINGS;
pub(super) use pattern::Pattern;
