//! Rules files: which requests are counted, and by which limits.
//!
//! [`Rules::parse`] reads the reference server's format with additions and builds an index;
//! [`Rules::plan`] turns a request into [hits](spillgate_core::Hit) that a store decides.
//! Matching allocates nothing and costs a hash look-up or two for each entry of the request, and a
//! comparison with each wildcard of its key on that level. A wildcard costs its own length, whatever the
//! value's; only one with text between two stars reads the whole value. What a descriptor can cost at worst is bounded:
//! rules that would need more than 2 MiB of comparisons, or read a value more than 256 times, do not load.
//!
//! A request's entries are walked in order. At each level the exact `key` and `value` are tried,
//! then wildcards, the most specific first (most characters that are not `*`; ties as declared),
//! then `key` alone; where nothing deeper fits, the search goes back up and tries the next. The
//! number of entries has to be the depth of the rule. Each value met at run time has its own
//! counter. In a file with `compat: envoy`, or in all by [`Defaults`], the first declared wildcard is
//! taken, and the search never goes back up.

mod bound;
mod errors;
mod file;
mod index;
mod lint;
mod model;
mod pattern;
mod plan;
mod read;
mod schema;
mod work;

use std::collections::HashMap;

pub use errors::RulesErrors;
pub use file::read_files;
pub use model::{Domain, How, Limit, Metadata, Origin, Outcome, Rule, RuleStep, Step, Unit, Unreleased};
pub use plan::{Action, Descriptor, Plan, Planned, Request};
pub use schema::SCHEMA;

pub use crate::text::{Diagnostic, Severity};

use spillgate_core::OnStoreFailure;

use crate::text::yaml;
use index::{Explained, Index};

/// The largest rules file, in bytes.
pub const MAX_FILE_BYTES: usize = yaml::MAX_BYTES;

/// The deepest nesting of descriptors.
pub const MAX_DEPTH: usize = 16;

/// The most descriptors of one load, over all files.
pub const MAX_RULES: usize = 1_000_000;

/// The most bytes of the rules' [paths](Rule::path) of one file: each repeats what it is nested
/// in, so that a small file could ask for very much memory.
pub const MAX_PATH_BYTES: usize = 64 << 20;

/// The most limits of one descriptor.
pub const MAX_LIMITS: usize = 8;

/// One rules file, read.
#[derive(Clone, Debug)]
pub struct RulesFile {
    /// What to call it in reports.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// What holds for all files that do not say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// The reference server's habits, as by `compat: envoy` at the top of each file.
    pub compat_envoy: bool,
    /// What is answered for a limit without `on_store_failure` while a shared store fails.
    pub on_store_failure: OnStoreFailure,
}

/// The rules of one load: immutable and indexed.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    domains: Vec<DomainEntry>,
    by_name: HashMap<Box<str>, usize>,
    rules: Vec<Rule>,
    index: Index,
    warnings: Vec<Diagnostic>,
}

#[derive(Clone, Debug)]
struct DomainEntry {
    domain: Domain,
    /// The level of its outermost descriptors.
    root: u32,
    /// The number of its file.
    file: usize,
    /// Its rules are those from here to the next domain's.
    first_rule: usize,
    has_replaces: bool,
}

impl Rules {
    /// Reads and checks all `files`: one domain each, all or none.
    ///
    /// # Errors
    /// Every error of every file, with its line and how to mend it; at most
    /// [`RulesErrors::MAX`] of them.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user_id, rate_limit: {uint: minute, requests_per_unit: 5}}]";
    /// let errors = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).unwrap_err();
    /// assert!(errors.iter().any(|error| error.line() == 2 && error.help() == "did you mean `unit`?"));
    /// ```
    pub fn parse(files: &[RulesFile]) -> Result<Rules, RulesErrors> {
        Rules::parse_with(files, Defaults::default())
    }

    /// [`parse`](Rules::parse), where `defaults` hold for what a file does not say.
    ///
    /// # Errors
    /// As there.
    pub fn parse_with(files: &[RulesFile], defaults: Defaults) -> Result<Rules, RulesErrors> {
        let mut rules = read::read(files, defaults)?;
        let found = lint::lint(&rules, files);
        rules.warn(files, found);
        Ok(rules)
    }

    /// Warns of rules whose own value is longer than `value_bytes`, the part of a value that [`plan`](Rules::plan) is
    /// to count; `files` are those that were parsed.
    pub fn warn_of_long_values(&mut self, files: &[RulesFile], value_bytes: usize) {
        let found = lint::long_values(self, files, value_bytes);
        self.warn(files, found);
    }

    /// Warns of concurrency limits by where their permits are `taken`, which the rules do not know; `files` are those
    /// that were parsed.
    pub fn warn_of_unreleased(&mut self, files: &[RulesFile], taken: impl Fn(&Rule) -> Unreleased) {
        let found = lint::unreleased(self, files, taken);
        self.warn(files, found);
    }

    fn warn(&mut self, files: &[RulesFile], found: Vec<Diagnostic>) {
        let number: HashMap<&str, usize> = files.iter().enumerate().map(|(at, file)| (&*file.name, at)).collect();
        self.warnings.extend(found);
        self.warnings.sort_by_key(|warning| {
            let is_note = warning.severity() == Severity::Note;
            (number.get(warning.file()).copied(), warning.at(), is_note)
        });
        self.warnings.truncate(lint::MAX_WARNINGS);
    }

    /// What is allowed but probably not meant, in order of files and lines; at most 1,000.
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// The domains in the order of their files.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter().map(|entry| &entry.domain)
    }

    /// Whether a file has this domain.
    #[must_use]
    pub fn has_domain(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Every descriptor of every file, in order, those without limits too.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// The rule that a descriptor's entries lead to. Allocates nothing.
    #[must_use]
    pub fn find<'r>(&'r self, domain: &str, entries: &[(&str, &str)]) -> Option<&'r Rule> {
        let (number, _) = self.domain(domain)?;
        self.find_in(number, entries)
    }

    /// The same search, step by step; empty for an unknown domain or without entries.
    #[must_use]
    pub fn explain(&self, domain: &str, entries: &[(&str, &str)]) -> Vec<Step> {
        let Some((number, domain)) = self.domain(domain) else { return Vec::new() };
        let mut search = Explained { entries, rules: &self.rules, first_only: domain.compat_envoy, steps: Vec::new() };
        self.index.explain(&mut search, self.domains[number].root, 0);
        search.steps
    }

    fn domain(&self, name: &str) -> Option<(usize, &Domain)> {
        let number = *self.by_name.get(name)?;
        Some((number, &self.domains[number].domain))
    }

    fn find_in(&self, domain: usize, entries: &[(&str, &str)]) -> Option<&Rule> {
        let entry = &self.domains[domain];
        let node = self.index.find(entry.root, entries, entry.domain.compat_envoy)?;
        self.rules.get(node as usize)
    }

    fn rules_of(&self, domain: usize) -> &[Rule] {
        let end = self.domains.get(domain + 1).map_or(self.rules.len(), |next| next.first_rule);
        &self.rules[self.domains[domain].first_rule..end]
    }

    fn has_replaces(&self, domain: usize) -> bool {
        self.domains[domain].has_replaces
    }
}
