//! Helpers for texts that people write: rules files and settings files.
//!
//! Both kinds of files have the same YAML reader, and their errors look the same: each error shows the line and says
//! how to fix it.

#![warn(missing_docs)]

mod diagnostic;
mod excerpt;
mod nearest;
mod number;
pub mod yaml;

pub use diagnostic::{At, Diagnostic, DiagnosticText, Severity, Source};
pub use nearest::nearest;
pub use number::{count, percent, thousands};
