//! Better numbers for a limit. A number that cannot be known is not suggested, and a lower limit is never below what
//! callers were seen to use.

use std::time::Duration;

use serde::Serialize;
use spillgate_core::{Quota, QuotaError};

use super::model::{Counting, Model};
use super::reading::SampledCaller;
use super::report::quantile;

/// A lower limit is this many times the most that a caller was seen to use, so that callers stay well below it.
const MARGIN: f64 = 2.0;
/// A higher rate is suggested only if it is at most this many times the limit. Above that, most requests can be
/// retries.
const MOST_TIMES: f64 = 4.0;

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

    /// Returns a lower limit for callers that use little of it. It is called only if nothing was refused, so what each
    /// caller needs is known. `others` is the most that callers outside the sample use in a window.
    ///
    /// A limit of twice the highest count of a window lets all requests pass, because any time `t` touches at most `t`
    /// / window + 2 windows. For a queue there is no suggestion, because a lower rate makes callers wait for longer.
    pub(super) fn lower(model: &Model, callers: &[SampledCaller], others: f64) -> Option<Suggestion> {
        let highest = |used: fn(&SampledCaller, &Model) -> Option<f64>| {
            let used: Option<Vec<f64>> = callers.iter().map(|caller| used(caller, model)).collect();
            used.map(|used| rounded_up(MARGIN * used.into_iter().fold(others, f64::max)))
        };
        if model.has_own_burst() {
            let burst = highest(|caller, _| caller.burst.1.map(|units| units as f64))?;
            return Suggestion::valid(model, model.limit, Some(burst)).filter(|_| burst < model.capacity);
        }
        let limit = match model.counting {
            Counting::Queue => None,
            Counting::Permits => highest(|caller, model| Some(caller.used_share() * model.limit as f64)),
            _ => highest(|caller, _| Some(caller.window.map_or(0.0, |(_, units)| units as f64))),
        }?;
        Suggestion::valid(model, limit, None).filter(|suggestion| suggestion.limit < model.limit)
    }

    /// Returns a burst that is enough for 99 of 100 of the refused callers that keep to the rate, and for all callers
    /// that were not refused. `knows_all` says whether `callers` are all callers.
    ///
    /// For callers outside the sample, the burst is as large as what the limit can admit at once. Two windows admit at
    /// most twice their limit around the edge between them. A bucket admits at most its burst.
    pub(super) fn longer_burst(model: &Model, callers: &[SampledCaller], knows_all: bool) -> Option<Suggestion> {
        if model.counting == Counting::Queue {
            return None;
        }
        let of = |refused: bool| {
            let needed = callers.iter().filter(|caller| caller.refused == refused && !caller.above_upper);
            needed.map(|caller| caller.burst.1.map(|units| units as f64)).collect::<Option<Vec<f64>>>()
        };
        let (mut refused, passed) = (of(true)?, of(false)?);
        refused.sort_by(f64::total_cmp);
        let unknown = if knows_all || !model.has_windows() { 0.0 } else { 2.0 * model.burst };
        let needed = passed.into_iter().fold(quantile(&refused, 0.99)?.max(unknown), f64::max);
        Suggestion::valid(model, model.limit, Some(rounded_up(needed.max(model.burst + 1.0))))
    }

    /// Returns a limit that is enough for nine of ten callers, even if none of their requests was a retry.
    pub(super) fn higher(model: &Model, callers: &[SampledCaller]) -> Option<Suggestion> {
        let rates: Option<Vec<f64>> = callers.iter().map(|caller| caller.rate).collect();
        let mut rates = rates?;
        rates.sort_by(f64::total_cmp);
        let asked = quantile(&rates, 0.9)? * model.window_ns as f64 / 1e9;
        let limit = asked.max(model.limit as f64 + 1.0);
        let burst = model.has_own_burst().then_some(model.capacity);
        Suggestion::valid(model, rounded_up(limit), burst).filter(|_| asked <= MOST_TIMES * model.limit as f64)
    }

    /// Makes a suggestion that is valid as a quota. Not every high rate is valid for a bucket, so the limit can become
    /// a little higher.
    fn valid(model: &Model, limit: u64, burst: Option<u64>) -> Option<Suggestion> {
        let window = Duration::from_nanos(model.window_ns);
        let build = |limit| match (burst, model.counting) {
            (Some(burst), _) => Quota::token_bucket(limit, window).burst(burst).build(),
            (None, Counting::Bucket) => Quota::token_bucket(limit, window).build(),
            (None, Counting::Queue) => Quota::leaky_bucket(limit, window).queue(model.capacity - 1).build(),
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

/// Rounds up to two digits and zeros, which people like to write: 1234 becomes 1300.
fn rounded_up(units: f64) -> u64 {
    let units = units.ceil().max(1.0);
    let step = 10_f64.powi((units.log10().floor() as i32 - 1).max(0));
    ((units / step).ceil() * step) as u64
}
