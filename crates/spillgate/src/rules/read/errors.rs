//! Collects the errors and warnings of a load.
//!
//! Their number is bounded: a file of another kind can have an error on every line.

use crate::rules::model::{MAX_WARNINGS, RulesErrors};
use crate::text::{At, Diagnostic, Severity, Source, Words};

/// The errors and warnings so far.
#[derive(Debug, Default)]
pub(in super::super) struct Errors {
    errors: Vec<Diagnostic>,
    dropped: usize,
    warnings: Vec<Diagnostic>,
}

impl Errors {
    /// Adds an error. After [`RulesErrors::MAX`] errors they are only counted.
    pub(super) fn push(&mut self, error: Diagnostic) {
        if self.errors.len() < RulesErrors::MAX {
            self.errors.push(error);
        } else {
            self.dropped += 1;
        }
    }

    /// The number of all errors so far.
    pub(super) fn count(&self) -> usize {
        self.errors.len() + self.dropped
    }

    /// The warnings, or the errors if there are any.
    pub(super) fn finish(mut self) -> Result<Vec<Diagnostic>, RulesErrors> {
        // Sorted by file, as given, and by line. The checks find them in another order.
        let mut order: Vec<String> = Vec::new();
        for error in &self.errors {
            if !order.iter().any(|file| file == error.file()) {
                order.push(error.file().to_owned());
            }
        }
        let file = |error: &Diagnostic| order.iter().position(|file| file == error.file());
        self.errors.sort_by_key(|error| (file(error), error.line(), error.column()));
        // A value that several aliases use has its error only once.
        self.errors.dedup_by(|a, b| {
            (a.file(), a.line(), a.column(), a.message()) == (b.file(), b.line(), b.column(), b.message())
        });
        RulesErrors::collected(self.errors, self.dropped).map_or(Ok(self.warnings), Err)
    }
}

/// The errors, and the file that is being read.
pub(super) struct Reporter<'e> {
    pub(super) source: &'e Source,
    pub(super) errors: &'e mut Errors,
}

impl Reporter<'_> {
    /// Reports an error: what is wrong, a few words to print below the line, and how to fix it.
    pub(super) fn error(
        &mut self,
        at: At,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.errors.push(Diagnostic::error_at(self.source, at, message, label, help));
    }

    /// Reports a value that some readers understand in another way than this program does.
    pub(super) fn warning(&mut self, at: At, message: String, label: &str, help: String) {
        if self.errors.warnings.len() < MAX_WARNINGS {
            let words = Words::new(message, label, help);
            self.errors.warnings.push(Diagnostic::new(self.source, at, Severity::Warning, words));
        }
    }

    /// The number of all errors so far. A caller compares it to find out whether a part was right.
    pub(super) fn count(&self) -> usize {
        self.errors.count()
    }
}
