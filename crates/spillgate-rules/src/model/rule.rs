//! The types of domains and rules, with the same content as in a rules file.
//!
//! Each rule stores its file and its line, so that reports can show where the rule is.

use std::fmt;
use std::sync::Arc;

use spillgate_core::Binding;

use super::limit::Limit;
use super::pattern::Pattern;
use crate::path::PathStep;

/// One domain, which is defined in one file. A request names the domain that it belongs to.
/// [`Rules::domains`](crate::Rules::domains) lists the domains and has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Domain {
    /// The name by which a request chooses the domain.
    pub name: Box<str>,
    /// The name of the file that defines the domain.
    pub file: Arc<str>,
    /// Whether the domain behaves as in Envoy's reference rate limit server (`compat: envoy`).
    pub compat_envoy: bool,
}

/// The place in a file where a rule or a limit was written. It is shown as `file:line`.
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

/// One level of a rule's path. A request matches the rule only if the request's entry at this level has this key, and
/// the value of this entry fits. [`Rule::steps`] lists all levels, and [`RuleStep::fits`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleStep {
    /// The key that the entry must have. A key with a `*` is a wildcard: see [`matches`](RuleStep::matches).
    pub key: Arc<str>,
    /// The value or the wildcard, as in the file. `None` matches any value.
    pub value: Option<Arc<str>>,
    /// Whether all values that the wildcard matches share one counter (`share_threshold: true`).
    pub shared: bool,
    /// Whether metrics of the rule show the value of this entry (`value_to_metric: true`).
    pub value_to_metric: bool,
}

impl RuleStep {
    /// Returns whether an entry with the key of this step and with `value` matches this step.
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

    /// Returns whether an entry with this key and value matches this step.
    ///
    /// If the key of the step has a `*`, it is compared with the key, an underscore and the value as one text, as in
    /// Envoy's reference rate limit server.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user*, value: a}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let step = &rules.rules().next().expect("a rule").steps[0];
    /// assert!(step.matches("user_id", "a") && !step.matches("user_id", "b") && !step.matches("team", "a"));
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn matches(&self, key: &str, value: &str) -> bool {
        if !self.key.contains('*') {
            return *self.key == *key && self.fits(value);
        }
        let own = self.value.as_deref().map_or_else(|| self.key.to_string(), |own| format!("{}_{own}", self.key));
        Pattern::new(&own).is_some_and(|pattern| pattern.fits(&format!("{key}_{value}")))
    }

    /// Returns this level as a part of the text of a path.
    #[must_use]
    pub fn as_path(&self) -> PathStep<'_> {
        PathStep(&self.key, self.value.as_deref())
    }

    /// Returns whether an entry with this key can match this step, whatever its value is.
    #[must_use]
    pub fn can_match(&self, key: &str) -> bool {
        if !self.key.contains('*') {
            return *self.key == *key;
        }
        // The text before the first star must be how the key and the value begin.
        let prefix = self.key.split('*').next().unwrap_or_default();
        prefix.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')) || key.starts_with(prefix)
    }
}

