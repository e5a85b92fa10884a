//! All metrics as text, in pieces.
//!
//! A client may read slowly. The server then keeps one piece in memory, and not the whole page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::by_rule::Outcomes;
use super::registry::{Format, head};
use super::{Metrics, OUTCOMES};

/// The bytes of a piece, approximately.
const PIECE_BYTES: usize = 32 * 1024;

/// The metrics by rule. The page is in the order of names, so they are between other metrics.
const DECISIONS: &str = "decisions";
const PEEKS: &str = "looks_never_refused";
/// A text that sorts after all names.
const END: &str = "~";
const PEEKS_HELP: &str =
    "gRPC peeks (hits_addend: 0) at limits that never refuse a peek, by rule. To fix such a limit, set post_paid: true";

/// A page of metrics that is being read. Each number is from the time of its piece.
#[derive(Debug)]
pub struct Page {
    format: Format,
    next: Next,
}

#[derive(Debug)]
enum Next {
    First,
    /// The series after this one.
    Decisions(Arc<str>),
    Between,
    /// The series after this one.
    Peeks(Arc<str>),
    Last,
    Nothing,
}

impl Page {
    /// A page that begins with its first line.
    #[must_use]
    pub fn new(format: Format) -> Page {
        Page { format, next: Next::First }
    }

    /// The next piece. `None` at the end.
    pub fn next(&mut self, metrics: &Metrics) -> Option<String> {
        let mut piece = String::new();
        match mem::replace(&mut self.next, Next::Nothing) {
            Next::First => {
                metrics.registry.write(""..DECISIONS, self.format, &mut piece);
                head(DECISIONS, "Decided descriptors, by rule and outcome", true, self.format, &mut piece);
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

/// The next series in their order, enough for one piece. A request that adds a series waits no longer than this takes.
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
