//! Finds everything that a server counts about one caller: each limit that the caller's values touch, with its state.
//!
//! An operator who is asked about a customer knows some values of the customer, and not which descriptors requests have.

use std::ptr;

use spillgate::Clock;
use spillgate::rules::{Action, Request, Rule, RuleStep, Rules};

use super::ExplainedLimit;
use crate::{Grants, Loaded, Service, ServiceError};

/// The maximum number of limits whose state is read. The store can be asked several times for each of them.
const LIMITS_MAX: usize = 100;
/// The maximum number of rules that are listed because a value for them is missing.
const UNREAD_MAX: usize = 100;

/// A value of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerValue<'a> {
    /// The key of the entry that has the value. `None` if only the value is known.
    pub key: Option<&'a str>,
    pub value: &'a str,
}

/// The counters of a caller.
#[derive(Debug, Default)]
pub struct CallerCounters<'p> {
    pub counters: Vec<CallerCounter<'p>>,
    /// How many limits of further counters the values touch.
    pub limits_left_out: usize,
    /// The counters of rules that the values do not touch, but that all requests with the values of the rule share. The
    /// caller can have such requests too.
    pub shared: Vec<CallerCounter<'p>>,
    /// How many limits further such rules have.
    pub shared_left_out: usize,
    /// The rules that the values touch, but whose limits need values of further keys.
    pub unread: Vec<UnreadRule<'p>>,
    /// How many further rules need values of further keys.
    pub unread_left_out: usize,
}

/// The entries of a caller that a rule counts.
#[derive(Debug)]
pub struct CallerCounter<'p> {
    pub rule: &'p Rule,
    pub entries: Vec<(String, String)>,
    /// Whether a value without a key was tried as the value of a key of the rule. The caller may have no such key.
    pub is_guess: bool,
}

/// A rule that a value touches, and that has further keys without a known value.
#[derive(Debug)]
pub struct UnreadRule<'p> {
    pub rule: &'p Rule,
    pub missing: Vec<&'p str>,
}

/// How a rule relates to the values of a caller.
enum Touched<'p> {
    /// The entries of each counter that the values choose, and whether a value without a key chose it.
    Entries(Vec<Vec<(String, String)>>, bool),
    Missing(Vec<&'p str>),
    /// No value is one of the rule, but the rule fixes all of its entries itself.
    Shared(Vec<(String, String)>),
}

impl<'p> CallerCounters<'p> {
    /// Returns what the rules count about a caller with these values. `domain` chooses the rules of one domain.
    ///
    /// A rule is left out if no request with these values can reach it. Values of the rules themselves, such as
    /// `path=/login`, need not be given.
    #[must_use]
    pub fn of(rules: &'p Rules, domain: Option<&str>, values: &[CallerValue<'_>]) -> CallerCounters<'p> {
        let (mut found, mut limits, mut shared) = (CallerCounters::default(), 0, 0);
        // For these entries, another rule can be found, for example a more exact one. It adds itself.
        let finds = |rule: &Rule, entries: &[(String, String)]| {
            let pairs: Vec<_> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
            rules.find(&rule.domain, &pairs).is_some_and(|found| ptr::eq(found, rule))
        };
        for rule in rules.rules() {
            if rule.limits.is_empty() || domain.is_some_and(|domain| domain != &*rule.domain) {
                continue;
            }
            match touched(&rule.steps, values) {
                None => {}
                Some(Touched::Missing(missing)) if found.unread.len() < UNREAD_MAX => {
                    found.unread.push(UnreadRule { rule, missing });
                }
                Some(Touched::Missing(_)) => found.unread_left_out += 1,
                Some(Touched::Shared(entries)) if !finds(rule, &entries) => {}
                Some(Touched::Shared(_)) if shared + rule.limits.len() > LIMITS_MAX => {
                    found.shared_left_out += rule.limits.len();
                }
                Some(Touched::Shared(entries)) => {
                    shared += rule.limits.len();
                    found.shared.push(CallerCounter { rule, entries, is_guess: false });
                }
                Some(Touched::Entries(counters, is_guess)) => {
                    for entries in counters {
                        if !finds(rule, &entries) {
                            continue;
                        }
                        if limits + rule.limits.len() > LIMITS_MAX {
                            found.limits_left_out += rule.limits.len();
                            continue;
                        }
                        limits += rule.limits.len();
                        found.counters.push(CallerCounter { rule, entries, is_guess });
                    }
                }
            }
        }
        found
    }
}

