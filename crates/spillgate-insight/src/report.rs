//! A reading, summed up for people: percentiles, estimates and a verdict.

use serde::Serialize;

use super::SPANS_NS;
use super::judge::Judged;
use super::model::Model;
use super::reading::{Counts, Reading, Sampled, SampledCaller, Span, TopCallers};
use super::refused::quoted;
use super::suggest::Suggestion;
use super::verdict::{Verdict, Who};

/// What a limit did to its callers in the last minute, ten minutes and hour, and a verdict.
///
/// [`Reading::report`] makes a report. The [module](super) has an example.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What was seen.
    pub verdict: Verdict,
    /// Whose units were refused.
    pub who: Who,
    /// The figures that the verdict is based on, in a few sentences.
    pub reason: String,
    /// What can be the cause, and how to find out: see [`Verdict::causes`].
    pub causes: Option<&'static str>,
    /// A limit that is probably better. `None` if no change is advised.
    pub suggestion: Option<Suggestion>,
    /// What the suggestion is based on, and what it would change.
    pub evidence: Option<String>,
    /// How long the limit has been watched, in nanoseconds.
    pub watched_ns: u64,
    /// The figures of each span in [`SPANS_NS`].
    pub spans: [SpanReport; SPANS_NS.len()],
    /// The callers with the most allowed units.
    pub top_allowed: TopCallers,
    /// The callers with the most refused units.
    pub top_refused: TopCallers,
}

/// The figures of the last minute, of the last ten minutes, or of the last hour.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SpanReport {
    /// The length of the span in nanoseconds.
    pub span_ns: u64,
    /// How many requests and units the limit had, and how many of them it refused.
    #[serde(flatten)]
    pub counts: Counts,
    /// How long refused callers have to wait. `None` if no wait was counted.
    pub waits: Option<WaitPercentiles>,
    /// Estimates of how many different callers there were.
    pub callers: Callers,
    /// The burst that lets all requests of a caller pass. `None` if the limit has no rate, or no caller is known.
    pub burst_needed: Option<Percentiles>,
    /// The highest count of a window. `None` if the limit has no windows.
    pub window_count: Option<Percentiles>,
    /// The largest part of its limit that a caller used at one time: 1 is the whole limit. Both ends of each range are
    /// equal.
    pub use_share: Option<Percentiles>,
}

/// Estimates of how many different callers of each kind a span had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Callers {
    /// Callers that asked.
    pub asked: Estimate,
    /// Callers that the limit refused at least once.
    pub refused: Estimate,
    /// Callers that were above the rate, even if refused units count once.
    pub above_rate: Estimate,
}

/// A number that was estimated from a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Estimate {
    /// The estimate, which is exact if the sample has every caller.
    pub value: f64,
    /// The standard error of the estimate, divided by the estimate. 0 if the number is exact.
    pub relative_error: f64,
}

/// A figure that is known only to be between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Range {
    /// The lower end.
    pub at_least: f64,
    /// The upper end. `None` if it is not known.
    pub at_most: Option<f64>,
}

/// How a figure is distributed among the callers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Percentiles {
    /// Half of the callers have at most this figure.
    pub median: Range,
    /// 99 of 100 callers have at most this figure.
    pub p99: Range,
    /// No caller of the sample has more than this figure.
    pub highest: Range,
}

/// How long refused callers have to wait, in nanoseconds. Each figure is rounded up by at most a quarter, and never
/// above the longest wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WaitPercentiles {
    /// Half of the waits are not longer.
    pub median_ns: u64,
    /// Nine of ten waits are not longer.
    pub p90_ns: u64,
    /// 99 of 100 waits are not longer.
    pub p99_ns: u64,
}

impl Reading {
    /// Turns the reading into percentiles, estimates and a verdict.
    #[must_use]
    pub fn report(&self) -> Report {
        let model = self.limit;
        let Judged { verdict, who, reason, suggested } = Judged::of(self);
        let (suggestion, evidence) = suggested.map(|suggested| (suggested.suggestion, suggested.evidence)).unzip();
        let top = |top: &TopCallers| {
            let callers = if self.hides_callers { Vec::new() } else { top.callers.clone() };
            TopCallers { callers, ..top.clone() }
        };
        Report {
            verdict,
            who,
            reason,
            causes: verdict.causes(who),
            suggestion,
            evidence,
            watched_ns: self.now_ns.saturating_sub(self.since_ns),
            spans: std::array::from_fn(|index| SpanReport::of(&self.spans[index], SPANS_NS[index], &model)),
            top_allowed: top(&self.top_allowed),
            top_refused: top(&self.top_refused),
        }
    }
}

