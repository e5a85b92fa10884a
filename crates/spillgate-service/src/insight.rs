//! Counts what the limits of the rules do to their callers, for operators.
//!
//! The library's insight watches one limit. This module has one insight for each limit, and divides the memory among
//! them.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ptr;
use std::sync::Arc;

use spillgate::insight::{CallerId, CallerName, Fillers, LimitInsight, Options, Take, TopCallers};
use spillgate::rules::{Limit, Request, Rule, Rules};
use spillgate::{Binding, Clock, Hit, KeyHasher, Time};

use super::answer::AnswerView;
use super::{CallerKeys, Insight, Loaded, Service};
use crate::metrics::judged_units;

/// The maximum number of callers in the sample of one limit.
const CALLERS: usize = 4096;
/// The smallest sample of one limit that still says enough. If `insight.max_callers` does not allow this many callers
/// for each limit, the last limits have no insight.
const FEWEST_CALLERS: usize = 64;

/// The insights of all limits, in the order of the rules and of their limits. Empty if insight is off.
#[derive(Debug, Default)]
pub(super) struct Insights {
    by_rule: Box<[InsightsOfRule]>,
    /// The counts of each rule with `insight_by`, by the index of the rule. Empty if no rule has it.
    fillers: HashMap<usize, Arc<Fillers>>,
    /// How reports show callers.
    keys: CallerKeys,
    /// The maximum number of callers in each sample.
    callers: usize,
    unwatched: usize,
}

/// One item for each limit of a rule. `None` if insight does not watch the limit.
type InsightsOfRule = Box<[Option<Arc<LimitInsight>>]>;

pub type Watched<'a> = (&'a Rule, &'a Limit, &'a LimitInsight);

/// The limits and insights that a reload finds, by domain and path of their rules.
type Previous<'a> = HashMap<(&'a str, &'a str), Vec<(&'a Limit, &'a Arc<LimitInsight>)>>;

impl Insights {
    /// Makes the insights of `rules`. A limit that has not changed keeps its insight from the `previous` rules, unless
    /// the size of all samples changes.
    pub(super) fn new(
        rules: &Rules,
        (options, seed): (Insight, u64),
        previous: Option<&Loaded>,
        now: Time,
    ) -> Insights {
        let limits = rules.rules().map(|rule| rule.limits.len()).sum::<usize>();
        if options.max_callers == 0 || limits == 0 {
            return Insights { keys: options.keys, ..Insights::default() };
        }
        let callers = sample_size(options.max_callers, limits);
        let mut left = (options.max_callers / callers).min(limits);
        let unwatched = limits - left;
        if unwatched > 0 {
            tracing::warn!(
                limits,
                watched = left,
                "insight.max_callers is too small for all limits: the last limits are not watched"
            );
        }
        let names = options.keys == CallerKeys::Plain;
        let mut kept = previous.filter(|loaded| loaded.insights.callers == callers).map(known).unwrap_or_default();
        let fillers = fillers(rules, previous, (names, seed), now);
        let mut by_rule = Vec::new();
        for rule in rules.rules() {
            let mut before = kept.remove(&(&*rule.domain, &*rule.path)).unwrap_or_default();
            let watch = |limit: &Limit| {
                left = left.checked_sub(1)?;
                let Some(insight) = take_unchanged(&mut before, limit) else {
                    return Some(Arc::new(LimitInsight::new(&limit.quota, Options { callers, names, seed }, now)));
                };
                insight.keep_names(names);
                Some(insight)
            };
            by_rule.push(rule.limits.iter().map(watch).collect());
        }
        Insights { by_rule: by_rule.into(), fillers, keys: options.keys, callers, unwatched }
    }
}

/// Returns the maximum number of callers in the sample of each limit. When this number changes, all samples begin
/// again. So the number is rounded down to a power of two, which a reload with a few more limits seldom changes.
fn sample_size(max_callers: usize, limits: usize) -> usize {
    let share = (max_callers / limits).clamp(FEWEST_CALLERS, CALLERS);
    1 << share.ilog2()
}

/// The maximum number of rules whose `insight_by` is counted. Each takes memory for each thread.
const FILLERS: usize = 100;

