//! Reads rules from the texts of files. This module goes through all YAML values, checks them, and fills the index.
//!
//! A wrong file is rejected when it is loaded. Without these checks, a mistake would be noticed only when a request
//! needs the rule.
//!
//! ```text
//! paths --file.rs--> texts --text/yaml.rs--> nodes --mod.rs--> rules and index
//!                                                    section.rs   checks which keys a part can have
//!                                                    limit.rs     turns one rate_limit into one quota
//!                                                    scalar.rs    reads single values
//!                                                    metadata.rs  reads data that a file attaches to a rule
//!                                                    errors.rs    collects errors and warnings
//! ```
//!
//! If a part is wrong, it is reported and left out, and the rest is read. One load therefore shows all errors.

mod errors;
mod file;
mod limit;
mod metadata;
mod regions;
mod scalar;
mod section;
mod sketch;

use std::sync::Arc;

use self::errors::{Errors, Reporter};
use self::limit::{LimitContext, Parsed};
use self::scalar::{boolean, choice, text};
use self::section::{Fields, found, is_empty, is_empty_list, settings_key, shown};
use super::index::{DomainEntry, Rules};
use super::model::{
    Defaults, Domain, Limit, MAX_DEPTH, MAX_FILE_BYTES, MAX_LIMITS, MAX_PATH_BYTES, MAX_RULES, Origin, Pattern, Rule,
    RuleStep, RulesErrors, RulesFile, never_binds,
};
use super::path::path_text;
use spillgate_text::yaml::{self, Node, Value};
use spillgate_text::{At, Diagnostic, Source};

pub use self::file::{is_rules_file, left_out, read_files};

#[cfg(test)]
pub(super) use self::section::Section;

/// After this many errors, the rest of a file is not read. A file with more errors is probably not a rules file, and it
/// takes time to find further errors.
const MAX_COUNTED: usize = 10_000;

/// Help texts for a file that is valid YAML but cannot be a rules file.
const ADVICE: yaml::Advice = yaml::Advice {
    empty: Some("start with `domain: NAME`"),
    alias: None,
    ignore_tags: false,
    documents: "a file has one domain, so move the text after `---` into another file",
    depth: "descriptors can be nested at most 16 levels deep",
    size: "split the rules into several domains, with one file for each domain",
};

/// Reads all files. If one file has an error, no rules are returned.
pub(super) fn read(files: &[RulesFile], defaults: Defaults) -> Result<Rules, RulesErrors> {
    let mut rules = Rules::default();
    let mut errors = Errors::default();
    for (number, file) in files.iter().enumerate() {
        if file.text.len() > MAX_FILE_BYTES {
            errors.push(file::too_large(&file.name));
            continue;
        }
        let source = Source::new(&file.name, &file.text);
        match yaml::parse(&source, &ADVICE) {
            Ok(node) => {
                let reporter = Reporter { source: &source, errors: &mut errors };
                let reader = FileReader {
                    rules: &mut rules,
                    reporter,
                    file: number,
                    steps: Vec::new(),
                    path_bytes: 0,
                    domain: "".into(),
                    compat_envoy: defaults.compat_envoy,
                    defaults,
                };
                reader.read(&node);
            }
            Err(error) => errors.push(error),
        }
    }
    rules.warnings = errors.finish()?;
    Ok(rules)
}

struct FileReader<'f> {
    rules: &'f mut Rules,
    reporter: Reporter<'f>,
    /// The position of the file in the list of files, counted from 0.
    file: usize,
    /// The path to the descriptor that is being read.
    steps: Vec<RuleStep>,
    /// The total length in bytes of the paths of all rules of this file so far.
    path_bytes: usize,
    /// The name of the domain. It is empty until the name is read.
    domain: Arc<str>,
    /// Whether the file behaves as with `compat: envoy`.
    compat_envoy: bool,
    /// What a limit has that does not say it itself.
    defaults: Defaults,
}

