//! Better numbers for a limit. A number that cannot be known is not suggested, and a lower limit is never below what
//! callers were seen to use.

use std::time::Duration;

use serde::Serialize;
use spillgate_core::{Quota, QuotaError};

use super::model::{Counting, Model};
use super::reading::{Sampled, SampledCaller};
use super::report::quantile;
use super::words::{percent, rounded_time};

/// A lower limit is this many times the most that a caller was seen to use, so that callers stay well below it.
const MARGIN: f64 = 2.0;
/// A higher rate is suggested only if it is at most this many times the limit. Above that, most requests can be
/// retries.
const MOST_TIMES: f64 = 4.0;

/// A raise is suggested only if what nine of ten callers ask for is at most this many times what half of them ask for.
/// Otherwise the limit would follow a few callers, which it is there to refuse.
const MOST_TIMES_MEDIAN: f64 = 2.0;

/// A suggestion, with what it is based on and what it would change.
#[derive(Clone, Debug)]
pub(super) struct Suggested {
    pub(super) suggestion: Suggestion,
    pub(super) evidence: String,
}

/// Better numbers for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Suggestion {
    /// The number of units in each window, or the number of permits of a concurrency limit.
    pub limit: u64,
    /// The burst in units. If it is given, the suggested limit is a token bucket, whatever its algorithm is now.
    pub burst: Option<u64>,
}

/// A rule of a rules file, as [`Suggestion::to_yaml`] needs it. This crate does not depend on the crate that reads
/// rules files, so the rules of that crate implement this trait.
pub trait SuggestedRule {
    /// A limit of the rule.
    type Limit;

    /// Returns the rule as the text of a rules file, in which `limit` has the numbers of `suggestion`.
    fn with_suggestion(&self, limit: &Self::Limit, suggestion: &Suggestion) -> String;
}

impl Suggestion {
    /// Makes a suggestion. With a burst, the suggested limit is a token bucket.
    #[must_use]
    pub const fn new(limit: u64, burst: Option<u64>) -> Suggestion {
        Suggestion { limit, burst }
    }

    /// Returns the suggestion for `limit` of `rule` as the text of a rules file.
    ///
    /// ```
    /// use spillgate::insight::Suggestion;
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let rule = rules.rules().next().unwrap();
    /// let text = Suggestion::new(5, Some(20)).to_yaml(rule, &rule.limits[0]);
    /// let suggested = Rules::parse(&[RulesFile { name: "suggested.yaml".into(), text }])?;
    /// assert_eq!(suggested.rules().next().unwrap().limits[0].quota.capacity(), 20);
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn to_yaml<R: SuggestedRule>(&self, rule: &R, limit: &R::Limit) -> String {
        rule.with_suggestion(limit, self)
    }

    /// Makes a suggestion that is valid as a quota. Not every high rate is valid for a bucket, so the limit can become
    /// a little higher.
    pub(super) fn valid(model: &Model, limit: u64, burst: Option<u64>) -> Option<Suggestion> {
        let window = Duration::from_nanos(model.window_ns);
        let build = |limit| match (burst, model.counting) {
            (Some(burst), _) => Quota::token_bucket(limit, window).burst(burst).build(),
            (None, Counting::Bucket) => Quota::token_bucket(limit, window).build(),
            (None, Counting::Queue) => {
                Quota::leaky_bucket(limit, window).queue(model.capacity.saturating_sub(1)).build()
            }
            (None, Counting::Permits) => Quota::concurrency(limit).build(),
            (None, _) => Quota::sliding_window_log(limit, window).build(),
        };
        let limit = match build(limit) {
            Err(QuotaError::Inexact { above, .. }) => above?,
            _ => limit,
        };
        build(limit).ok().map(|_| Suggestion::new(limit, burst))
    }
}

impl Suggested {
    /// Returns a lower limit for callers that use little of it. It is called only if nothing was refused for an hour, so
    /// what each caller needs is known. `used` is the most that any caller used at one time in this hour, and `seen` is
    /// the time as text.
    ///
    /// A limit of twice the highest count of a window lets all requests pass, because any time `t` touches at most `t`
    /// / window + 2 windows. For a queue there is no suggestion, because a lower rate makes callers wait for longer.
    pub(super) fn lower(model: &Model, callers: &[SampledCaller], used: u64, seen: &str) -> Option<Suggested> {
        let highest = |units: fn(&SampledCaller, &Model) -> Option<f64>| {
            let units: Option<Vec<f64>> = callers.iter().map(|caller| units(caller, model)).collect();
            units.map(|units| units.into_iter().fold(used as f64, f64::max))
        };
        let (suggestion, highest, when) = if model.has_own_burst() {
            let highest = highest(|caller, _| caller.burst.1.map(|units| units as f64))?;
            let burst = rounded_up(MARGIN * highest);
            let suggestion = Suggestion::valid(model, model.limit, Some(burst));
            (suggestion.filter(|_| burst < model.capacity), highest, "at once".to_owned())
        } else {
            let (highest, when) = match model.counting {
                Counting::Queue => return None,
                Counting::Permits => {
                    (highest(|caller, model| Some(caller.used_share() * model.limit as f64)), "at once".to_owned())
                }
                _ => {
                    let when = format!("in {}", rounded_time(model.window_ns));
                    (highest(|caller, _| Some(caller.longer_window as f64)), when)
                }
            };
            let highest = highest?;
            let suggestion = Suggestion::valid(model, rounded_up(MARGIN * highest), None);
            (suggestion.filter(|suggestion| suggestion.limit < model.limit), highest, when)
        };
        let evidence = format!(
            "In the last {seen}, no request was refused, and no caller asked for more than {} {when}. The suggestion would have refused \
             none of these requests.",
            highest.ceil()
        );
        Some(Suggested { suggestion: suggestion?, evidence })
    }

