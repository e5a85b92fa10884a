//! The insight of one hour of the log, and which hour is shown.
//!
//! Insight looks back for one hour at most. So a replay reads insight at the end of each hour, and keeps one of these
//! readings for each limit.

use spillgate::Algorithm;
use spillgate::insight::{Reading, SampledCaller, Verdict, Who};
use spillgate::rules::{Limit, Rule};

use super::callers::Names;
use super::report::{Bar, Counts, Period, VerdictHours};

/// The length of an hour in nanoseconds. Hours begin when an hour of UTC begins, because insight keeps its figures in
/// half hours of UTC.
pub(super) const HOUR_NS: u64 = 3_600_000_000_000;
/// The width of a bar in the histogram of use, in thousandths of the limit.
const USED_STEP: u16 = 50;
/// The number of these bars up to the whole limit.
const USED_BARS: usize = 20;

/// The verdicts of all hours of one limit, and the hour that the report shows.
#[derive(Debug, Default)]
pub(super) struct Hours {
    counts: Vec<VerdictHours>,
    kept: Option<(Rank, Period)>,
}

/// How much an hour deserves to be shown: its refused requests, the highest use of the limit in thousandths, and its
/// requests.
type Rank = (u64, u16, u64);

impl Hours {
    /// Adds the hour that ends with this reading. `requests` are those of the hour of UTC: at the end of the log, the
    /// reading has requests of the hour before too, which were added already.
    pub(super) fn add(&mut self, reading: Reading, requests: Counts, (rule, limit): (&Rule, &Limit)) {
        let [.., hour] = &reading.spans;
        let callers = &hour.sampled.callers;
        let used = callers.iter().map(|caller| caller.used_permille).max().unwrap_or(0);
        let counts = (hour.counts.refused_requests, used, hour.counts.requests);
        let has_rate = limit.quota.limit() > 0 && limit.quota.algorithm() != Algorithm::Concurrency;
        let burst_needed = if has_rate { burst_needed(callers) } else { Vec::new() };
        let (to_ns, used) = (reading.now_ns, use_of_limit(callers));
        let from_ns = (to_ns + 1).saturating_sub(HOUR_NS).max(reading.since_ns);
        let report = reading.report();
        self.count((report.verdict, report.who), requests);
        if self.kept.as_ref().is_none_or(|(kept, _)| counts > *kept) {
            let suggested_rules = report.suggestion.map(|suggestion| suggestion.to_yaml(rule, limit));
            let burst_error_units = None;
            self.kept = Some((
                counts,
                Period { from_ns, to_ns, report, suggested_rules, burst_needed, used, burst_error_units },
            ));
        }
    }

    fn count(&mut self, (verdict, who): (Verdict, Who), Counts { allowed, refused }: Counts) {
        let known = self.counts.iter().position(|counted| (counted.verdict, counted.who) == (verdict, who));
        let index = known.unwrap_or_else(|| {
            let (hours, requests, refused_requests, refusing_hours) = (0, 0, 0, 0);
            self.counts.push(VerdictHours { verdict, who, hours, requests, refused_requests, refusing_hours });
            self.counts.len() - 1
        });
        let counted = &mut self.counts[index];
        counted.hours += 1;
        counted.requests += allowed + refused;
        counted.refused_requests += refused;
        counted.refusing_hours += u64::from(refused > 0);
    }

    /// Returns the number of hours with each verdict, the most important verdict first, and the hour that is shown.
    pub(super) fn finish(
        mut self,
        limit: &Limit,
        whole_seconds: bool,
        names: &Names,
    ) -> (Vec<VerdictHours>, Option<Period>) {
        self.counts.sort_by_key(|counted| std::cmp::Reverse(importance(counted.verdict, counted.who)));
        let period = self.kept.map(|(_, mut period)| {
            names.hide(&mut period.report);
            period.burst_error_units = burst_error_units(limit).filter(|_| whole_seconds);
            period
        });
        (self.counts, period)
    }
}

/// Returns how important an hour with this verdict is, for the order of a list. A limit that refuses in some hours
/// binds, however quiet the other hours are.
const fn importance(verdict: Verdict, who: Who) -> u8 {
    match verdict {
        Verdict::NeverBinding => 1,
        Verdict::TooEarly => 0,
        _ => verdict.attention(who),
    }
}

/// Returns the greatest error of a needed burst, in units, if each time of the log is early by less than a second. A
/// needed burst is what a caller sends in some time, minus what the rate allows in this time. In less than a second,
/// the rate allows less than the returned number.
fn burst_error_units(limit: &Limit) -> Option<f64> {
    let (quota, second_ns) = (&limit.quota, 1e9);
    (quota.limit() > 0 && quota.window_ns() > 0)
        .then(|| (quota.limit() as f64 * second_ns / quota.window_ns() as f64).ceil())
}

/// Returns the histogram of the callers by the burst that they need. Insight has a lower and an upper figure for each
/// caller. The upper figure, which counts every request, is right here, because a log has no retries of the requests
/// that a replay refuses.
fn burst_needed(callers: &[SampledCaller]) -> Vec<Bar> {
    let mut counts: Vec<u64> = Vec::new();
    for units in callers.iter().filter_map(|caller| caller.burst.1).filter(|units| *units > 0) {
        let index = units.next_power_of_two().trailing_zeros() as usize;
        if index >= counts.len() {
            counts.resize(index + 1, 0);
        }
        counts[index] += 1;
    }
    let bar = |(callers, power)| Bar { at_most: Some(2_f64.powi(power)), callers };
    counts.into_iter().zip(0..).map(bar).collect()
}

/// Returns the histogram of the callers by their highest use of the limit.
fn use_of_limit(callers: &[SampledCaller]) -> Vec<Bar> {
    let mut counts = [0; USED_BARS + 1];
    for caller in callers {
        let index = usize::from(caller.used_permille.div_ceil(USED_STEP)).saturating_sub(1);
        counts[index.min(USED_BARS)] += 1;
    }
    let at_most = |index: usize| (index < USED_BARS).then(|| (index + 1) as f64 * f64::from(USED_STEP) / 10.0);
    let bar = |(index, callers)| Bar { at_most: at_most(index), callers };
    let mut bars: Vec<Bar> = counts.into_iter().enumerate().map(bar).collect();
    // Only a soft limit can be used by more than 100 %.
    if counts[USED_BARS] == 0 {
        bars.pop();
    }
    bars
}
