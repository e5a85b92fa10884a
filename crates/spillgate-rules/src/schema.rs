//! The JSON Schema of a rules file.
//!
//! Tests check that the schema and the parser accept the same keys.

/// The JSON Schema (draft 2020-12) of a rules file. Editors can use it to complete and check YAML.
///
/// ```
/// assert!(spillgate::rules::SCHEMA.contains("requests_per_unit"));
/// ```
pub const SCHEMA: &str = include_str!("schema.json");

#[cfg(test)]
mod tests;
