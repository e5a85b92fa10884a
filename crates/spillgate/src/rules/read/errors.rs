//! Collects the errors of a load, with a bound.

use super::super::report::{At, RulesError, RulesErrors, Source, Words};

#[derive(Debug, Default)]
pub(in super::super) struct Errors {
    errors: Vec<RulesError>,
    dropped: usize,
}

impl Errors {
    pub(super) fn push(&mut self, error: RulesError) {
        if self.errors.len() < RulesErrors::MAX {
            self.errors.push(error);
        } else {
            self.dropped += 1;
        }
    }

    pub(super) fn count(&self) -> usize {
        self.errors.len() + self.dropped
    }

    pub(super) fn finish(mut self) -> Option<RulesErrors> {
        // Files in the order given; within a file by line, whatever order the checks run in.
        let mut order: Vec<String> = Vec::new();
        for error in &self.errors {
            if !order.iter().any(|file| file == error.file()) {
                order.push(error.file().to_owned());
            }
        }
        let file = |error: &RulesError| order.iter().position(|file| file == error.file());
        self.errors.sort_by_key(|error| (file(error), error.line(), error.column()));
        RulesErrors::collected(self.errors, self.dropped)
    }
}

/// The errors, and the file that is being read.
pub(super) struct Reporter<'e> {
    pub(super) source: &'e Source,
    pub(super) errors: &'e mut Errors,
}

impl Reporter<'_> {
    /// Something is wrong at `at`: what, a few words for the label, and the mend.
    pub(super) fn error(
        &mut self,
        at: At,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.errors.push(RulesError::new(self.source, at, Words::new(message, label, help)));
    }

    pub(super) fn count(&self) -> usize {
        self.errors.count()
    }
}
