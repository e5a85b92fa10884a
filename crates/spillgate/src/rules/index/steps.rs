//! The steps of a search, recorded for people who ask why a rule matches.
//!
//! The search itself returns only the rule. If that is not the expected rule, the steps show where the search went
//! another way.

use crate::rules::model::Origin;

/// How an entry matched at one level. [`Step`] has one.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The outcome of one attempt at one level. [`Step`] has one.
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
    /// How it matched.
    pub how: How,
    /// The outcome.
    pub outcome: Outcome,
    /// Where the rule that fits was written.
    pub origin: Option<Origin>,
}
