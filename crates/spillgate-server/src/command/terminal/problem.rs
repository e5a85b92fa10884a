//! What is wrong and how to fix it, printed in the same way by all commands.
//!
//! An error may have a place in a file (settings, rules) or not (a port in use). Both kinds are reported
//! together, to people as text with the line and to programs as JSON.

use std::fmt;
use std::io;

use spillgate::rules::Diagnostic;

use super::Terminal;
use crate::settings::masked;

/// Everything that is wrong, each with its place and its fix. The list is never empty.
#[derive(Debug)]
pub(crate) struct Problems(pub(crate) Vec<Diagnostic>);

impl Problems {
    /// Fails with the problems that were found. Succeeds if the list is empty.
    pub(crate) fn check(found: Vec<Problem>) -> Result<(), Problems> {
        if found.is_empty() { Ok(()) } else { Err(Problems(found.into_iter().map(|problem| problem.0).collect())) }
    }

    /// Prints the problems to standard error, or to standard output as one line of JSON.
    pub(crate) fn print(&self, json: bool, terminal: &mut Terminal) {
        if json {
            let errors: Vec<_> = self.0.iter().map(diagnostic_json).collect();
            terminal.json(&serde_json::json!({"ok": false, "errors": errors}));
            return;
        }
        for problem in &self.0 {
            terminal.report(problem);
        }
    }

    /// Returns each problem on one line, for logs.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(Diagnostic::one_line)
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Problems {
        Problems(vec![problem.0])
    }
}

/// One thing that is wrong, without a place in a file.
#[derive(Debug)]
pub(crate) struct Problem(Diagnostic);

impl Problem {
    /// Makes a problem. `help` says how to fix it. Passwords in URLs are masked in the message.
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Problem {
        // A user may write a URL with a password where a path belongs.
        Problem(Diagnostic::error(masked(&message.into()), help))
    }

    /// Returns the problem for a system that gives the server no thread, no runtime or no signal handler.
    pub(crate) fn no_resources(error: &io::Error) -> Problem {
        let help = "raise the limits on open files and threads (ulimit -n, ulimit -u)";
        Problem::new(format!("the system refuses a resource that the server needs: {error}"), help)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.message())
    }
}

impl From<Problem> for Diagnostic {
    fn from(problem: Problem) -> Diagnostic {
        problem.0
    }
}

/// Returns a diagnostic as JSON: severity, message, file, line, column, help.
pub(crate) fn diagnostic_json(diagnostic: &Diagnostic) -> serde_json::Value {
    let has_place = diagnostic.line() > 0;
    serde_json::json!({
        "severity": diagnostic.severity().as_str(),
        "message": diagnostic.message(),
        "file": has_place.then(|| diagnostic.file()),
        "line": has_place.then(|| diagnostic.line()),
        "column": has_place.then(|| diagnostic.column()),
        "help": diagnostic.help(),
    })
}
