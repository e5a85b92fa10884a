//! Writes all metrics as a page of text. The page is built in pieces, one after the other.
//!
//! A client can read slowly. Because the page is built in pieces, the server does not keep the whole page in memory for
//! such a client.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::by_rule::Outcomes;
use super::registry::{Format, head};
use super::{Metrics, OUTCOMES};

/// The approximate size of a piece, in bytes.
const PIECE_BYTES: usize = 32 * 1024;

/// The names of the two metrics that have lines for each rule. The page is sorted by name, so other metrics come
/// before, between and after these two metrics.
const DECISIONS: &str = "decisions";
const PEEKS: &str = "looks_never_refused";
/// A text that is sorted after all names.
const END: &str = "~";
const PEEKS_HELP: &str =
    "gRPC peeks (hits_addend: 0) at limits that never refuse a peek. With post_paid: true, a limit can refuse a peek";

/// A page of metrics that a client is reading. A number on the page is from the time when its piece was built.
#[derive(Debug)]
pub struct Page {
    format: Format,
    next: Next,
}

#[derive(Debug)]
enum Next {
    First,
    /// The decisions of rules. The text has the labels of the last rule that was written.
    Decisions(Arc<str>),
    Between,
    /// The peeks (requests of cost 0) at rules. The text has the labels of the last rule that was written.
    Peeks(Arc<str>),
    Last,
    Nothing,
}

impl Page {
    /// Makes a page. Its first piece is built next.
    #[must_use]
    pub fn new(format: Format) -> Page {
        Page { format, next: Next::First }
    }

    /// Returns the next piece. Returns `None` after the last piece.
    pub fn next(&mut self, metrics: &Metrics) -> Option<String> {
        let mut piece = String::new();
        match mem::replace(&mut self.next, Next::Nothing) {
            Next::First => {
                metrics.registry.write(""..DECISIONS, self.format, &mut piece);
                head(DECISIONS, "Descriptors that a rule matched, by rule and outcome", true, self.format, &mut piece);
                self.next = Next::Decisions("".into());
            }
            Next::Decisions(after) => {
                let series = listed(&metrics.decisions, &after);
                for (labels, outcomes) in &series {
                    write(labels, outcomes, &mut piece);
                }
                self.next = series.into_iter().last().map_or(Next::Between, |(last, _)| Next::Decisions(last));
            }
            Next::Between => {
                metrics.registry.write(DECISIONS..PEEKS, self.format, &mut piece);
                head(PEEKS, PEEKS_HELP, true, self.format, &mut piece);
                self.next = Next::Peeks("".into());
            }
            Next::Peeks(after) => {
                let series = listed(&metrics.peeks.0, &after);
                for (labels, count) in &series {
                    // Writing to a string cannot fail.
                    let _ = writeln!(piece, "spillgate_{PEEKS}_total{{{labels}}} {}", count.get());
                }
                self.next = series.into_iter().last().map_or(Next::Last, |(last, _)| Next::Peeks(last));
            }
            Next::Last => {
                metrics.registry.write(PEEKS..END, self.format, &mut piece);
                if self.format == Format::OpenMetrics {
                    piece.push_str("# EOF\n");
                }
            }
            Next::Nothing => return None,
        }
        Some(piece)
    }
}

/// Returns the series that come after the labels `after`, as many as fit into one piece. A series is a metric with its
/// labels. The lock is held only while this function runs, so a request that adds a series never waits for a client.
fn listed<T: Clone>(series: &Mutex<BTreeMap<Arc<str>, T>>, after: &str) -> Vec<(Arc<str>, T)> {
    let mut bytes = 0;
    let after = (Bound::Excluded(after), Bound::Unbounded);
    let series = series.lock();
    let piece = series.range::<str, _>(after).take_while(|(labels, _)| {
        let fits = bytes < PIECE_BYTES;
        bytes += OUTCOMES.len() * (labels.len() + 64);
        fits
    });
    piece.map(|(labels, counted)| (Arc::clone(labels), counted.clone())).collect()
}

fn write(labels: &str, outcomes: &Outcomes, out: &mut String) {
    let mut named: Vec<_> = OUTCOMES.iter().zip(outcomes.get()).collect();
    named.sort_unstable();
    for (outcome, count) in named {
        let _ = writeln!(out, "spillgate_decisions_total{{{labels},outcome=\"{outcome}\"}} {count}");
    }
}
