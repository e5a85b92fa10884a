//! Counters of rules: one set for each rule, and where a rule asks for it (`detailed_metric`,
//! `value_to_metric`) one for each of its values, up to a bound.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::sync::OnceLock;

use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use spillgate::rules::{Rule, RuleStep};

use super::{Metrics, OUTCOMES, Outcome};

/// Values of one rule that have counters of their own; further ones are counted under the rule's
/// plain name. Values come from clients, and a series for each would have no bound.
const MAX_VALUES: usize = 1000;

/// Of a value, bytes that a name shows.
const MAX_VALUE_BYTES: usize = 1024;

/// One counter for each outcome.
#[derive(Clone, Debug)]
pub(super) struct Outcomes(pub(super) [Counter; OUTCOMES.len()]);

/// The counters of one rule.
#[derive(Debug)]
pub struct RuleCounters {
    plain: Outcomes,
    by_value: Option<ByValue>,
    /// Looks at the rule that it never refuses, from the first one on.
    looks: OnceLock<Counter>,
}

#[derive(Debug, Default)]
struct ByValue {
    hasher: RandomState,
    /// By the hash of the values that the name shows: a name is made only when it is new.
    counters: RwLock<HashMap<u64, Outcomes>>,
}

impl RuleCounters {
    pub(super) fn new(rule: &Rule, plain: Outcomes) -> RuleCounters {
        let by_value = rule.detailed_metric || rule.steps.iter().any(|step| step.value_to_metric);
        RuleCounters { plain, by_value: by_value.then(ByValue::default), looks: OnceLock::new() }
    }

    /// Counts a look at `rule` that it never refuses. For the first one of this rule: how many rules have had one.
    pub fn count_look(&self, metrics: &Metrics, rule: &Rule) -> Option<usize> {
        let mut rules = None;
        let counter = self.looks.get_or_init(|| {
            let (counter, new) = metrics.looks.at(rule);
            rules = new;
            counter
        });
        counter.inc();
        rules
    }

    /// Counts one descriptor that `rule` matched.
    pub fn count(&self, metrics: &Metrics, rule: &Rule, entries: &[(&str, &str)], outcome: Outcome) {
        match &self.by_value {
            None => {
                self.plain.0[outcome as usize].inc();
            }
            Some(by_value) => by_value.count(metrics, rule, entries, outcome, &self.plain),
        }
    }
}

impl ByValue {
    fn count(&self, metrics: &Metrics, rule: &Rule, entries: &[(&str, &str)], outcome: Outcome, plain: &Outcomes) {
        let mut hasher = self.hasher.build_hasher();
        for value in named_values(rule, entries).filter_map(|(_, value)| value) {
            value.hash(&mut hasher);
        }
        let hash = hasher.finish();
        // Most requests need no more than this shared lock, also when the bound is reached.
        let shared = self.counters.read();
        if let Some(known) = shared.get(&hash).or((shared.len() >= MAX_VALUES).then_some(plain)) {
            known.0[outcome as usize].inc();
            return;
        }
        drop(shared);
        let mut counters = self.counters.write();
        let own = if counters.len() < MAX_VALUES || counters.contains_key(&hash) {
            counters.entry(hash).or_insert_with(|| metrics.outcomes(&rule.domain, &name(rule, entries)))
        } else {
            plain
        };
        own.0[outcome as usize].inc();
    }
}

/// Each level of the rule, with the value that its name shows instead of what the rule says.
fn named_values<'a>(
    rule: &'a Rule,
    entries: &'a [(&'a str, &'a str)],
) -> impl Iterator<Item = (&'a RuleStep, Option<&'a str>)> {
    rule.steps.iter().zip(entries).map(|(step, (_, value))| {
        let named = (rule.detailed_metric || step.value_to_metric) && !step.shared;
        (step, named.then(|| &value[..value.floor_char_boundary(MAX_VALUE_BYTES)]))
    })
}

/// The rule's path with the values of this request: `user_id=7 > path`.
fn name(rule: &Rule, entries: &[(&str, &str)]) -> String {
    let mut name = String::new();
    for (step, value) in named_values(rule, entries) {
        let separator = if name.is_empty() { "" } else { " > " };
        // Writing to a string cannot fail.
        let _ = match value.or(step.value.as_deref()) {
            Some(value) => write!(name, "{separator}{}={value}", step.key),
            None => write!(name, "{separator}{}", step.key),
        };
    }
    name
}

#[cfg(test)]
mod tests {
    use spillgate::rules::{Rules, RulesFile};

    use super::*;

    fn counted(flag: &str, values: impl Iterator<Item = String>) -> String {
        let text = format!(
            "domain: d\ndescriptors: [{{key: a, {flag} descriptors: [{{key: b, rate_limit: {{unit: day, requests_per_unit: 9}}}}]}}]"
        );
        let rules = Rules::parse(&[RulesFile { name: "d.yaml".into(), text }]).expect("good rules");
        let metrics = Metrics::new();
        let counters = metrics.for_rules(&rules);
        for value in values {
            let entries = [("a", value.as_str()), ("b", "x")];
            let rule = rules.find("d", &entries).expect("a rule matches");
            counters[rule.index()].count(&metrics, rule, &entries, Outcome::Allowed);
        }
        metrics.encode()
    }

    #[test]
    fn a_rule_shows_the_values_it_asks_for_and_no_others() {
        let values = || ["1", "2", "2"].map(String::from).into_iter();
        assert!(counted("", values()).contains(r#"rule="a > b",outcome="allowed"} 3"#));
        let shown = counted("value_to_metric: true,", values());
        assert!(shown.contains(r#"rule="a=1 > b",outcome="allowed"} 1"#), "{shown}");
        assert!(shown.contains(r#"rule="a=2 > b",outcome="allowed"} 2"#), "{shown}");
    }

    #[test]
    fn a_value_cannot_break_out_of_its_label() {
        let shown = counted("value_to_metric: true,", ["\"} 9\nspillgate_evil{a=\"\\".to_owned()].into_iter());
        assert!(!shown.lines().any(|line| line.starts_with("spillgate_evil")), "{shown}");
        assert!(shown.contains(r#"rule="a=\"} 9\nspillgate_evil{a=\"\\ > b",outcome="allowed"} 1"#), "{shown}");
    }

    #[test]
    fn values_beyond_the_bound_share_the_plain_name() {
        let values = (0..MAX_VALUES + 7).map(|value| value.to_string());
        let shown = counted("value_to_metric: true,", values);
        assert!(shown.contains(r#"rule="a > b",outcome="allowed"} 7"#), "{}", &shown[..2000]);
        assert_eq!(shown.matches(r#" > b",outcome="allowed"} 1"#).count(), MAX_VALUES);
    }
}
