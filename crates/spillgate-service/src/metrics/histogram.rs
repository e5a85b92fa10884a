//! A histogram of durations.
//!
//! An average hides the few requests that take long. The page of metrics says for each of several bounds how many
//! durations did not exceed this bound. From such counts, Prometheus computes quantiles, also over several servers.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate::StoreCalls;

/// A duration that equals a bound belongs to the bucket below this bound. The bounds are those of the shared store, so
/// that its histogram can be copied.
const BOUNDS_NS: [u64; StoreCalls::BOUNDS_NS.len()] = StoreCalls::BOUNDS_NS;

/// How many durations were in each bucket, and their sum.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// The last bucket has the durations above all bounds.
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound_ns| *bound_ns < ns);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Replaces the counts by those that the shared store has counted itself.
    pub(super) fn copy(&self, buckets: &[u64], sum_ns: u64) {
        for (own, count) in self.buckets.iter().zip(buckets) {
            own.store(*count, Ordering::Relaxed);
        }
        self.sum_ns.store(sum_ns, Ordering::Relaxed);
    }

    /// Writes the lines of the histogram.
    pub(super) fn write(&self, name: &str, out: &mut String) {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        write_lines(name, "", (&BOUNDS_NS, counts), self.sum_ns.load(Ordering::Relaxed), out);
    }
}

/// Writes the lines of a histogram. `counts` has one number more than there are bounds. The line `_count` has the sum of
/// these numbers. So the count and the buckets agree, even if other threads add durations at the same time.
pub(super) fn write_lines(
    name: &str,
    labels: &str,
    (bounds_ns, counts): (&[u64], impl Iterator<Item = u64>),
    sum_ns: u64,
    out: &mut String,
) {
    let comma = if labels.is_empty() { "" } else { "," };
    let braces = if labels.is_empty() { ["", ""] } else { ["{", "}"] };
    let mut count = 0_u64;
    let bounds = bounds_ns.iter().map(|bound_ns| seconds(*bound_ns)).chain(["+Inf".to_owned()]);
    for (bound, in_bucket) in bounds.zip(counts) {
        count = count.wrapping_add(in_bucket);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "spillgate_{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
    }
    let [begin, end] = braces;
    let _ = writeln!(
        out,
        "spillgate_{name}_sum{begin}{labels}{end} {}\nspillgate_{name}_count{begin}{labels}{end} {count}",
        seconds(sum_ns)
    );
}

/// Estimates a quantile: the share `share` of all durations is at most as long as the result. As in Prometheus, the
/// estimate assumes that the durations of a bucket are spread evenly. If the result would be above all bounds, it is
/// the highest bound. Returns `None` if there are no durations.
pub(crate) fn quantile_ns(buckets: &[u64; BOUNDS_NS.len() + 1], share: f64) -> Option<u64> {
    let all: u64 = buckets.iter().sum();
    let wanted = all as f64 * share;
    let (mut before, mut from_ns) = (0, 0);
    for (count, bound_ns) in buckets.iter().zip(BOUNDS_NS) {
        if *count > 0 && (before + count) as f64 >= wanted {
            let part = (wanted - before as f64) / *count as f64;
            return Some(from_ns + ((bound_ns - from_ns) as f64 * part) as u64);
        }
        (before, from_ns) = (before + count, bound_ns);
    }
    (all > 0).then_some(from_ns)
}

/// Returns a number of nanoseconds in seconds, without rounding: `0.00025`, `1.0`.
pub(super) fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let digits = text.trim_end_matches('0');
    if digits.ends_with('.') { format!("{digits}0") } else { digits.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(histogram: &Histogram) -> String {
        let mut out = String::new();
        histogram.write("x", &mut out);
        out
    }

    #[test]
    fn buckets_are_cumulative_and_a_bound_is_part_of_its_bucket() {
        let histogram = Histogram::default();
        for ns in [0, 250, 251, 500, 1_000_000_000, 1_000_000_001] {
            histogram.observe(Duration::from_nanos(ns));
        }
        let text = written(&histogram);
        for line in [
            "spillgate_x_bucket{le=\"0.00000025\"} 2",
            "spillgate_x_bucket{le=\"0.0000005\"} 4",
            "spillgate_x_bucket{le=\"0.5\"} 4",
            "spillgate_x_bucket{le=\"1.0\"} 5",
            "spillgate_x_bucket{le=\"+Inf\"} 6",
            "spillgate_x_sum 2.000001002",
            "spillgate_x_count 6",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_quantile_is_in_the_bucket_of_its_duration() {
        let mut buckets = [0; BOUNDS_NS.len() + 1];
        assert_eq!(quantile_ns(&buckets, 0.5), None);
        // Ten durations from 100 us to 250 us, and ten from 250 us to 500 us.
        (buckets[9], buckets[10]) = (10, 10);
        let quantiles = [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| quantile_ns(&buckets, share));
        assert_eq!(quantiles, [100_000, 175_000, 250_000, 375_000, 500_000].map(Some));
        buckets[BOUNDS_NS.len()] = 20;
        assert_eq!(quantile_ns(&buckets, 0.99), Some(1_000_000_000), "longer than all bounds");
        assert_eq!(quantile_ns(&buckets, 0.25), Some(250_000));
    }

    #[test]
    fn a_duration_of_any_length_is_counted() {
        let histogram = Histogram::default();
        histogram.observe(Duration::MAX);
        assert!(written(&histogram).contains("_count 1\n"), "{}", written(&histogram));
    }

    #[test]
    fn the_count_agrees_with_the_buckets_while_other_threads_observe() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..20_000).for_each(|ns| histogram.observe(Duration::from_nanos(ns * 1000))));
            }
            for _ in 0..200 {
                let text = written(&histogram);
                let counts: Vec<u64> = text
                    .lines()
                    .filter(|line| !line.contains("_sum"))
                    .map(|line| line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a number"))
                    .collect();
                assert!(counts.is_sorted(), "{text}");
                let [.., all, count] = counts[..] else { panic!("there are no buckets:\n{text}") };
                assert_eq!(all, count, "{text}");
            }
        });
        assert!(written(&histogram).contains("_count 40000\n"));
    }
}
