//! Checks that the rules limit the requests of forward-auth.
//!
//! The settings say which descriptors these requests have, so their faults show before the first request. There
//! are three kinds: descriptors that no rule matches, clients that match no rule because they leave something out, and
//! paths that are compared as the client wrote them.

use std::collections::HashMap;

use spillgate::rules::{PathStep, Rule, RuleFinding, RuleStep, Rules, path_text};
use spillgate::text::nearest;
use spillgate_http::{EntrySource, ValueSource};

use crate::command::terminal::Problem;
use crate::settings::Settings;

/// The maximum number of names that an error lists.
const LISTED: usize = 5;

/// Returns the rules of the domain of forward-auth that limit something or say that they do not.
fn limiting<'r>(settings: &Settings, rules: &'r Rules) -> impl Iterator<Item = &'r Rule> {
    let domain = settings.forward_auth.domain.clone().unwrap_or_default();
    rules.rules().filter(move |rule| *rule.domain == *domain && (rule.unlimited || !rule.limits.is_empty()))
}

/// Returns an error for each descriptor of forward-auth that matches no rule with a limit or with `unlimited: true`.
/// Requests with such a descriptor would be allowed, and no log line would show this.
pub(super) fn unlimited(settings: &Settings, rules: &Rules) -> Vec<Problem> {
    let auth = &settings.forward_auth;
    let Some(domain) = &auth.domain else { return Vec::new() };
    if !rules.has_domain(domain) {
        let message = format!("no rules file has the domain `{domain}`, which `forward_auth.domain` names");
        let help = suggestion(domain, rules.domains().map(|domain| domain.name.to_string()), "the domains are");
        return vec![Problem::new(message, help)];
    }
    let limiting = || limiting(settings, rules);
    let unlimited = auth.descriptors.iter().filter(|entries| !limiting().any(|rule| fits(rule, entries)));
    let problem = unlimited.map(|entries| {
        let path = path_text(entries.iter().map(path_of));
        let message = format!("no rule of domain `{domain}` limits `{path}`, which `forward_auth.descriptors` uses");
        let help = suggestion(&path, limiting().map(|rule| rule.path.to_string()), "the rules of this domain limit");
        Problem::new(
            message,
            help + "; to allow all such requests, write a rule for this descriptor with `rate_limit: {unlimited: true}`",
        )
    });
    problem.collect()
}

/// Returns the warnings and notes about the descriptors of forward-auth, by the index of the rule where they are shown.
pub(super) fn findings(settings: &Settings, rules: &Rules) -> HashMap<usize, Vec<RuleFinding>> {
    let mut findings: HashMap<usize, Vec<RuleFinding>> = HashMap::new();
    for entries in &settings.forward_auth.descriptors {
        let fitting = fitting(settings, rules, entries);
        let Some(first) = fitting.first() else { continue };
        if let Some((message, help)) = avoidable(entries, &fitting) {
            let finding = RuleFinding::warning(message, "only these values", help);
            findings.entry(first.index()).or_default().push(finding);
        }
        let as_written = |rule: &&Rule| rule.steps.iter().zip(entries).any(|(step, entry)| is_raw(step, entry));
        for rule in fitting.iter().copied().filter(as_written) {
            let message = "`header:X-Forwarded-Uri` can be the URI as the client wrote it, and `/search?q=1`, `//search` and \
                           `/%73earch` are other texts than `/search`";
            let help =
                "write `from: path` in `forward_auth.descriptors`: it brings all ways to write a path into one form";
            let notes = findings.entry(rule.index()).or_default();
            let note = RuleFinding::warning(message, "compared with the URI", help).as_note();
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    findings
}

/// Returns a message and a help text for each descriptor whose limits a client can avoid by leaving something out.
pub(crate) fn avoidable_limits(settings: &Settings, rules: &Rules) -> Vec<(String, String)> {
    let descriptors = settings.forward_auth.descriptors.iter();
    descriptors.filter_map(|entries| avoidable(entries, &fitting(settings, rules, entries))).collect()
}

/// Returns the rules that can match the descriptor, and that limit something or say that they do not.
fn fitting<'r>(settings: &Settings, rules: &'r Rules, entries: &[EntrySource]) -> Vec<&'r Rule> {
    limiting(settings, rules).filter(|rule| fits(rule, entries)).collect()
}

/// Returns the message and the help text if a client can match none of the rules by leaving something out of its request. `fitting` are
/// the rules that can match the descriptor.
fn avoidable(entries: &[EntrySource], fitting: &[&Rule]) -> Option<(String, String)> {
    let optional: Vec<(usize, String)> =
        entries.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.from.can_be_left_out()?))).collect();
    // A client can leave out each of them, or all.
    let alone = optional.iter().map(std::slice::from_ref);
    let mut left_out = alone.chain(std::iter::once(&optional[..])).filter(|out| !out.is_empty());
    let avoided = left_out.find(|out| {
        let is_matched = |rule: &&Rule| {
            out.iter().all(|(at, _)| rule.steps.get(*at).is_some_and(|step| step.matches(&entries[*at].key, "")))
        };
        !fitting.iter().any(is_matched)
    })?;
    let what: Vec<&str> = avoided.iter().map(|(_, what)| &**what).collect();
    let keys: Vec<String> = avoided.iter().map(|(at, _)| format!("`{}`", entries[*at].key)).collect();
    let (what, keys) = (what.join(" and "), keys.join(" and "));
    let path = path_text(entries.iter().map(path_of));
    let message = format!(
        "a client that sends forward-auth a request without {what} is not limited by `{path}`: the rules name only values"
    );
    let help = format!(
        "add a rule with {keys} and no `value`: with a limit, or with `rate_limit: {{unlimited: true}}` if all such clients may \
         pass. It also matches values that no rule names"
    );
    Some((message, help))
}

/// Returns whether an entry compares the URI of a client, as the proxy sends it, with a value.
fn is_raw(step: &RuleStep, entry: &EntrySource) -> bool {
    let of_uri = ["x-forwarded-uri", "x-original-uri", "x-original-url"];
    let is_uri =
        matches!(&entry.from, ValueSource::Header(name) if of_uri.iter().any(|uri| uri.eq_ignore_ascii_case(name)));
    is_uri && step.value.as_deref().is_some_and(|value| value.chars().any(|c| c != '*'))
}

/// Returns whether a request with these entries can match the rule.
pub(super) fn fits(rule: &Rule, entries: &[EntrySource]) -> bool {
    let fits = |(step, entry): (&RuleStep, &EntrySource)| match &entry.from {
        ValueSource::Value(text) => step.matches(&entry.key, text),
        _ => step.can_match(&entry.key),
    };
    rule.steps.len() == entries.len() && rule.steps.iter().zip(entries).all(fits)
}

/// Returns an entry as it is written in the path of a rule.
fn path_of(entry: &EntrySource) -> PathStep<'_> {
    match &entry.from {
        ValueSource::Value(text) => PathStep(&entry.key, Some(text)),
        _ => PathStep(&entry.key, None),
    }
}

/// Returns the name that was probably meant, or a list of the known names.
fn suggestion(written: &str, known: impl Iterator<Item = String>, introduction: &str) -> String {
    let mut known: Vec<_> = known.collect();
    known.sort();
    known.dedup();
    if let Some(near) = nearest(written, known.iter().map(String::as_str)) {
        return format!("did you mean `{near}`?");
    }
    let more = if known.len() > LISTED { ", ..." } else { "" };
    known.truncate(LISTED);
    match known.is_empty() {
        true => format!("{introduction}: nothing"),
        false => format!("{introduction}: {}{more}", known.join(", ")),
    }
}
