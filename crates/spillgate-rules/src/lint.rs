//! Finds rules that are valid, but that probably do not do what their author meant. Each such rule gets a warning or a
//! note.
//!
//! For example, a rule limits no request if it never matches. Without a warning, an operator would notice such a rule
//! only during an attack.

use std::collections::HashSet;
use std::time::Duration;

use spillgate_core::Algorithm;

use super::RuleFinding;
use super::index::{DomainEntry, Rules, Wildcard};
use super::model::{Limit, MAX_WARNINGS, Origin, Pattern, Rule, RulesFile, Unreleased, never_binds};
use spillgate_limiter::units::format_duration;
use spillgate_text::{At, Diagnostic, DiagnosticText, Severity, Source};

/// The maximum number of wildcards of one key that are compared with each other and with the values of other rules.
/// Further wildcards of the key are not compared. Without this bound, thousands of wildcards would need millions of
/// comparisons.
const MAX_COMPARED: usize = 256;

/// A sliding window counter admits more than a tenth less than its limit if it has fewer units than this, and fewer
/// segments, counted with the one that leaves the window.
const LEAST_EXACT: u64 = 10;

pub(super) fn lint(rules: &Rules, files: &[RulesFile]) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    for (number, entry) in rules.domains.iter().enumerate() {
        let source = Lines::new(&files[entry.file]);
        let mut linter = Linter { rules, entry, source, findings: Vec::new() };
        linter.no_limits(number);
        linter.reachability(entry.root);
        linter.each_rule(number);
        findings.append(&mut linter.findings);
    }
    findings
}

/// Returns the findings for [`Rules::warn_of_long_values`].
pub(super) fn long_values(rules: &Rules, files: &[RulesFile], value_bytes: usize) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    for (number, entry) in rules.domains.iter().enumerate() {
        let own = |rule: &Rule| {
            rule.steps.last().filter(|step| !step.shared).and_then(|step| Some(step.value.as_ref()?.len()))
        };
        let mut long =
            rules.rules_of(number).iter().filter_map(|rule| Some((rule, own(rule).filter(|n| *n > value_bytes)?)));
        let Some(first) = long.next() else { continue };
        let mut linter = Linter { rules, entry, source: Lines::new(&files[entry.file]), findings: Vec::new() };
        for (rule, bytes) in std::iter::once(first).chain(long) {
            let message =
                format!("this value is {bytes} bytes long, but only its first {value_bytes} bytes choose the counter");
            let help = "values that begin with the same bytes share a counter; write a shorter value, or raise the \
                        setting `limits.value`";
            linter.warn(rule.origin.line, message, "this descriptor", help);
        }
        findings.append(&mut linter.findings);
    }
    findings
}

/// Returns the findings for [`Rules::warn_of_unreleased`], at most one for each rule.
pub(super) fn unreleased(rules: &Rules, files: &[RulesFile], taken: impl Fn(&Rule) -> Unreleased) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    for (number, entry) in rules.domains.iter().enumerate() {
        let is_leased = |limit: &Limit| limit.quota.algorithm() == Algorithm::Concurrency;
        let leased = |rule: &'_ Rule| Some(line_of(rule.limits.iter().find(|limit| is_leased(limit))?, rule));
        let found = rules.rules_of(number).iter().filter_map(|rule| Some((rule, leased(rule)?, taken(rule))));
        let mut found = found.filter(|(.., taken)| *taken != Unreleased::Never).peekable();
        if found.peek().is_none() {
            continue;
        }
        let mut linter = Linter { rules, entry, source: Lines::new(&files[entry.file]), findings: Vec::new() };
        for (rule, line, taken) in found {
            let help = "a permit that is not released becomes free when its `lease` ends, so set a short `lease`";
            if taken == Unreleased::Always {
                let message = format!("permits of `{}` are taken by callers that cannot release them", rule.path);
                linter.warn(line, message, "concurrency", help);
            } else {
                let message =
                    format!("clients over HTTP can release permits of `{}`, but clients over gRPC cannot", rule.path);
                linter.note(line, message, "concurrency", help);
            }
        }
        findings.append(&mut linter.findings);
    }
    findings
}

