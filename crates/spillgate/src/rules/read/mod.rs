//! From files to rules: walks the nodes of the YAML text, checks everything, and fills the index.
//!
//! Everything is checked here, so that a wrong file is rejected when it is loaded and not when a request needs it.
//!
//! ```text
//! paths --file.rs--> texts --text/yaml.rs--> nodes --mod.rs--> rules and index
//!                                                    section.rs   which keys a part may have
//!                                                    limit.rs     one rate_limit to one quota
//!                                                    scalar.rs    single values
//!                                                    metadata.rs  data of any form
//!                                                    errors.rs    what is wrong, with its line
//! ```
//!
//! A part that is wrong is reported and left out, and the walk continues. One load therefore shows all errors.

mod errors;
mod file;
mod limit;
mod metadata;
mod scalar;
mod section;

use std::sync::Arc;

use spillgate_core::OnStoreFailure;

use self::errors::{Errors, Reporter};
use self::limit::{Around, Parsed};
use self::scalar::{boolean, choice, text};
use self::section::{Fields, found, is_empty, settings_key, shown};
use super::index::{DomainEntry, Rules};
use super::model::{
    Defaults, Domain, Limit, MAX_DEPTH, MAX_FILE_BYTES, MAX_LIMITS, MAX_PATH_BYTES, MAX_RULES, Origin, Pattern, Rule,
    RuleStep, RulesErrors, RulesFile, never_binds,
};
use crate::text::yaml::{self, Node, Value};
use crate::text::{At, Diagnostic, Source};

pub use self::file::read_files;

#[cfg(test)]
pub(super) use self::section::Section;

/// After this many errors the rest of a file is not read. It is probably not a rules file, and its errors cost time.
const MAX_COUNTED: usize = 10_000;

/// How to fix a file that is YAML but cannot be a rules file.
const ADVICE: yaml::Advice = yaml::Advice {
    empty: Some("start with `domain: NAME`"),
    alias: None,
    ignore_tags: false,
    documents: "one domain a file: move what follows `---` into a file of its own",
    depth: "descriptors nest at most 16 levels",
    size: "spread the rules over several domains, one file each",
};

/// Reads all files. If one has an error, none is loaded.
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
                    on_store_failure: defaults.on_store_failure,
                };
                reader.read(&node);
            }
            Err(error) => errors.push(error),
        }
    }
    rules.warnings = errors.finish()?;
    Ok(rules)
}

/// Reads one file.
struct FileReader<'f> {
    rules: &'f mut Rules,
    reporter: Reporter<'f>,
    /// The index of the file.
    file: usize,
    /// The path to the descriptor that is being read.
    steps: Vec<RuleStep>,
    /// The bytes of the paths of all its rules so far.
    path_bytes: usize,
    /// The name of the domain. It is empty until it is read.
    domain: Arc<str>,
    /// Whether the file behaves as with `compat: envoy`.
    compat_envoy: bool,
    /// The policy of limits without `on_store_failure`.
    on_store_failure: OnStoreFailure,
}