impl<C: Clock> Service<C> {
    /// Returns the limits of a counter, each with its state and with what it would decide on one more unit. Nothing is
    /// taken, and blocks are not looked at. If the counter is a guess, limits that are unused are left out. Returns also how
    /// many these are.
    ///
    /// # Errors
    /// An entry exceeds a bound, or the store failed.
    pub async fn limits_of_counter<'p>(
        &self,
        loaded: &'p Loaded,
        counter: &'p CallerCounter<'_>,
    ) -> Result<(Vec<ExplainedLimit<'p>>, usize), ServiceError> {
        let mut request = Request::new(&counter.rule.domain);
        request.add(counter.entries.iter().map(|(key, value)| (&**key, &**value)), Action::Take(1), None);
        let plan = self.plan(loaded, &request, Grants::default())?;
        let mut limits = self.explain_plan(&plan, false).await?.1;
        let all = limits.len();
        limits
            .retain(|limit| !counter.is_guess || limit.before.remaining < limit.before.limit || !limit.before.allowed);
        let left_out = all - limits.len();
        Ok((limits, left_out))
    }
}

/// Returns which counters of a rule with these steps the values choose. `None` if they touch none.
fn touched<'p>(steps: &'p [RuleStep], values: &[CallerValue<'_>]) -> Option<Touched<'p>> {
    let mut entries: Vec<Option<(String, String)>> = Vec::with_capacity(steps.len());
    let (mut is_named, mut is_guess, mut missing, mut open) = (false, false, Vec::new(), Vec::new());
    for (level, step) in steps.iter().enumerate() {
        let has_pattern = step.key.contains('*') || step.value.as_deref().is_some_and(|value| value.contains('*'));
        let mut named =
            values.iter().filter_map(|given| Some((given.key.filter(|key| step.can_match(key))?, given.value)));
        if let Some((key, value)) = named.clone().find(|(key, value)| step.matches(key, value)) {
            is_named = true;
            entries.push(Some((key.to_owned(), value.to_owned())));
        } else if named.any(|(key, _)| *key == *step.key) {
            // The caller has another value.
            return None;
        } else if let (Some(fixed), false) = (&step.value, has_pattern) {
            is_guess |= values.iter().any(|given| given.key.is_none() && *given.value == **fixed);
            entries.push(Some((step.key.to_string(), fixed.to_string())));
        } else {
            open.push(level);
            missing.push(&*step.key);
            entries.push(None);
        }
    }
    // A value without a key can be that of any key. With one open key, each such value that fits is tried.
    let bare = |step: &RuleStep| -> Vec<String> {
        let fitting = values.iter().filter(|given| given.key.is_none() && step.matches(&step.key, given.value));
        fitting.map(|given| given.value.to_owned()).collect()
    };
    match &open[..] {
        [] => {
            let entries = entries.into_iter().flatten().collect();
            Some(if is_named || is_guess {
                Touched::Entries(vec![entries], !is_named)
            } else {
                Touched::Shared(entries)
            })
        }
        [level] => {
            let step = &steps[*level];
            // The value can be that of any key that a wildcard matches, and nobody can try all of them.
            let has_any_key = step.key.contains('*');
            let fitting = if has_any_key { Vec::new() } else { bare(step) };
            if fitting.is_empty() {
                let can_fit = has_any_key && values.iter().any(|given| given.key.is_none());
                return (is_named || is_guess || can_fit).then_some(Touched::Missing(missing));
            }
            let with = |value: String| {
                let mut entries = entries.clone();
                entries[*level] = Some((step.key.to_string(), value));
                entries.into_iter().flatten().collect()
            };
            Some(Touched::Entries(fitting.into_iter().map(with).collect(), true))
        }
        several => {
            let fits = several.iter().any(|level| match steps[*level].key.contains('*') {
                true => values.iter().any(|given| given.key.is_none()),
                false => !bare(&steps[*level]).is_empty(),
            });
            (is_named || is_guess || fits).then_some(Touched::Missing(missing))
        }
    }
}
