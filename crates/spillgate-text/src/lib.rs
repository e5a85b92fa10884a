//! Helpers for texts that people write: rules files and settings files.
//!
//! This crate has one YAML reader for both kinds of files. Their errors also look the same: each error shows the line and
//! says how to fix it. Without this crate, rules and settings would each need their own reader and their own errors.

#![warn(missing_docs)]

mod diagnostic;
mod excerpt;
mod nearest;
mod number;
pub mod yaml;

pub use diagnostic::{At, Diagnostic, Severity, Source, Words};
pub use nearest::nearest;
pub use number::{count, thousands};
