//! Diagnostics: errors, warnings and notes about a text. Each diagnostic says what is wrong, where it is, and how to
//! fix it.
//!
//! A rules file can have thousands of lines, so a diagnostic shows the line that it is about. A program that shows
//! diagnostics in another form gets the single parts from the methods.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::excerpt::{Excerpt, boundary};

/// A position in a text, or a range of bytes if its length is not 0. [`At::of`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// The line, counted from 1.
    pub line: u32,
    /// The column in characters, counted from 1.
    pub column: u32,
    /// The offset in bytes, counted from 0.
    pub start: usize,
    /// The length in bytes.
    pub len: usize,
}

impl At {
    /// The position at the start of a text.
    pub const TOP: At = At { line: 1, column: 1, start: 0, len: 0 };

    /// Makes the position of a range of bytes.
    ///
    /// A start or an end inside a character is moved back to the start of this character. A start or an end after the
    /// end of the text is moved back to the end of the text. This function counts the lines before the position, so a
    /// position far from the start of the text costs more time.
    ///
    /// ```
    /// use spillgate::text::At;
    /// let at = At::of("limits:\n  body: 1k\n", 10..14);
    /// assert_eq!((at.line, at.column), (2, 3));
    /// ```
    #[must_use]
    pub fn of(text: &str, bytes: Range<usize>) -> At {
        let start = boundary(text, bytes.start);
        let end = boundary(text, bytes.end.max(start));
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let number = |count: usize| u32::try_from(count + 1).unwrap_or(u32::MAX);
        let line = number(before.matches('\n').count());
        At { line, column: number(before[line_start..].chars().count()), start, len: end - start }
    }

    /// Returns the range of bytes.
    #[must_use]
    pub const fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// A text with its name, to which the positions of diagnostics refer. Clones share the text.
///
/// ```
/// use spillgate::text::{At, Diagnostic, Source};
/// let source = Source::new("settings.yaml", "http: 8080\n");
/// let at = At::of(&source.text, 6..10);
/// let error = Diagnostic::error_at(&source, at, "no address", "a port only", "write `:8080`");
/// assert_eq!(error.one_line(), "settings.yaml:1:7: no address (write `:8080`)");
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    /// The name in reports: a path, or `the command line`.
    pub name: Arc<str>,
    /// The whole text. Offsets are counted in bytes from its start.
    pub text: Arc<str>,
}

impl Source {
    /// Makes a source. `name` and `text` are copied once.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Source {
        Source { name: name.into(), text: text.into() }
    }
}

/// How serious a diagnostic is. `Rules::warnings` has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// The text cannot be used.
    Error,
    /// The text can be used, but its author probably meant something else.
    Warning,
    /// The text is correct. The note says something about it that the author may not know.
    Note,
}

impl Severity {
    /// Returns the name in lower case: `error`, `warning` or `note`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// The maximum number of bytes that are underlined.
const MAX_LABEL_BYTES: usize = 120;

/// One error, warning or note: what is wrong, where it is, and how to fix it.
///
/// [`Display`](fmt::Display) shows all parts, with the line that the diagnostic is about and the lines around it.
///
/// ```
/// use spillgate::rules::{Rules, RulesFile};
/// let text = "domain: api\ncompat: envoi\n";
/// let errors = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).unwrap_err();
/// let error = errors.iter().next().unwrap();
/// assert_eq!((error.file(), error.line(), error.column()), ("api.yaml", 2, 9));
/// assert_eq!((error.message(), error.help()), ("`compat` cannot be `envoi`", "did you mean `envoy`?"));
/// let shown = "  x `compat` cannot be `envoi`
///    ,-[api.yaml:2:9]
///  1 | domain: api
///  2 | compat: envoi
///    :         ^^|^^
///    :           `-- not known
///    `----
///   help: did you mean `envoy`?
/// ";
/// assert_eq!(error.to_string(), shown);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic(Box<Parts>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Parts {
    severity: Severity,
    message: String,
    /// Empty if no fix is known.
    help: String,
    /// Empty if the diagnostic is not about a file.
    file: Arc<str>,
    /// Where the diagnostic is about. The line is 0 if no text was read.
    at: At,
    /// The label below the line, and the lines that are shown. `None` if no lines are shown.
    shown: Option<(String, Excerpt)>,
}

/// The three texts of a diagnostic.
#[derive(Clone, Debug)]
#[doc(hidden)] // Only for spillgate-rules: programs have the functions of `Diagnostic`.
pub struct DiagnosticText {
    /// What is wrong.
    pub message: String,
    /// A few words that are shown below the line.
    pub label: String,
    /// How to fix it.
    pub help: String,
}

impl DiagnosticText {
    /// Takes the texts in the order in which they are shown.
    pub fn new(message: impl Into<String>, label: impl Into<String>, help: impl Into<String>) -> DiagnosticText {
        DiagnosticText { message: message.into(), label: label.into(), help: help.into() }
    }
}

impl Diagnostic {
    /// Makes an error at a position of `source`. `message` says what is wrong. `label` is a few words that are shown
    /// below the line. `help` says how to fix the error.
    ///
    /// Only the lines that are shown are copied, so an error needs little memory even if the text is large. [`Source`]
    /// has an example.
    #[must_use]
    pub fn error_at(
        source: &Source,
        at: At,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic::new(source, at, Severity::Error, DiagnosticText::new(message, label, help))
    }

