//! The last reloads, with their time, cause, outcome, errors and changes.
//!
//! The log has earlier reloads too, but not every operator can read the log.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

/// At most this many reloads are kept. With the bounds below, they take less than 5 MB.
const RELOADS_MAX: usize = 32;
/// At most this many lines of a list of errors or changes are kept. Further lines are only counted.
pub(super) const LINES_MAX: usize = 100;
/// At most this many bytes of a line are kept. The rest is cut off.
const LINE_BYTES_MAX: usize = 500;

/// The list of the last reloads. A clone of this value is cheap, and is the same list.
#[derive(Clone, Debug, Default)]
pub struct ReloadHistory(Arc<Mutex<VecDeque<Arc<Reload>>>>);

#[derive(Debug, Serialize)]
pub struct Reload {
    /// When the reload began, in milliseconds since 1970.
    pub at_ms: u64,
    pub cause: Cause,
    /// Failed if one of the units failed, and noted if all were only noted.
    pub outcome: Outcome,
    /// What became of each unit that the reload read.
    pub units: Vec<UnitOutcome>,
    /// `None` if the reload has loaded no rules.
    pub loaded: Option<LoadedCounts>,
    /// Why units failed. Empty if all succeeded.
    pub errors: Lines,
    /// What is in force now and was not before: changes of rules, settings and tokens.
    pub changes: Lines,
    /// What the reload did not do, for example settings that have changed and wait for a restart.
    pub notes: Lines,
}

/// Why the server reloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The server has seen that a file has changed.
    Watch,
    /// The signal SIGHUP.
    Signal,
    /// An operator asked for it: `POST /reload`.
    Request,
}

impl Cause {
    pub const ALL: [Cause; 3] = [Cause::Watch, Cause::Signal, Cause::Request];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Watch => "watch",
            Cause::Signal => "signal",
            Cause::Request => "request",
        }
    }
}

/// A part of what the files say, which a reload takes whole or not at all. A unit that fails keeps no other unit from
/// being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitName {
    /// The settings that a reload changes, all in the settings file.
    Settings,
    /// All rules files.
    Rules,
    /// Both tokens of the admin listener.
    AdminTokens,
    /// The certificate of the listeners, with its key.
    Certificate,
    /// The authorities that sign the certificates of clients.
    ClientCa,
    /// The secret with which keys are hashed. A reload never takes it, but notes that its file has changed.
    KeySecret,
}

impl UnitName {
    pub const ALL: [UnitName; 6] = [
        UnitName::Settings,
        UnitName::Rules,
        UnitName::AdminTokens,
        UnitName::Certificate,
        UnitName::ClientCa,
        UnitName::KeySecret,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            UnitName::Settings => "settings",
            UnitName::Rules => "rules",
            UnitName::AdminTokens => "admin_tokens",
            UnitName::Certificate => "certificate",
            UnitName::ClientCa => "client_ca",
            UnitName::KeySecret => "key_secret",
        }
    }
}

/// What became of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UnitOutcome {
    pub unit: UnitName,
    pub outcome: Outcome,
}

/// What became of files that a reload has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The server uses what it has read.
    Reloaded,
    /// The files cannot be taken, and the server goes on with what it had.
    Failed,
    /// The files are right and have changed, but the server takes them only at a restart.
    Noted,
}

/// How many files, domains and rules a reload has loaded, and how many warnings it gave.
#[derive(Debug, Serialize)]
pub struct LoadedCounts {
    pub files: usize,
    pub domains: usize,
    pub rules: usize,
    pub warnings: usize,
}

/// A list of lines with a bounded size.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lines {
    lines: Vec<String>,
    /// The number of further lines, which were not kept.
    left_out: usize,
}

/// Cuts a text that has more than `bytes` bytes.
pub(super) fn cut(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
}

impl Lines {
    /// Adds the line that `line` returns. If the list is full, the line is only counted, and `line` is not called.
    pub fn add(&mut self, line: impl FnOnce() -> String) {
        if self.lines.len() == LINES_MAX {
            self.left_out += 1;
            return;
        }
        let mut line = line();
        cut(&mut line, LINE_BYTES_MAX);
        line.shrink_to_fit();
        self.lines.push(line);
    }

    /// Returns the lines that were kept: the first 100 at most, without those that are only counted.
    #[must_use]
    pub fn kept(&self) -> &[String] {
        &self.lines
    }

    /// Adds all lines of `other`.
    pub fn append(&mut self, other: Lines) {
        self.left_out += other.left_out;
        for line in other.lines {
            self.add(|| line);
        }
    }

    /// Returns the number of all lines.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lines.len() + self.left_out
    }
}

impl ReloadHistory {
    pub fn newest_first(&self) -> impl Iterator<Item = Arc<Reload>> + use<> {
        self.0.lock().clone().into_iter()
    }

    /// Adds a reload, and returns it. If the list is full, the oldest reload is dropped.
    pub fn add(&self, reload: Reload) -> Arc<Reload> {
        let mut reloads = self.0.lock();
        if reloads.len() == RELOADS_MAX {
            reloads.pop_back();
        }
        let reload = Arc::new(reload);
        reloads.push_front(Arc::clone(&reload));
        reload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_and_its_lines_are_bounded() {
        let history = ReloadHistory::default();
        for at_ms in 0..40 {
            let mut changes = Lines::default();
            for _ in 0..150 {
                changes.add(|| "é".repeat(1000));
            }
            let mut notes = Lines::default();
            notes.append(changes);
            changes = Lines::default();
            changes.append(notes);
            let (errors, notes, units) = (Lines::default(), Lines::default(), Vec::new());
            let outcome = Outcome::Failed;
            history.add(Reload { at_ms, cause: Cause::Watch, outcome, units, loaded: None, errors, changes, notes });
        }
        let kept = history.0.lock();
        assert_eq!((kept.len(), kept[0].at_ms, kept[31].at_ms), (32, 39, 8));
        let changes = &kept[0].changes;
        assert_eq!((changes.lines.len(), changes.left_out), (100, 50));
        assert_eq!(changes.lines[0], format!("{}...", "é".repeat(250)));
    }
}
