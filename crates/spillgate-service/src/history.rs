//! What the server and its limits did in the last ten minutes, in steps of ten seconds.
//!
//! The admin page draws charts from this history. So an operator sees when something began, even if the page was opened
//! later. Each step is the difference between two readings of the metrics, so the charts agree with the metrics
//! exactly.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate::insight::{LimitInsight, Verdict, Who};
use spillgate::rules::{Limit, Rule, Rules};
use spillgate::{Clock, StoreCalls, Time};

use super::{CallerKeys, Loaded, Service};
use crate::metrics::{LimitCounters, LimitHits, RuleCounters, quantile_ns};

/// The length of a step. The server calls [`Service::end_step`] at this interval.
pub const HISTORY_STEP: Duration = Duration::from_secs(10);
/// The maximum number of steps, which cover ten minutes. When a further step ends, the oldest one is dropped.
pub const HISTORY_STEPS: usize = 60;
/// Only the first limits, at most this many, have a history. One full history takes about 4 kB, so all of them take
/// about 4 MB.
const LIMITS_MAX: usize = 1000;
/// To find the verdict of insight on a limit, the server reads all sampled callers. So a verdict is kept for this long.
const VERDICT_LIFE_NS: u64 = 10_000_000_000;
/// The latency of a shared store covers this many ended steps, and the current step.
const LATENCY_STEPS: usize = 6;

/// The number of calls to the shared store in each bucket of a histogram of their durations. The bounds of the buckets
/// are [`StoreCalls::BOUNDS_NS`].
type Durations = [u64; StoreCalls::BOUNDS_NS.len() + 1];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStep {
    pub hits: LimitHits,
    /// 90 % of the callers that were refused in the last minute have to wait at most this long. `None` if insight does
    /// not watch the limit, or if no refused caller has a known wait.
    pub wait_ns: Option<u64>,
}

/// Counts of requests, either since the server started or in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub allowed: u64,
    pub refused: u64,
    /// How many of the refused requests were refused by a block of an operator.
    pub blocked: u64,
    /// Requests that got an error of the shared store instead of a decision.
    pub errors: u64,
}

/// How long the calls of the shared store took in the last 60 to 70 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLatency {
    /// Half of the calls took at most this long.
    pub median_ns: u64,
    /// 99 of 100 calls took at most this long.
    pub p99_ns: u64,
}

/// The history of the whole server.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The totals when the last step ended.
    last: Totals,
    steps: VecDeque<Totals>,
    ended: Option<Time>,
    calls: Calls,
}

#[derive(Debug, Default)]
struct Calls {
    /// Each item counts all calls since the server started until one moment. The first item is from the beginning of
    /// the oldest kept step, and each further item is from the end of a step. Empty until the first step has ended.
    at_ends: VecDeque<Durations>,
}

/// The histories of the first limits of one load. Limits beyond [`LIMITS_MAX`] have none.
#[derive(Debug, Default)]
pub(super) struct Histories {
    limits: Box<[TrackedLimit]>,
    left_out: usize,
}

/// A verdict, whose units were refused, and the reason of the verdict.
type Judged = (Verdict, Who, String);

/// The history of a limit, and the position of this limit in the rules of one load.
#[derive(Debug)]
struct TrackedLimit {
    rule: usize,
    /// The index of the limit in its rule.
    index: usize,
    history: Arc<LimitHistory>,
    judged: Mutex<Option<(Time, Judged)>>,
}

/// The history of a limit. It lives exactly as long as the counters of the limit: a reload keeps both, or neither.
#[derive(Debug)]
struct LimitHistory {
    counters: LimitCounters,
    steps: Mutex<LimitSteps>,
}

#[derive(Debug)]
struct LimitSteps {
    /// The hits when the last step ended.
    last: LimitHits,
    steps: VecDeque<LimitStep>,
}

/// A limit that has a history, with its rule and its insight.
#[derive(Clone, Copy, Debug)]
pub struct LimitView<'a> {
    pub rule: &'a Rule,
    pub limit: &'a Limit,
    insight: Option<&'a LimitInsight>,
    hides_callers: bool,
    tracked: &'a TrackedLimit,
}