    /// Returns a burst that is enough for 99 of 100 of the refused callers that keep to the rate, and for all callers
    /// that were not refused. `weight` returns the refused units of a caller. There is no suggestion that follows a few
    /// callers: those far above what half of the callers need.
    ///
    /// A caller surely needs only the lower end of its range, because it may have repeated refused requests. So a burst
    /// above twice of what half of the callers surely need is not suggested either.
    ///
    /// For callers that may need more, the burst is as large as what the limit can admit at once. Two windows admit at
    /// most twice their limit around the edge between them. A bucket admits at most its burst.
    pub(super) fn longer_burst(
        model: &Model,
        sampled: &Sampled,
        weight: impl Fn(&SampledCaller) -> f64,
    ) -> Option<Suggested> {
        if model.counting == Counting::Queue {
            return None;
        }
        let callers = &sampled.callers;
        let needed = |caller: &SampledCaller| caller.burst.1.map(|units| units as f64);
        let of = |refused: bool| {
            // A request that can never pass says nothing about the burst that its caller needs.
            let of_kind = callers
                .iter()
                .filter(|caller| caller.refused == refused && !caller.above_upper && !caller.only_oversized);
            of_kind.map(needed).collect::<Option<Vec<f64>>>()
        };
        let (mut refused, passed) = (of(true)?, of(false)?);
        refused.sort_by(f64::total_cmp);
        let of_most = quantile(&refused, 0.99)?;
        let knows_all = sampled.threshold == u64::MAX
            && callers.iter().all(|caller| !caller.above_upper && needed(caller).is_some_and(|burst| burst <= of_most));
        let unknown = if knows_all || !model.has_windows() { 0.0 } else { 2.0 * model.burst };
        let burst = rounded_up(passed.iter().copied().fold(of_most.max(unknown), f64::max).max(model.burst + 1.0));
        let mut all = [refused, passed].concat();
        all.sort_by(f64::total_cmp);
        let asked = callers.iter().filter(|caller| !caller.only_oversized);
        let mut surely: Vec<f64> = asked.map(|caller| caller.burst.0 as f64).collect();
        surely.sort_by(f64::total_cmp);
        let follows_few = quantile(&all, 0.9)? > MOST_TIMES_MEDIAN * quantile(&all, 0.5)?;
        if follows_few || burst as f64 > MOST_TIMES_MEDIAN * quantile(&surely, 0.5)? {
            return None;
        }
        let suggestion = Suggestion::valid(model, model.limit, Some(burst))?;
        let passes =
            |caller: &SampledCaller| !caller.above_upper && needed(caller).is_some_and(|needed| needed <= burst as f64);
        let evidence = format!(
            "Of the refused callers that keep to the rate, 99 % asked for at most {of_most} at once. With a burst of {burst}, callers \
             with {} % of the refused units would not be refused.",
            share_of(callers, weight, passes)
        );
        Some(Suggested { suggestion, evidence })
    }

    /// Returns a limit that is enough for nine of ten callers, even if none of their requests was a retry. `weight`
    /// returns the refused units of a caller. There is no suggestion that follows a few callers: those far above what
    /// half of the callers ask for.
    pub(super) fn higher(
        model: &Model,
        callers: &[SampledCaller],
        weight: impl Fn(&SampledCaller) -> f64,
    ) -> Option<Suggested> {
        let in_window = |caller: &SampledCaller| caller.rate.map(|rate| rate * model.window_ns as f64 / 1e9);
        let mut asked: Vec<f64> = callers.iter().map(in_window).collect::<Option<_>>()?;
        asked.sort_by(f64::total_cmp);
        let (of_most, median) = (quantile(&asked, 0.9)?, quantile(&asked, 0.5)?);
        // If nine of ten callers need no higher limit, it would follow the others.
        let needs_more = of_most > model.limit as f64;
        if !needs_more || of_most > MOST_TIMES_MEDIAN * median || of_most > MOST_TIMES * model.limit as f64 {
            return None;
        }
        let burst = model.has_own_burst().then_some(model.capacity);
        let suggestion = Suggestion::valid(model, rounded_up(of_most.max(model.limit as f64 + 1.0)), burst)?;
        let keeps = |caller: &SampledCaller| in_window(caller).is_some_and(|asked| asked <= suggestion.limit as f64);
        let evidence = format!(
            "While they were busy, half of {} callers asked for at most {} in {}, and 9 of 10 for at most {}. With a limit of {}, callers \
             with {} % of the refused units would keep to the rate.",
            callers.len(),
            median.ceil(),
            rounded_time(model.window_ns),
            of_most.ceil(),
            suggestion.limit,
            share_of(callers, weight, keeps)
        );
        Some(Suggested { suggestion, evidence })
    }
}

/// Returns how many percent of the refused units belong to callers for which `is` returns true.
pub(super) fn share_of(
    callers: &[SampledCaller],
    weight: impl Fn(&SampledCaller) -> f64,
    is: impl Fn(&SampledCaller) -> bool,
) -> f64 {
    let all: f64 = callers.iter().map(&weight).sum();
    let part: f64 = callers.iter().filter(|caller| is(caller)).map(&weight).sum();
    percent(part / all.max(1.0))
}

/// Rounds up to two digits and zeros, which people like to write: 1234 becomes 1300.
fn rounded_up(units: f64) -> u64 {
    let units = units.ceil().max(1.0);
    let step = 10_f64.powi((units.log10().floor() as i32 - 1).max(0));
    ((units / step).ceil() * step) as u64
}
