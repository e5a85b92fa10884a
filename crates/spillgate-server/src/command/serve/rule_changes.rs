//! What a reload does to counts and limits that were in force.

use std::collections::{HashMap, HashSet};

use spillgate::rules::{Limit, Rule, Rules};

use crate::command::terminal::Problem;

/// Rules named in the log when a reload loses their counts.
const NAMED: usize = 10;

/// Writes to the log which rules of both loads lose their counts.
pub(super) fn log_lost_counts(before: &Rules, after: &Rules) {
    let changes = forgotten(before, after);
    for (rule, what) in changes.iter().take(NAMED) {
        tracing::info!("{what} of {rule} changed: what was used before no longer counts");
    }
    if changes.len() > NAMED {
        tracing::info!("the same holds for {} more rules", changes.len() - NAMED);
    }
}

/// Rules that are in both loads and have a limit whose counts the other load cannot find, and what of them changed. A
/// changed limit or burst keeps its counts.
fn forgotten(before: &Rules, after: &Rules) -> Vec<(String, &'static str)> {
    let was: HashMap<_, _> = before.rules().map(|rule| ((&*rule.domain, &*rule.path), rule)).collect();
    let changed = after.rules().filter_map(|rule| {
        let old = was.get(&(&*rule.domain, &*rule.path)).filter(|old| !old.limits.is_empty())?;
        Some((format!("{}: {} ({})", rule.domain, rule.path, rule.origin), changed(old, rule)?))
    });
    changed.collect()
}

/// What is in the name of a limit's counter, and is not as it was.
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
    is_new(|a, b| a.quota.identity() == b.quota.identity() && a.slot_by == b.slot_by).then_some("slot_by")
}

/// Domains that had limits and have none now, though their file is still there: it may have been cut while it was
/// written, and nothing in what is left of it says so.
pub(super) fn limits_lost(before: &Rules, after: &Rules) -> Vec<Problem> {
    let limited = domains_with_limits(after);
    let files: HashSet<&str> = after.domains().map(|domain| &*domain.file).collect();
    let had = domains_with_limits(before);
    let lost = before.domains().filter(|domain| {
        let name = &*domain.name;
        had.contains(name) && !limited.contains(name) && files.contains(&*domain.file)
    });
    let problem = lost.map(|domain| {
        let message = format!("{}: domain `{}` had limits and now has none: everything would pass", domain.file, domain.name);
        let help = "is the file whole? write it beside its place and rename it. Where this is meant, restart the server, \
                    or remove the file (a domain of another name has to be in another file then)";
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
        Rules::parse(&[RulesFile { name: "d.yaml".to_owned(), text }]).expect("valid")
    }

    fn limited(limit: &str) -> Rules {
        rules(format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}, {{key: b}}]"))
    }

    fn a(what: &'static str) -> [(String, &'static str); 1] {
        [("d: a (d.yaml:2)".to_owned(), what)]
    }

    #[test]
    fn a_changed_window_or_algorithm_counts_anew_and_a_changed_limit_does_not() {
        let before = limited("window: 1m, limit: 5");
        assert_eq!(forgotten(&before, &limited("window: 1m, limit: 50")), []);
        assert_eq!(
            forgotten(&before, &limited("window: 1h, limit: 5")),
            a("the window, the algorithm or a queue's rate")
        );
        let bucket = limited("window: 1m, limit: 5, algorithm: token_bucket");
        assert_eq!(forgotten(&before, &bucket), a("the window, the algorithm or a queue's rate"));
        assert_eq!(forgotten(&before, &limited("window: 1m, limit: 5, slot_by: a")), a("slot_by"));
        let queue = limited("window: 1m, limit: 5, algorithm: leaky_bucket");
        let faster = limited("window: 1m, limit: 6, algorithm: leaky_bucket");
        assert_eq!(forgotten(&queue, &faster), a("the window, the algorithm or a queue's rate"));
    }

    #[test]
    fn who_counts_together_is_part_of_a_rule_and_of_all_that_is_nested_in_it() {
        let nested = |shared: bool| {
            let limit = "rate_limit: {unit: day, limit: 5}";
            rules(format!(
                "domain: d\ndescriptors: [{{key: a, value: '*', share_threshold: {shared}, {limit}, \
                 descriptors: [{{key: b, {limit}}}, {{key: c}}]}}]"
            ))
        };
        let lost = forgotten(&nested(false), &nested(true));
        let named: Vec<_> = lost.iter().map(|(rule, what)| (rule.as_str(), *what)).collect();
        assert_eq!(named, [("d: a=* (d.yaml:2)", "share_threshold"), ("d: a=* > b (d.yaml:2)", "share_threshold")]);
        assert_eq!(forgotten(&nested(true), &nested(true)), []);
    }
}
