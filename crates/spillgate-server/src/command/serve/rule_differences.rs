//! Says in words what a reload changes: domains, rules and limits that are added, removed or changed.
//!
//! An operator who reloads rules compares this list with what the new rules were meant to change.

use std::collections::HashMap;

use spillgate::rules::{Limit, LimitDescription, Rule, Rules};
use spillgate_service::reloads::Lines;

use super::rule_changes::{Place, lost_counts};

/// Returns what has changed, one change in each line. Rules are compared by their domain and path. A rule or a limit
/// that only moves to another line or file has not changed.
pub(super) fn differences(before: &Rules, after: &Rules) -> Lines {
    let mut lines = Lines::default();
    domains(before, after, &mut lines);
    let (was, is) = (by_path(before), by_path(after));
    for rule in before.rules().filter(|rule| !is.contains_key(&Place::of(rule))) {
        lines.add(|| format!("{}: {} removed{}", rule.domain, rule.path, whole(rule)));
    }
    for rule in after.rules() {
        match was.get(&Place::of(rule)) {
            None => lines.add(|| format!("{}: {} added ({}){}", rule.domain, rule.path, rule.origin, whole(rule))),
            Some(old) => compare(old, rule, &mut lines),
        }
    }
    for (rule, what) in lost_counts(before, after) {
        lines.add(|| format!("{rule}: its counts start again at zero, because {what} changed"));
    }
    lines
}

fn domains(before: &Rules, after: &Rules, lines: &mut Lines) {
    let by_name = |rules: &Rules| -> HashMap<String, bool> {
        rules.domains().map(|domain| (domain.name.to_string(), domain.compat_envoy)).collect()
    };
    let (was, is) = (by_name(before), by_name(after));
    for domain in before.domains().filter(|domain| !is.contains_key(&*domain.name)) {
        lines.add(|| format!("domain {} removed ({})", domain.name, domain.file));
    }
    for domain in after.domains() {
        match was.get(&*domain.name) {
            None => lines.add(|| format!("domain {} added ({})", domain.name, domain.file)),
            Some(compat) if *compat != domain.compat_envoy => {
                let compat = |on| if on { "envoy" } else { "off" };
                let (old, new) = (compat(!domain.compat_envoy), compat(domain.compat_envoy));
                lines.add(|| format!("domain {} changed ({}): compat: {old} -> {new}", domain.name, domain.file));
            }
            Some(_) => {}
        }
    }
}

fn by_path(rules: &Rules) -> HashMap<Place<'_>, &Rule> {
    rules.rules().map(|rule| (Place::of(rule), rule)).collect()
}

/// Adds the differences between a rule before and after the reload.
fn compare(before: &Rule, new: &Rule, lines: &mut Lines) {
    let head = || format!("{}: {} ({})", new.domain, new.path, new.origin);
    let (was, is) = (options(before), options(new));
    for ((name, was), (_, is)) in was.into_iter().zip(is).filter(|((_, was), (_, is))| was != is) {
        lines.add(|| format!("{}: {name}: {was} -> {is}", head()));
    }
    if before.insight_by != new.insight_by {
        lines.add(|| format!("{}: insight_by changed", head()));
    }
    let shared = |rule: &Rule| rule.steps.iter().map(|step| step.shared).collect::<Vec<_>>();
    if shared(before) != shared(new) {
        lines.add(|| format!("{}: share_threshold changed", head()));
    }
    let labels =
        |rule: &Rule| -> Vec<String> { rule.limits.iter().enumerate().map(|(at, limit)| name(limit, at)).collect() };
    let (was, is) = (labels(before), labels(new));
    for (label, limit) in was.iter().zip(&before.limits).filter(|(label, _)| !is.contains(label)) {
        lines.add(|| format!("{}: limit {label} removed: {}", head(), described(before, limit)));
    }
    for (label, limit) in is.iter().zip(&new.limits) {
        match was.iter().position(|old| old == label).map(|at| &before.limits[at]) {
            None => lines.add(|| format!("{}: limit {label} added: {}", head(), described(new, limit))),
            Some(old) if !are_same(old, limit) => {
                let (was, is) = (described(before, old), described(new, limit));
                lines.add(|| format!("{}: limit {label} changed: {was} -> {is}", head()));
            }
            Some(_) => {}
        }
    }
}

