//! Counters, gauges, and the text format in which a page shows them.
//!
//! The registry lists the metrics that exist from the start. Requests change only the numbers of these metrics, and
//! never the list, so they need no lock.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::histogram::Histogram;
use super::sharded::Sharded;

/// The format of a page of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

/// The type of a metric, as the page names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A number that never gets smaller.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    #[inline]
    pub fn inc(&self) {
        self.inc_by(1);
    }

    #[inline]
    pub fn inc_by(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Sets the number to `counted`, a count that another part of the program keeps. A lower count changes nothing,
    /// because a counter must not get smaller.
    pub(crate) fn raise_to(&self, counted: u64) {
        self.0.fetch_max(counted, Ordering::Relaxed);
    }

    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    const UNKNOWN: i64 = i64::MIN;

    /// Makes a gauge that has no value. The page of metrics does not show the gauge until it is set.
    pub(super) fn unknown() -> Gauge {
        Gauge(Arc::new(AtomicI64::new(Gauge::UNKNOWN)))
    }

    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Removes the value, so that the page of metrics does not show the gauge.
    pub(super) fn forget(&self) {
        self.set(Gauge::UNKNOWN);
    }

    #[inline]
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn add(&self, count: usize) {
        self.0.fetch_add(i64::try_from(count).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    pub fn sub(&self, count: usize) {
        self.0.fetch_sub(i64::try_from(count).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// Returns the number. Returns 0 if the gauge was never set.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.known().unwrap_or(0)
    }

    fn known(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|value| *value != Gauge::UNKNOWN)
    }
}

/// All samples of one metric name. The samples differ in their labels.
struct Family {
    name: &'static str,
    help: &'static str,
    /// Each sample, with the text of its labels as the page shows it between braces.
    samples: Vec<(String, Sample)>,
}

/// Writes all lines of a metric, whose name it gets.
type WriteLines = Box<dyn Fn(&str, &mut String) + Send + Sync>;

enum Sample {
    Counter(Counter),
    /// A counter that is stored elsewhere, for example with a copy for each thread.
    Read(Box<dyn Fn() -> u64 + Send + Sync>),
    Gauge(Gauge),
    /// The only sample of its family: a function that gets the name, and writes all lines. Without lines, the page does not
    /// show the metric.
    Lines(Kind, WriteLines),
}

impl Sample {
    fn value(&self) -> Option<i128> {
        match self {
            Sample::Counter(counter) => Some(counter.get().into()),
            Sample::Read(read) => Some(read().into()),
            Sample::Gauge(gauge) => gauge.known().map(i128::from),
            Sample::Lines(..) => None,
        }
    }
}

/// The metrics with fixed labels, sorted by name. The metrics of rules and limits are not here, because a reload
/// changes their labels.
#[derive(Default)]
pub(super) struct Registry {
    families: Vec<Family>,
}

impl Registry {
    pub(super) fn counter(&mut self, name: &'static str, help: &'static str) -> Counter {
        let [counter] = self.counters(name, help, "", [""]);
        counter
    }

    /// Adds one counter for each value of the label `label`, and returns the counters.
    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: [&'static str; N],
    ) -> [Counter; N] {
        let counters = values.map(|_| Counter::default());
        let labelled = values.iter().zip(&counters).map(|(value, counter)| {
            let labels = if label.is_empty() { String::new() } else { labels(&[(label, value)]) };
            (labels, Sample::Counter(counter.clone()))
        });
        self.add(Family { name, help, samples: labelled.collect() });
        counters
    }

    /// Adds counters of `sharded`. The counter with the index `first` gets the first list of labels, and so on.
    pub(super) fn sharded<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labelled: impl Iterator<Item = Vec<(&'static str, &'static str)>>,
        (sharded, first): (&Sharded<N>, usize),
    ) {
        let samples = labelled.zip(first..N).map(|(of_sample, index)| {
            let sharded = sharded.clone();
            (labels(&of_sample), Sample::Read(Box::new(move || sharded.sums()[index])))
        });
        self.add(Family { name, help, samples: samples.collect() });
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str, gauge: Gauge) -> Gauge {
        self.add(Family { name, help, samples: vec![(String::new(), Sample::Gauge(gauge.clone()))] });
        gauge
    }

    /// Adds the gauge that shows the version of the program. Its value is always 1.
    pub(super) fn build_info(&mut self) {
        let gauge = Gauge::default();
        gauge.set(1);
        let (name, help) = ("build_info", "1, with the version of spillgate as a label");
        let sample = (labels(&[("version", env!("CARGO_PKG_VERSION"))]), Sample::Gauge(gauge));
        self.add(Family { name, help, samples: vec![sample] });
    }

    pub(super) fn histogram(&mut self, name: &'static str, help: &'static str) -> Arc<Histogram> {
        let histogram = Arc::new(Histogram::default());
        let written = Arc::clone(&histogram);
        self.lines(name, help, Kind::Histogram, move |name, out| written.write(name, out));
        histogram
    }

    /// Adds a metric whose labels are not fixed. `write` gets its name, and writes its lines when a client reads the page.
    pub(super) fn lines(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        write: impl Fn(&str, &mut String) + Send + Sync + 'static,
    ) {
        self.add(Family { name, help, samples: vec![(String::new(), Sample::Lines(kind, Box::new(write)))] });
    }

    fn add(&mut self, mut family: Family) {
        family.samples.sort_by(|(a, _), (b, _)| a.cmp(b));
        let at = self.families.partition_point(|other| other.name < family.name);
        self.families.insert(at, family);
    }

    /// Writes the metrics that have a name in the range `names`.
    pub(super) fn write(&self, names: Range<&str>, format: Format, out: &mut String) {
        for family in self.families.iter().filter(|family| names.contains(&family.name)) {
            if let [(_, Sample::Lines(kind, write))] = &family.samples[..] {
                let mut lines = String::new();
                write(family.name, &mut lines);
                if !lines.is_empty() {
                    head(family.name, family.help, *kind, format, out);
                    out.push_str(&lines);
                }
                continue;
            }
            let is_gauge = matches!(family.samples.first(), Some((_, Sample::Gauge(_))));
            let known: Vec<_> =
                family.samples.iter().filter_map(|(labels, sample)| Some((labels, sample.value()?))).collect();
            if known.is_empty() {
                continue;
            }
            let (kind, total) = if is_gauge { (Kind::Gauge, "") } else { (Kind::Counter, "_total") };
            head(family.name, family.help, kind, format, out);
            for (labels, value) in known {
                let braces = if labels.is_empty() { ["", ""] } else { ["{", "}"] };
                // Writing to a string cannot fail.
                let _ = writeln!(out, "spillgate_{}{total}{}{labels}{} {value}", family.name, braces[0], braces[1]);
            }
        }
    }
}

/// Writes the two lines (`# HELP` and `# TYPE`) above the metrics of one name.
pub(super) fn head(name: &str, help: &str, kind: Kind, format: Format, out: &mut String) {
    // A line with the number of a counter has a name that ends in `_total`. In OpenMetrics, the name on the two head
    // lines has no such suffix. In the older text format, it has the suffix too.
    let total = if kind == Kind::Counter && format == Format::Text { "_total" } else { "" };
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let _ = writeln!(out, "# HELP spillgate_{name}{total} {help}.\n# TYPE spillgate_{name}{total} {kind}");
}

/// Returns labels as the page shows them between braces: `name="value"`, with commas between them.
pub(super) fn labels(labels: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{name}=\"");
        for char in value.chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
    text
}
