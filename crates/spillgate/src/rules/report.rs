//! What is wrong with a rules file, where, and how to mend it.

use std::fmt;
use std::sync::Arc;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, Severity, SourceCode};

use super::excerpt::{Excerpt, boundary};

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    /// From 1.
    pub(super) line: u32,
    /// In characters, from 1.
    pub(super) column: u32,
    /// In bytes, from 0.
    pub(super) start: usize,
    /// In bytes.
    pub(super) len: usize,
}

impl At {
    /// The first character of a file.
    pub(super) const TOP: At = At { line: 1, column: 1, start: 0, len: 0 };
}

/// A file that reports point into.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: Arc<str>,
    pub(super) text: Arc<str>,
}

/// The longest part of a line that is underlined, in bytes.
const MAX_LABEL_BYTES: usize = 120;

#[derive(Clone, Debug)]
struct Report {
    file: Arc<str>,
    source: Option<Excerpt>,
    at: At,
    message: String,
    label: String,
    help: String,
    severity: Severity,
}

impl Report {
    fn new(source: &Source, at: At, severity: Severity, words: Words) -> Report {
        // A place is inside the text and on character boundaries, whatever the parser says.
        let start = boundary(&source.text, at.start);
        let end = boundary(&source.text, start + at.len.min(MAX_LABEL_BYTES));
        let at = At { start, len: end - start, ..at };
        Report {
            file: source.name.clone(),
            source: Some(Excerpt { name: source.name.clone(), text: source.text.clone(), at }),
            at,
            message: words.message,
            label: words.label,
            help: words.help,
            severity,
        }
    }

    fn label(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.source.as_ref()?;
        let label = LabeledSpan::new(Some(self.label.clone()), self.at.start, self.at.len);
        Some(Box::new(std::iter::once(label)))
    }
}

/// What a report says: what is wrong, a few words at the place itself, and the mend.
pub(super) struct Words {
    pub(super) message: String,
    pub(super) label: String,
    pub(super) help: String,
}

impl Words {
    pub(super) fn new(message: impl Into<String>, label: impl Into<String>, help: impl Into<String>) -> Words {
        Words { message: message.into(), label: label.into(), help: help.into() }
    }
}

macro_rules! report_type {
    ($name:ident) => {
        impl $name {
            /// What is wrong, in one sentence.
            #[must_use]
            pub fn message(&self) -> &str {
                &self.0.message
            }

            /// How to mend it.
            #[must_use]
            pub fn help(&self) -> &str {
                &self.0.help
            }

            /// The file's name.
            #[must_use]
            pub fn file(&self) -> &str {
                &self.0.file
            }

            /// The line, from 1; 0 if the file could not be read at all.
            #[must_use]
            pub fn line(&self) -> u32 {
                self.0.at.line
            }

            /// The column in characters, from 1; 0 if the file could not be read at all.
            #[must_use]
            pub fn column(&self) -> u32 {
                self.0.at.column
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0.message)
            }
        }

        impl std::error::Error for $name {}

        impl Diagnostic for $name {
            fn severity(&self) -> Option<Severity> {
                Some(self.0.severity)
            }

            fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
                Some(Box::new(&self.0.help))
            }

            fn source_code(&self) -> Option<&dyn SourceCode> {
                self.0.source.as_ref().map(|source| source as &dyn SourceCode)
            }

            fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
                self.0.label()
            }
        }
    };
}

/// One error of a rules file: a [`Diagnostic`] with the line itself and the mend.
#[derive(Clone, Debug)]
pub struct RulesError(Box<Report>);

report_type!(RulesError);

impl RulesError {
    pub(super) fn new(source: &Source, at: At, words: Words) -> RulesError {
        RulesError(Box::new(Report::new(source, at, Severity::Error, words)))
    }

    /// An error about a file whose text there is no way to show.
    pub(super) fn unreadable(file: &str, message: String, help: &str) -> RulesError {
        let at = At { line: 0, column: 0, ..At::TOP };
        let (label, help) = (String::new(), help.to_owned());
        RulesError(Box::new(Report {
            file: file.into(),
            source: None,
            at,
            message,
            label,
            help,
            severity: Severity::Error,
        }))
    }
}

/// Something that is allowed but probably not meant.
#[derive(Clone, Debug)]
pub struct Warning(Box<Report>);

report_type!(Warning);

impl Warning {
    pub(super) fn new(source: &Source, at: At, words: Words) -> Warning {
        Warning(Box::new(Report::new(source, at, Severity::Warning, words)))
    }

    /// Something worth knowing that may well be meant: [`is_note`](Warning::is_note).
    pub(super) fn note(source: &Source, at: At, words: Words) -> Warning {
        Warning(Box::new(Report::new(source, at, Severity::Advice, words)))
    }

    /// Whether this is only worth knowing: nothing in the file is wrong or useless.
    #[must_use]
    pub fn is_note(&self) -> bool {
        self.0.severity == Severity::Advice
    }

    /// The warning with the line it is about, as text of fixed width without colours.
    #[must_use]
    pub fn report(&self) -> String {
        rendered(self)
    }

    pub(super) fn place(&self) -> At {
        self.0.at
    }
}

/// All errors of a load, in order of files and lines; never empty.
#[derive(Clone, Debug)]
pub struct RulesErrors {
    errors: Vec<RulesError>,
    /// How many more were found than are kept.
    dropped: usize,
}

impl RulesErrors {
    /// The most errors that are kept; a file of another kind has one a line.
    pub const MAX: usize = 100;

    /// `None` if there are none.
    pub(super) fn collected(errors: Vec<RulesError>, dropped: usize) -> Option<RulesErrors> {
        (!errors.is_empty()).then_some(RulesErrors { errors, dropped })
    }

    /// The errors.
    pub fn iter(&self) -> std::slice::Iter<'_, RulesError> {
        self.errors.iter()
    }

    /// All errors with the lines they are about, as text of fixed width without colours.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text: String = self.errors.iter().map(|error| rendered(error)).collect();
        if self.dropped > 0 {
            text.push_str(&format!("\n... and at least {} more\n", self.dropped));
        }
        text
    }
}

impl<'e> IntoIterator for &'e RulesErrors {
    type Item = &'e RulesError;
    type IntoIter = std::slice::Iter<'e, RulesError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<RulesError> for RulesErrors {
    fn from(error: RulesError) -> RulesErrors {
        RulesErrors { errors: vec![error], dropped: 0 }
    }
}

impl fmt::Display for RulesErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errors.len() + self.dropped {
            1 => f.write_str("the rules have an error"),
            count => write!(f, "the rules have {count} errors"),
        }
    }
}

impl std::error::Error for RulesErrors {}

impl Diagnostic for RulesErrors {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.errors.iter().map(|error| error as &dyn Diagnostic)))
    }
}

fn rendered(diagnostic: &dyn Diagnostic) -> String {
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::none()).with_width(120).with_links(false);
    let mut text = String::new();
    match handler.render_report(&mut text, diagnostic) {
        Ok(()) => text,
        Err(fmt::Error) => format!("{diagnostic}\n"),
    }
}
