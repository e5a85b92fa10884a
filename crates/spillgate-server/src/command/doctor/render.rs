//! Prints the findings of the doctor, for people or as JSON.
//!
//! The text and the JSON are made from the same findings, so that they cannot differ.

use serde_json::json;

use super::finding::Finding;
use crate::cli::Doctor;
use crate::command::terminal::{Table, Terminal, Tone, clean, count};
use crate::settings::Settings;

/// The maximum width of a line of help, in bytes.
const HELP_WIDTH: usize = 90;

pub(super) fn print(doctor: &Doctor, settings: &Settings, findings: &[Finding], terminal: &mut Terminal) {
    let to_fix = findings.iter().filter(|finding| finding.is_to_fix()).count();
    if doctor.json {
        let all: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "server": finding.server,
                    "what": finding.what,
                    "grade": finding.grade.as_str(),
                    "found": finding.found,
                    "help": Some(&finding.help).filter(|help| !help.is_empty()),
                })
            })
            .collect();
        let store = settings.store.url.to_string();
        terminal.json(&json!({ "ok": to_fix == 0, "store": store, "findings": all }));
    } else {
        let text = text(settings, findings, to_fix, terminal);
        terminal.print(&text);
    }
}

fn text(settings: &Settings, findings: &[Finding], to_fix: usize, terminal: &Terminal) -> String {
    let mut text = format!("store {}\n", terminal.paint(Tone::Title, &settings.store.url.to_string()));
    let mut table = Table::new(2);
    for finding in findings {
        let server = finding.server.clone().unwrap_or_default();
        table.row([
            (finding.grade.tone(), finding.grade.as_str().to_owned()),
            (Tone::Faint, server),
            (Tone::Plain, finding.what.to_owned()),
            (Tone::Plain, clean(&finding.found)),
        ]);
        for line in wrapped(&clean(&finding.help)) {
            let blank = || (Tone::Plain, String::new());
            table.row([blank(), blank(), blank(), (Tone::Faint, line)]);
        }
    }
    text.push_str(&table.text(false, terminal));
    let summary = match to_fix {
        0 => terminal.paint(Tone::Good, "all is well"),
        to_fix => terminal.paint(Tone::Bad, &format!("{} to fix", count(to_fix, "thing"))),
    };
    text + &format!("\n{summary}\n")
}

/// Breaks the text into lines that fit a terminal.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < HELP_WIDTH => line.extend([" ", word]),
            Some(_) => lines.push(format!("   {word}")),
            None => lines.push(format!("-> {word}")),
        }
    }
    lines
}