/// Returns the options of a rule that change its decisions.
fn options(rule: &Rule) -> [(&'static str, bool); 3] {
    [("unlimited", rule.unlimited), ("shadow_mode", rule.shadow_mode), ("quota_mode", rule.quota_mode)]
}

/// Returns the options and limits of a rule that exists only before or only after the reload.
fn whole(rule: &Rule) -> String {
    let options = options(rule).into_iter().filter(|(_, on)| *on).map(|(name, _)| name.to_owned());
    let numbered = rule.limits.iter().enumerate();
    let limits = numbered.map(|(at, limit)| format!("{}: {}", name(limit, at), described(rule, limit)));
    options.chain(limits).map(|part| format!("; {part}")).collect()
}

/// Returns what a limit is called in a comparison. A limit without a name is called by its position in the rule: `#1`,
/// `#2`, ... Its size cannot be its name, because the reload may have changed the size.
fn name(limit: &Limit, at: usize) -> String {
    limit.name.as_deref().map_or_else(|| format!("#{}", at + 1), str::to_owned)
}

fn sketch_bytes(limit: &Limit) -> Option<usize> {
    limit.sketch.as_ref().map(|sketch| sketch.bytes)
}

/// Returns whether two limits decide alike. Each option that is compared here is in the text of [`described`].
fn are_same(a: &Limit, b: &Limit) -> bool {
    let options = |limit: &Limit| (limit.post_paid, limit.exposed, sketch_bytes(limit));
    a.quota == b.quota && options(a) == options(b) && a.replaces == b.replaces && a.slot_by == b.slot_by
}

/// Returns the limit with all its options.
fn described(rule: &Rule, limit: &Limit) -> String {
    let mut text = LimitDescription::of(rule, limit).summary();
    text.push_str(&format!(", on_store_failure {}", limit.quota.on_store_failure().as_str()));
    if !limit.replaces.is_empty() {
        text.push_str(&format!(", replaces {}", limit.replaces.join(" and ")));
    }
    if let Some(key) = &limit.slot_by {
        text.push_str(&format!(", slot_by {key}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use spillgate::rules::RulesFile;

    use super::*;

    fn rules(text: &str) -> Rules {
        let text = format!("domain: d\n{text}");
        Rules::parse(&[RulesFile { name: "d.yaml".to_owned(), text }]).unwrap_or_else(|errors| panic!("{errors:?}"))
    }

    fn changes(before: &str, after: &str) -> Vec<String> {
        let of = |text: &str| format!("descriptors: [{text}]");
        differences(&rules(&of(before)), &rules(&of(after))).kept().to_vec()
    }

    #[test]
    fn rules_that_stay_the_same_have_no_differences() {
        let rule = "{key: a, rate_limit: {unit: day, limit: 5, penalty: 1m, name: x}}";
        assert!(changes(rule, rule).is_empty());
        assert!(changes(rule, &format!("\n\n{rule}")).is_empty(), "a rule on another line has not changed");
    }

    #[test]
    fn added_removed_and_changed_rules_and_limits_are_named() {
        let before =
            "{key: a, rate_limits: [{name: x, unit: day, limit: 5}, {name: y, unit: hour, limit: 5}]}, {key: b}";
        let after = "{key: a, shadow_mode: true, rate_limits: [{name: x, unit: day, limit: 50}, {name: z, unit: hour, limit: 5}]}, \
                     {key: c, value: v, rate_limit: {unlimited: true}}";
        let (enforced, shadow) = ("on_store_failure local", "shadow mode, on_store_failure local");
        let (day, hour) = ("per day, fixed window", "5 per hour, fixed window");
        let expected = [
            "d: b removed".to_owned(),
            "d: a (d.yaml:2): shadow_mode: false -> true".to_owned(),
            format!("d: a (d.yaml:2): limit y removed: {hour}, {enforced}"),
            format!("d: a (d.yaml:2): limit x changed: 5 {day}, {enforced} -> 50 {day}, {shadow}"),
            format!("d: a (d.yaml:2): limit z added: {hour}, {shadow}"),
            "d: c=v added (d.yaml:2); unlimited".to_owned(),
        ];
        assert_eq!(changes(before, after), expected);
    }

    #[test]
    fn each_option_that_changes_has_another_text() {
        let base = "unit: day, limit: 10, algorithm: token_bucket";
        let options = [
            "",
            "burst: 3",
            "soft: 50%",
            "denied: charged",
            "penalty: 1m",
            "expose: false",
            "on_store_failure: deny",
            "slot_by: a",
            "replaces: [{name: q}]",
            "representation: sketch, sketch_memory: 1MiB",
            "representation: sketch, sketch_memory: 2MiB",
        ];
        let rule = |option: &str| format!("{{key: a, rate_limit: {{{base}, {option}}}}}");
        for (at, before) in options.iter().enumerate() {
            for after in &options[at + 1..] {
                let found = changes(&rule(before), &rule(after));
                let (old, new) =
                    found[0].split_once(" changed: ").and_then(|(_, it)| it.split_once(" -> ")).expect(after);
                assert!(old != new, "{before} {after}: {found:?}");
            }
        }
    }

    #[test]
    fn rules_with_the_same_text_are_two_rules() {
        let text = |key: u64, value: u64| {
            rules(&format!(
                "descriptors:\n  - {{key: a=b, rate_limit: {{unit: day, limit: {key}}}}}\n  \
                 - {{key: a, value: b, rate_limit: {{unit: day, limit: {value}}}}}\n"
            ))
        };
        assert_eq!(differences(&text(1, 2), &text(1, 2)).kept(), [""; 0]);
        assert_eq!(differences(&text(1, 2), &text(3, 2)).kept().len(), 1);
        assert_eq!(differences(&text(1, 2), &text(1, 3)).kept().len(), 1);
    }

    #[test]
    fn domains_and_lost_counts_are_named() {
        let file = |name: &str, text: &str| RulesFile { name: name.to_owned(), text: text.to_owned() };
        let of = |files: &[RulesFile]| Rules::parse(files).expect("the rules are valid");
        let before = of(&[
            file("a.yaml", "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, limit: 5}}]"),
            file("b.yaml", "domain: b"),
        ]);
        let after = of(&[
            file("a.yaml", "domain: a\ncompat: envoy\ndescriptors: [{key: k, rate_limit: {unit: hour, limit: 5}}]"),
            file("c.yaml", "domain: c"),
        ]);
        let found = differences(&before, &after);
        let expected =
            ["domain b removed (b.yaml)", "domain a changed (a.yaml): compat: off -> envoy", "domain c added (c.yaml)"];
        assert_eq!(found.kept()[..3], expected);
        assert!(found.kept()[3].contains("limit #1 changed: 5 per day"), "{found:?}");
        assert!(found.kept()[4].contains("its counts start again at zero"), "{found:?}");
    }
}
