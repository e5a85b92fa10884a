//! What the doctor found: what is good, what is worth knowing, and what to fix.

use crate::command::terminal::Tone;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grade {
    Good,
    /// Worth knowing, but not a fault.
    Note,
    /// A fault that should be fixed.
    Fix,
}

impl Grade {
    /// Returns the grade, for people and for programs.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Fix => "fix",
        }
    }

    pub(super) const fn tone(self) -> Tone {
        match self {
            Grade::Good => Tone::Good,
            Grade::Note => Tone::Warn,
            Grade::Fix => Tone::Bad,
        }
    }
}

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    /// The address of the node that this finding is about, if the store is a cluster.
    pub(super) server: Option<String>,
    pub(super) what: &'static str,
    pub(super) grade: Grade,
    pub(super) found: String,
    /// What to do about the finding. Empty if there is nothing to do.
    pub(super) help: String,
}

impl Finding {
    pub(super) fn new(what: &'static str, grade: Grade, found: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding { server: None, what, grade, found: found.into(), help: help.into() }
    }

    pub(super) fn good(what: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(what, Grade::Good, found, "")
    }

    pub(super) fn is_to_fix(&self) -> bool {
        self.grade == Grade::Fix
    }
}
