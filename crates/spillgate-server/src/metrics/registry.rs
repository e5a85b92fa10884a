//! Counters, gauges, and the text format in which a page shows them.
//!
//! The registry lists the metrics that exist from the start. Requests change only the numbers, so they need no lock.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The format of a page of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

/// A number that never gets smaller.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.inc_by(1);
    }

    /// Adds `count`.
    pub fn inc_by(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the number.
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

    /// Sets the number.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts one.
    pub fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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

/// All metrics that have the same name. They differ in their labels.
struct Family {
    name: &'static str,
    help: &'static str,
    /// The metrics. Each has the text of its labels, as the page shows it between braces.
    samples: Vec<(String, Sample)>,
}

enum Sample {
    Counter(Counter),
    Gauge(Gauge),
}

impl Sample {
    fn value(&self) -> Option<i128> {
        match self {
            Sample::Counter(counter) => Some(counter.get().into()),
            Sample::Gauge(gauge) => gauge.known().map(i128::from),
        }
    }
}

/// The metrics that have fixed labels. They exist from the start. Metrics of rules are not here.
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

    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str, gauge: Gauge) -> Gauge {
        self.add(Family { name, help, samples: vec![(String::new(), Sample::Gauge(gauge.clone()))] });
        gauge
    }

    fn add(&mut self, mut family: Family) {
        family.samples.sort_by(|(a, _), (b, _)| a.cmp(b));
        let at = self.families.partition_point(|other| other.name < family.name);
        self.families.insert(at, family);
    }

    /// Writes the metrics that have a name in the range `names`.
    pub(super) fn write(&self, names: Range<&str>, format: Format, out: &mut String) {
        for family in self.families.iter().filter(|family| names.contains(&family.name)) {
            let is_counter = matches!(family.samples.first(), Some((_, Sample::Counter(_))));
            let known: Vec<_> =
                family.samples.iter().filter_map(|(labels, sample)| Some((labels, sample.value()?))).collect();
            if known.is_empty() {
                continue;
            }
            head(family.name, family.help, is_counter, format, out);
            for (labels, value) in known {
                let (total, braces) =
                    (if is_counter { "_total" } else { "" }, if labels.is_empty() { ["", ""] } else { ["{", "}"] });
                // Writing to a string cannot fail.
                let _ = writeln!(out, "spillgate_{}{total}{}{labels}{} {value}", family.name, braces[0], braces[1]);
            }
        }
    }
}

/// Writes the two lines (`# HELP` and `# TYPE`) above the metrics of one name.
pub(super) fn head(name: &str, help: &str, is_counter: bool, format: Format, out: &mut String) {
    let kind = if is_counter { "counter" } else { "gauge" };
    // The lines with a counter's numbers have a name that ends in `_total`. In OpenMetrics, the name on the two lines
    // above them has no such suffix. In the older text format, it has the suffix too.
    let total = if is_counter && format == Format::Text { "_total" } else { "" };
    let _ = writeln!(out, "# HELP spillgate_{name}{total} {help}.\n# TYPE spillgate_{name}{total} {kind}");
}

/// Returns the text of labels, as the page shows it between braces.
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