/// Returns the findings for [`Rules::warn_of_rules`].
pub(super) fn of_rules(
    rules: &Rules,
    files: &[RulesFile],
    found: impl Fn(&Rule) -> Vec<RuleFinding>,
) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    for (number, entry) in rules.domains.iter().enumerate() {
        let with_rule =
            |rule: &'_ Rule| found(rule).into_iter().map(|found| (line_of_finding(&found, rule), found)).collect();
        let found: Vec<(u32, RuleFinding)> = rules.rules_of(number).iter().flat_map::<Vec<_>, _>(with_rule).collect();
        if found.is_empty() {
            continue;
        }
        let mut linter = Linter { rules, entry, source: Lines::new(&files[entry.file]), findings: Vec::new() };
        for (line, RuleFinding { is_note, message, label, help, .. }) in found {
            match is_note {
                true => linter.note(line, message, label, &help),
                false => linter.warn(line, message, label, help),
            }
        }
        findings.append(&mut linter.findings);
    }
    findings
}

fn line_of_finding(found: &RuleFinding, rule: &Rule) -> u32 {
    let limit = found.limit.and_then(|limit| rule.limits.get(limit));
    limit.map_or(rule.origin.line, |limit| line_of(limit, rule))
}

/// The text of a file, with the position where each line starts.
struct Lines {
    source: Source,
    /// For each line, the byte offset of its start. A rule stores only its line number, but a diagnostic also needs the
    /// offset.
    starts: Vec<usize>,
}

impl Lines {
    /// Finds the starts of all lines at once. So the text is read only once, even if there are many warnings.
    fn new(file: &RulesFile) -> Lines {
        let starts = std::iter::once(0).chain(file.text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let source = Source::new(&file.name, &file.text);
        Lines { source, starts }
    }

    /// Returns the position of the first word of a line. Spaces and the dash of a list item are skipped.
    fn at(&self, line: u32) -> At {
        let start = self.starts.get(line.saturating_sub(1) as usize).copied().unwrap_or(0);
        let text = self.source.text.get(start..).unwrap_or_default().lines().next().unwrap_or_default();
        let indent = text.len() - text.trim_start_matches([' ', '-']).len();
        let column = u32::try_from(indent + 1).unwrap_or(u32::MAX);
        At { line, column, start: start + indent, len: 0 }
    }
}

/// Collects the warnings of one domain.
struct Linter<'r> {
    rules: &'r Rules,
    entry: &'r DomainEntry,
    /// The text of the domain's file.
    source: Lines,
    findings: Vec<Diagnostic>,
}

impl<'r> Linter<'r> {
    /// Adds a warning that shows the line `line`.
    fn warn(&mut self, line: u32, message: String, label: &str, help: impl Into<String>) {
        if self.findings.len() < MAX_WARNINGS {
            let words = DiagnosticText::new(message, label, help);
            self.findings.push(Diagnostic::new(&self.source.source, self.source.at(line), Severity::Warning, words));
        }
    }

    /// Adds a note that shows the line `line`.
    fn note(&mut self, line: u32, message: String, label: &str, help: &str) {
        if self.findings.len() < MAX_WARNINGS {
            let words = DiagnosticText::new(message, label, help);
            self.findings.push(Diagnostic::new(&self.source.source, self.source.at(line), Severity::Note, words));
        }
    }

