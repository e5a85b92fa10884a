//! Warnings: what is valid but probably not meant.
//!
//! A rule that never matches or never refuses looks like protection and protects nothing. Without a warning, its
//! operator would notice that only during an attack.

use std::collections::HashSet;
use std::time::Duration;

use spillgate_core::Algorithm;

use super::index::{DomainEntry, Rules, SlotView};
use super::model::{Limit, MAX_WARNINGS, Origin, Pattern, Rule, RulesFile, Unreleased, never_binds};
use crate::text::{At, Diagnostic, Severity, Source, Words};
use crate::units::format_duration;

/// How many wildcards of one key are compared with each other and with values. The cost is quadratic, and a file can
/// have thousands of wildcards. Later wildcards are not compared.
const MAX_COMPARED: usize = 256;

/// The warnings of all rules that were loaded.
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

/// Warnings of rules whose own value is longer than `value_bytes`, the part of a value that is counted.
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
                format!("this value is {bytes} bytes long, and requests are counted by the first {value_bytes}");
            let help =
                "values with the same beginning share a counter: shorten it, or raise the setting `limits.value`";
            linter.warn(rule.origin.line, message, "this descriptor", help);
        }
        findings.append(&mut linter.findings);
    }
    findings
}

/// Warnings of concurrency limits whose permits can be taken by callers that cannot release them.
///
/// `taken` says for each rule whether such callers exist. If that is not known, the finding is a note.
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
            let help = "such a permit comes back when its `lease` ends: keep that short";
            if taken == Unreleased::Always {
                let message = format!("permits of `{}` are taken by callers that cannot release them", rule.path);
                linter.warn(line, message, "concurrency", help);
            } else {
                let message =
                    format!("permits of `{}` can be released over HTTP, but not if gRPC took them", rule.path);
                linter.note(line, message, "concurrency", help);
            }
        }
        findings.append(&mut linter.findings);
    }
    findings
}

/// The text of a file, with the offset of each line.
struct Lines {
    source: Source,
    /// The offset of each line in bytes. A rule knows its line, and a diagnostic needs the offset too.
    starts: Vec<usize>,
}

impl Lines {
    /// Finds all lines of the file. The text is read once, whatever the number of warnings.
    fn new(file: &RulesFile) -> Lines {
        let starts = std::iter::once(0).chain(file.text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let source = Source::new(&file.name, &file.text);
        Lines { source, starts }
    }

    /// The position of the first word of a line, after its dash.
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
    /// The domain.
    entry: &'r DomainEntry,
    /// The text of its file.
    source: Lines,
    findings: Vec<Diagnostic>,
}

impl<'r> Linter<'r> {
    /// Adds a warning about a line.
    fn warn(&mut self, line: u32, message: String, label: &str, help: impl Into<String>) {
        if self.findings.len() < MAX_WARNINGS {
            let words = Words::new(message, label, help);
            self.findings.push(Diagnostic::new(&self.source.source, self.source.at(line), Severity::Warning, words));
        }
    }

    /// Adds a note about a line.
    fn note(&mut self, line: u32, message: String, label: &str, help: &str) {
        if self.findings.len() < MAX_WARNINGS {
            let words = Words::new(message, label, help);
            self.findings.push(Diagnostic::new(&self.source.source, self.source.at(line), Severity::Note, words));
        }
    }

    /// The rule of a node.
    fn rule(&self, node: u32) -> &'r Rule {
        &self.rules.rules[node as usize]
    }

    /// Whether only the first wildcard that fits is tried.
    fn compat_envoy(&self) -> bool {
        self.entry.domain.compat_envoy
    }

    /// Warns of a domain without any limit. The file may have been cut before its first limit.
    fn no_limits(&mut self, domain: usize) {
        if self.rules.rules_of(domain).iter().any(|rule| !rule.limits.is_empty() || rule.unlimited) {
            return;
        }
        let first = self.source.source.text.lines().position(|line| line.trim_start().starts_with("domain"));
        let line = u32::try_from(first.unwrap_or(0) + 1).unwrap_or(1);
        let message = format!("domain `{}` has no limit: everything passes", self.entry.domain.name);
        let help = "is the file whole? to say that this is meant, give a descriptor `rate_limit: {unlimited: true}`";
        self.warn(line, message, "this domain", help);
    }

