//! The errors that are found when rules files are loaded.
//!
//! One load reports the errors of all files together, so that an author can correct all of them before the next
//! attempt.

use std::fmt;

use spillgate_text::Diagnostic;

/// The maximum number of warnings of one load. Further warnings are dropped, because an operator reads only the first
/// warnings.
pub(in super::super) const MAX_WARNINGS: usize = 1_000;

/// The errors of one load of rules, in the order of files and lines. There is at least one error.
///
/// [`Display`](fmt::Display) shows each error with the lines of the file and with its fix.
/// [`Rules::parse`](crate::Rules::parse) has an example.
#[derive(Clone, Debug)]
pub struct RulesErrors {
    errors: Vec<Diagnostic>,
    /// The number of errors that were found but not kept.
    dropped: usize,
}

impl RulesErrors {
    /// The maximum number of errors that are kept. If a file is not a rules file at all, it can have an error on each
    /// line, and no reader needs thousands of errors. [`Display`](fmt::Display) also shows the number of errors that
    /// were found and dropped. A file with very many errors is not read to its end, so it can have even more errors.
    pub const MAX: usize = 100;

    /// Returns `None` if there are no `errors`. `dropped` is the number of errors that were found but not kept.
    pub(in super::super) fn collected(errors: Vec<Diagnostic>, dropped: usize) -> Option<RulesErrors> {
        (!errors.is_empty()).then_some(RulesErrors { errors, dropped })
    }

    /// Returns the errors that are kept. There are at most [`MAX`](RulesErrors::MAX).
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{value: a}, {value: b}]";
    /// let errors = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).unwrap_err();
    /// for error in errors.iter() {
    ///     assert_eq!(error.message(), "the descriptor has no `key`");
    /// }
    /// assert_eq!(errors.iter().count(), 2);
    /// ```
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.errors.iter()
    }
}

impl<'e> IntoIterator for &'e RulesErrors {
    type Item = &'e Diagnostic;
    type IntoIter = std::slice::Iter<'e, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Diagnostic> for RulesErrors {
    fn from(error: Diagnostic) -> RulesErrors {
        RulesErrors { errors: vec![error], dropped: 0 }
    }
}

impl fmt::Display for RulesErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.errors {
            fmt::Display::fmt(error, f)?;
        }
        match self.dropped {
            0 => Ok(()),
            dropped => write!(f, "\n... and at least {dropped} more\n"),
        }
    }
}

impl std::error::Error for RulesErrors {}
