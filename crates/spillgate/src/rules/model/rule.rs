//! Domains and their rules, as a rules file has them.
//!
//! A request is matched with rules. Each rule knows its file and its line, so that reports can name them.

use std::fmt;
use std::sync::Arc;

use spillgate_core::Binding;

use super::limit::Limit;
use super::pattern::Pattern;

/// One domain: the rules of one file. [`Rules::domains`](crate::rules::Rules::domains) lists the domains and has an
/// example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Domain {
    /// The name, as in requests.
    pub name: Box<str>,
    /// The name of the file.
    pub file: Arc<str>,
    /// Whether the domain behaves as in the reference server (`compat: envoy`).
    pub compat_envoy: bool,
}

/// Where a rule or a limit was written. It is shown as `file:line`.
///
/// ```
/// use spillgate::rules::{Rules, RulesFile};
/// let text = "domain: api\ndescriptors: [{key: user}]";
/// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
/// let rule = rules.find("api", &[("user", "ann")]).expect("a rule");
/// assert_eq!(rule.origin.to_string(), "api.yaml:2");
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The name of the file.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One level of a rule's path: which entry a request must have there. [`Rule::steps`] has them. [`RuleStep::fits`] has
/// an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleStep {
    /// The key of the entry.
    pub key: Arc<str>,
    /// The value or the wildcard as written. `None` matches any value.
    pub value: Option<Arc<str>>,
    /// Whether all values that the wildcard matches share one counter (`share_threshold`).
    pub shared: bool,
    /// Whether metrics of the rule have the value of this entry (`value_to_metric`).
    pub value_to_metric: bool,
}

impl RuleStep {
    /// Whether an entry that has the key of this step and `value` matches it.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user, value: vip*}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let step = &rules.rules().next().expect("a rule").steps[0];
    /// assert!(step.fits("vip7") && !step.fits("ann"));
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn fits(&self, value: &str) -> bool {
        self.value.as_deref().is_none_or(|own| Pattern::new(own).map_or(own == value, |pattern| pattern.fits(value)))
    }
}

/// One descriptor of a rules file: which requests it matches, and what limits them.
///
/// A rule may have no limits. It still matches, and limits nothing. [`Rules::find`](crate::rules::Rules::find) has an
/// example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rule {
    /// The name of the domain.
    pub domain: Arc<str>,
    /// The path as text: `user_id=vip* > path`.
    pub path: Box<str>,
    /// The levels of the path. A descriptor matches only if it has as many entries.
    pub steps: Box<[RuleStep]>,
    /// Where the rule was written.
    pub origin: Origin,
    /// The limits, at most [`MAX_LIMITS`](crate::rules::MAX_LIMITS). A request passes only if all of them allow it.
    pub limits: Box<[Limit]>,
    /// Whether matching requests pass without being counted (`unlimited: true`).
    pub unlimited: bool,
    /// Whether the limits are counted but never refuse (`shadow_mode: true`).
    pub shadow_mode: bool,
    /// Whether the rule refuses only together with all other such rules of the request (`quota_mode: true`).
    pub quota_mode: bool,
    /// Whether metrics of the rule have all values of the request (`detailed_metric: true`).
    pub detailed_metric: bool,
    /// Whether metrics of the rule have the value of its last entry (`value_to_metric: true`).
    pub value_to_metric: bool,
    /// The data that the file attaches to the rule (`metadata`).
    pub metadata: Option<Metadata>,
    /// The name of the rule's `unlimited` limit, which another rule may replace.
    pub(in super::super) unlimited_name: Option<Box<str>>,
    /// Names of limits that this rule's `unlimited` limit replaces.
    pub(in super::super) unlimited_replaces: Box<[Box<str>]>,
    /// The index in [`Rules::rules`](crate::rules::Rules::rules).
    pub(in super::super) index: u32,
}

impl Rule {
    /// The index of the rule in [`Rules::rules`](crate::rules::Rules::rules). It does not change within one load, so a
    /// table of counters, for example, can be indexed by it.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// What a refusal by this rule means for the request.
    ///
    /// A rule with both `shadow_mode` and `quota_mode` never refuses, so it has the binding of a shadow.
    #[must_use]
    pub const fn binding(&self) -> Binding {
        match (self.shadow_mode, self.quota_mode) {
            (true, _) => Binding::Shadow,
            (false, true) => Binding::Quota,
            (false, false) => Binding::Enforce,
        }
    }

    /// The names of the limits that this rule replaces, of all its limits.
    pub(in super::super) fn replaces(&self) -> impl Iterator<Item = &str> {
        let limits = self.limits.iter().flat_map(|limit| limit.replaces.iter());
        self.unlimited_replaces.iter().chain(limits).map(|name| &**name)
    }

    /// The names of all its limits, which the `replaces` of another rule may have.
    pub(in super::super) fn names(&self) -> impl Iterator<Item = &str> {
        let limits = self.limits.iter().filter_map(|limit| limit.name.as_deref());
        self.unlimited_name.as_deref().into_iter().chain(limits)
    }
}

/// Data of any form that is attached to a rule (`metadata:`). YAML has no other kinds of values, so the list is
/// complete.
///
/// ```
/// use spillgate::rules::{Metadata, Rules, RulesFile};
/// let text = "domain: api\ndescriptors: [{key: user_id, metadata: {team: payments}}]";
/// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
/// let metadata = rules.rules().next().and_then(|rule| rule.metadata.as_ref());
/// assert_eq!(metadata, Some(&Metadata::Map([("team".into(), Metadata::Text("payments".into()))].into())));
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Metadata {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A finite number.
    Number(f64),
    /// Any other scalar, and everything in quotes.
    Text(Box<str>),
    /// A list.
    List(Box<[Metadata]>),
    /// Keys and values, in the order of the file.
    Map(Box<[(Box<str>, Metadata)]>),
}
