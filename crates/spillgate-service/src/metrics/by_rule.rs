//! The counters of rules. Usually each rule has one set of counters: one counter for each outcome.
//!
//! A rule with `detailed_metric` or `value_to_metric` has one set of counters for each value that clients send. Clients
//! choose these values, so the number of sets of one rule has a bound.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::iter::zip;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use spillgate::rules::{Limit, PathStep, Rule, RuleStep, path_text};

use super::by_limit::LimitCounters;
use super::registry::labels;
use super::sharded::{Sharded, ThreadNumber};
use super::{Counter, Metrics, OUTCOMES, Outcome};

/// A label shows at most this many bytes from the beginning of a client's value. Values with the same beginning share
/// their counters.
const VALUE_BYTES: usize = 128;

/// One counter for each outcome.
pub(super) type Outcomes = Sharded<{ OUTCOMES.len() }>;

/// The counters of a rule, or of one value of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    pub(super) outcomes: Outcomes,
    /// Whether the labels have a value that a client has sent.
    pub(super) has_value: bool,
}

/// Returns the labels for the domain `domain` and the rule name `rule`, as the page of metrics shows them between
/// braces.
pub(super) fn labels_of(domain: &str, rule: &str) -> Arc<str> {
    labels(&[("domain", domain), ("rule", rule)]).into()
}

#[derive(Debug)]
pub struct RuleCounters {
    /// The counters of the rule itself. If the rule has counters for single values and gets too many values, the
    /// further values are counted here too.
    plain: Outcomes,
    /// The counters of each limit of the rule, in the order of the limits.
    limits: Box<[LimitCounters]>,
    /// `None` if the rule has neither `detailed_metric` nor `value_to_metric`.
    by_value: Option<ByValue>,
    /// Counts peeks if the rule has a limit that never refuses a peek (see `peeks.rs`). Created at the first such peek,
    /// so that the page of metrics lists only rules with such peeks.
    peeks: OnceLock<Counter>,
    /// For each limit: the number of requests that it refused since the last log line about this limit.
    refused: Box<[AtomicU64]>,
}

#[derive(Debug, Default)]
struct ByValue {
    hasher: RandomState,
    /// The key of the map is a hash of the values that the label shows. So a request needs only this hash, and the text
    /// of the label is built once, when its counters are made.
    counters: RwLock<HashMap<u64, Outcomes>>,
}

impl RuleCounters {
    pub(super) fn new(rule: &Rule, plain: Outcomes, limits: Box<[LimitCounters]>) -> RuleCounters {
        let by_value = rule.detailed_metric || rule.steps.iter().any(|step| step.value_to_metric);
        let refused = rule.limits.iter().map(|_| AtomicU64::new(0)).collect();
        RuleCounters { plain, limits, by_value: by_value.then(ByValue::default), peeks: OnceLock::new(), refused }
    }

    /// Returns each limit of `rule`, with its number of refusals since the last log line about this limit.
    pub(crate) fn refused<'a>(&'a self, rule: &'a Rule) -> impl Iterator<Item = (&'a Limit, &'a AtomicU64)> {
        zip(&rule.limits, &self.refused)
    }

    /// Counts a peek at a limit of `rule` that never refuses a peek. If the rule had no such peek before, returns how
    /// many rules have had one by now. Otherwise returns `None`.
    pub fn count_peek(&self, metrics: &Metrics, rule: &Rule) -> Option<usize> {
        let mut rules = None;
        let counter = self.peeks.get_or_init(|| {
            let (counter, new) = metrics.peeks.of(rule);
            rules = new;
            counter
        });
        counter.inc();
        rules
    }

    /// Counts one descriptor that `rule` matched.
    #[inline]
    pub fn count(
        &self,
        thread: ThreadNumber,
        metrics: &Metrics,
        rule: &Rule,
        entries: &[(&str, &str)],
        outcome: Outcome,
    ) {
        match &self.by_value {
            None => self.plain.add(thread, outcome as usize, 1),
            Some(by_value) => by_value.count(thread, metrics, rule, entries, outcome, &self.plain),
        }
    }

    /// Returns the counters of each limit of the rule, in the order of the limits.
    #[inline]
    pub(crate) fn limits(&self) -> &[LimitCounters] {
        &self.limits
    }

    /// Returns the counters of `limit`. `None` if `limit` does not belong to `rule`.
    pub(crate) fn limit(&self, rule: &Rule, limit: &Limit) -> Option<&LimitCounters> {
        let position = rule.limits.iter().position(|of_rule| std::ptr::eq(of_rule, limit))?;
        self.limits.get(position)
    }
}

