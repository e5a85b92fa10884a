//! The steps of the search for a rule.
//!
//! A search normally returns only the rule. If a user expected another rule, the steps show what was tried on each
//! level, and how each attempt ended.

use std::fmt;

use crate::model::Origin;

/// How the search matched an entry on one level. [`Step`] has an example.
///
/// [`Display`](fmt::Display) shows a text for people, such as `wildcard /login*`. Later versions may add variants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// The rule has exactly this value.
    Exact,
    /// The value fits this wildcard of the rule.
    Wildcard(String),
    /// The rule has a key and no value.
    KeyAlone,
    /// No rule on this level fits the entry.
    Nothing,
}

impl How {
    /// Returns the name in machine-readable reports: `exact`, `wildcard`, `key` or `nothing`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            How::Exact => "exact",
            How::Wildcard(_) => "wildcard",
            How::KeyAlone => "key",
            How::Nothing => "nothing",
        }
    }

    /// Returns the wildcard that fits, with its stars. `None` if the entry matched in another way, or not at all.
    #[must_use]
    pub fn pattern(&self) -> Option<&str> {
        match self {
            How::Wildcard(pattern) => Some(pattern),
            How::Exact | How::KeyAlone | How::Nothing => None,
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Exact => f.write_str("this key and value"),
            How::Wildcard(pattern) => write!(f, "wildcard {pattern}"),
            How::KeyAlone => f.write_str("the key, any value"),
            How::Nothing => f.write_str("nothing fits"),
        }
    }
}

/// The outcome of one step of a search. [`Step`] has an example. No variant will be added, because a search has no
/// other outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A rule fits this entry and has nested rules. The search continued with the next entry and the nested rules.
    WentDeeper,
    /// A rule fits this entry, but none of its nested rules fits the next entries. The search went back up to this
    /// level.
    WentBack,
    /// A rule fits this entry, which is the last entry. The search has found the rule of the descriptor.
    Matched,
    /// No rule on this level fits the entry, or the rule that fits has no nested rules for the next entry.
    Failed,
}

/// One step of the search for a rule. [`Rules::explain`](crate::Rules::explain) returns all steps in order.
///
/// ```
/// use spillgate::rules::{How, Outcome, Rules, RulesFile};
/// let text = "domain: api\ndescriptors: [{key: path, value: /login*}]";
/// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
/// let steps = rules.explain("api", &[("path", "/login/sso")]);
/// assert_eq!((&steps[0].how, steps[0].outcome), (&How::Wildcard("/login*".into()), Outcome::Matched));
/// assert_eq!(steps[0].how.to_string(), "wildcard /login*");
/// assert_eq!((steps[0].how.as_str(), steps[0].how.pattern()), ("wildcard", Some("/login*")));
/// # Ok::<(), spillgate::rules::RulesErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The level of nested rules, counted from 0. This number is also the index of the entry in the descriptor.
    pub level: usize,
    /// The key of the entry.
    pub key: String,
    /// The value of the entry. [`Rules::explain_within`](crate::Rules::explain_within) may have cut it.
    pub value: String,
    /// How the search matched the entry, for example with a wildcard.
    pub how: How,
    /// What the search did after this step: it went on, went back, succeeded or failed.
    pub outcome: Outcome,
    /// The file and the line of the rule that fits. `None` if no rule fits.
    pub origin: Option<Origin>,
}
