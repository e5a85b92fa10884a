//! Problems: what is wrong, and how to fix it. All commands print problems in the same way.
//!
//! Some problems have a place in a file, such as an error in the rules. Others have no place, such as a port that is in
//! use. Both kinds are printed together: as text for people, or as JSON for programs.

use std::fmt;
use std::io;
use std::path::Path;

use spillgate::rules::Diagnostic;

use super::{Terminal, clean};
use crate::settings::masked_message;

/// All problems that were found, each with its fix, and with its place if it has one. The list is never empty.
#[derive(Debug)]
pub(crate) struct Problems(pub(crate) Vec<Diagnostic>);

impl Problems {
    /// Returns the problems `found` as an error. Succeeds if `found` is empty.
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
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Problems {
        Problems(vec![problem.0])
    }
}

/// One problem, without a line of a file.
#[derive(Debug)]
pub(crate) struct Problem(Diagnostic);

impl Problem {
    /// Makes a problem. `help` says how to fix it. Passwords in URLs are masked in the message, and characters that a
    /// terminal could obey get a visible form.
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Problem {
        // By mistake, a user can write a URL with a password in the place of a path.
        let message = masked_message(&message.into());
        Problem(Diagnostic::error(message.lines().map(clean).collect::<Vec<_>>().join("\n"), help))
    }

    /// Returns the same problem, which is about this file. The message names the file too, so only programs see this.
    pub(crate) fn in_file(self, path: &Path) -> Problem {
        let file = masked_message(&clean(&path.display().to_string()));
        Problem(Diagnostic::unreadable(&file, self.0.message(), self.0.help()))
    }

    /// Returns how to fix it.
    pub(crate) fn help(&self) -> &str {
        self.0.help()
    }

    /// Returns the problem that the system has refused a thread, a runtime or a signal handler to the server.
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
    let (file, has_place) = (diagnostic.file(), diagnostic.line() > 0);
    serde_json::json!({
        "severity": diagnostic.severity().as_str(),
        "message": diagnostic.message(),
        "file": (!file.is_empty()).then_some(file),
        "line": has_place.then(|| diagnostic.line()),
        "column": has_place.then(|| diagnostic.column()),
        "help": diagnostic.help(),
    })
}
