//! `GET /reloads`: lists the last reloads of the rules: when, whether the server uses the new rules, the errors, and what has
//! changed.
//!
//! After a change of a rules file, an operator sees here what the server has made of it. The log has more reloads, but an
//! operator cannot always read it.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use parking_lot::Mutex;
use serde::Serialize;
use spillgate::Clock;

use super::AdminState;

/// The number of reloads that are kept. With the bounds below, they take less than 4 MB.
const RELOADS_MAX: usize = 32;
/// The number of lines that are kept of a list of errors or changes. Further lines are only counted.
const LINES_MAX: usize = 100;
/// The number of bytes that are kept of a line. Further bytes are cut off.
const LINE_BYTES_MAX: usize = 500;

/// The last reloads. It is cheap to clone, and all clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct ReloadHistory(Arc<Mutex<VecDeque<Arc<Reload>>>>);

/// One reload.
#[derive(Debug, Serialize)]
pub(crate) struct Reload {
    /// When the reload began, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) outcome: Outcome,
    /// What was loaded. `None` if the reload failed.
    pub(crate) loaded: Option<LoadedCounts>,
    pub(crate) errors: Lines,
    pub(crate) changes: Lines,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The server uses the rules that it has read.
    Reloaded,
    /// The server goes on with the earlier rules.
    Failed,
}

/// How much a reload has read.
#[derive(Debug, Serialize)]
pub(crate) struct LoadedCounts {
    pub(crate) files: usize,
    pub(crate) domains: usize,
    pub(crate) rules: usize,
    pub(crate) warnings: usize,
}

/// A list of lines with a bounded size.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Lines {
    lines: Vec<String>,
    /// The number of lines that did not fit.
    left_out: usize,
}

impl Lines {
    /// Adds the line that `line` returns. If the list is full, the line is only counted, and `line` is not called.
    pub(crate) fn add(&mut self, line: impl FnOnce() -> String) {
        if self.lines.len() == LINES_MAX {
            self.left_out += 1;
            return;
        }
        let mut line = line();
        if line.len() > LINE_BYTES_MAX {
            let end = (0..=LINE_BYTES_MAX).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
            line.truncate(end);
            line.push_str("...");
        }
        line.shrink_to_fit();
        self.lines.push(line);
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> &[String] {
        &self.lines
    }
}

impl ReloadHistory {
    /// Adds a reload. If the list is full, the oldest reload is dropped.
    pub(crate) fn add(&self, reload: Reload) {
        let mut reloads = self.0.lock();
        if reloads.len() == RELOADS_MAX {
            reloads.pop_back();
        }
        reloads.push_front(Arc::new(reload));
    }
}

pub(super) async fn reloads<C: Clock + 'static>(State(state): State<AdminState<C>>) -> Response {
    let mut reloads = state.reloads.0.lock().clone().into_iter();
    let mut separator = Some("{\"reloads\":[");
    state.pages.page("application/json", move || {
        let before = separator?;
        let Some(reload) = reloads.next() else {
            separator = None;
            return Some(format!("{}]}}", if before == "," { "" } else { before }));
        };
        separator = Some(",");
        let reload = serde_json::to_string(&*reload).expect("invariant: strings and numbers become JSON in memory");
        Some(format!("{before}{reload}"))
    })
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
            let reload = Reload { at_ms, outcome: Outcome::Failed, loaded: None, errors: Lines::default(), changes };
            history.add(reload);
        }
        let kept = history.0.lock();
        assert_eq!((kept.len(), kept[0].at_ms, kept[31].at_ms), (32, 39, 8));
        let changes = &kept[0].changes;
        assert_eq!((changes.lines.len(), changes.left_out), (100, 50));
        assert_eq!(changes.lines[0], format!("{}...", "é".repeat(250)));
    }
}
