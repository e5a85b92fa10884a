//! At level debug, logs requests. At level info, logs descriptors that no rule matches.
//!
//! Clients decide how many requests there are, so the number of lines has a bound. A line at level info contains no
//! value of an entry, because values can be personal data.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use spillgate::rules::{Request, limit_size};
use spillgate::{Hit, Time, Verdict};
use tracing::Level;

use super::answer::AnswerView;
use super::{Loaded, ServiceError};

const SECOND_NS: u64 = 1_000_000_000;

/// In each second, the log gets at most this many lines about requests, which have the level debug.
const REQUESTS_A_SECOND: u64 = 100;

/// In each minute of the clock, the log gets at most this many lines about descriptors that no rule matches. Any period
/// of 60 seconds overlaps at most two minutes of the clock, so it has at most 2 * 4 = 8 such lines. Together with at
/// most ten lines about refusals, these are fewer than twenty lines.
const UNMATCHED_A_MINUTE: u64 = 4;

/// In each second, at most this many descriptors without a matching rule are looked up. A lookup finds out whether the
/// log already has a line about such a descriptor. The bound keeps a flood of these descriptors cheap. A new descriptor
/// that is not looked up in one second can get its line when it comes again in a later second.
const LOOKUPS_A_SECOND: u64 = 1000;

/// The maximum number of bytes of each text of a client in a line. A longer text is cut.
const MAX_SHOWN_BYTES: usize = 1024;

/// How many lines about descriptors without a rule are remembered, so that they are not written again.
const REMEMBERED: usize = 256;

/// The hash of a line selects this many positions in the table of remembered lines. The line is at one of them.
const WAYS: usize = 4;

#[derive(Debug)]
pub(super) struct RequestLog {
    requests: LineBound,
    unmatched: LineBound,
    lookups: LineBound,
    hasher: RandomState,
    /// The table of remembered lines. It has their hashes, and 0 at each free position.
    written: [AtomicU64; REMEMBERED],
}

