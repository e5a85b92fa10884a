//! `spillgate reloads`: lists the last reloads of a server, as `spillgate reload` prints the one that it makes.

use serde::Deserialize;

use super::reload::{Counts, Lines};
use crate::command::terminal::{Terminal, Tone, clean, date_time};

#[derive(Deserialize)]
pub(super) struct Page {
    reloads: Vec<Reload>,
}

#[derive(Deserialize)]
struct Reload {
    at_ms: u64,
    cause: String,
    outcome: String,
    units: Vec<Unit>,
    loaded: Option<Counts>,
    errors: Lines,
    changes: Lines,
    notes: Lines,
}

/// What became of one unit.
#[derive(Deserialize)]
struct Unit {
    unit: String,
    outcome: String,
}

/// Returns the reloads, the newest first.
pub(super) fn text(page: &Page, terminal: &Terminal) -> String {
    if page.reloads.is_empty() {
        return "no reload since the server started\n".to_owned();
    }
    page.reloads.iter().map(|reload| reload.text(terminal)).collect::<Vec<_>>().join("\n")
}

impl Reload {
    fn text(&self, terminal: &Terminal) -> String {
        let (tone, outcome) = match &*self.outcome {
            "failed" => (Tone::Bad, self.failed()),
            "noted" => (Tone::Warn, "changed, but taken only at a restart".to_owned()),
            _ if self.changes.is_empty() => (Tone::Good, "nothing has changed".to_owned()),
            outcome => (Tone::Good, clean(outcome)),
        };
        let counts = self.loaded.as_ref().map(|loaded| format!(": {}", loaded.text())).unwrap_or_default();
        let mut text = format!(
            "{} UTC  {}  {}{counts}\n",
            date_time(self.at_ms.saturating_mul(1_000_000)),
            clean(&self.cause),
            terminal.paint(tone, &outcome)
        );
        text.push_str(&self.errors.text("  ", "error"));
        text.push_str(&self.changes.text("  ", "change"));
        text.push_str(&self.notes.text("  note: ", "note"));
        text
    }
    /// Returns which units failed.
    fn failed(&self) -> String {
        let failed = self.units.iter().filter(|unit| unit.outcome == "failed").map(|unit| clean(&unit.unit));
        let failed: Vec<String> = failed.collect();
        match &failed[..] {
            [unit] if unit == "rules" => "failed: the earlier rules stayed in use".to_owned(),
            units => format!("failed: {} stayed as before", units.join(", ")),
        }
    }
}
