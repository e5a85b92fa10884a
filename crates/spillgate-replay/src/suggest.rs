//! Shows what the suggestions of insight would do: the same requests are decided again with each of them.

use spillgate::insight::Suggestion;
use spillgate::rules::Rules;

use super::Replayed;
use super::report::{Counts, LimitReport, RunReport, SuggestionResult};

/// The most suggestions that are replayed in one pass. Each of them needs as much memory as a whole run.
pub const MAX_AT_ONCE: usize = 8;

/// A suggestion for one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suggested {
    /// The index of the limit, counted over all limits of the rules.
    limit: usize,
    suggestion: Suggestion,
}

/// Returns the suggestions in a report. The limits of the report have to be in the order of the rules.
#[must_use]
pub fn suggested(report: &RunReport) -> Vec<Suggested> {
    let of = |(limit, report): (usize, &LimitReport)| {
        let suggestion = report.whole_log.as_ref()?.suggestion?;
        Some(Suggested { limit, suggestion })
    };
    report.limits.iter().enumerate().filter_map(of).collect()
}

impl Suggested {
    /// Returns a note which says that the limit cannot have the suggested numbers. `report` is the one that has the
    /// suggestion.
    #[must_use]
    pub fn impossible(&self, report: &RunReport) -> String {
        let name = report.limits.get(self.limit).map_or_else(String::new, |limit| {
            let name = limit.limit.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
            format!("{}: {}{name}", limit.limit.domain, limit.limit.rule)
        });
        format!(
            "The suggestion for {name} was not tried, because the limit has options that do not go together with it."
        )
    }

    /// Returns the rules with this suggestion. Returns `None` if the suggested numbers do not fit the other options of
    /// the limit.
    #[must_use]
    pub fn apply(&self, rules: &Rules) -> Option<Rules> {
        let mut rules = rules.clone();
        let mut places = rules.rules().flat_map(|rule| (0..rule.limits.len()).map(|at| (rule.index(), at)));
        let (rule, at) = places.nth(self.limit)?;
        drop(places);
        rules.suggest(rule, at, self.suggestion).is_ok().then_some(rules)
    }
}

/// Returns the effect of each suggestion. The first run of `replayed` has the rules of today, and each other run has
/// one suggestion.
#[must_use]
pub fn results(suggestions: &[Suggested], replayed: &Replayed) -> Vec<SuggestionResult> {
    let [today, then @ ..] = &replayed.runs[..] else { return Vec::new() };
    let result = |((suggested, run), requests): ((&Suggested, &RunReport), _)| {
        let (before, after) = (today.limits.get(suggested.limit)?, run.limits.get(suggested.limit)?);
        let whole_log = before.whole_log.as_ref()?;
        Some(SuggestionResult {
            limit: before.limit.clone(),
            suggested_limit: suggested.suggestion.limit,
            suggested_burst: suggested.suggestion.burst,
            suggested_rules: whole_log.suggested_rules.clone()?,
            today: counts(before),
            then: counts(after),
            requests,
            verdict_today: whole_log.verdict,
            who_today: whole_log.who,
            verdict_then: after.whole_log.as_ref().map(|whole_log| whole_log.verdict),
            who_then: after.whole_log.as_ref().map(|whole_log| whole_log.who),
        })
    };
    suggestions.iter().zip(then).zip(replayed.agreements.iter().copied()).filter_map(result).collect()
}

const fn counts(limit: &LimitReport) -> Counts {
    Counts { allowed: limit.allowed_requests, refused: limit.refused_requests }
}

#[cfg(test)]
mod tests {
    use spillgate::rules::RulesFile;

    use super::*;

    #[test]
    fn a_suggestion_that_a_limit_cannot_have_names_the_limit() {
        let text = "domain: api\ndescriptors: [{key: remote_address, rate_limit: {unit: minute, limit: 60}}]";
        let rules =
            Rules::parse(&[RulesFile { name: "rules.yaml".into(), text: text.into() }]).expect("they are valid");
        let suggested = |limit| Suggested { limit: 0, suggestion: Suggestion::new(limit, None) };
        assert!(suggested(60).apply(&rules).is_some() && suggested(u64::MAX).apply(&rules).is_none());
        let sentence = suggested(u64::MAX).impossible(&super::super::sample::sample().runs[0]);
        assert!(sentence.contains("api: remote_address <b>per address</b> was not tried"), "{sentence}");
    }
}