impl FileReader<'_> {
    fn read(mut self, node: &Node) {
        if matches!(node.value, Value::Null) {
            self.reporter.error(At::TOP, "the file is empty", "here", "start with `domain: NAME`");
            return;
        }
        if let Some(at) = settings_key(node) {
            let help = "pass this file with --config; pass rules files as arguments, or under `rules:` in the settings";
            let message = "this looks like a settings file, not like a rules file";
            let error = Diagnostic::error_at(self.reporter.source, at, message, "a key of settings", help);
            // Settings can contain a password, so the error does not show any line of the file.
            self.reporter.errors.push(error.without_lines());
            return;
        }
        let Some(fields) = Fields::read(node, section::Section::File, &mut self.reporter) else { return };
        self.compat_envoy |= fields
            .get("compat")
            .is_some_and(|node| choice(node, "compat", &[("envoy", ())], &mut self.reporter).is_some());
        let domain = match fields.get("domain") {
            Some(node) => text(node, "domain", &mut self.reporter).map(|name| (name, node.at)),
            None => {
                let help = "add `domain: NAME` at the top; each request names the domain of its rules";
                fields.missing(At::TOP, "the file has no `domain`", "in this file", help, &mut self.reporter);
                None
            }
        };
        let root = self.rules.index.add_level();
        let first_rule = self.rules.rules.len();
        if let Some((name, at)) = domain {
            self.domain = name.into();
            self.add_domain(name, at, root);
        }
        if let Some(list) = fields.get("descriptors") {
            self.descriptors(list, root);
            self.rules.index.bound_searches(root);
        }
        if let Some(entry) = self.rules.domains.last_mut() {
            entry.has_replaces = self.rules.rules[first_rule..].iter().any(|rule| rule.replaces().next().is_some());
        }
    }

    /// Adds a domain. `root` is the level of the index that has the outermost descriptors of the domain. A domain that
    /// is defined twice is an error.
    fn add_domain(&mut self, name: &str, at: At, root: u32) {
        let file = self.reporter.source.name.clone();
        if let Some(first) = self.rules.by_name.get(name) {
            let first = &self.rules.domains[*first].domain.file;
            let message = format!("domain `{}` is defined twice", shown(name));
            let help = match **first == *file {
                true => format!("give {first} only once, and define the domain only once in it"),
                false => format!("{first} defines it too; write all rules of a domain into one file"),
            };
            self.reporter.error(at, message, "defined again", help);
        }
        let domain = Domain { name: name.into(), file, compat_envoy: self.compat_envoy };
        self.rules.by_name.insert(name.into(), self.rules.domains.len());
        let first_rule = self.rules.rules.len();
        let entry = DomainEntry {
            domain,
            root,
            file: self.file,
            first_rule,
            has_replaces: false,
            text: self.reporter.source.text.clone(),
        };
        self.rules.domains.push(entry);
    }

    /// Reads a list of descriptors, and adds them to the level `level` of the index. Checks the bounds on the number
    /// and the nesting of descriptors.
    fn descriptors(&mut self, list: &Node, level: u32) {
        let items = match &list.value {
            Value::List(items) => items,
            Value::Null => return,
            Value::Text { .. } | Value::Map(_) => {
                let help = "start each descriptor with a dash: `- key: NAME`";
                self.reporter.error(list.at, "`descriptors` has to be a list", found(list), help);
                return;
            }
        };
        if self.steps.len() == MAX_DEPTH {
            let message = format!("descriptors are nested more than {MAX_DEPTH} levels");
            self.reporter.error(list.at, message, "one level too deep", "use fewer levels of descriptors");
            return;
        }
        for item in items {
            if self.reporter.count() > MAX_COUNTED {
                return;
            }
            if self.rules.rules.len() >= MAX_RULES {
                let message = format!("there are more than {MAX_RULES} descriptors");
                let help = "use wildcards, or descriptors with a `key` and no `value`";
                self.reporter.error(item.at, message, "one too many", help);
                return;
            }
            if self.path_bytes > MAX_PATH_BYTES {
                let message = format!(
                    "together, the paths of all descriptors of this file are longer than {} MiB",
                    MAX_PATH_BYTES >> 20
                );
                let help =
                    "a path has the keys and values of all outer descriptors; make these shorter, or use fewer levels";
                self.reporter.error(item.at, message, "too long from here on", help);
                return;
            }
            self.descriptor(item, level);
        }
        if let Some((key, message, help)) = self.rules.index.finish_level(level, self.compat_envoy) {
            self.reporter.error(list.at, message, format!("the descriptors with `{}` here", shown(&key)), help);
        }
    }

    /// Reads one descriptor, and the descriptors that are nested in it.
    fn descriptor(&mut self, item: &Node, level: u32) {
        let Some(fields) = Fields::read(item, section::Section::Descriptor, &mut self.reporter) else { return };
        let Some(step) = self.step(&fields) else { return };
        let node = self.add_node(&fields, level, &step);
        self.steps.push(step);
        if let Some(rule) = self.rule(item, &fields, node) {
            self.rules.rules.push(rule);
        }
        if let Some(nested) = fields.get("descriptors") {
            let below = self.rules.index.add_level();
            if let Some(node) = node {
                self.rules.index.set_below(node, below);
            }
            self.descriptors(nested, below);
        }
        self.steps.pop();
    }

    /// Reads the key and the value of a descriptor. If one of them is wrong, reports an error and returns `None`.
    fn step(&mut self, fields: &Fields<'_>) -> Option<RuleStep> {
        let reporter = &mut self.reporter;
        let key = match fields.get("key") {
            Some(node) => text(node, "key", reporter),
            None => {
                let help = "add `key: NAME`";
                fields.missing(fields.at, "the descriptor has no `key`", "this descriptor", help, reporter);
                None
            }
        };
        // An empty value means no value, as in Envoy's reference rate limit server.
        let mut value = match fields.get("value") {
            Some(node) if !is_empty(node) => Some(text(node, "value", reporter)?),
            _ => None,
        };
        let has_key_wildcard = key.is_some_and(|key| key.contains('*'));
        if let (Some(word), Some(node)) = (key, fields.get("key"))
            && has_key_wildcard
            && value.is_none()
            && !word.ends_with('*')
        {
            let message = format!("the key `{}` also has to match the value", shown(word));
            let help = "a key with `*` is compared with the key, `_` and the value of an entry as one text; end it with `*`, or \
                        write a `value`";
            self.reporter.warning(node.at, message, "compared with key and value", help.to_owned());
        }
        let shared = self.flag(fields, "share_threshold");
        let value_to_metric = self.flag(fields, "value_to_metric");
        if shared && value.and_then(Pattern::new).is_none() {
            if has_key_wildcard && value.is_none() {
                // The reference server accepts it too: all values of one key share a counter.
                value = Some("*");
            } else if !fields.may_misspell("value") {
                let at = fields.key_at("share_threshold").unwrap_or(fields.at);
                let help = "write a `value` with a `*`, or remove `share_threshold`";
                self.reporter.error(at, "`share_threshold` needs a value with a wildcard", "nothing to share", help);
            }
        }
        Some(RuleStep { key: key?.into(), value: value.map(Into::into), shared, value_to_metric })
    }

    /// Reads a key whose value is true or false. Returns false if the key is missing or its value is wrong.
    fn flag(&mut self, fields: &Fields<'_>, key: &str) -> bool {
        fields.get(key).and_then(|node| boolean(node, key, &mut self.reporter)).unwrap_or(false)
    }

    /// Adds the descriptor to the index, and returns its node. If the level already has the same key and value, reports
    /// an error and returns `None`.
    fn add_node(&mut self, fields: &Fields<'_>, level: u32, step: &RuleStep) -> Option<u32> {
        // Without its value, a descriptor would seem to be another one with the same key.
        if fields.may_misspell("value") {
            return None;
        }
        match self.rules.index.add_node(level, &step.key, step.value.as_ref()) {
            Ok(node) => Some(node),
            Err(there) => {
                let first = self.rules.rules.get(there as usize).map_or(0, |rule| rule.origin.line);
                let message = format!("`{}` is declared twice on this level", shown(&step.as_path().to_string()));
                let help = format!("the first one is on line {first}; merge the two descriptors, or remove one");
                self.reporter.error(fields.at, message, "declared again", help);
                None
            }
        }
    }

    /// Reads the rule of the last descriptor in `steps`. If the index has no node for it, returns `None`, but still
    /// reads the fields, so that their errors are reported too.
    fn rule(&mut self, item: &Node, fields: &Fields<'_>, node: Option<u32>) -> Option<Rule> {
        let bytes = |place: usize| u32::try_from(place).expect("invariant: a file has at most 16 MiB");
        let origin = Origin { file: self.reporter.source.name.clone(), line: fields.at.line };
        let shadow_mode = self.flag(fields, "shadow_mode");
        let quota_mode = self.flag(fields, "quota_mode");
        let detailed_metric = self.flag(fields, "detailed_metric");
        let metadata = fields.get("metadata").and_then(|node| metadata::read(node, &mut self.reporter));
        let limits = self.limits(fields);
        let insight_by = fields.get("insight_by").and_then(|node| text(node, "insight_by", &mut self.reporter));
        // A limit with an error of its own counts too, so that one mistake is one error.
        let has_limit = fields.get("rate_limit").or(fields.get("rate_limits")).is_some();
        let has_limit = has_limit || fields.may_misspell("rate_limit");
        let counts = has_limit && matches!(limits, Limits::Some(_));
        if let (Some(_), Some(at), false) = (insight_by, fields.key_at("insight_by"), counts) {
            let help = "remove `insight_by`, or move it to a descriptor that has a limit";
            self.reporter.error(at, "without a limit, insight counts nothing", "counts nothing", help);
        }
        if let (true, Some(at), Limits::Some(limits)) = (quota_mode, fields.key_at("quota_mode"), &limits)
            && limits.iter().any(|limit| limit.sketch.is_some())
        {
            let help = "remove `quota_mode`, or remove `representation: sketch` from the limits of this descriptor";
            self.reporter.error(at, "a sketch cannot refuse together with other limits", "not with a sketch", help);
        }
        let own = self.steps.last()?;
        let path = path_text(self.steps.iter().map(RuleStep::as_path)).into_boxed_str();
        self.path_bytes += path.len();
        let mut rule = Rule {
            domain: self.domain.clone(),
            path,
            steps: self.steps.as_slice().into(),
            origin,
            limits: Box::default(),
            unlimited: false,
            shadow_mode,
            quota_mode,
            detailed_metric,
            value_to_metric: own.value_to_metric,
            insight_by: insight_by.map(Arc::from),
            metadata,
            unlimited_name: None,
            unlimited_replaces: Box::default(),
            index: node?,
            text: (bytes(item.at.start), bytes(item.end)),
        };
        match limits {
            Limits::Some(limits) => rule.limits = limits.into(),
            Limits::Unlimited { name, replaces } => {
                rule.unlimited = true;
                rule.unlimited_name = name;
                rule.unlimited_replaces = replaces;
            }
        }
        Some(rule)
    }

    /// Reads the limits under `rate_limit` or `rate_limits`.
    fn limits(&mut self, fields: &Fields<'_>) -> Limits {
        if let (Some(_), Some(at)) = (fields.get("rate_limit"), fields.key_at("rate_limits")) {
            let help = "write all limits under `rate_limits`";
            self.reporter.error(at, "`rate_limit` and `rate_limits` are both given", "given beside rate_limit", help);
        }
        let mut limits: Vec<(At, Limit)> = Vec::new();
        if let Some(node) = fields.get("rate_limit") {
            let at = fields.key_at("rate_limit").unwrap_or(node.at);
            if is_empty(node) {
                // Programs that write rules files put an empty limit at each level that only leads to other rules.
                let leads_on = fields.get("descriptors").is_some_and(|nested| !is_empty_list(nested));
                if !leads_on {
                    let help = "write a limit, or `rate_limit: {unlimited: true}` if you want no limit here".to_owned();
                    let message = "`rate_limit` is empty, so it limits nothing".to_owned();
                    self.reporter.warning(at, message, "nothing is here", help);
                }
                return Limits::Some(Vec::new());
            }
            match self.limit(node, at) {
                Some(Parsed::Unlimited { name, replaces }) => return Limits::Unlimited { name, replaces },
                Some(Parsed::Limit(limit)) => limits.push((at, *limit)),
                None => {}
            }
        } else if let Some(node) = fields.get("rate_limits") {
            self.several(node, &mut limits);
        }
        self.check_together(&limits);
        Limits::Some(limits.into_iter().map(|(_, limit)| limit).collect())
    }

    /// Reads the list under `rate_limits`, which has one to [`MAX_LIMITS`] limits.
    fn several(&mut self, node: &Node, limits: &mut Vec<(At, Limit)>) {
        let items = match &node.value {
            Value::List(items) if !items.is_empty() => items,
            _ => {
                let help = "write `rate_limits: [{unit: second, requests_per_unit: 1}, ...]`, or use `rate_limit`";
                self.reporter.error(node.at, "`rate_limits` has to be a list of limits", found(node), help);
                return;
            }
        };
        if items.len() > MAX_LIMITS {
            let message = format!("`rate_limits` has {} limits", items.len());
            let help = format!("one descriptor has at most {MAX_LIMITS}");
            self.reporter.error(node.at, message, "too many", help);
            return;
        }
        for item in items {
            match self.limit(item, item.at) {
                Some(Parsed::Limit(limit)) => limits.push((item.at, *limit)),
                Some(Parsed::Unlimited { .. }) => {
                    let help = "remove it from the list, or write `rate_limit: {unlimited: true}` instead of the list";
                    self.reporter.error(item.at, "`unlimited: true` has no effect in a list", "this item", help);
                }
                None => {}
            }
        }
    }

    /// Reads one limit. `at` is the position for errors about a missing field.
    fn limit(&mut self, node: &Node, at: At) -> Option<Parsed> {
        let origin = Origin { file: self.reporter.source.name.clone(), line: at.line };
        let FileReader { compat_envoy, defaults, .. } = *self;
        let around = LimitContext { origin, at, steps: &self.steps, compat_envoy, defaults };
        limit::read(node, &around, &mut self.reporter)
    }

    /// Checks the limits of one descriptor together. Two limits must not have the same algorithm and the same window,
    /// because they would share one counter. A limit must not replace a limit of the same descriptor.
    fn check_together(&mut self, limits: &[(At, Limit)]) {
        for (i, (at, limit)) in limits.iter().enumerate() {
            // A limit with a sketch shares no counter, because each sketch has cells of its own.
            let shares = |other: &Limit| other.sketch.is_none() && limit.sketch.is_none();
            let same_counter = |other: &Limit| other.quota.identity() == limit.quota.identity() && shares(other);
            let same = limits[..i].iter().find(|(_, other)| same_counter(other));
            if let Some((first, other)) = same {
                let of = |limit: &Limit| limit.requests_per_unit;
                let (strict, loose) = if of(limit) < of(other) { (limit, other) } else { (other, limit) };
                let (message, what) = match never_binds(&loose.quota, &strict.quota) {
                    true => (format!("the limit of {} never refuses a request", of(loose)), "remove the larger limit"),
                    // For example, one bucket has a higher rate, and the other bucket has a larger burst.
                    false => ("they would share one counter".to_owned(), "remove one limit, or change its window"),
                };
                let message = format!("two limits have the same window and algorithm, so {message}");
                let help = format!("the other limit is on line {}; {what}", first.line);
                self.reporter.error(*at, message, "the same window again", help);
            }
            for name in &limit.replaces {
                if limits.iter().any(|(_, other)| other.name.as_ref() == Some(name)) {
                    let message = format!("`replaces` has `{}`, which is a limit of the same descriptor", shown(name));
                    let help = "write only names of limits of other descriptors in `replaces`";
                    self.reporter.error(*at, message, "this limit", help);
                }
            }
        }
    }
}

enum Limits {
    /// The limits that count. The list may be empty.
    Some(Vec<Limit>),
    /// `rate_limit: {unlimited: true}`.
    Unlimited { name: Option<Box<str>>, replaces: Box<[Box<str>]> },
}