impl Calls {
    fn end_step(&mut self, durations: Durations) {
        if self.at_ends.is_empty() {
            self.at_ends.push_back(Durations::default());
        }
        push(&mut self.at_ends, durations, LATENCY_STEPS + 1);
    }

    /// Returns the durations of the calls in the last [`LATENCY_STEPS`] steps and in the current step. `durations`
    /// counts all calls since the server started.
    fn last(&self, durations: &Durations) -> Durations {
        let mut last = *durations;
        for (duration, before) in last.iter_mut().zip(self.at_ends.front().copied().unwrap_or_default()) {
            *duration = duration.saturating_sub(before);
        }
        last
    }
}

impl Histories {
    /// Makes the histories of `rules`. A limit that keeps its counters also keeps its history from the `previous`
    /// rules.
    pub(super) fn new(rules: &Rules, counters: &[RuleCounters], previous: Option<&Loaded>) -> Histories {
        let kept = previous.map_or(&[][..], |previous| &previous.histories.limits).iter();
        let mut kept: HashMap<usize, &Arc<LimitHistory>> =
            kept.map(|tracked| (tracked.history.counters.identity(), &tracked.history)).collect();
        let all = counters.iter().map(RuleCounters::limits).enumerate();
        let all = all.flat_map(|(rule, limits)| (0..).zip(limits).map(move |(index, limit)| (rule, index, limit)));
        let tracked = all.take(LIMITS_MAX).map(|(rule, index, counters)| {
            // Two rules can have the same counters. A shared history would get a step from each of the two rules, so
            // each rule needs a history of its own.
            let history = kept.remove(&counters.identity()).map(Arc::clone);
            let history = history.unwrap_or_else(|| Arc::new(LimitHistory::new(counters.clone())));
            TrackedLimit { rule, index, history, judged: Mutex::default() }
        });
        let limits: Box<[_]> = tracked.collect();
        Histories { left_out: rules.rules().map(|rule| rule.limits.len()).sum::<usize>() - limits.len(), limits }
    }
}

impl LimitHistory {
    fn new(counters: LimitCounters) -> LimitHistory {
        let last = counters.hits();
        LimitHistory { counters, steps: Mutex::new(LimitSteps { last, steps: VecDeque::new() }) }
    }

    fn end_step(&self, wait_ns: Option<u64>) {
        let mut steps = self.steps.lock();
        let hits = self.counters.hits();
        let step = LimitStep { hits: hits.since(&steps.last), wait_ns };
        steps.last = hits;
        push(&mut steps.steps, step, HISTORY_STEPS);
    }
}

fn push<T>(steps: &mut VecDeque<T>, step: T, most: usize) {
    if steps.len() >= most {
        steps.pop_front();
    }
    steps.reserve_exact(most - steps.len());
    steps.push_back(step);
}

impl Loaded {
    /// Returns the number of limits that have a history: the first limits, in the order of the rules. They are numbered
    /// from 0.
    #[must_use]
    pub const fn tracked(&self) -> usize {
        self.histories.limits.len()
    }

    /// Returns the number of limits without a history, because there are too many limits.
    #[must_use]
    pub const fn untracked(&self) -> usize {
        self.histories.left_out
    }

    /// Returns the limit with this number: see [`tracked`](Loaded::tracked).
    #[must_use]
    pub fn tracked_limit(&self, number: usize) -> Option<LimitView<'_>> {
        let tracked = self.histories.limits.get(number)?;
        let rule = self.rules.rules().nth(tracked.rule)?;
        let limit = rule.limits.get(tracked.index)?;
        let (insight, hides_callers) =
            (self.insight(tracked.rule, tracked.index), self.caller_keys() == CallerKeys::Off);
        Some(LimitView { rule, limit, insight, hides_callers, tracked })
    }

    /// Returns the hits since the server started of each limit that has a history, in the order of the limits' numbers.
    pub fn tracked_hits(&self) -> impl Iterator<Item = LimitHits> {
        self.histories.limits.iter().map(|tracked| tracked.history.counters.hits())
    }
}