/// One descriptor of a rules file. It says which requests the rule matches, and which limits these requests have.
///
/// A rule can have no limits. It then matches requests, but it limits nothing.
/// [`Rules::find`](crate::Rules::find) has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rule {
    /// The name of the domain that the rule belongs to.
    pub domain: Arc<str>,
    /// The path as text, for example `user_id=vip* > path`. No other rule of the domain has the same text: see
    /// [`PathStep`].
    pub path: Box<str>,
    /// The levels of the path. A descriptor of a request matches only if it has one entry for each level.
    pub steps: Box<[RuleStep]>,
    /// The file and the line of the rule.
    pub origin: Origin,
    /// The limits, at most [`MAX_LIMITS`](crate::MAX_LIMITS). A request is allowed only if all limits allow it.
    pub limits: Box<[Limit]>,
    /// Whether matching requests are allowed and not counted (`unlimited: true`).
    pub unlimited: bool,
    /// Whether matching requests are counted but never refused (`shadow_mode: true`).
    pub shadow_mode: bool,
    /// Whether the limits of the rule refuse only together with others (`quota_mode: true`). Refusals by such limits
    /// count only if all limits of the request that belong to rules with `quota_mode` refuse.
    pub quota_mode: bool,
    /// Whether metrics of the rule show all values of the descriptor (`detailed_metric: true`).
    pub detailed_metric: bool,
    /// Whether metrics of the rule show the value of its last entry (`value_to_metric: true`).
    pub value_to_metric: bool,
    /// The key of another entry of requests, whose values insight counts (`insight_by`). `None` counts only the callers of
    /// the rule.
    pub insight_by: Option<Arc<str>>,
    /// The data that the file attaches to the rule (`metadata`).
    pub metadata: Option<Metadata>,
    /// The name of the rule's `unlimited` limit. If another rule has this name in `replaces`, that rule replaces this
    /// limit.
    pub(in super::super) unlimited_name: Option<Box<str>>,
    /// Names of limits of other rules that this rule's `unlimited` limit replaces.
    pub(in super::super) unlimited_replaces: Box<[Box<str>]>,
    /// The index in [`Rules::rules`](crate::Rules::rules).
    pub(in super::super) index: u32,
    /// Where the text of the rule begins and ends in its file, in bytes.
    pub(in super::super) text: (u32, u32),
}

impl Rule {
    /// Returns the index of the rule in [`Rules::rules`](crate::Rules::rules). The index stays the same until rules
    /// are loaded again. For example, a program can use it as the index into a table of counters.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns the binding, which decides whether a refusal by a limit of this rule refuses the whole request.
    ///
    /// A rule with both `shadow_mode` and `quota_mode` never refuses a request, so its binding is [`Binding::Shadow`].
    #[must_use]
    pub const fn binding(&self) -> Binding {
        match (self.shadow_mode, self.quota_mode) {
            (true, _) => Binding::Shadow,
            (false, true) => Binding::Quota,
            (false, false) => Binding::Enforce,
        }
    }

    /// Returns whether all requests of the rule share one counter of each of its limits: each entry has one value in the
    /// file, or `share_threshold: true`.
    ///
    /// ```
    /// use spillgate::rules::{Rules, RulesFile};
    /// let limit = "rate_limit: {unit: day, limit: 10}";
    /// let text = format!("domain: api\ndescriptors: [{{key: user, {limit}}}, {{key: path, value: /a, {limit}}}]");
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text }])?;
    /// assert_eq!(rules.rules().map(|rule| rule.is_shared()).collect::<Vec<_>>(), [false, true]);
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn is_shared(&self) -> bool {
        let is_one = |step: &RuleStep| {
            let is_pattern = |text: &str| text.contains('*');
            !is_pattern(&step.key) && (step.shared || step.value.as_deref().is_some_and(|value| !is_pattern(value)))
        };
        self.steps.iter().all(is_one)
    }

    /// Returns the names in `replaces` of all limits of this rule.
    pub(in super::super) fn replaces(&self) -> impl Iterator<Item = &str> {
        let limits = self.limits.iter().flat_map(|limit| limit.replaces.iter());
        self.unlimited_replaces.iter().chain(limits).map(|name| &**name)
    }

    /// Returns the names of all limits of this rule. Other rules can use these names in `replaces`.
    pub(in super::super) fn names(&self) -> impl Iterator<Item = &str> {
        let limits = self.limits.iter().filter_map(|limit| limit.name.as_deref());
        self.unlimited_name.as_deref().into_iter().chain(limits)
    }
}

/// Data that a file attaches to a rule (`metadata:`). No variant will be added, because YAML has no other kinds of
/// values.
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
    /// Any other single value, and every value in quotes.
    Text(Box<str>),
    /// A list.
    List(Box<[Metadata]>),
    /// Keys and values, in the order of the file.
    Map(Box<[(Box<str>, Metadata)]>),
}
