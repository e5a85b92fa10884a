//! The rules of all files that were loaded together, and the search for the rule of a descriptor.

use std::sync::Arc;

use foldhash::HashMap;

use super::steps::Step;
use super::written::written;
use super::{Explained, Index};
#[cfg(feature = "insight")]
use crate::model::Limit;
use crate::model::{Domain, Rule};
use spillgate_text::Diagnostic;

/// The rules of all files that were loaded together, with an index. Requests only read them, so threads can share them
/// without a lock. [`Rules::parse`] and [`Rules::plan`] have examples.
///
/// Rules keep the texts of their files in memory, for [`Rules::written`].
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The domains, in the order of their files.
    pub(in super::super) domains: Vec<DomainEntry>,
    /// For the name of each domain, its index in `domains`.
    pub(in super::super) by_name: HashMap<Box<str>, usize>,
    /// The rules of all domains, in the order of the files.
    pub(in super::super) rules: Vec<Rule>,
    /// The search trees of all domains. Each node is a rule, and the number of the node is the index of the rule in
    /// `rules`.
    pub(in super::super) index: Index,
    /// The warnings and notes, sorted by file and line.
    pub(in super::super) warnings: Vec<Diagnostic>,
}

/// A domain, and the position of its rules in the list of all rules.
#[derive(Clone, Debug)]
pub(in super::super) struct DomainEntry {
    /// The public part: the name of the domain, its file, and whether it has `compat: envoy`.
    pub(in super::super) domain: Domain,
    /// The number of the index level that has the outermost rules of the domain.
    pub(in super::super) root: u32,
    /// The index of the domain's file in the list of loaded files.
    pub(in super::super) file: usize,
    pub(in super::super) text: Arc<str>,
    /// The index of the first rule of this domain. The rules of this domain end before the first rule of the next
    /// domain.
    pub(in super::super) first_rule: usize,
    /// Whether a rule of the domain has `replaces`. If false, the search for replaced limits is skipped.
    pub(in super::super) has_replaces: bool,
}

impl Rules {
    /// Returns the domains, in the order of their files.
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

    /// Returns whether one of the files has this domain.
    #[must_use]
    pub fn has_domain(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns all rules in the order of the files, also rules without limits. [`Rule::index`] is the position of a
    /// rule in this list.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Returns the text of a rule from its file, with the rules that are nested in it, and with comments.
    ///
    /// In a list with dashes, the text consists of whole lines, which keep their indentation. Two kinds of comments are
    /// part of it: those right above the dash, and those after the rule that are indented as far as its keys, or
    /// further.
    ///
    /// If `rule` does not come from these rules, the result is another text or empty.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "
    /// domain: api
    /// descriptors:
    ///   ## A customer.
    ///   - key: user_id
    ///     rate_limit: {unit: minute, limit: 5}
    ///   - {key: path, rate_limit: {unit: second, limit: 9}}
    /// ";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let written: Vec<_> = rules.rules().map(|rule| rules.written(rule)).collect();
    /// let user = "  # A customer.\n  - key: user_id\n    rate_limit: {unit: minute, limit: 5}";
    /// assert_eq!(written, [user, "  - {key: path, rate_limit: {unit: second, limit: 9}}"]);
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn written(&self, rule: &Rule) -> &str {
        let Some(domain) = self.by_name.get(&*rule.domain) else { return "" };
        let (start, end) = rule.text;
        written(&self.domains[*domain].text, start as usize, end as usize)
    }

    #[cfg(feature = "insight")]
    pub(crate) fn limit_mut(&mut self, rule: usize, limit: usize) -> Option<&mut Limit> {
        self.rules.get_mut(rule)?.limits.get_mut(limit)
    }

    /// Returns the rule that matches the entries of a descriptor. The search allocates no memory, unless a rule has a `*` in
    /// its key.
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

    /// Searches like [`find`](Rules::find), and returns the steps of the search, which show people why a rule matches.
    ///
    /// The list is empty if the domain is unknown, or if there are no entries. Unlike `find`, this function allocates
    /// memory. [`Step`] has an example.
    #[must_use]
    pub fn explain(&self, domain: &str, entries: &[(&str, &str)]) -> Vec<Step> {
        self.explain_within(domain, entries, usize::MAX, usize::MAX).0
    }

    /// Does what [`explain`](Rules::explain) does, in bounded memory. Returns the first steps, at most `steps_max`, and
    /// the number of further steps. Each step has at most the first `value_bytes` bytes of its value.
    ///
    /// Use this function if clients choose the entries, because a value can be long, and many wildcards can fit it.
    #[must_use]
    pub fn explain_within(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        steps_max: usize,
        value_bytes: usize,
    ) -> (Vec<Step>, usize) {
        let Some((number, domain)) = self.domain(domain) else { return (Vec::new(), 0) };
        let (rules, first_only) = (&*self.rules, domain.compat_envoy);
        let mut search =
            Explained { entries, rules, first_only, steps_max, value_bytes, steps: Vec::new(), left_out: 0 };
        self.index.explain(&mut search, self.domains[number].root, 0);
        (search.steps, search.left_out)
    }

    /// Returns the index of the domain with this name, and the domain itself.
    pub(in super::super) fn domain(&self, name: &str) -> Option<(usize, &Domain)> {
        let number = *self.by_name.get(name)?;
        Some((number, &self.domains[number].domain))
    }

    /// Returns the rule that matches `entries`. `domain` is the index of the domain.
    pub(in super::super) fn find_in(&self, domain: usize, entries: &[(&str, &str)]) -> Option<&Rule> {
        let entry = &self.domains[domain];
        let node = self.index.find(entry.root, entries, entry.domain.compat_envoy)?;
        self.rules.get(node as usize)
    }

    /// Returns the rules of the domain with this index, in the order of the file.
    pub(in super::super) fn rules_of(&self, domain: usize) -> &[Rule] {
        let end = self.domains.get(domain + 1).map_or(self.rules.len(), |next| next.first_rule);
        &self.rules[self.domains[domain].first_rule..end]
    }

    pub(in super::super) fn has_replaces(&self, domain: usize) -> bool {
        self.domains[domain].has_replaces
    }
}