impl LimitView<'_> {
    /// Returns the hits since the server started.
    #[must_use]
    pub fn hits(&self) -> LimitHits {
        self.tracked.history.counters.hits()
    }

    #[must_use]
    pub fn steps(&self) -> Vec<LimitStep> {
        self.tracked.history.steps.lock().steps.iter().copied().collect()
    }

    /// Returns the verdict of insight, whose units were refused, and the reason, all at most ten seconds old. Returns `None` if insight does not
    /// watch the limit.
    #[must_use]
    pub fn verdict(&self, now: Time) -> Option<(Verdict, Who, String)> {
        let insight = self.insight?;
        let mut judged = self.tracked.judged.lock();
        // If the clock was set back, the kept verdict can be from the future. Therefore the difference is absolute.
        let is_fresh = |at: Time| now.as_nanos().abs_diff(at.as_nanos()) < VERDICT_LIFE_NS;
        let (_, judged) = match judged.take().filter(|(at, ..)| is_fresh(*at)) {
            Some(fresh) => judged.insert(fresh),
            None => {
                let mut reading = insight.read(now);
                if self.hides_callers {
                    reading.hide_callers();
                }
                let report = reading.report();
                judged.insert((now, (report.verdict, report.who, report.reason)))
            }
        };
        Some(judged.clone())
    }
}

impl<C: Clock> Service<C> {
    /// Ends a step: adds the counts since the last call to the histories of the server and of its limits.
    pub fn end_step(&self) {
        let (loaded, now) = (self.loaded.load(), self.limiter.now());
        for tracked in &loaded.histories.limits {
            let insight = loaded.insight(tracked.rule, tracked.index);
            tracked.history.end_step(insight.and_then(|insight| insight.waits(now).quantile_ns(0.9)));
        }
        let (totals, health) = (self.totals(), self.limiter.store().health());
        let mut history = self.history.lock();
        let step = totals.since(&history.last);
        (history.last, history.ended) = (totals, Some(now));
        push(&mut history.steps, step, HISTORY_STEPS);
        if let Some(health) = health {
            history.calls.end_step(health.calls.durations);
        }
    }

    /// Returns the counts of requests since the server started.
    pub fn totals(&self) -> Totals {
        let [allowed, refused] = [true, false].map(|allowed| self.metrics.requests(allowed));
        let (blocked, errors) = (self.metrics.operator.blocked.get(), self.metrics.store_errors.get());
        Totals { allowed, refused, blocked, errors }
    }

    /// Returns the steps of the whole server, the oldest first, and the time when the last step ended. The time is
    /// `None` until a step has ended.
    pub fn history(&self) -> (Vec<Totals>, Option<Time>) {
        let history = self.history.lock();
        (history.steps.iter().copied().collect(), history.ended)
    }

    /// Returns the latency of the shared store in the last 60 to 70 seconds, or `None` if there were no calls.
    /// `durations` counts all calls since the server started.
    pub fn store_latency(&self, durations: &Durations) -> Option<StoreLatency> {
        let durations = self.history.lock().calls.last(durations);
        Some(StoreLatency { median_ns: quantile_ns(&durations, 0.5)?, p99_ns: quantile_ns(&durations, 0.99)? })
    }

    /// Returns a number that changes when a reload succeeds or fails, and when blocks or shadow switches change. An
    /// open page then knows that it has to read everything again. `loaded` must be the rules that the answer shows.
    pub fn changes(&self, loaded: &Loaded) -> u64 {
        let reloads = self.metrics.reload_failures.get() + self.metrics.all_reloads.without_rules.get();
        loaded.number() + reloads + self.operator.changes()
    }
}

impl Totals {
    const fn since(&self, before: &Totals) -> Totals {
        Totals {
            allowed: self.allowed.wrapping_sub(before.allowed),
            refused: self.refused.wrapping_sub(before.refused),
            blocked: self.blocked.wrapping_sub(before.blocked),
            errors: self.errors.wrapping_sub(before.errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_is_that_of_six_steps_and_of_the_one_that_has_not_ended() {
        let (mut calls, mut durations) = (Calls::default(), Durations::default());
        // In the step with the number `n`, there are 10^n calls.
        for step in 0..10 {
            durations[0] += 10_u64.pow(step);
            let expected: u64 = (step.saturating_sub(6)..=step).map(|step| 10_u64.pow(step)).sum();
            assert_eq!(calls.last(&durations)[0], expected, "step {step}");
            calls.end_step(durations);
        }
        assert_eq!(calls.at_ends.len(), LATENCY_STEPS + 1);
    }
}
