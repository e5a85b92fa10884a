//! Collects errors and warnings while rules files are read.
//!
//! If a file is not a rules file at all, it can have an error on every line. Only a bounded number of errors is
//! therefore kept.

use crate::model::{MAX_WARNINGS, RulesErrors};
use spillgate_text::{At, Diagnostic, DiagnosticText, Severity, Source};

/// The errors and warnings so far.
#[derive(Debug, Default)]
pub(in super::super) struct Errors {
    /// The first errors, in the order in which they were found.
    errors: Vec<Diagnostic>,
    /// The number of further errors, which were not kept.
    dropped: usize,
    /// The first warnings. Further warnings are dropped.
    warnings: Vec<Diagnostic>,
}

impl Errors {
    /// Adds an error. If there are [`RulesErrors::MAX`] errors already, the new error is only counted.
    pub(super) fn push(&mut self, error: Diagnostic) {
        if self.errors.len() < RulesErrors::MAX {
            self.errors.push(error);
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the number of all errors so far, including the dropped ones.
    pub(super) fn count(&self) -> usize {
        self.errors.len() + self.dropped
    }

    /// Returns the warnings if there are no errors. Otherwise returns the errors, in the order of files and lines.
    pub(super) fn finish(mut self) -> Result<Vec<Diagnostic>, RulesErrors> {
        // The checks do not find errors in the order of the text, so the errors of each file are sorted here. The order
        // of the files is the order in which the caller gave them.
        let mut order: Vec<String> = Vec::new();
        for error in &self.errors {
            if !order.iter().any(|file| file == error.file()) {
                order.push(error.file().to_owned());
            }
        }
        let file = |error: &Diagnostic| order.iter().position(|file| file == error.file());
        self.errors.sort_by_key(|error| (file(error), error.line(), error.column()));
        // Each alias of a wrong YAML value finds the same error again. Only one of these errors is kept.
        self.errors.dedup_by(|a, b| {
            (a.file(), a.line(), a.column(), a.message()) == (b.file(), b.line(), b.column(), b.message())
        });
        RulesErrors::collected(self.errors, self.dropped).map_or(Ok(self.warnings), Err)
    }
}

/// Reports errors and warnings about the file that is being read.
pub(super) struct Reporter<'e> {
    /// The name and the text of the file. Every report shows the line that it is about.
    pub(super) source: &'e Source,
    /// The errors and warnings of all files that are loaded together.
    pub(super) errors: &'e mut Errors,
}

impl Reporter<'_> {
    /// Reports an error at `at`. `message` says what is wrong. `label` is a few words that are shown below the line.
    /// `help` says how to fix the error.
    pub(super) fn error(
        &mut self,
        at: At,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.errors.push(Diagnostic::error_at(self.source, at, message, label, help));
    }

    /// Reports a warning about a value. The value is accepted, but its author probably meant something else, or other
    /// programs read it differently.
    pub(super) fn warning(&mut self, at: At, message: String, label: &str, help: String) {
        if self.errors.warnings.len() < MAX_WARNINGS {
            let words = DiagnosticText::new(message, label, help);
            self.errors.warnings.push(Diagnostic::new(self.source, at, Severity::Warning, words));
        }
    }

    /// Returns the number of all errors so far. A part of the file is correct if this number stays the same while the
    /// part is read.
    pub(super) fn count(&self) -> usize {
        self.errors.count()
    }
}
