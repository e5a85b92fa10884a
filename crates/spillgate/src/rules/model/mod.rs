//! What a rules file says: domains, rules and their limits.
//!
//! All values of these types were checked when they were read. The rest of the program relies on that, and does not
//! know YAML.

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
