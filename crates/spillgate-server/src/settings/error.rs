//! A setting that is wrong: what, where, and how to mend it.

use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use super::secret::{Shown, masked};
use super::yaml::Wrong;

/// The text that a setting was read from: a file, a flag or a variable. Without the secrets in it.
#[derive(Debug, Clone)]
pub(super) struct Source(Arc<(NamedSource<String>, Shown)>);

impl Source {
    /// `secrets` are places besides those of passwords in URLs.
    pub(super) fn new(name: &str, text: &str, secrets: Vec<Range<usize>>) -> Source {
        let shown = Shown::new(text, secrets);
        Source(Arc::new((NamedSource::new(name, shown.text.clone()), shown)))
    }
}

/// One wrong setting. Shows its line when printed by miette.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SettingsError {
    message: String,
    help: String,
    place: Option<(Source, Range<usize>, &'static str)>,
}

impl SettingsError {
    pub(super) fn new(source: &Source, wrong: Wrong) -> SettingsError {
        let Wrong { message, help, label, span } = wrong;
        let place = source.0.1.place(&span);
        SettingsError { message: masked(&message), help, place: Some((source.clone(), place, label)) }
    }

    /// About something that stands nowhere.
    pub(super) fn nowhere(message: impl Into<String>, help: impl Into<String>) -> SettingsError {
        SettingsError { message: message.into(), help: help.into(), place: None }
    }
}

impl Diagnostic for SettingsError {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        Some(Box::new(&self.help))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|(source, ..)| &source.0.0 as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let (_, span, label) = self.place.as_ref()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(Some((*label).to_owned()), span.clone()))))
    }
}
