//! The JSON Schema of a rules file.
//!
//! Editors use it to complete and check rules while an author writes them. The tests check that it accepts the same
//! keys as the parser.

/// The JSON Schema (draft 2020-12) of a rules file, for editors that complete and check YAML.
///
/// ```
/// assert!(spillgate::rules::SCHEMA.contains("requests_per_unit"));
/// ```
pub const SCHEMA: &str = include_str!("schema.json");

#[cfg(test)]
mod tests;
