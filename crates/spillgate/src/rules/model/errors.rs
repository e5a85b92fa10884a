//! All errors of one load of rules.
//!
//! A load reports every error of every file at once, so that an author does not have to fix them one by one.

use std::fmt;

use crate::text::Diagnostic;

/// The most warnings of one load.
pub(in super::super) const MAX_WARNINGS: usize = 1_000;

/// All errors of a load, in order of files and lines; never empty. [`Display`](fmt::Display) shows each with its
/// lines and its fix. [`Rules::parse`](crate::rules::Rules::parse) has an example.
#[derive(Clone, Debug)]
pub struct RulesErrors {
    errors: Vec<Diagnostic>,
    /// How many more were found than are kept.
    dropped: usize,
}

impl RulesErrors {
    /// The most errors that are kept. A file of another kind can have one error on each line.
    pub const MAX: usize = 100;

    /// `None` if there are no errors.
    pub(in super::super) fn collected(errors: Vec<Diagnostic>, dropped: usize) -> Option<RulesErrors> {
        (!errors.is_empty()).then_some(RulesErrors { errors, dropped })
    }

    /// The errors.
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