    fn rule(&self, node: u32) -> &'r Rule {
        &self.rules.rules[node as usize]
    }

    /// In a domain with `compat: envoy`, a search tries only the first candidate that fits, and wildcards in the order
    /// of the file.
    fn compat_envoy(&self) -> bool {
        self.entry.domain.compat_envoy
    }

    /// Adds a warning if a domain has neither a limit nor a rule with `unlimited: true`. A possible cause is a file
    /// that was cut off before its first limit.
    fn no_limits(&mut self, domain: usize) {
        if self.rules.rules_of(domain).iter().any(|rule| !rule.limits.is_empty() || rule.unlimited) {
            return;
        }
        let first = self.source.source.text.lines().position(|line| line.trim_start().starts_with("domain"));
        let line = u32::try_from(first.unwrap_or(0) + 1).unwrap_or(1);
        let message = format!("domain `{}` has no limit, so all requests are allowed", self.entry.domain.name);
        let help = "check that the file is complete; if you want no limit, write `rate_limit: {unlimited: true}` in a \
                    descriptor";
        self.warn(line, message, "this domain", help);
    }

    /// Warns of rules that never match a request, on the level `level` and on all levels below it. A rule never matches
    /// if the search always tries another rule first that fits the same requests.
    fn reachability(&mut self, level: u32) {
        let index = &self.rules.index;
        for (_, slot) in index.slots(level) {
            self.wildcards(slot.wildcards());
            let any = slot.wildcards().iter().find(|wildcard| wildcard.pattern.is_any());
            if let (Some(any), Some(alone)) = (any, slot.alone()) {
                self.shadowed(any.node, alone);
            }
            for node in slot.nodes() {
                if let Some(below) = index.below(node) {
                    self.reachability(below);
                }
            }
        }
        self.wildcards(index.key_wildcards(level));
        for below in index.key_wildcards(level).iter().filter_map(|wildcard| index.below(wildcard.node)) {
            self.reachability(below);
        }
    }

    /// In a domain with `compat: envoy`, warns of wildcards that can never match, because an earlier wildcard in the
    /// file fits all their values.
    ///
    /// Other domains get no such warning. There the search first tries the wildcards with more characters (stars are
    /// not counted), and such a wildcard never fits all values of a wildcard with fewer characters. If two wildcards
    /// have the same number of characters, the first one can hide the second one without a warning, for example `*a*`
    /// before `a*`.
    fn wildcards(&mut self, wildcards: &[Wildcard]) {
        let compared = &wildcards[..wildcards.len().min(MAX_COMPARED)];
        if !self.compat_envoy() {
            return;
        }
        for (i, later) in compared.iter().enumerate() {
            if let Some(first) = compared[..i].iter().find(|first| first.pattern.covers(&later.pattern)) {
                let (first, later) = (self.rule(first.node), self.rule(later.node));
                let message =
                    format!("`{}` can never match: `{}` comes first and fits all its values", later.path, first.path);
                let help = format!("move this rule before line {}, or remove `compat: envoy`", first.origin.line);
                self.warn(later.origin.line, message, "unreachable", help);
            }
        }
    }

    /// Adds a warning if node `later` can never match. Call this function only if `first` is tried before `later`, and
    /// fits every value that `later` fits.
    ///
    /// If both nodes have nested rules, the search can go back from `first` to `later` (except with `compat: envoy`).
    /// Therefore each rule nested in `later` is compared with the rules nested in `first`.
    fn shadowed(&mut self, first: u32, later: u32) {
        let (by, rule) = (self.rule(first), self.rule(later));
        let (below_first, below_later) = (self.rules.index.below(first), self.rules.index.below(later));
        let only_a_step = below_later.is_some() && rule.limits.is_empty() && !rule.unlimited;
        if self.compat_envoy() || !only_a_step {
            let message = format!("`{}` can never match: `{}` is tried first and fits every value", rule.path, by.path);
            let help = format!("remove this rule, or remove `{}` on line {}", by.path, by.origin.line);
            self.warn(rule.origin.line, message, "shadowed", help);
        }
        let (Some(below_first), Some(below_later)) = (below_first, below_later) else { return };
        if self.compat_envoy() {
            return;
        }
        // The search can go back from `first` to `later`, so most rules nested in `later` can match. But a nested rule
        // can never match if a rule nested in `first` fits all its requests.
        for (key, slot) in self.rules.index.slots(below_later) {
            let Some(other) = self.rules.index.slot(below_first, key) else { continue };
            for (value, node) in slot.exacts() {
                let wider = || other.first_that(MAX_COMPARED, |pattern| pattern.fits(value));
                self.shadowed_by(other.exact(value).or_else(wider), node);
            }
            for wildcard in &slot.wildcards()[..slot.wildcards().len().min(MAX_COMPARED)] {
                self.shadowed_by(
                    other.first_that(MAX_COMPARED, |pattern| pattern.covers(&wildcard.pattern)),
                    wildcard.node,
                );
            }
            if let Some(alone) = slot.alone() {
                self.shadowed_by(other.first_that(usize::MAX, Pattern::is_any), alone);
            }
        }
    }

    fn shadowed_by(&mut self, first: Option<u32>, later: u32) {
        if let Some(first) = first {
            self.shadowed(first, later);
        }
    }

    /// Adds the findings about single rules: modes that exclude each other, unknown names in `replaces`, rules without
    /// a limit, and limits that never refuse.
    fn each_rule(&mut self, domain: usize) {
        let rules = self.rules.rules_of(domain);
        let names: HashSet<&str> = rules.iter().flat_map(Rule::names).collect();
        for rule in rules {
            let line = rule.origin.line;
            if rule.shadow_mode && rule.quota_mode {
                let message = format!("`{}` has both shadow_mode and quota_mode", rule.path);
                let help = "remove `quota_mode`, because a rule with `shadow_mode` never refuses a request";
                self.warn(line, message, "this descriptor", help);
            }
            for name in rule.replaces().filter(|name| !names.contains(name)) {
                let message = format!("`{}` replaces `{name}`, but no limit of this domain has this name", rule.path);
                let help = "give this `name` to a limit of another descriptor, or remove the name from `replaces`";
                self.warn(line, message, "this descriptor", help);
            }
            let leaf = self.rules.index.below(rule.index).is_none();
            if leaf && rule.limits.is_empty() && !rule.unlimited {
                let message = format!("`{}` limits nothing", rule.path);
                self.note(
                    line,
                    message,
                    "no rate_limit",
                    "if you want no limit here, write `rate_limit: {unlimited: true}`",
                );
            }
            self.limits(rule);
        }
    }

    /// Warns of limits that never refuse a request, because another limit of the rule is always stricter.
    ///
    /// Limits with `post_paid` are not compared. Such a limit counts units even if they do not fit, so it can admit
    /// more units than its algorithm normally admits.
    fn limits(&mut self, rule: &Rule) {
        for (i, limit) in rule.limits.iter().enumerate() {
            let line = line_of(limit, rule);
            if let Some(most) = counted_too_roughly(limit) {
                let message = format!(
                    "a sliding_window_counter of {} admits at most {most} in the long run, even from callers that keep to the limit",
                    limit.size()
                );
                let help = "write `algorithm: sliding_window_log`, which is exact and needs little memory for so small a limit, or \
                            write more `segments`";
                self.warn(line, message, "this limit", help);
            }
            let stricter = rule.limits.iter().enumerate().find(|(j, other)| {
                *j != i && !other.post_paid && !limit.post_paid && never_binds(&limit.quota, &other.quota)
            });
            let Some((_, stricter)) = stricter else { continue };
            let (loose, strict) = (limit.size(), stricter.size());
            let message = format!("the limit of {loose} never refuses a request, because {strict} is always stricter");
            self.warn(line, message, "this limit", "remove this limit, or lower it");
        }
    }
}

