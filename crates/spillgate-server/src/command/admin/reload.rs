//! `spillgate reload`: makes a server read its files again, and says what has changed or which errors they have.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Failure, Server};
use crate::command::terminal::{EXIT_DENIED, EXIT_OK, Terminal, Tone, clean, count};

/// The command waits longer than two reloads usually take: one may run already, and reading the files of a unit takes 10 s
/// at most.
const WITHIN: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Reloaded {
    reload: Reload,
}

#[derive(Deserialize)]
struct Reload {
    loaded: Counts,
    changes: Lines,
    notes: Lines,
}

/// What a server has loaded.
#[derive(Deserialize)]
pub(super) struct Counts {
    files: usize,
    domains: usize,
    rules: usize,
    warnings: usize,
}

/// A list of lines, of which a server keeps only the first ones.
#[derive(Deserialize)]
pub(super) struct Lines {
    lines: Vec<String>,
    left_out: usize,
}

/// Why not everything was reloaded.
#[derive(Deserialize)]
struct NotReloaded {
    detail: String,
    errors: Vec<FileError>,
    errors_left_out: usize,
    changes: Lines,
    notes: Lines,
}

#[derive(Deserialize)]
struct FileError {
    message: String,
    file: Option<String>,
    line: Option<u32>,
    column: Option<u32>,
    excerpt: Option<String>,
    help: String,
}

pub(super) fn run(server: &Server, terminal: &mut Terminal) -> Result<u8, Failure> {
    let (status, bytes) = server.send(&Method::POST, "/reload", Some("{}".to_owned()), WITHIN, terminal)?;
    match status {
        StatusCode::OK => {
            let answer = server.value(&bytes)?;
            terminal.has_done();
            server.list(&answer, terminal, |reloaded: &Reloaded, terminal| changes(&reloaded.reload, terminal))?;
            Ok(EXIT_OK)
        }
        StatusCode::UNPROCESSABLE_ENTITY => {
            let answer: Value = server.value(&bytes)?;
            if server.prints_json() {
                terminal.json(&answer);
            } else {
                errors(&server.parse(&answer)?, terminal);
            }
            Ok(EXIT_DENIED)
        }
        status => Err(server.refused(status, &bytes)),
    }
}

/// Returns what has changed.
fn changes(reload: &Reload, terminal: &Terminal) -> String {
    let outcome = if reload.changes.is_empty() { "nothing has changed" } else { "reloaded" };
    let text = format!("{}: {}\n", terminal.paint(Tone::Good, outcome), reload.loaded.text());
    text + &reload.changes.text("  ", "change") + &reload.notes.text("note: ", "note")
}

impl Counts {
    /// Returns the counts in words.
    pub(super) fn text(&self) -> String {
        let Counts { files, domains, rules, warnings } = self;
        let warnings = match warnings {
            0 => String::new(),
            warnings => format!(", {}: spillgate validate shows them", count(*warnings, "warning")),
        };
        format!("{}, {}, {}{warnings}", count(*files, "file"), count(*domains, "domain"), count(*rules, "rule"))
    }
}

impl Lines {
    pub(super) const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the lines with `begin` before each of them. `what` is the name of one of them.
    pub(super) fn text(&self, begin: &str, what: &str) -> String {
        let mut text: String = self.lines.iter().map(|line| format!("{begin}{}\n", clean(line))).collect();
        if self.left_out > 0 {
            text.push_str(&format!("{begin}and {}\n", count(self.left_out, &format!("more {what}"))));
        }
        text
    }
}

/// Prints the errors to standard error, as `spillgate validate` does.
fn errors(refused: &NotReloaded, terminal: &mut Terminal) {
    for error in &refused.errors {
        let mut text = format!("  x {}", clean(&error.message));
        if let (Some(file), Some(line), Some(column)) = (&error.file, error.line, error.column) {
            text.push_str(&format!("\n  at {}:{line}:{column}", clean(file)));
        }
        for line in error.excerpt.iter().flat_map(|excerpt| excerpt.lines()) {
            text.push_str(&format!("\n    | {}", clean(line)));
        }
        if !error.help.is_empty() {
            text.push_str(&format!("\n  help: {}", clean(&error.help)));
        }
        terminal.complain(&text);
    }
    if refused.errors_left_out > 0 {
        terminal.complain(&format!("and {}", count(refused.errors_left_out, "more error")));
    }
    // What had no error is in use now.
    let lines = refused.changes.text("  ", "change") + &refused.notes.text("note: ", "note");
    terminal.complain(&(lines + &clean(&refused.detail)));
}