impl ByValue {
    fn count(
        &self,
        thread: ThreadNumber,
        metrics: &Metrics,
        rule: &Rule,
        entries: &[(&str, &str)],
        outcome: Outcome,
        plain: &Outcomes,
    ) {
        let mut hasher = self.hasher.build_hasher();
        for value in named_values(rule, entries).filter_map(|(_, value)| value) {
            value.hash(&mut hasher);
        }
        let hash = hasher.finish();
        // A shared lock suffices for most requests: either their value has counters already, or the maximum number of
        // values is reached.
        let shared = self.counters.read();
        if let Some(known) = shared.get(&hash).or((shared.len() >= metrics.rule_values).then_some(plain)) {
            known.add(thread, outcome as usize, 1);
            return;
        }
        drop(shared);
        let mut counters = self.counters.write();
        let counter = if counters.len() < metrics.rule_values || counters.contains_key(&hash) {
            counters.entry(hash).or_insert_with(|| metrics.outcomes(&rule.domain, &name(rule, entries)))
        } else {
            plain
        };
        counter.add(thread, outcome as usize, 1);
    }
}

/// Returns each step of the rule's path. If the label has to show the value that the client sent, the step comes with
/// this value.
fn named_values<'a>(
    rule: &'a Rule,
    entries: &'a [(&'a str, &'a str)],
) -> impl Iterator<Item = (&'a RuleStep, Option<&'a str>)> {
    rule.steps.iter().zip(entries).map(|(step, (_, value))| {
        let named = (rule.detailed_metric || step.value_to_metric) && !step.shared;
        (step, named.then(|| &value[..value.floor_char_boundary(VALUE_BYTES)]))
    })
}

/// Returns the rule's path with the values that the client sent, such as `user_id=7 > path`.
fn name(rule: &Rule, entries: &[(&str, &str)]) -> String {
    path_text(named_values(rule, entries).map(|(step, value)| PathStep(&step.key, value.or(step.value.as_deref()))))
}

#[cfg(test)]
mod tests {
    use spillgate::rules::{Rules, RulesFile};

    use crate::metrics::{Format, Page};

    use super::*;

    const VALUES: usize = 300;

    fn counted(flag: &str, values: impl Iterator<Item = String>) -> String {
        counted_on(Page::new(Format::Text), flag, values)
    }

    fn counted_on(mut page: Page, flag: &str, values: impl Iterator<Item = String>) -> String {
        let text = format!(
            "domain: d\ndescriptors: [{{key: a, {flag} descriptors: [{{key: b, rate_limit: {{unit: day, requests_per_unit: 9}}}}]}}]"
        );
        let rules = Rules::parse(&[RulesFile { name: "d.yaml".into(), text }]).expect("the rules are valid");
        let metrics = Metrics::with_rule_values(VALUES);
        let counters = metrics.for_rules(&rules);
        for value in values {
            let entries = [("a", value.as_str()), ("b", "x")];
            let rule = rules.find("d", &entries).expect("a rule matches");
            counters[rule.index()].count(ThreadNumber::current(), &metrics, rule, &entries, Outcome::Allowed);
        }
        std::iter::from_fn(|| page.next(&metrics)).collect()
    }

    #[test]
    fn a_rule_shows_the_values_that_it_demands_and_no_others() {
        let values = || ["1", "2", "2"].map(String::from).into_iter();
        assert!(counted("", values()).contains(r#"rule="a > b",outcome="allowed"} 3"#));
        let shown = counted("value_to_metric: true,", values());
        assert!(shown.contains(r#"rule="a=1 > b",outcome="allowed"} 1"#), "{shown}");
        assert!(shown.contains(r#"rule="a=2 > b",outcome="allowed"} 2"#), "{shown}");
    }

    #[test]
    fn a_page_without_values_has_the_rule_and_no_text_of_a_client() {
        let values = (0..VALUES + 7).map(|value| format!("client-{value}"));
        let shown = counted_on(Page::new(Format::Text).without_values(), "value_to_metric: true,", values);
        assert!(!shown.contains("client-"), "{}", &shown[..2000]);
        assert!(shown.contains(r#"rule="a > b",outcome="allowed"} 7"#), "{}", &shown[..2000]);
    }

    #[test]
    fn a_value_cannot_break_out_of_its_label() {
        let shown = counted("value_to_metric: true,", ["\"} 9\nspillgate_evil{a=\"\\".to_owned()].into_iter());
        assert!(!shown.lines().any(|line| line.starts_with("spillgate_evil")), "{shown}");
        assert!(
            shown.contains(r#"rule="a=\"\\\"} 9\nspillgate_evil{a=\\\"\\\\\" > b",outcome="allowed"} 1"#),
            "{shown}"
        );
    }

    #[test]
    fn values_beyond_the_bound_share_the_plain_name() {
        let values = (0..VALUES + 7).map(|value| value.to_string());
        let shown = counted("value_to_metric: true,", values);
        assert!(shown.contains(r#"rule="a > b",outcome="allowed"} 7"#), "{}", &shown[..2000]);
        assert_eq!(shown.matches(r#" > b",outcome="allowed"} 1"#).count(), VALUES);
    }

    #[test]
    fn a_long_value_shows_its_beginning() {
        let long = |end: &str| format!("{}{end}", "\u{e4}".repeat(VALUE_BYTES));
        let shown = counted("value_to_metric: true,", ["1", "2"].map(long).into_iter());
        let cut = "\u{e4}".repeat(VALUE_BYTES / 2);
        assert!(shown.contains(&format!(r#"rule="a={cut} > b",outcome="allowed"}} 2"#)), "{shown}");
    }
}