    /// Makes an error that is not about a position in a text.
    ///
    /// ```
    /// use spillgate::text::Diagnostic;
    /// let error = Diagnostic::error("no rules were given", "name a rules file");
    /// assert_eq!(error.to_string(), "  x no rules were given\n  help: name a rules file\n");
    /// assert_eq!((error.file(), error.line()), ("", 0));
    /// ```
    #[must_use]
    pub fn error(message: impl Into<String>, help: impl Into<String>) -> Diagnostic {
        Diagnostic::unreadable("", message, help)
    }

    /// Makes an error about a file whose text could not be read. Such an error shows no lines.
    #[doc(hidden)] // Only for spillgate-rules and spillgate-server, which read files.
    #[must_use]
    pub fn unreadable(file: &str, message: impl Into<String>, help: impl Into<String>) -> Diagnostic {
        Diagnostic::without_text(Severity::Error, file, message, help)
    }

    /// Makes a diagnostic about a file whose text is not known. It shows no lines.
    #[doc(hidden)] // Only for spillgate-rules, which reads files.
    #[must_use]
    pub fn without_text(
        severity: Severity,
        file: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Diagnostic {
        let at = At { line: 0, column: 0, ..At::TOP };
        let (message, help) = (message.into(), help.into());
        Diagnostic(Box::new(Parts { severity, message, help, file: file.into(), at, shown: None }))
    }

    /// Makes a diagnostic of any severity at a position of `source`.
    #[doc(hidden)] // Only for spillgate-rules, because it needs `DiagnosticText`.
    #[must_use]
    pub fn new(source: &Source, at: At, severity: Severity, words: DiagnosticText) -> Diagnostic {
        // The parser could return a wrong position. So the position is moved inside the text and to the edges of
        // characters: then the text can be cut there without a panic.
        let start = boundary(&source.text, at.start);
        let end = boundary(&source.text, start + at.len.min(MAX_LABEL_BYTES));
        let at = At { start, len: end - start, ..at };
        let shown = Some((words.label, Excerpt::around(&source.text, at)));
        let DiagnosticText { message, help, .. } = words;
        Diagnostic(Box::new(Parts { severity, message, help, file: source.name.clone(), at, shown }))
    }

    /// Returns what is wrong, in one sentence.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns how to fix what is wrong, or an empty text if no fix is known.
    #[must_use]
    pub fn help(&self) -> &str {
        &self.0.help
    }

    /// Returns the name of the file, or an empty text if the diagnostic is not about a file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// Returns the line, counted from 1. Returns 0 if no text was read.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.0.at.line
    }

    /// Returns the column in characters, counted from 1. Returns 0 if no text was read.
    #[must_use]
    pub fn column(&self) -> u32 {
        self.0.at.column
    }

    /// Returns the position. Its line is 0 if no text was read.
    #[doc(hidden)] // Only for spillgate-rules: programs have `line` and `column`.
    #[must_use]
    pub fn at(&self) -> At {
        self.0.at
    }

    /// Returns whether the diagnostic is an error, a warning or a note.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.0.severity
    }

    /// Returns the same diagnostic with its position, but without the lines of the text. Use this method if the text
    /// may contain a secret.
    ///
    /// ```
    /// use spillgate::text::{At, Diagnostic, Source};
    /// let source = Source::new("s.yaml", "password hunter2\n");
    /// let error = Diagnostic::error_at(&source, At::TOP, "a colon is missing", "here", "write `password: TEXT`");
    /// assert!(error.to_string().contains("hunter2"));
    /// let shown = "  x a colon is missing\n  at s.yaml:1:1\n  help: write `password: TEXT`\n";
    /// assert_eq!(error.without_lines().to_string(), shown);
    /// ```
    #[must_use]
    pub fn without_lines(mut self) -> Diagnostic {
        self.0.shown = None;
        self
    }

    /// Returns the lines that are shown, joined by line breaks. Returns an empty text if no lines are shown.
    #[must_use]
    pub fn lines(&self) -> String {
        self.0.shown.as_ref().map(|(_, excerpt)| excerpt.text()).unwrap_or_default()
    }

    /// Returns position, message and help on one line, for logs: `api.yaml:2:9: message (help)`. The lines of the text
    /// are left out.
    #[must_use]
    pub fn one_line(&self) -> String {
        let Parts { file, at, message, help, .. } = &*self.0;
        match at.line {
            0 => format!("{message} ({help})"),
            line => format!("{file}:{line}:{}: {message} ({help})", at.column),
        }
    }

    /// Returns the same text as [`Display`](fmt::Display), with colours for a terminal.
    #[must_use]
    pub fn coloured(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text, true);
        text
    }

    /// Writes all parts. With `coloured`, the important parts have ANSI escape codes for colours.
    fn write(&self, out: &mut impl fmt::Write, coloured: bool) -> fmt::Result {
        let (mark, colour) = match self.0.severity {
            Severity::Error => ("x", "31"),
            Severity::Warning => ("!", "33"),
            Severity::Note => (">", "36"),
        };
        let paint = |code: &str, text: &str| match coloured {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        };
        writeln!(out, "  {} {}", paint(colour, mark), self.0.message)?;
        let place = || paint("2", &format!("{}:{}:{}", self.0.file, self.0.at.line, self.0.at.column));
        match &self.0.shown {
            Some((label, excerpt)) => excerpt.write(out, &place(), |mark| paint(colour, mark), label)?,
            None if self.0.at.line > 0 => writeln!(out, "  at {}", place())?,
            None => {}
        }
        if !self.0.help.is_empty() {
            writeln!(out, "  {} {}", paint("36", "help:"), self.0.help)?;
        }
        Ok(())
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl std::error::Error for Diagnostic {}
