//! All errors of one load of rules.
//!
//! A load reports every error of every file at once, so that an author does not have to fix them one by one.

use std::fmt;

use crate::text::Diagnostic;

/// The most warnings of one load. Further ones are dropped: an operator reads the first ones.
pub(in super::super) const MAX_WARNINGS: usize = 1_000;

/// All errors of a load, in order of files and lines. There is at least one.
///
/// [`Display`](fmt::Display) shows each error with its lines and its fix. [`Rules::parse`](crate::rules::Rules::parse)
/// has an example.
#[derive(Clone, Debug)]
pub struct RulesErrors {
    errors: Vec<Diagnostic>,
    /// The number of errors that were found but not kept.
    dropped: usize,
}

impl RulesErrors {
    /// The most errors that are kept. A file of another kind can have an error on each line, and no reader
    /// needs thousands of them. [`Display`](fmt::Display) shows how many more there are at least.
    pub const MAX: usize = 100;

    /// The errors of a load and the number of errors that were `dropped`. `None` if there are no errors.
    pub(in super::super) fn collected(errors: Vec<Diagnostic>, dropped: usize) -> Option<RulesErrors> {
        (!errors.is_empty()).then_some(RulesErrors { errors, dropped })
    }

    /// The errors that are kept, at most [`MAX`](RulesErrors::MAX).
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