/// Makes the counts of the rules with `insight_by`. A rule that had the same key before the reload keeps its counts.
fn fillers(
    rules: &Rules,
    previous: Option<&Loaded>,
    (names, seed): (bool, u64),
    now: Time,
) -> HashMap<usize, Arc<Fillers>> {
    let name = |rule: &Rule| Some((Arc::clone(&rule.domain), rule.path.clone(), rule.insight_by.clone()?));
    let before = previous.into_iter().flat_map(|loaded| {
        let of_rule = |rule: &Rule| Some((name(rule)?, Arc::clone(loaded.insights.fillers.get(&rule.index())?)));
        loaded.rules.rules().filter_map(of_rule)
    });
    let mut before: HashMap<_, _> = before.collect();
    let mut fillers = HashMap::new();
    for rule in rules.rules() {
        let Some(name) = name(rule) else { continue };
        if fillers.len() == FILLERS {
            tracing::warn!(max = FILLERS, "too many rules have insight_by: the last of them are not counted by it");
            break;
        }
        let of_rule = before.remove(&name).unwrap_or_else(|| Arc::new(Fillers::new(names, seed, now)));
        of_rule.keep_names(names);
        fillers.insert(rule.index(), of_rule);
    }
    fillers
}

fn known(loaded: &Loaded) -> Previous<'_> {
    let mut known = Previous::new();
    for (rule, insights) in loaded.rules.rules().zip(&loaded.insights.by_rule) {
        let of_rule = known.entry((&rule.domain, &rule.path)).or_default();
        of_rule
            .extend(rule.limits.iter().zip(insights).filter_map(|(limit, insight)| Some((limit, insight.as_ref()?))));
    }
    known
}

/// Removes the insight of the first limit in `known` that equals `limit`, and returns it. The position of the limit in
/// its rule may have changed.
fn take_unchanged(known: &mut Vec<(&Limit, &Arc<LimitInsight>)>, limit: &Limit) -> Option<Arc<LimitInsight>> {
    let is_equal = |before: &Limit| {
        (&before.name, &before.quota, before.post_paid) == (&limit.name, &limit.quota, limit.post_paid)
    };
    let index = known.iter().position(|(before, _)| is_equal(before))?;
    Some(Arc::clone(known.remove(index).1))
}

impl Loaded {
    /// Returns the first watched limit at this position or after it, and the position after that limit. A position is
    /// the index of a rule, and the index of a limit in this rule. A search for all watched limits begins at `(0, 0)`.
    pub fn watched_from(&self, (mut rule_index, mut index): (usize, usize)) -> Option<(Watched<'_>, (usize, usize))> {
        loop {
            let insights = self.insights.by_rule.get(rule_index)?;
            let rule = self.rules.rules().nth(rule_index)?;
            while let Some((insight, limit)) = insights.get(index).zip(rule.limits.get(index)) {
                index += 1;
                if let Some(insight) = insight {
                    return Some(((rule, limit, insight), (rule_index, index)));
                }
            }
            (rule_index, index) = (rule_index + 1, 0);
        }
    }

    /// Returns the insight of the limit with this `index` in the rule with the index `rule`. Returns `None` if the
    /// limit is not watched.
    #[inline]
    pub(super) fn insight(&self, rule: usize, index: usize) -> Option<&LimitInsight> {
        self.insights.by_rule.get(rule)?.get(index)?.as_deref()
    }

    /// Returns whether insight watches the callers of at least one limit.
    #[inline]
    pub(super) fn watches_callers(&self) -> bool {
        !self.insights.by_rule.is_empty()
    }

    /// Returns the key that the rule's `insight_by` names, and the values of this key with the most allowed and the most
    /// refused units. `None` if the rule has no `insight_by`, or if insight is off.
    pub fn fillers(&self, rule: &Rule, now: Time) -> Option<(Arc<str>, [TopCallers; 2])> {
        let fillers = self.insights.fillers.get(&rule.index())?;
        Some((Arc::clone(rule.insight_by.as_ref()?), fillers.read(now)))
    }

