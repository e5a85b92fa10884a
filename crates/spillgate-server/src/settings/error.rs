//! Errors of settings, with their line but without secrets.
//!
//! An error shows the text around it, and a password may be in that text.

use std::ops::Range;
use std::sync::Arc;

use spillgate::text::{self, At, Diagnostic};

use super::secret::{Shown, masked};
use super::yaml::Wrong;

/// The text that a setting was read from (a file, a flag or a variable), without its secrets.
#[derive(Debug, Clone)]
pub(super) struct Source(Arc<(text::Source, Shown)>);

impl Source {
    /// `secrets` are the places of secrets, besides passwords in URLs.
    pub(super) fn new(name: &str, text: &str, secrets: Vec<Range<usize>>) -> Source {
        let shown = Shown::new(text, secrets);
        Source(Arc::new((text::Source::new(name, &shown.text), shown)))
    }
}

/// The error about one setting, at its place in the text.
pub(super) fn error_at(source: &Source, wrong: Wrong) -> Diagnostic {
    let Wrong { message, help, label, span } = wrong;
    let (source, shown) = &*source.0;
    let at = At::of(&source.text, shown.place(&span));
    Diagnostic::error_at(source, at, masked(&message), label, help)
}