impl Report {
    /// Replaces the names of callers, in the lists and in the reason, by what `shown` returns for them.
    pub fn rename_callers(&mut self, shown: impl Fn(&str) -> String) {
        for caller in self.top_allowed.callers.iter_mut().chain(&mut self.top_refused.callers) {
            if let Some(name) = &mut caller.name {
                let new = shown(name);
                self.reason = self.reason.replace(&quoted(name), &quoted(&new));
                *name = new;
            }
        }
    }
}

impl SpanReport {
    fn of(span: &Span, span_ns: u64, model: &Model) -> SpanReport {
        let sampled = &span.sampled;
        let percentiles = |figure: &dyn Fn(&SampledCaller) -> Option<(f64, f64)>| Percentiles::of(sampled, figure);
        SpanReport {
            span_ns,
            counts: span.counts,
            waits: WaitPercentiles::of(span),
            callers: Callers {
                asked: Estimate::of(sampled, |_| true),
                refused: Estimate::of(sampled, |caller| caller.refused),
                above_rate: Estimate::of(sampled, |caller| caller.above_lower && caller.above_upper),
            },
            burst_needed: percentiles(&|caller| {
                let (at_least, at_most) = caller.burst;
                // A caller without units, for example because its requests can never pass, needs no burst.
                let is_known = model.rate > 0.0 && at_most != Some(0);
                is_known.then(|| (at_least as f64, at_most.map_or(f64::INFINITY, |units| units as f64)))
            }),
            window_count: percentiles(&|caller| {
                let (at_least, at_most) = caller.window.filter(|_| model.has_windows())?;
                Some((at_least as f64, at_most as f64))
            }),
            use_share: percentiles(&|caller| {
                let share = caller.used_share();
                Some((share, share))
            }),
        }
    }
}

impl WaitPercentiles {
    fn of(span: &Span) -> Option<WaitPercentiles> {
        let wait = |share| span.waits.quantile_ns(share);
        Some(WaitPercentiles { median_ns: wait(0.5)?, p90_ns: wait(0.9)?, p99_ns: wait(0.99)? })
    }
}

impl Estimate {
    /// Estimates the number of callers of the span for which `counts` returns true.
    pub(super) fn of(sampled: &Sampled, counts: impl Fn(&SampledCaller) -> bool) -> Estimate {
        let found = sampled.callers.iter().filter(|caller| counts(caller)).count() as f64;
        if sampled.threshold == u64::MAX {
            return Estimate { value: found, relative_error: 0.0 };
        }
        let share = sampled.threshold as f64 / u64::MAX as f64;
        Estimate { value: found / share, relative_error: if found > 2.0 { (found - 2.0).sqrt().recip() } else { 1.0 } }
    }
}

impl Percentiles {
    fn of(sampled: &Sampled, figure: &dyn Fn(&SampledCaller) -> Option<(f64, f64)>) -> Option<Percentiles> {
        let figures: Vec<_> = sampled.callers.iter().filter_map(figure).collect();
        let mut lower: Vec<f64> = figures.iter().map(|figure| figure.0).collect();
        let mut upper: Vec<f64> = figures.iter().map(|figure| figure.1).collect();
        lower.sort_by(f64::total_cmp);
        upper.sort_by(f64::total_cmp);
        let at = |share| {
            let at_most = quantile(&upper, share)?;
            Some(Range { at_least: quantile(&lower, share)?, at_most: at_most.is_finite().then_some(at_most) })
        };
        Some(Percentiles { median: at(0.5)?, p99: at(0.99)?, highest: at(1.0)? })
    }
}

/// Returns the smallest of the sorted numbers such that at least `share` of all numbers are not above it.
pub(super) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let wanted = (sorted.len() as f64 * share).ceil().max(1.0) as usize;
    sorted.get(wanted - 1).copied()
}
