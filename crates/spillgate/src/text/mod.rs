//! Texts that people write: rules files and settings.
//!
//! Rules and settings are read by one YAML reader, and their errors look alike: with the line, the nearest known
//! word and the fix. Without this module, rules and settings would each need a reader of their own.

mod diagnostic;
mod excerpt;
mod nearest;
pub mod yaml;

pub use diagnostic::{At, Diagnostic, Severity, Source};
pub use nearest::nearest;

pub(crate) use diagnostic::Words;
