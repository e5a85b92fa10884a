//! The effects of a reload on counts and limits.
//!
//! A changed rule can lose its counts: they start again at zero. The log names the rules that lose their counts.
//!
//! A rules file that another program is still writing can lack limits. If a domain loses all its limits, although its
//! file still defines a domain, the server rejects the reload.

use std::collections::{HashMap, HashSet};

use spillgate::rules::{Limit, Rule, Rules};

use crate::command::terminal::Problem;

/// If a reload loses the counts of more rules than this, the log names only this many of them.
const NAMED: usize = 10;

/// The domain of a rule, and its keys and values. The text of the path is not enough: `a=b` can be a key with a value,
/// or a key.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Place<'r>(&'r str, Vec<(&'r str, Option<&'r str>)>);

impl Place<'_> {
    pub(super) fn of(rule: &Rule) -> Place<'_> {
        Place(&rule.domain, rule.steps.iter().map(|step| (&*step.key, step.value.as_deref())).collect())
    }
}

/// Logs the rules that lose their counts.
pub(super) fn log_lost_counts(before: &Rules, after: &Rules) {
    let changes = lost_counts(before, after);
    for (rule, what) in changes.iter().take(NAMED) {
        tracing::info!("{what} of {rule} changed: its counts start again at zero");
    }
    if changes.len() > NAMED {
        tracing::info!("{} more rules changed: their counts start again at zero", changes.len() - NAMED);
    }
}

/// Returns each rule that loses counts, and what has changed in the rule. Only rules that exist before and after the
/// reload are returned. A limit with a sketch loses its counts if anything of its quota or its size changes. Any other
/// limit keeps its counts if only its number of units or its burst changes. A queue (`leaky_bucket`) is an exception:
/// it loses its counts if its rate changes.
pub(super) fn lost_counts(before: &Rules, after: &Rules) -> Vec<(String, &'static str)> {
    let was: HashMap<_, _> = before.rules().map(|rule| (Place::of(rule), rule)).collect();
    let changed = after.rules().filter_map(|rule| {
        let old = was.get(&Place::of(rule)).filter(|old| !old.limits.is_empty())?;
        Some((format!("{}: {} ({})", rule.domain, rule.path, rule.origin), changed(old, rule)?))
    });
    changed.collect()
}

/// Returns what has changed in a rule, if this change gives the rule new counters. The new counters start at zero.
fn changed(before: &Rule, after: &Rule) -> Option<&'static str> {
    let shared = |rule: &Rule| rule.steps.iter().map(|step| step.shared).collect::<Vec<_>>();
    let is_new = |same: fn(&Limit, &Limit) -> bool| {
        after.limits.iter().any(|limit| !before.limits.iter().any(|old| same(old, limit)))
    };
    if !after.limits.is_empty() && shared(before) != shared(after) {
        return Some("share_threshold");
    }
    if is_new(|a, b| a.quota.identity() == b.quota.identity()) {
        return Some("the window, the algorithm or a queue's rate");
    }
    if is_new(|a, b| a.quota.identity() == b.quota.identity() && a.slot_by == b.slot_by) {
        return Some("slot_by");
    }
    let same_place = |a: &Limit, b: &Limit| match (&a.sketch, &b.sketch) {
        (None, None) => true,
        _ => b.shares_sketch(a),
    };
    is_new(same_place).then_some("the sketch (its representation, limit or size)")
}

/// Returns an error for each domain that had limits before the reload and has none after it, if its file still defines
/// a domain. The server can have read such a file while another program was still writing it, because the first part of
/// a file can be valid YAML too.
pub(super) fn limits_lost(before: &Rules, after: &Rules) -> Vec<Problem> {
    let limited = domains_with_limits(after);
    let files: HashSet<&str> = after.domains().map(|domain| &*domain.file).collect();
    let had = domains_with_limits(before);
    let lost = before.domains().filter(|domain| {
        let name = &*domain.name;
        had.contains(name) && !limited.contains(name) && files.contains(&*domain.file)
    });
    let problem = lost.map(|domain| {
        let message = format!("{}: domain `{}` had limits and now has none, so every request would be allowed", domain.file, domain.name);
        let help = "check that the file is complete: write it under another name and rename it. If the domain must have no limits, \
                    restart the server, or write the new rules into another file and remove this file";
        Problem::new(message, help)
    });
    problem.collect()
}

fn domains_with_limits(rules: &Rules) -> HashSet<&str> {
    rules.rules().filter(|rule| !rule.limits.is_empty()).map(|rule| &*rule.domain).collect()
}

#[cfg(test)]
mod tests {
    use spillgate::rules::RulesFile;

    use super::*;

    fn rules(text: String) -> Rules {
        Rules::parse(&[RulesFile { name: "d.yaml".to_owned(), text }]).expect("the rules are valid")
    }

    fn limited(limit: &str) -> Rules {
        rules(format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}, {{key: b}}]"))
    }

    fn a(what: &'static str) -> [(String, &'static str); 1] {
        [("d: a (d.yaml:2)".to_owned(), what)]
    }

    #[test]
    fn a_changed_window_or_algorithm_loses_counts_and_a_changed_limit_does_not() {
        let before = limited("window: 1m, limit: 5");
        assert_eq!(lost_counts(&before, &limited("window: 1m, limit: 50")), []);
        assert_eq!(
            lost_counts(&before, &limited("window: 1h, limit: 5")),
            a("the window, the algorithm or a queue's rate")
        );
        let bucket = limited("window: 1m, limit: 5, algorithm: token_bucket");
        assert_eq!(lost_counts(&before, &bucket), a("the window, the algorithm or a queue's rate"));
        assert_eq!(lost_counts(&before, &limited("window: 1m, limit: 5, slot_by: a")), a("slot_by"));
        let queue = limited("window: 1m, limit: 5, algorithm: leaky_bucket");
        let faster = limited("window: 1m, limit: 6, algorithm: leaky_bucket");
        assert_eq!(lost_counts(&queue, &faster), a("the window, the algorithm or a queue's rate"));
    }

    #[test]
    fn a_changed_share_threshold_loses_the_counts_of_the_rule_and_of_nested_rules() {
        let nested = |shared: bool| {
            let limit = "rate_limit: {unit: day, limit: 5}";
            rules(format!(
                "domain: d\ndescriptors: [{{key: a, value: '*', share_threshold: {shared}, {limit}, \
                 descriptors: [{{key: b, {limit}}}, {{key: c}}]}}]"
            ))
        };
        let lost = lost_counts(&nested(false), &nested(true));
        let named: Vec<_> = lost.iter().map(|(rule, what)| (rule.as_str(), *what)).collect();
        assert_eq!(named, [("d: a=* (d.yaml:2)", "share_threshold"), ("d: a=* > b (d.yaml:2)", "share_threshold")]);
        assert_eq!(lost_counts(&nested(true), &nested(true)), []);
    }
}