    /// Warns of rules that no request can reach, because another rule is tried first and always fits.
    fn reachability(&mut self, level: u32) {
        let index = &self.rules.index;
        for (_, slot) in index.slots(level) {
            self.wildcards(&slot);
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
    }

    /// Warns of wildcards that can never match in a domain with `compat: envoy`: an earlier one fits all their values.
    ///
    /// Other domains need no such warning. There the more specific wildcard is tried first, wherever it is declared.
    fn wildcards(&mut self, slot: &SlotView<'_>) {
        let compared = &slot.wildcards()[..slot.wildcards().len().min(MAX_COMPARED)];
        if !self.compat_envoy() {
            return;
        }
        for (i, later) in compared.iter().enumerate() {
            if let Some(first) = compared[..i].iter().find(|first| first.pattern.covers(&later.pattern)) {
                let (first, later) = (self.rule(first.node), self.rule(later.node));
                let message = format!("`{}` can never match: `{}` is declared before it", later.path, first.path);
                let help = format!("declare it before line {}, or do without `compat: envoy`", first.origin.line);
                self.warn(later.origin.line, message, "unreachable", help);
            }
        }
    }

    /// Warns of node `later`, if it can never match. Node `first` is tried before it and fits every value that `later`
    /// fits.
    ///
    /// If both have nested descriptors, the search may go back from `first` to `later`. The nested descriptors of
    /// `later` are then checked in the same way.
    fn shadowed(&mut self, first: u32, later: u32) {
        let (by, rule) = (self.rule(first), self.rule(later));
        let (below_first, below_later) = (self.rules.index.below(first), self.rules.index.below(later));
        let only_a_step = below_later.is_some() && rule.limits.is_empty() && !rule.unlimited;
        if self.compat_envoy() || !only_a_step {
            let message = format!("`{}` can never match: `{}` is tried first and fits every value", rule.path, by.path);
            let help = format!("remove one of the two; the other is on line {}", by.origin.line);
            self.warn(rule.origin.line, message, "shadowed", help);
        }
        let (Some(below_first), Some(below_later)) = (below_first, below_later) else { return };
        if self.compat_envoy() {
            return;
        }
        // The search goes back up, so it reaches most rules below `later`. It does not reach a rule that fits only
        // requests which a rule below `first` fits too.
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

    /// Does the same as [`shadowed`](Linter::shadowed), if there is a node that is tried first.
    fn shadowed_by(&mut self, first: Option<u32>, later: u32) {
        if let Some(first) = first {
            self.shadowed(first, later);
        }
    }

    /// Adds the warnings about single rules: modes that exclude each other, unknown names in `replaces`, and rules that
    /// limit nothing.
    fn each_rule(&mut self, domain: usize) {
        let rules = self.rules.rules_of(domain);
        let names: HashSet<&str> = rules.iter().flat_map(Rule::names).collect();
        for rule in rules {
            let line = rule.origin.line;
            if rule.shadow_mode && rule.quota_mode {
                let message = format!("`{}` has both shadow_mode and quota_mode", rule.path);
                self.warn(line, message, "this descriptor", "remove `quota_mode`: a shadow rule never refuses");
            }
            for name in rule.replaces().filter(|name| !names.contains(name)) {
                let message = format!("`{}` replaces `{name}`, which is no limit's name in this domain", rule.path);
                self.warn(line, message, "this descriptor", "name a limit with `name:`, or remove it from `replaces`");
            }
            let leaf = self.rules.index.below(rule.index).is_none();
            if leaf && rule.limits.is_empty() && !rule.unlimited {
                let message = format!("`{}` limits nothing", rule.path);
                self.note(
                    line,
                    message,
                    "no rate_limit",
                    "to say that this is meant, write `rate_limit: {unlimited: true}`",
                );
            }
            self.limits(rule);
        }
    }

    /// Warns of limits that never refuse, because another limit of the rule is always stricter.
    ///
    /// A post-paid limit is not compared. It can charge more than it allows, so the bounds of its algorithm do not
    /// hold.
    fn limits(&mut self, rule: &Rule) {
        for (i, limit) in rule.limits.iter().enumerate() {
            let line = line_of(limit, rule);
            let stricter = rule.limits.iter().enumerate().find(|(j, other)| {
                *j != i && !other.post_paid && !limit.post_paid && never_binds(&limit.quota, &other.quota)
            });
            let Some((_, stricter)) = stricter else { continue };
            let (loose, strict) = (described(limit), described(stricter));
            let message = format!("the limit of {loose} never binds: {strict} is always stricter");
            self.warn(line, message, "this limit", "remove it, or lower it");
        }
    }
}

/// The line of a limit, or of its rule.
fn line_of(limit: &Limit, rule: &Rule) -> u32 {
    limit.origin.as_ref().map_or(rule.origin.line, |Origin { line, .. }| *line)
}

/// The size of a limit as text: `10 per second`, `150 per 2m`.
fn described(limit: &Limit) -> String {
    let window = limit.unit.map_or_else(
        || format_duration(Duration::from_nanos(limit.quota.window_ns())),
        |unit| unit.as_str().to_owned(),
    );
    format!("{} per {window}", limit.requests_per_unit)
}
