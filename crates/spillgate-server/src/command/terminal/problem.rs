//! What is wrong and how to fix it, printed in the same way by all commands.
//!
//! An error may have a place in a file (settings, rules) or not (a port in use). Both kinds are reported
//! together, to people as text with the line and to programs as JSON.

use std::fmt;
use std::io;

use miette::Diagnostic;

use super::Terminal;
use crate::settings::masked;

/// Everything that is wrong, each with its place and its fix. It is never empty.
#[derive(Debug)]
pub(crate) struct Problems(pub(crate) Vec<Box<dyn Diagnostic + Send + Sync>>);

impl Problems {
    /// Fails with what was found, if anything was.
    pub(crate) fn check(found: Vec<Problem>) -> Result<(), Problems> {
        if found.is_empty() {
            Ok(())
        } else {
            Err(Problems(found.into_iter().map(|problem| Box::new(problem) as _).collect()))
        }
    }

    /// Prints them to standard error, or to standard output as one line of JSON.
    pub(crate) fn print(&self, json: bool, terminal: &mut Terminal) {
        if json {
            let errors: Vec<_> = self.0.iter().map(|problem| diagnostic_json(&**problem)).collect();
            terminal.json(&serde_json::json!({"ok": false, "errors": errors}));
            return;
        }
        for problem in &self.0 {
            terminal.report(&**problem);
        }
    }

    /// Each problem on one line, for logs.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|problem| one_line(&**problem))
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Problems {
        Problems(vec![Box::new(problem)])
    }
}

/// One thing that is wrong, without a place in a file.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Problem {
    message: String,
    help: String,
}

impl Problem {
    /// `help` says how to fix it. Passwords in URLs are masked in the message.
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Problem {
        // A user may write a URL where a path belongs.
        Problem { message: masked(&message.into()), help: help.into() }
    }

    /// The system refused a thread, a runtime or a signal handler.
    pub(crate) fn no_resources(error: &io::Error) -> Problem {
        let help = "raise the limits on open files and threads (ulimit -n, ulimit -u)";
        Problem::new(format!("the system refuses a resource that the server needs: {error}"), help)
    }
}

impl Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.help))
    }
}

/// A diagnostic as JSON: severity, message, file, line, column, help.
pub(crate) fn diagnostic_json(diagnostic: &dyn Diagnostic) -> serde_json::Value {
    let severity = match diagnostic.severity() {
        None | Some(miette::Severity::Error) => "error",
        Some(miette::Severity::Warning) => "warning",
        Some(miette::Severity::Advice) => "note",
    };
    let place = place(diagnostic);
    serde_json::json!({
        "severity": severity,
        "message": diagnostic.to_string(),
        "file": place.as_ref().map(|place| &place.file),
        "line": place.as_ref().map(|place| place.line),
        "column": place.as_ref().map(|place| place.column),
        "help": diagnostic.help().map(|help| help.to_string()),
    })
}

/// A diagnostic on one line, for logs.
pub(crate) fn one_line(diagnostic: &dyn Diagnostic) -> String {
    let place = place(diagnostic).map(|at| format!("{}:{}:{}: ", at.file, at.line, at.column)).unwrap_or_default();
    let help = diagnostic.help().map(|help| format!(" ({help})")).unwrap_or_default();
    format!("{place}{diagnostic}{help}")
}

struct Place {
    file: String,
    line: usize,
    column: usize,
}

fn place(diagnostic: &dyn Diagnostic) -> Option<Place> {
    let label = diagnostic.labels()?.next()?;
    let found = diagnostic.source_code()?.read_span(label.inner(), 0, 0).ok()?;
    Some(Place { file: found.name()?.to_owned(), line: found.line() + 1, column: found.column() + 1 })
}
