//! `spillgate reload`: makes a server read its rules again, and says what has changed or which errors they have.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Failure, Server};
use crate::command::terminal::{EXIT_DENIED, EXIT_OK, Terminal, Tone, clean, count};

/// The command waits longer than two reloads take: one may run already, and reading the files takes 10 s at most.
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

#[derive(Deserialize)]
struct Counts {
    files: usize,
    domains: usize,
    rules: usize,
    warnings: usize,
}

#[derive(Deserialize)]
struct Lines {
    lines: Vec<String>,
    left_out: usize,
}

/// Why the rules were not reloaded.
#[derive(Deserialize)]
struct NotReloaded {
    detail: String,
    errors: Vec<RulesError>,
    errors_left_out: usize,
    notes: Lines,
}

#[derive(Deserialize)]
struct RulesError {
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
    let Counts { files, domains, rules, warnings } = &reload.loaded;
    let mut text =
        terminal.paint(Tone::Good, if reload.changes.lines.is_empty() { "nothing has changed" } else { "reloaded" });
    text.push_str(&format!(": {}, {}, {}", count(*files, "file"), count(*domains, "domain"), count(*rules, "rule")));
    if *warnings > 0 {
        text.push_str(&format!(", {} (see `spillgate validate`)", count(*warnings, "warning")));
    }
    text.push('\n');
    for line in &reload.changes.lines {
        text.push_str(&format!("  {}\n", clean(line)));
    }
    if reload.changes.left_out > 0 {
        text.push_str(&format!("  and {}\n", count(reload.changes.left_out, "more change")));
    }
    text + &notes(&reload.notes)
}

fn notes(notes: &Lines) -> String {
    let mut text: String = notes.lines.iter().map(|line| format!("note: {}\n", clean(line))).collect();
    if notes.left_out > 0 {
        text.push_str(&format!("and {}, see the log\n", count(notes.left_out, "more note")));
    }
    text
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
    terminal.complain(&(notes(&refused.notes) + &clean(&refused.detail)));
}