impl RequestLog {
    pub(super) fn new() -> RequestLog {
        RequestLog {
            requests: LineBound::new(REQUESTS_A_SECOND, SECOND_NS),
            unmatched: LineBound::new(UNMATCHED_A_MINUTE, 60 * SECOND_NS),
            lookups: LineBound::new(LOOKUPS_A_SECOND, SECOND_NS),
            hasher: RandomState::new(),
            written: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[cold]
    pub(super) fn request(&self, now: Time, request: &Request<'_>, answer: AnswerView<'_, '_>) {
        let Some(left_out) = self.requests.line(now) else { return };
        let mut text = BoundedText::default();
        for (descriptor, status) in request.descriptors().zip(answer.statuses) {
            if !text.0.is_empty() {
                text.add(format_args!("; "));
            }
            for (at, (key, value)) in descriptor.entries.iter().enumerate() {
                text.add(format_args!("{}{key}={value}", if at == 0 { "" } else { ", " }));
            }
            match (status.rule, status.limit) {
                (None, None) => text.add(format_args!(" (no rule)")),
                (rule, limit) => {
                    let name = || limit.and_then(|limit| limit.name.as_deref()).unwrap_or("a limit of the request");
                    text.add(format_args!(" ({}", rule.map_or_else(name, |rule| &rule.path)));
                    let (left, all) = (status.decision.remaining, status.decision.limit);
                    let over = if status.over { ", over" } else { "" };
                    text.add(format_args!(
                        "{}{over})",
                        limit.map_or(String::new(), |_| format!(": {left} of {all} left"))
                    ));
                }
            }
        }
        let (verdict, domain) = (answer.verdict, BoundedText::of(request.domain));
        let (allowed, source) = (verdict.allowed, verdict.source.as_str());
        let retry_after_ms = verdict.retry_after.millis_ceil();
        tracing::debug!(domain, descriptors = text.0, allowed, retry_after_ms, source, left_out, "decided");
    }

    /// Logs hits that contain their own quota, such as a request to `/v1/hit`.
    #[cold]
    pub(super) fn hit(&self, now: Time, named: Option<(&str, &str)>, hits: &[Hit<'_>], verdict: &Verdict) {
        let Some(left_out) = self.requests.line(now) else { return };
        let (bucket, key) = named.map(|(bucket, key)| (BoundedText::of(bucket), BoundedText::of(key))).unzip();
        let mut limits = BoundedText::default();
        for Hit { quota, op, .. } in hits {
            let size = limit_size(quota.limit(), Some(quota.window_ns()).filter(|window_ns| *window_ns > 0));
            limits.add(format_args!("{:?} {size}, {}; ", op.kind(), quota.algorithm().as_str()));
        }
        let (allowed, limits) = (verdict.allowed, limits.0.trim_end_matches("; "));
        let source = verdict.source.as_str();
        tracing::debug!(bucket, key, limits, allowed, source, left_out, "decided by limits of the call");
    }

    #[cold]
    pub(super) fn rejected(&self, now: Time, error: &ServiceError) {
        if let Some(left_out) = self.requests.line(now) {
            tracing::debug!(why = BoundedText::of(&error.to_string()), left_out, "not decided");
        }
    }

    /// Logs a descriptor that no rule matches. Each unknown domain gets one line. In a known domain, each list of keys
    /// gets one line.
    #[inline]
    pub(super) fn unmatched(&self, now: Time, loaded: &Loaded, domain: &str, entries: &[(&str, &str)]) {
        if !self.lookups.is_used_up(now) && tracing::enabled!(Level::INFO) && self.lookups.line(now).is_some() {
            self.look_up(now, loaded, domain, entries);
        }
    }

    #[cold]
    fn look_up(&self, now: Time, loaded: &Loaded, domain: &str, entries: &[(&str, &str)]) {
        let is_known = loaded.has_domain(domain);
        let mut hasher = self.hasher.build_hasher();
        domain.hash(&mut hasher);
        let keys = || entries.iter().map(|(key, _)| *key).filter(|_| is_known);
        keys().for_each(|key| key.hash(&mut hasher));
        if self.is_new(hasher.finish(), now) {
            let outcome = if loaded.denies_unmatched() { "it is refused" } else { "it is allowed, and not counted" };
            let domain = BoundedText::of(domain);
            if is_known {
                let mut shown = BoundedText::default();
                keys().for_each(|key| shown.add(format_args!("{key} ")));
                tracing::info!(
                    domain,
                    keys = shown.0.trim_end(),
                    "no rule matches a descriptor with these keys: {outcome}"
                );
            } else {
                tracing::info!(domain, "a request names a domain that no rules file has: {outcome}");
            }
        }
    }

    /// Returns whether the line with this hash is not remembered yet, and [`UNMATCHED_A_MINUTE`] allows it. If so,
    /// remembers the line.
    fn is_new(&self, hash: u64, now: Time) -> bool {
        let hash = hash.max(1);
        let ways = || (0..WAYS).map(|way| &self.written[(hash as usize).wrapping_add(way) % REMEMBERED]);
        if ways().any(|known| known.load(Ordering::Relaxed) == hash) || self.unmatched.line(now).is_none() {
            return false;
        }
        let free = ways().find(|known| known.load(Ordering::Relaxed) == 0).or_else(|| ways().next());
        free.is_none_or(|free| free.swap(hash, Ordering::Relaxed) != hash)
    }
}

/// A bound on the number of lines, or of lookups, in each period of the clock.
#[derive(Debug)]
struct LineBound {
    lines: u64,
    period_ns: u64,
    /// The number of the current period. Period 0 began with the year 1970.
    period: AtomicU64,
    /// How many lines were requested in this period, including those that were left out.
    requested: AtomicU64,
}

impl LineBound {
    fn new(lines: u64, period_ns: u64) -> LineBound {
        LineBound { lines, period_ns, period: AtomicU64::new(0), requested: AtomicU64::new(0) }
    }

    /// Returns whether this period allows no further line.
    #[inline]
    fn is_used_up(&self, now: Time) -> bool {
        let requested = self.requested.load(Ordering::Relaxed);
        requested >= self.lines && now.as_nanos() / self.period_ns == self.period.load(Ordering::Relaxed)
    }

    /// Counts a request for a line. Returns `None` if this period allows no further line. Otherwise returns a number of
    /// lines that were left out, which the line shows: for the first line of a period, it is how many lines the last
    /// period with lines has left out. For every other line, it is 0.
    fn line(&self, now: Time) -> Option<u64> {
        let (period, before) = (now.as_nanos() / self.period_ns, self.period.load(Ordering::Relaxed));
        // If `now` is in the period just before the current one, another thread was faster, and this call belongs to
        // the current period too. If `now` is in an even earlier period, the clock has stepped back.
        let is_new = period > before || period + 1 < before;
        let begins = || self.period.compare_exchange(before, period, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let mut left_out = 0;
        if is_new && begins() {
            left_out = self.requested.swap(0, Ordering::Relaxed).saturating_sub(self.lines);
        }
        (self.requested.fetch_add(1, Ordering::Relaxed) < self.lines).then_some(left_out)
    }
}

/// A text from a client, cut after [`MAX_SHOWN_BYTES`]. The log escapes its special characters.
#[derive(Default)]
struct BoundedText(String);

impl BoundedText {
    fn of(text: &str) -> String {
        let mut shown = BoundedText::default();
        shown.add(format_args!("{text}"));
        shown.0
    }

    fn add(&mut self, more: std::fmt::Arguments<'_>) {
        if self.0.len() >= MAX_SHOWN_BYTES {
            return;
        }
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(more);
        if self.0.len() > MAX_SHOWN_BYTES {
            self.0.truncate(self.0.floor_char_boundary(MAX_SHOWN_BYTES));
            self.0.push_str("...");
        }
    }
}

#[cfg(test)]
mod tests {
    use spillgate::rules::Rules;

    use crate::ServiceOptions;
    use crate::metrics::Metrics;

    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn lines_have_a_bound_and_what_was_left_out_is_counted() {
        let bound = LineBound::new(3, SECOND_NS);
        let lines: Vec<_> = (0..8).map(|ms| bound.line(at(SECOND_NS + ms * 1_000_000))).collect();
        assert_eq!(lines, [Some(0), Some(0), Some(0), None, None, None, None, None]);
        assert_eq!(bound.line(at(2 * SECOND_NS)), Some(5));
        assert!(!bound.is_used_up(at(2 * SECOND_NS)));
        assert_eq!([2 * SECOND_NS + 1, 2 * SECOND_NS - 1].map(|ns| bound.line(at(ns))), [Some(0); 2]);
        assert_eq!(bound.line(at(2 * SECOND_NS)), None, "a call that is late begins no new period");
        assert_eq!([2, 3, 0].map(|seconds| bound.is_used_up(at(seconds * SECOND_NS))), [true, false, false]);
        assert_eq!(bound.line(at(0)), Some(1), "a clock that stepped back begins a new period");
    }

    #[test]
    fn a_new_line_is_written_once_and_new_lines_have_a_bound() {
        let log = RequestLog::new();
        let minute = |number: u64| at(number * 60 * SECOND_NS);
        assert_eq!([7, 7, 8].map(|hash| log.is_new(hash, minute(1))), [true, false, true]);
        let more = (100..200).filter(|hash| log.is_new(hash * 1_000_003, minute(1))).count() as u64;
        assert_eq!(more, UNMATCHED_A_MINUTE - 2);
        assert_eq!([7, 8, 9].map(|hash| log.is_new(hash, minute(2))), [false, false, true]);
    }

    #[test]
    fn a_flood_without_limits_is_not_looked_up_each_time() {
        let log = RequestLog::new();
        let loaded = Loaded::new(Rules::default(), &Metrics::new(), (&ServiceOptions::default(), 0), None, Time::EPOCH);
        let unmatched = |domain, now_ns| {
            log.unmatched(at(now_ns), &loaded, domain, &[("k", "v")]);
            log.written.iter().filter(|known| known.load(Ordering::Relaxed) != 0).count()
        };
        let lines = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
        tracing::subscriber::with_default(lines, || {
            assert_eq!([unmatched("a", SECOND_NS), unmatched("b", SECOND_NS)], [1, 2]);
            assert!((2..LOOKUPS_A_SECOND).all(|ns| unmatched("a", SECOND_NS + ns) == 2));
            assert_eq!(unmatched("c", 2 * SECOND_NS - 1), 2, "the lookups of this second are used up");
            assert_eq!(unmatched("c", 2 * SECOND_NS), 3);
        });
    }

    #[test]
    fn a_text_from_a_client_is_cut() {
        let mut shown = BoundedText::default();
        (0..500).for_each(|_| shown.add(format_args!("aé€")));
        assert!(shown.0.len() <= MAX_SHOWN_BYTES + 3 && shown.0.ends_with("..."), "{}", shown.0.len());
        assert_eq!(BoundedText::of(&"a".repeat(2 * MAX_SHOWN_BYTES)).len(), MAX_SHOWN_BYTES + 3);
    }
}
