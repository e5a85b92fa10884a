//! Collects the errors and warnings of a load.
//!
//! A file of another kind can have an error on every line, so only a bounded number is kept.

use crate::rules::model::{MAX_WARNINGS, RulesErrors};
use crate::text::{At, Diagnostic, Severity, Source, Words};

/// The errors and warnings so far.
#[derive(Debug, Default)]
pub(in super::super) struct Errors {
    /// The first errors, in the order in which they were found.
    errors: Vec<Diagnostic>,
    /// The number of errors after these.
    dropped: usize,
    /// The first warnings.
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

    /// The warnings if there are no errors, else the errors in the order of files and lines.
    pub(super) fn finish(mut self) -> Result<Vec<Diagnostic>, RulesErrors> {
        // The checks do not find errors in the order of the text. Files are in the order of the caller.
        let mut order: Vec<String> = Vec::new();
        for error in &self.errors {
            if !order.iter().any(|file| file == error.file()) {
                order.push(error.file().to_owned());
            }
        }
        let file = |error: &Diagnostic| order.iter().position(|file| file == error.file());
        self.errors.sort_by_key(|error| (file(error), error.line(), error.column()));
        // If several aliases stand for one wrong value, its error was found for each of them.
        self.errors.dedup_by(|a, b| {
            (a.file(), a.line(), a.column(), a.message()) == (b.file(), b.line(), b.column(), b.message())
        });
        RulesErrors::collected(self.errors, self.dropped).map_or(Ok(self.warnings), Err)
    }
}

/// The errors, and the file that is being read.
pub(super) struct Reporter<'e> {
    /// The name and the text of the file. Every report shows the line itself.
    pub(super) source: &'e Source,
    /// The errors and warnings of the whole load.
    pub(super) errors: &'e mut Errors,
}

impl Reporter<'_> {
    /// Reports an error at `at`: what is wrong, a few words to print below the line, and how to fix it.
    pub(super) fn error(
        &mut self,
        at: At,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.errors.push(Diagnostic::error_at(self.source, at, message, label, help));
    }

    /// Reports a value that is accepted but probably not meant, or that other programs read in another way.
    pub(super) fn warning(&mut self, at: At, message: String, label: &str, help: String) {
        if self.errors.warnings.len() < MAX_WARNINGS {
            let words = Words::new(message, label, help);
            self.errors.warnings.push(Diagnostic::new(self.source, at, Severity::Warning, words));
        }
    }

    /// The number of all errors so far. If it does not change while a part is read, the part is correct.
    pub(super) fn count(&self) -> usize {
        self.errors.count()
    }
}