/// Returns how much a sliding window counter admits in the long run, if that is more than a tenth less than its limit.
///
/// While the segment that leaves the window has units, a part of them counts until its last instant. So with such a
/// segment, at most `L - 1` units fit into the `n` newer segments, and `L` units fit only if it is empty. Callers can
/// therefore get at most `L - 1` units in each window, or `L` units in each `n + 1` segments, whichever is more. A test
/// compares this with the kernel.
fn counted_too_roughly(limit: &Limit) -> Option<String> {
    let Algorithm::SlidingWindowCounter { segments } = limit.quota.algorithm() else { return None };
    let (units, window_ns, segments) = (limit.quota.hard_capacity(), limit.quota.window_ns(), u64::from(segments));
    let is_exceeded = limit.post_paid || units > limit.quota.limit();
    if units == 0 || is_exceeded || units.max(segments + 1) >= LEAST_EXACT {
        return None;
    }
    let (units, window_ns) = match units <= segments {
        true => (units, window_ns.saturating_add(window_ns / segments)),
        false => (units - 1, window_ns),
    };
    Some(format!("{units} per {}", format_duration(Duration::from_nanos(window_ns))))
}

/// A limit without a line of its own is reported at the line of its rule.
fn line_of(limit: &Limit, rule: &Rule) -> u32 {
    limit.origin.as_ref().map_or(rule.origin.line, |Origin { line, .. }| *line)
}
