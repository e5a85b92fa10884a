//! Errors of settings, with their position but without secrets.
//!
//! A settings file can contain a password: in the URL of the store, or under a key that does not exist. An error shows
//! only the wrong key or value itself, never what is around it.

use std::ops::Range;

use spillgate::text::{At, Diagnostic, Source};

use super::secret::{STARS, masked};

/// An error: what is wrong, where, and how to fix it. The caller adds the file, the flag or the variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SettingError {
    pub(super) message: String,
    pub(super) help: String,
    pub(super) label: &'static str,
    pub(super) span: Range<usize>,
}

impl SettingError {
    pub(super) fn new(span: &Range<usize>, message: impl Into<String>, help: impl Into<String>) -> SettingError {
        SettingError { message: message.into(), help: help.into(), label: "here", span: span.clone() }
    }

    pub(super) fn labelled(self, label: &'static str) -> SettingError {
        SettingError { label, ..self }
    }
}

/// Where a setting was found: in a file, in a flag or in a variable.
#[derive(Debug, Clone)]
pub(super) struct Location {
    source: Source,
    /// The text that errors show in front of the value: `body: `, `--limits-body ` or `SPILLGATE_LIMITS_BODY=`.
    before: String,
    /// Whether the value can contain a password. If it can, errors do not show the value.
    is_secret: bool,
}

impl Location {
    pub(super) fn new(source: &Source, before: &str) -> Location {
        Location { source: source.clone(), before: before.to_owned(), is_secret: false }
    }

    pub(super) fn secret(self, is_secret: bool) -> Location {
        Location { is_secret, ..self }
    }

    /// Returns the error about this setting, at its position in the text.
    pub(super) fn error(&self, wrong: SettingError) -> Diagnostic {
        let SettingError { message, help, label, span } = wrong;
        let at = At::of(&self.source.text, span);
        let value = match self.source.text[at.bytes()].lines().next() {
            None => String::new(),
            Some(_) if self.is_secret => STARS.to_owned(),
            // A user can write the store's URL, which can contain a password, under another key by mistake.
            Some(value) => masked(value),
        };
        let line = format!("{}{value}", self.before);
        let at = At { start: line.len() - value.len(), len: value.len(), ..at };
        Diagnostic::error_at(&Source::new(&self.source.name, &line), at, masked(&message), label, help)
    }
}