    /// Returns how many limits have a new insight in the place of an earlier one, because they or the size of the samples
    /// have changed.
    #[must_use]
    pub fn insights_begun_again(&self, before: &Loaded) -> usize {
        let before = known(before);
        let of_rule = |(rule, insights): (&Rule, &InsightsOfRule)| {
            let Some(before) = before.get(&(&*rule.domain, &*rule.path)) else { return 0 };
            let is_kept = |insight: &Arc<LimitInsight>| before.iter().any(|(_, old)| Arc::ptr_eq(old, insight));
            let (watched, kept) = (insights.iter().flatten(), insights.iter().flatten().filter(|one| is_kept(one)));
            let kept = kept.count();
            (watched.count() - kept).min(before.len() - kept)
        };
        self.rules.rules().zip(&self.insights.by_rule).map(of_rule).sum()
    }

    /// Returns how reports show callers.
    #[must_use]
    pub const fn caller_keys(&self) -> CallerKeys {
        self.insights.keys
    }

    /// Returns the number of limits without an insight, because the setting `insight.max_callers` is too small. The
    /// number is 0 if insight is off.
    #[must_use]
    pub const fn unwatched(&self) -> usize {
        self.insights.unwatched
    }
}

impl<C: Clock> Service<C> {
    /// Returns the random number of this server, which is new after each start.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns a text that is equal on two servers if their insights give the same caller the same hash. If the texts
    /// differ, the merged readings of both servers count a caller of both as two callers.
    pub fn caller_check(&self) -> String {
        let seed = self.caller_seed.to_le_bytes();
        format!("{:032x}", self.limiter.keys().start().part(b"insight").part(&seed).finish())
    }

    /// Returns the entry that the rule's `insight_by` names, and the key under which its value is counted.
    pub(super) fn filler<'e>(&self, rule: &Rule, request: &Request<'e>) -> Option<((&'e str, &'e str), u128)> {
        let (key, value) = filler(rule, request)?;
        let mut hasher = self.limiter.keys().start();
        let counted = hasher.part(b"insight_by").part(key.as_bytes()).part(value.as_bytes()).finish();
        Some(((key, value), counted))
    }

    /// Counts the units that a request takes, or that a rule refuses it, under the values that the `insight_by` of its rules
    /// name.
    #[inline(never)]
    fn count_fillers(&self, now: Time, loaded: &Loaded, request: &Request<'_>, answer: AnswerView<'_, '_>) {
        let names = loaded.insights.keys == CallerKeys::Plain;
        let planned = &answer.plan.descriptors;
        for (index, descriptor) in planned.iter().enumerate() {
            let Some(rule) = descriptor.rule else { continue };
            let Some(fillers) = loaded.insights.fillers.get(&rule.index()) else { continue };
            // Descriptors with the same counter share their hits, which are counted once.
            if planned[..index].iter().any(|before| before.rule.is_some_and(|other| ptr::eq(other, rule))) {
                continue;
            }
            let decided = descriptor.hits.iter().filter_map(|(hit, _)| {
                let decision = &answer.decisions[*hit];
                Some((judged_units(answer.plan.hits[*hit].op, decision)?, !decision.allowed))
            });
            // If several limits decide, a refusal counts.
            let Some((units, refused)) = decided.max_by_key(|(_, refused)| *refused) else { continue };
            // Another limit refused the request, so its caller got nothing.
            if !refused && !answer.verdict.allowed {
                continue;
            }
            let Some((entry, key)) = self.filler(rule, request) else { continue };
            let name = || if names { CallerName::of_entries([entry].into_iter()) } else { CallerName::of([]) };
            fillers.count(now, key, (units, refused), name);
        }
    }

    /// Returns the hash under which insight shows the caller with this key.
    pub fn caller_of(&self, key: u128) -> CallerId {
        CallerId::of(key, self.caller_seed)
    }

    #[inline]
    pub(super) fn watch(&self, now: Time, loaded: &Loaded, request: &Request<'_>, answer: AnswerView<'_, '_>) {
        if loaded.watches_callers() {
            self.watch_callers(now, loaded, request, answer);
        }
    }

    /// It is not inlined, so that a decision without insight has the registers for itself.
    #[inline(never)]
    fn watch_callers(&self, now: Time, loaded: &Loaded, request: &Request<'_>, answer: AnswerView<'_, '_>) {
        watch_all(now, loaded, request, answer);
        if !loaded.insights.fillers.is_empty() {
            self.count_fillers(now, loaded, request, answer);
        }
        if self.seekers.are_waiting() {
            self.answer_seekers(request, answer);
        }
    }
}

