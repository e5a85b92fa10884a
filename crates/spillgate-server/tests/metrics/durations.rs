//! Histograms and counters stay consistent while other threads count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::metrics::page::Page;
use crate::metrics::traffic::{RULES, check, serve};

const BUCKET: &str = "spillgate_decision_duration_seconds_bucket";

/// Checks one histogram: its buckets are cumulative, its last bucket equals its count, and its sum fits its buckets.
/// Returns the count.
fn count_of(page: &Page) -> u64 {
    let of_buckets = page.lines.iter().filter(|(name, ..)| name == BUCKET);
    let buckets: Vec<(f64, f64)> =
        of_buckets.map(|(_, labels, count)| (labels["le"].parse().unwrap(), *count)).collect();
    assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{buckets:?}");
    let (last, count) = buckets[buckets.len() - 1];
    assert!(last.is_infinite());
    let value = |name: &str| page.lines.iter().find(|(own, ..)| own == name).unwrap().2;
    assert!((value("spillgate_decision_duration_seconds_count") - count).abs() < 0.5, "{buckets:?}");
    let sum = value("spillgate_decision_duration_seconds_sum");
    assert!(if count == 0.0 { sum == 0.0 } else { sum > 0.0 }, "{count} durations have the sum {sum}");
    count as u64
}

#[test]
fn a_page_is_consistent_while_requests_are_decided() {
    let server = serve(RULES, &["--workers", "2"]);
    assert_eq!(count_of(&Page::of(server.admin())), 0);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let senders = [0, 1].map(|sender| {
            let http = server.http();
            scope.spawn(move || (0..300).for_each(|n| check(http, &[("two", &format!("{sender} {n}"))], 1)))
        });
        let (admin, ended) = (server.admin(), &ended);
        scope.spawn(move || {
            let mut before = BTreeMap::new();
            while !ended.load(Ordering::Relaxed) {
                let page = Page::of(admin);
                count_of(&page);
                for (name, labels, value) in page.lines.into_iter().filter(|(name, ..)| name.ends_with("_total")) {
                    let last = before.insert((name.clone(), labels.clone()), value).unwrap_or(0.0);
                    assert!(value >= last, "{name}{labels:?} fell from {last} to {value}");
                }
                // The admin listener has rate limits of its own.
                thread::park_timeout(Duration::from_millis(20));
            }
        });
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        ended.store(true, Ordering::Relaxed);
    });
    let page = Page::of(server.admin());
    // The server measures each of the 600 requests with a chance of 1 in 16. The chance that it measures none of them
    // is less than 1 in 10^15.
    assert!((1..600).contains(&count_of(&page)), "{}", page.text);
    assert_eq!(page.sum("spillgate_limit_hits_total", &[("limit", "daily"), ("outcome", "allowed")]), 600);
}