impl FileReader<'_> {
    /// Reads the top of the file, and then its descriptors.
    fn read(mut self, node: &Node) {
        if matches!(node.value, Value::Null) {
            self.reporter.error(At::TOP, "the file is empty", "here", "start with `domain: NAME`");
            return;
        }
        if let Some(at) = settings_key(node) {
            let help = "pass it with --config, and the rules files as arguments or under its key `rules`";
            let message = "this looks like a settings file, not rules";
            let error = Diagnostic::error_at(self.reporter.source, at, message, "a key of settings", help);
            // Settings can contain a password.
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
                let help = "add `domain: NAME` at the top; requests name it";
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
        }
        if let Some(entry) = self.rules.domains.last_mut() {
            entry.has_replaces = self.rules.rules[first_rule..].iter().any(|rule| rule.replaces().next().is_some());
        }
    }

    /// Adds a domain whose outermost descriptors are in the level `root`. A domain that is defined twice is an error.
    fn add_domain(&mut self, name: &str, at: At, root: u32) {
        let file = self.reporter.source.name.clone();
        if let Some(first) = self.rules.by_name.get(name) {
            let first = &self.rules.domains[*first].domain.file;
            let message = format!("domain `{}` is defined twice", shown(name));
            let help = format!("the first is in {first}: put the rules of one domain into one file");
            self.reporter.error(at, message, "defined again", help);
        }
        let domain = Domain { name: name.into(), file, compat_envoy: self.compat_envoy };
        self.rules.by_name.insert(name.into(), self.rules.domains.len());
        let first_rule = self.rules.rules.len();
        let entry = DomainEntry { domain, root, file: self.file, first_rule, has_replaces: false };
        self.rules.domains.push(entry);
    }

    /// Reads a list of descriptors into `level`. The bounds of a load are checked here.
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
            self.reporter.error(list.at, message, "one level too deep", "take out a level");
            return;
        }
        for item in items {
            if self.reporter.count() > MAX_COUNTED {
                return;
            }
            if self.rules.rules.len() >= MAX_RULES {
                let message = format!("there are more than {MAX_RULES} descriptors");
                self.reporter.error(item.at, message, "one too many", "use wildcards or `key` alone");
                return;
            }
            if self.path_bytes > MAX_PATH_BYTES {
                let message = format!("the paths of this file's descriptors take over {} MiB", MAX_PATH_BYTES >> 20);
                let help = "each path repeats what it is nested in: shorten outer keys and values, or nest less";
                self.reporter.error(item.at, message, "the bound is passed here", help);
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
        if let Some(rule) = self.rule(&fields, node) {
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

    /// The key and the value of a descriptor. `None` (and an error) if one of them is wrong.
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
        // An empty value means no value, as in the reference server.
        let mut value = match fields.get("value") {
            Some(node) if !is_empty(node) => Some(text(node, "value", reporter)?),
            _ => None,
        };
        let wildcard_key = key.filter(|key| key.ends_with('*') && value.is_none());
        if let (Some(word), Some(node)) = (wildcard_key, fields.get("key")) {
            let message = format!("the key `{}` is matched as written: keys have no wildcards", shown(word));
            let help =
                "the reference server takes it for every key and value that begin so: write a `key` and a `value`";
            self.reporter.warning(node.at, message, "not a wildcard", help.to_owned());
        }
        let shared = self.flag(fields, "share_threshold");
        let value_to_metric = self.flag(fields, "value_to_metric");
        if shared && value.and_then(Pattern::new).is_none() {
            let at = fields.key_at("share_threshold").unwrap_or(fields.at);
            if let Some(word) = wildcard_key {
                // The key is matched as written, so all its values share one counter.
                value = Some("*");
                let message =
                    format!("`share_threshold` holds for the key `{}` alone: other keys do not match", shown(word));
                let help = "requests with other keys are not limited here: write `key: NAME` and `value: \"*\"`";
                self.reporter.warning(at, message, "one counter for all values of this key", help.to_owned());
            } else {
                let help = "write a `value` with a `*`, or remove `share_threshold`";
                self.reporter.error(at, "`share_threshold` needs a value with a wildcard", "nothing to share", help);
            }
        }
        Some(RuleStep { key: key?.into(), value: value.map(Into::into), shared, value_to_metric })
    }

    /// The value of a key that is true or false. It is false if the key is missing.
    fn flag(&mut self, fields: &Fields<'_>, key: &str) -> bool {
        fields.get(key).and_then(|node| boolean(node, key, &mut self.reporter)).unwrap_or(false)
    }

    /// Adds the descriptor to the index. `None` (and an error) if the index has it already.
    fn add_node(&mut self, fields: &Fields<'_>, level: u32, step: &RuleStep) -> Option<u32> {
        match self.rules.index.add_node(level, &step.key, step.value.as_ref()) {
            Ok(node) => Some(node),
            Err(there) => {
                let first = self.rules.rules.get(there as usize).map_or(0, |rule| rule.origin.line);
                let message = format!("`{}` is declared twice on this level", shown(&step_text(step)));
                let help = format!("the first is on line {first}: put both into one descriptor, or remove one");
                self.reporter.error(fields.at, message, "declared again", help);
                None
            }
        }
    }

    /// The rule of the last descriptor in `steps`, if the index has a node for it.
    ///
    /// The fields are read even without a node, so that their errors are reported too.
    fn rule(&mut self, fields: &Fields<'_>, node: Option<u32>) -> Option<Rule> {
        let origin = Origin { file: self.reporter.source.name.clone(), line: fields.at.line };
        let shadow_mode = self.flag(fields, "shadow_mode");
        let quota_mode = self.flag(fields, "quota_mode");
        let detailed_metric = self.flag(fields, "detailed_metric");
        let metadata = fields.get("metadata").and_then(|node| metadata::read(node, &mut self.reporter));
        let limits = self.limits(fields);
        let own = self.steps.last()?;
        let path = path_text(&self.steps);
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
            metadata,
            unlimited_name: None,
            unlimited_replaces: Box::default(),
            index: node?,
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

    /// The limits under `rate_limit` or `rate_limits`.
    fn limits(&mut self, fields: &Fields<'_>) -> Limits {
        if let (Some(_), Some(at)) = (fields.get("rate_limit"), fields.key_at("rate_limits")) {
            let help = "put all of them under `rate_limits`";
            self.reporter.error(at, "`rate_limit` and `rate_limits` are both given", "given beside rate_limit", help);
        }
        let mut limits: Vec<(At, Limit)> = Vec::new();
        if let Some(node) = fields.get("rate_limit") {
            let at = fields.key_at("rate_limit").unwrap_or(node.at);
            if is_empty(node) {
                let help = "write the limit, or `rate_limit: {unlimited: true}` if that is meant".to_owned();
                self.reporter.warning(
                    at,
                    "`rate_limit` is empty: it limits nothing".to_owned(),
                    "nothing is here",
                    help,
                );
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
                    let help = "remove it from the list, or write `rate_limit: {unlimited: true}` alone";
                    self.reporter.error(item.at, "an unlimited limit limits nothing in a list", "this one", help);
                }
                None => {}
            }
        }
    }

    /// Reads one limit. `at` is the position for errors about a missing field.
    fn limit(&mut self, node: &Node, at: At) -> Option<Parsed> {
        let origin = Origin { file: self.reporter.source.name.clone(), line: at.line };
        let FileReader { compat_envoy, on_store_failure, .. } = *self;
        let around = Around { origin, at, steps: &self.steps, compat_envoy, on_store_failure };
        limit::read(node, &around, &mut self.reporter)
    }

    /// Checks that no two limits of a descriptor count in one state, and that none replaces another limit of the
    /// descriptor.
    ///
    /// Two limits with the same algorithm and window would count in the same state.
    fn check_together(&mut self, limits: &[(At, Limit)]) {
        for (i, (at, limit)) in limits.iter().enumerate() {
            let same = limits[..i].iter().find(|(_, other)| other.quota.identity() == limit.quota.identity());
            if let Some((first, other)) = same {
                let of = |limit: &Limit| limit.requests_per_unit;
                let (strict, loose) = if of(limit) < of(other) { (limit, other) } else { (other, limit) };
                let (message, what) = match never_binds(&loose.quota, &strict.quota) {
                    true => (format!("the one of {} never binds", of(loose)), "keep the stricter one"),
                    // For example a bucket with a higher rate and a smaller burst.
                    false => ("they would share one count".to_owned(), "keep one, or give one of them another window"),
                };
                let message = format!("two limits have the same window and algorithm: {message}");
                let help = format!("the other one is on line {}: {what}", first.line);
                self.reporter.error(*at, message, "the same window again", help);
            }
            for name in &limit.replaces {
                if limits.iter().any(|(_, other)| other.name.as_ref() == Some(name)) {
                    let message = format!("`replaces` names `{}`, a limit of this very descriptor", shown(name));
                    let help = "name limits of other descriptors; a limit cannot replace itself";
                    self.reporter.error(*at, message, "this limit", help);
                }
            }
        }
    }
}

/// The limits of one descriptor.
enum Limits {
    /// The limits. The list may be empty.
    Some(Vec<Limit>),
    /// `rate_limit: {unlimited: true}`.
    Unlimited { name: Option<Box<str>>, replaces: Box<[Box<str>]> },
}

/// One level of a path: `user_id=vip*`, or the key alone.
fn step_text(step: &RuleStep) -> String {
    match &step.value {
        Some(value) => format!("{}={value}", step.key),
        None => step.key.to_string(),
    }
}

/// The whole path: `user_id=vip* > path`.
fn path_text(steps: &[RuleStep]) -> Box<str> {
    steps.iter().map(step_text).collect::<Vec<_>>().join(" > ").into()
}