/// Returns the entry of a request that the rule's `insight_by` names: the first one with this key.
fn filler<'e>(rule: &Rule, request: &Request<'e>) -> Option<(&'e str, &'e str)> {
    let by = rule.insight_by.as_deref()?;
    let mut entries = request.descriptors().flat_map(|descriptor| descriptor.entries);
    entries.find(|(key, _)| *key == by).copied()
}

/// Returns the number that is mixed with the keys of callers.
///
/// If everybody can know how keys are hashed, the number is random, so that no caller can choose to be in a sample.
/// Otherwise the number comes from the key secret, so that all servers with this secret have the same number.
pub(super) fn caller_seed(keys: &KeyHasher, has_public_keys: bool) -> u64 {
    if has_public_keys {
        RandomState::new().build_hasher().finish()
    } else {
        keys.start().part(b"seed of callers").finish() as u64
    }
}

fn watch_all(now: Time, loaded: &Loaded, request: &Request<'_>, answer: AnswerView<'_, '_>) {
    let planned = &answer.plan.descriptors;
    let names = loaded.insights.keys == CallerKeys::Plain;
    for (index, descriptor) in request.descriptors().enumerate() {
        let Some(rule) = planned[index].rule else { continue };
        let insights = &loaded.insights.by_rule[rule.index()];
        for (hit, limit) in &planned[index].hits {
            // Descriptors with the same counter share a hit, which insight must count only once.
            let counted = |before: &spillgate::rules::Planned<'_>| before.hits.iter().any(|(other, _)| other == hit);
            if index > 0 && planned[..index].iter().any(counted) {
                continue;
            }
            let of_limit = rule.limits.iter().zip(insights).find(|(of_rule, _)| ptr::eq(*of_rule, *limit));
            let Some((_, Some(insight))) = of_limit else { continue };
            let decision = &answer.decisions[*hit];
            let Some(units) = judged_units(answer.plan.hits[*hit].op, decision) else { continue };
            let take = Take::of(units, decision).of_request(answer.verdict.allowed).decided_at(answer.verdict.now);
            let Hit { key, binding, .. } = answer.plan.hits[*hit];
            let take = take.enforced(match binding {
                Binding::Enforce => true,
                Binding::Shadow => false,
                Binding::Quota => !answer.verdict.allowed,
            });
            if names {
                insight.count_named(now, key, &take, || caller_name(Some(rule), descriptor.entries));
            } else {
                insight.count(now, key, &take);
            }
        }
    }
}

/// Returns a descriptor as text: `user_id=7, path=/search`. Insight and replay show this text as the name of a caller.
///
/// Entries that the rule fixes say nothing about the caller, so they are left out, unless the rule fixes all of them.
pub fn caller_name(rule: Option<&Rule>, entries: &[(&str, &str)]) -> CallerName {
    let own = own(rule, entries);
    if own.clone().next().is_some() {
        CallerName::of_entries(own)
    } else {
        CallerName::of_entries(entries.iter().copied())
    }
}

/// Returns the entries that tell a caller from the other callers of the rule: those that the rule does not fix.
pub(crate) fn own_entries<'e>(rule: Option<&Rule>, entries: &[(&'e str, &'e str)]) -> Vec<(&'e str, &'e str)> {
    own(rule, entries).collect()
}

fn own<'e, 'd>(
    rule: Option<&'d Rule>,
    entries: &'d [(&'e str, &'e str)],
) -> impl Iterator<Item = (&'e str, &'e str)> + Clone + use<'e, 'd> {
    let steps = rule.map_or(&[][..], |rule| &rule.steps);
    let is_fixed = move |level: usize, value: &str| {
        steps.get(level).is_some_and(|step| step.shared || step.value.as_deref() == Some(value))
    };
    let own = entries.iter().enumerate().filter(move |(level, (_, value))| !is_fixed(*level, value));
    own.map(|(_, entry)| *entry)
}
