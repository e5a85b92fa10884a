//! Writes all metrics as a page of text.
//!
//! The page is built in pieces while a client reads it. So the server does not keep the whole page in memory for a
//! client that reads slowly.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::by_limit::{FIRST_UNITS, HITS, LimitCounters, NEAR, UNITS};
use super::by_rule::Decided;
use super::registry::{Format, Kind, head};
use super::{Counter, Metrics, OUTCOMES, process};

/// The approximate size of a piece, in bytes.
const PIECE_BYTES: usize = 32 * 1024;
/// The approximate size of a line without the labels of its rule or limit, in bytes.
const LINE_BYTES: usize = 64;
/// A text that comes after the names of all metrics in alphabetical order.
const END: &str = "~";

/// The metrics with lines for each rule or limit, sorted by name. The whole page is sorted by name, so other metrics
/// come before, between and after them.
const LISTED: [Listed; 5] = [
    Listed {
        name: "decisions",
        help: "Descriptors that a rule matched, by rule and outcome",
        write: |metrics, after, out, shows_values| {
            write(&metrics.decisions, after, out, if shows_values { outcomes } else { outcomes_of_rule })
        },
    },
    Listed {
        name: "limit_hits",
        help: "Hits on a limit, by what this limit decided. A hit is the operation of a request on one limit",
        write: |metrics, after, out, _| write(&metrics.limits, after, out, hits),
    },
    Listed {
        name: "limit_near",
        help: "Hits that a limit allowed, and after which more than 80 % of the limit was used",
        write: |metrics, after, out, _| write(&metrics.limits, after, out, near),
    },
    Listed {
        name: "limit_units",
        help: "Units that hits took from a limit, or that the limit refused",
        write: |metrics, after, out, _| write(&metrics.limits, after, out, units),
    },
    Listed {
        name: "peeks_never_refused",
        help: "gRPC peeks (hits_addend: 0) at limits that never refuse a peek. With post_paid: true, a limit can refuse a \
               peek",
        write: |metrics, after, out, _| write(&metrics.peeks.0, after, out, peeks),
    },
];

/// A metric with lines for each rule or limit.
struct Listed {
    name: &'static str,
    help: &'static str,
    /// Writes the lines whose labels come after the given labels, as many as fit into one piece. The last argument says
    /// whether lines with values of clients are written. Returns the last labels that were read, or `None` if none were
    /// left.
    write: fn(&Metrics, &str, &mut String, bool) -> Option<Arc<str>>,
}

/// A page of metrics that a client is reading. Each number was read when its piece of the page was built.
#[derive(Debug)]
pub struct Page {
    format: Format,
    shows_values: bool,
    next: Next,
}

/// What the next piece of the page has.
#[derive(Debug)]
enum Next {
    /// The other metrics between the previous item of [`LISTED`] and the item with this index, and then the two head
    /// lines of this item.
    Before(usize),
    /// Lines of the item of [`LISTED`] with this index. The text has the last labels that were written.
    Lines(usize, Arc<str>),
    Last,
    Nothing,
}

impl Page {
    /// Makes a page of which no piece has been built yet.
    #[must_use]
    pub fn new(format: Format) -> Page {
        Page { format, shows_values: true, next: Next::Before(0) }
    }

    /// Leaves out the lines of single values, which `detailed_metric` and `value_to_metric` demand. The page then has no
    /// text that a client has sent.
    #[must_use]
    pub fn without_values(mut self) -> Page {
        self.shows_values = false;
        self
    }

    /// Returns the format of the page.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Returns the next piece. Returns `None` after the last piece.
    pub fn next(&mut self, metrics: &Metrics) -> Option<String> {
        let mut piece = String::new();
        let name = |index: usize| LISTED.get(index).map_or(END, |listed| listed.name);
        match mem::replace(&mut self.next, Next::Nothing) {
            Next::Before(index) => {
                if index == 0 {
                    process::write(self.format, &mut piece);
                }
                let previous = if index == 0 { "" } else { name(index - 1) };
                metrics.registry.write(previous..name(index), self.format, &mut piece);
                if let Some(listed) = LISTED.get(index) {
                    head(listed.name, listed.help, Kind::Counter, self.format, &mut piece);
                }
                self.next = Next::Lines(index, "".into());
            }
            Next::Lines(index, after) => {
                let last =
                    LISTED.get(index).and_then(|listed| (listed.write)(metrics, &after, &mut piece, self.shows_values));
                let following = if index + 1 < LISTED.len() { Next::Before(index + 1) } else { Next::Last };
                self.next = last.map_or(following, |last| Next::Lines(index, last));
            }
            Next::Last => {
                metrics.registry.write(name(LISTED.len() - 1)..END, self.format, &mut piece);
                if self.format == Format::OpenMetrics {
                    piece.push_str("# EOF\n");
                }
            }
            Next::Nothing => return None,
        }
        Some(piece)
    }
}

/// Writes the lines of those `series` whose labels come after `after`, as many as fit into one piece. Returns the last
/// labels that were written. The lock is held only while the series are listed, so a request that adds a series never
/// waits for a client.
fn write<T: Clone>(
    series: &Mutex<BTreeMap<Arc<str>, T>>,
    after: &str,
    out: &mut String,
    line: fn(&str, &T, &mut String),
) -> Option<Arc<str>> {
    let mut bytes = 0;
    let after = (Bound::Excluded(after), Bound::Unbounded);
    let locked = series.lock();
    let piece = locked.range::<str, _>(after).take_while(|(labels, _)| {
        let fits = bytes < PIECE_BYTES;
        bytes += OUTCOMES.len() * (labels.len() + LINE_BYTES);
        fits
    });
    let piece: Vec<_> = piece.map(|(labels, counted)| (Arc::clone(labels), counted.clone())).collect();
    drop(locked);
    piece.iter().for_each(|(labels, counted)| line(labels, counted, out));
    piece.into_iter().last().map(|(labels, _)| labels)
}

fn outcomes_of_rule(labels: &str, decided: &Decided, out: &mut String) {
    if !decided.has_value {
        outcomes(labels, decided, out);
    }
}

fn outcomes(labels: &str, decided: &Decided, out: &mut String) {
    let mut named: Vec<_> = OUTCOMES.iter().zip(decided.outcomes.sums()).collect();
    named.sort_unstable();
    for (outcome, count) in named {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "spillgate_decisions_total{{{labels},outcome=\"{outcome}\"}} {count}");
    }
}

fn hits(labels: &str, counters: &LimitCounters, out: &mut String) {
    for (outcome, count) in HITS.iter().zip(counters.sums()) {
        let _ = writeln!(out, "spillgate_limit_hits_total{{{labels},outcome=\"{outcome}\"}} {count}");
    }
}

fn near(labels: &str, counters: &LimitCounters, out: &mut String) {
    let _ = writeln!(out, "spillgate_limit_near_total{{{labels}}} {}", counters.sums()[NEAR]);
}

fn units(labels: &str, counters: &LimitCounters, out: &mut String) {
    for (outcome, count) in UNITS.iter().zip(&counters.sums()[FIRST_UNITS..]) {
        let _ = writeln!(out, "spillgate_limit_units_total{{{labels},outcome=\"{outcome}\"}} {count}");
    }
}

fn peeks(labels: &str, counter: &Counter, out: &mut String) {
    let _ = writeln!(out, "spillgate_peeks_never_refused_total{{{labels}}} {}", counter.get());
}
