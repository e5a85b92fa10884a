//! All metrics as text, in pieces: for a client that reads slowly the server holds no more than one of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::by_rule::Outcomes;
use super::registry::{Format, head};
use super::{Metrics, OUTCOMES};

/// About this many bytes are a piece.
const PIECE_BYTES: usize = 32 * 1024;

/// The metrics by rule, between the others: all are in the order of their names.
const DECISIONS: &str = "decisions";
const LOOKS: &str = "looks_never_refused";
/// Behind all names.
const END: &str = "~";
const LOOKS_HELP: &str =
    "Looks over gRPC (hits_addend: 0) at limits that refuse none, since they are not post_paid, by rule";

/// A page of metrics that is being read. Each number is as of the time of its piece.
#[derive(Debug)]
pub struct Page {
    format: Format,
    next: Next,
}

#[derive(Debug)]
enum Next {
    First,
    /// The series behind this one.
    Decisions(Arc<str>),
    Between,
    /// The series behind this one.
    Looks(Arc<str>),
    Last,
    Nothing,
}

impl Page {
    /// From its first line.
    #[must_use]
    pub fn new(format: Format) -> Page {
        Page { format, next: Next::First }
    }

    /// The next piece; `None` at the end.
    pub fn next(&mut self, metrics: &Metrics) -> Option<String> {
        let mut piece = String::new();
        match mem::replace(&mut self.next, Next::Nothing) {
            Next::First => {
                metrics.registry.write(""..DECISIONS, self.format, &mut piece);
                head(DECISIONS, "Descriptors judged, by rule and outcome", true, self.format, &mut piece);
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
                metrics.registry.write(DECISIONS..LOOKS, self.format, &mut piece);
                head(LOOKS, LOOKS_HELP, true, self.format, &mut piece);
                self.next = Next::Looks("".into());
            }
            Next::Looks(after) => {
                let series = listed(&metrics.looks.0, &after);
                for (labels, count) in &series {
                    // Writing to a string cannot fail.
                    let _ = writeln!(piece, "spillgate_{LOOKS}_total{{{labels}}} {}", count.get());
                }
                self.next = series.into_iter().last().map_or(Next::Last, |(last, _)| Next::Looks(last));
            }
            Next::Last => {
                metrics.registry.write(LOOKS..END, self.format, &mut piece);
                if self.format == Format::OpenMetrics {
                    piece.push_str("# EOF\n");
                }
            }
            Next::Nothing => return None,
        }
        Some(piece)
    }
}

/// Series in their order, enough for a piece. A request that makes a new one waits no longer than this takes.
fn listed<T: Clone>(series: &Mutex<BTreeMap<Arc<str>, T>>, after: &str) -> Vec<(Arc<str>, T)> {
    let mut bytes = 0;
    let behind = (Bound::Excluded(after), Bound::Unbounded);
    let series = series.lock();
    let piece = series.range::<str, _>(behind).take_while(|(labels, _)| {
        let has_room = bytes < PIECE_BYTES;
        bytes += OUTCOMES.len() * (labels.len() + 64);
        has_room
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
