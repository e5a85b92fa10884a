//! The steps of a search, recorded for people who ask why a rule matches.
//!
//! The search itself returns only the rule. If that is not the expected rule, the steps show where the search went
//! another way.

use std::fmt;

use crate::rules::model::Origin;

/// How an entry matched at one level. [`Step`] has one, and its example shows it.
///
/// [`Display`](fmt::Display) is a text for people, such as `wildcard /login*`. Other ways to match may be added.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// The rule has exactly this value.
    Exact,
    /// The value fits this wildcard of the rule.
    Wildcard(String),
    /// The rule has a key and no value.
    KeyAlone,
    /// No rule of this level fits.
    Nothing,
}

impl How {
    /// The name in machine-readable reports: `exact`, `wildcard`, `key` or `nothing`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            How::Exact => "exact",
            How::Wildcard(_) => "wildcard",
            How::KeyAlone => "key",
            How::Nothing => "nothing",
        }
    }

    /// The wildcard that fits, with its stars. `None` if the entry matched in another way.
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

/// The outcome of one attempt at one level. [`Step`] has one, and its example shows it. A search has no other outcomes,
/// so the list is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule fits and has nested descriptors. The next entry was searched below it.
    WentDeeper,
    /// The rule fits, but nothing below it does. The search went back up.
    WentBack,
    /// The rule fits the last entry: it is the rule of the request.
    Matched,
    /// No rule fits, or the rule that fits has nothing nested for the next entry.
    Failed,
}

/// One step of the search for a rule. [`Rules::explain`](crate::rules::Rules::explain) returns them in order.
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
    /// The level, counted from 0. It is also the index of the entry in the descriptor.
    pub level: usize,
    /// The key of the entry.
    pub key: String,
    /// The value of the entry.
    pub value: String,
    /// How the entry matched.
    pub how: How,
    /// The outcome of the attempt.
    pub outcome: Outcome,
    /// Where the rule that fits was written. `None` if no rule fits.
    pub origin: Option<Origin>,
}
