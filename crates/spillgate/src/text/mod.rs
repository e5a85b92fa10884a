//! Helpers for texts that people write: rules files and settings files.
//!
//! This module has one YAML reader for both kinds of files. Their errors also look the same: each error shows the line and
//! says how to fix it. Without this module, rules and settings would each need their own reader and their own errors.

mod diagnostic;
mod excerpt;
mod nearest;
pub mod yaml;

pub use diagnostic::{At, Diagnostic, Severity, Source};
pub use nearest::nearest;

pub(crate) use diagnostic::Words;
