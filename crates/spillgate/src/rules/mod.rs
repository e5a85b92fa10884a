//! Rules files: which requests are counted, and by which limits.
//!
//! Limits belong to the people who operate a service, not into its code. They change in a file, without a new build,
//! and one file serves Envoy, nginx and a program alike.
//!
//! [`Rules::parse`] reads files in the format of Envoy's reference rate limit server, with additions, and builds an
//! index. [`Rules::plan`] turns a request into [hits](spillgate_core::Hit), which a store decides.
//!
//! # How a request finds its rule
//!
//! The entries of a descriptor are matched in order, one level of nested descriptors for each. On every level these are
//! tried:
//!
//! 1. The rule with exactly this `key` and `value`.
//! 2. Wildcards. The most specific one is first: the one with most characters that are not `*`. Equally specific ones
//!    are tried as declared.
//! 3. The rule with this `key` and no `value`.
//!
//! If nothing below a candidate fits, the search goes back up and tries the next one. A descriptor matches only a rule
//! that is as deep as the descriptor has entries. Each value that a request brings has its own counter.
//!
//! `compat: envoy` at the top of a file, or [`Defaults`] for all files, changes two things. The first declared wildcard
//! is taken, and the search never goes back up.
//!
//! # What a search costs
//!
//! Matching allocates nothing. Each entry costs one or two hash look-ups, and a comparison with each wildcard of its key
//! on that level. A wildcard reads as many bytes as it is long. Only a wildcard with text between two stars reads the
//! whole value. Rules that could compare more than 2 MiB for one descriptor, or read a value more than 256 times, do not
//! load.

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

/// The most descriptors in all files of one load.
pub const MAX_RULES: usize = 1_000_000;

/// The most bytes of all [paths](Rule::path) of one file. A path repeats what its rule is nested in, so a small file
/// could otherwise need very much memory.
pub const MAX_PATH_BYTES: usize = 64 << 20;

/// The most limits of one descriptor.
pub const MAX_LIMITS: usize = 8;

/// The name and the text of one rules file. [`Rules::parse`] has an example.
#[derive(Clone, Debug)]
pub struct RulesFile {
    /// The name in reports, usually the path.
    pub name: String,
    /// The text.
    pub text: String,
}

/// The defaults for what a file does not say.
///
/// ```
/// use spillgate::OnStoreFailure;
/// use spillgate::rules::{Defaults, Rules, RulesFile};
/// let text = "domain: api\ndescriptors: [{key: user_id, rate_limit: {unit: minute, requests_per_unit: 5}}]";
/// let file = RulesFile { name: "api.yaml".into(), text: text.into() };
/// let defaults = Defaults { on_store_failure: OnStoreFailure::Deny, ..Defaults::default() };
/// let rules = Rules::parse_with(&[file], defaults)?;
/// let rule = rules.find("api", &[("user_id", "7")]).expect("a rule");
/// assert_eq!(rule.limits[0].quota.on_store_failure(), OnStoreFailure::Deny);
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Every file behaves as with `compat: envoy` at its top.
    pub compat_envoy: bool,
    /// The answer while a shared store fails, for limits without `on_store_failure`.
    pub on_store_failure: OnStoreFailure,
}

/// The rules of one load. They are indexed and do not change. [`Rules::parse`] and [`Rules::plan`] have examples.
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
    /// The level of the outermost descriptors.
    root: u32,
    /// The index of the file.
    file: usize,
    /// The index of its first rule. Its rules end where those of the next domain begin.
    first_rule: usize,
    has_replaces: bool,
}

impl Rules {
    /// Reads and checks all `files`. Each file has one domain. If one file has an error, none is loaded.
    ///
    /// # Errors
    /// Every error of every file, with its line and how to fix it, up to [`RulesErrors::MAX`].
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

    /// The same as [`parse`](Rules::parse), with other defaults than usual.
    ///
    /// # Errors
    /// The same as for [`parse`](Rules::parse).
    pub fn parse_with(files: &[RulesFile], defaults: Defaults) -> Result<Rules, RulesErrors> {
        let mut rules = read::read(files, defaults)?;
        let found = lint::lint(&rules, files);
        rules.warn(files, found);
        Ok(rules)
    }

    /// Adds warnings of rules whose own value is longer than `value_bytes`.
    ///
    /// [`plan`](Rules::plan) counts only that many bytes of a value. `files` are the files that were parsed.
    pub fn warn_of_long_values(&mut self, files: &[RulesFile], value_bytes: usize) {
        let found = lint::long_values(self, files, value_bytes);
        self.warn(files, found);
    }

    /// Adds warnings of concurrency limits whose permits may never be released.
    ///
    /// `taken` says where the permits of a rule are taken, which the rules do not know. `files` are the files that were
    /// parsed.
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

    /// The warnings and notes: what is valid but probably not meant. They are in the order of files and lines, and at
    /// most 1,000.
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// The domains, in the order of their files.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter().map(|entry| &entry.domain)
    }

    /// Whether one of the files has this domain.
    #[must_use]
    pub fn has_domain(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Every descriptor of every file in order, also those without limits.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// The rule that matches the entries of a descriptor. It allocates nothing.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: path, value: /login*, rate_limit: {unit: minute, limit: 5}}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let rule = rules.find("api", &[("path", "/login/sso")]).expect("a rule");
    /// assert_eq!((&*rule.path, rule.origin.line), ("path=/login*", 2));
    /// assert!(rules.find("api", &[("path", "/search")]).is_none());
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn find<'r>(&'r self, domain: &str, entries: &[(&str, &str)]) -> Option<&'r Rule> {
        let (number, _) = self.domain(domain)?;
        self.find_in(number, entries)
    }

    /// The steps of the same search, for people who ask why a rule matches. It is empty for an unknown domain and without
    /// entries.
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
