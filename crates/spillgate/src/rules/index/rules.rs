//! The rules of one load, and the search for the rule of a descriptor.
//!
//! The reader fills them once, and after that every request only reads them. A program can therefore share them between
//! threads without a lock.

use std::collections::HashMap;

use super::steps::Step;
use super::{Explained, Index};
use crate::rules::model::{Domain, Rule};
use crate::text::Diagnostic;

/// The rules of one load. They are indexed and do not change. [`Rules::parse`] and [`Rules::plan`] have examples.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The domains, in the order of their files.
    pub(in super::super) domains: Vec<DomainEntry>,
    /// The index of each domain in `domains`, by its name.
    pub(in super::super) by_name: HashMap<Box<str>, usize>,
    /// The rules of all domains, in the order of the files.
    pub(in super::super) rules: Vec<Rule>,
    /// The search trees of all domains. The number of a node is the index of its rule.
    pub(in super::super) index: Index,
    /// The warnings and notes, sorted by file and line.
    pub(in super::super) warnings: Vec<Diagnostic>,
}

/// A domain, and where its rules are among the rules of all domains.
#[derive(Clone, Debug)]
pub(in super::super) struct DomainEntry {
    /// What callers may know of the domain.
    pub(in super::super) domain: Domain,
    /// The level of the outermost descriptors.
    pub(in super::super) root: u32,
    /// The index of the file.
    pub(in super::super) file: usize,
    /// The index of its first rule. Its rules end where those of the next domain begin.
    pub(in super::super) first_rule: usize,
    /// Whether a rule of the domain replaces limits. A request to any other domain need not look for replaced limits.
    pub(in super::super) has_replaces: bool,
}

impl Rules {
    /// The domains, in the order of their files.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let file = |domain: &str| RulesFile { name: format!("{domain}.yaml"), text: format!("domain: {domain}") };
    /// let rules = Rules::parse(&[file("web"), file("api")])?;
    /// assert_eq!(rules.domains().map(|domain| &*domain.name).collect::<Vec<_>>(), ["web", "api"]);
    /// assert!(rules.has_domain("api") && !rules.has_domain("mail"));
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter().map(|entry| &entry.domain)
    }

    /// Whether one of the files has this domain.
    #[must_use]
    pub fn has_domain(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Every descriptor of every file in order, also those without limits. [`Rule::index`] is the position of a rule in
    /// this list.
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

    /// Does the search of [`find`](Rules::find) again and returns its steps, for people who ask why a rule matches.
    ///
    /// The list is empty if the domain is unknown, or if there are no entries. Unlike `find`, it allocates. [`Step`]
    /// has an example.
    #[must_use]
    pub fn explain(&self, domain: &str, entries: &[(&str, &str)]) -> Vec<Step> {
        let Some((number, domain)) = self.domain(domain) else { return Vec::new() };
        let mut search = Explained { entries, rules: &self.rules, first_only: domain.compat_envoy, steps: Vec::new() };
        self.index.explain(&mut search, self.domains[number].root, 0);
        search.steps
    }

    /// The domain with this name, and its index.
    pub(in super::super) fn domain(&self, name: &str) -> Option<(usize, &Domain)> {
        let number = *self.by_name.get(name)?;
        Some((number, &self.domains[number].domain))
    }

    /// The rule of the domain with this index that matches `entries`.
    pub(in super::super) fn find_in(&self, domain: usize, entries: &[(&str, &str)]) -> Option<&Rule> {
        let entry = &self.domains[domain];
        let node = self.index.find(entry.root, entries, entry.domain.compat_envoy)?;
        self.rules.get(node as usize)
    }

    /// The rules of the domain with this index, in the order of the file.
    pub(in super::super) fn rules_of(&self, domain: usize) -> &[Rule] {
        let end = self.domains.get(domain + 1).map_or(self.rules.len(), |next| next.first_rule);
        &self.rules[self.domains[domain].first_rule..end]
    }

    /// Whether a rule of the domain with this index replaces limits.
    pub(in super::super) fn has_replaces(&self, domain: usize) -> bool {
        self.domains[domain].has_replaces
    }
}
