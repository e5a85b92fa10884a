//! Counts what the limits of the rules do to their callers, for operators.
//!
//! The library's insight watches one limit. This module has an insight for each limit of the rules, and shares the memory
//! between them.

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;

use spillgate::insight::{CallerName, LimitInsight, Options, Take};
use spillgate::rules::{Limit, Request, Rule, Rules};
use spillgate::{Clock, Op, Reason, Time};

use super::answer::AnswerView;
use super::{Loaded, Service};
use crate::settings::{CallerKeys, Insight};

/// The most callers that the sample of one limit has.
const CALLERS: usize = 4096;
/// A smaller sample says too little. If the memory does not suffice for all limits, the last ones have no insight.
const FEWEST_CALLERS: usize = 64;

/// The insights of all limits, in the order of the rules and of their limits. Empty if insight is off.
#[derive(Debug, Default)]
pub(super) struct Insights {
    by_rule: Box<[OfRule]>,
    names: bool,
}

/// The insight of each limit of a rule. `None` if the limit is not watched.
type OfRule = Box<[Option<Arc<LimitInsight>>]>;

/// A limit of the rules with its insight.
pub type Watched<'a> = (&'a Rule, &'a Limit, &'a LimitInsight);

impl Insights {
    /// Makes the insights of `rules`. A limit that has not changed keeps its insight of the `previous` rules.
    pub(super) fn new(rules: &Rules, options: Insight, previous: Option<&Loaded>, now: Time) -> Insights {
        let limits = rules.rules().map(|rule| rule.limits.len()).sum::<usize>();
        if options.max_callers == 0 || limits == 0 {
            return Insights::default();
        }
        let callers = (options.max_callers / limits).clamp(FEWEST_CALLERS, CALLERS);
        let mut left = options.max_callers / callers;
        if left < limits {
            tracing::warn!(
                limits,
                watched = left,
                "insight.max_callers is too small for all limits: the last limits are not watched"
            );
        }
        let names = options.keys == CallerKeys::Plain;
        let kept: HashMap<_, _> = previous.into_iter().flat_map(known).collect();
        let mut watch = |rule: &Rule, (index, limit): (usize, &Limit)| {
            left = left.checked_sub(1)?;
            let same = kept.get(&(&*rule.domain, &*rule.path, index)).filter(|(quota, _)| **quota == limit.quota);
            let new = || Arc::new(LimitInsight::new(&limit.quota, Options { callers, names }, now));
            Some(same.map_or_else(new, |(_, insight)| Arc::clone(insight)))
        };
        let of_rule = |rule: &Rule| rule.limits.iter().enumerate().map(|limit| watch(rule, limit)).collect();
        Insights { by_rule: rules.rules().map(of_rule).collect(), names }
    }
}

/// Returns the insight of each limit, by its domain, the path of its rule, and its index in the rule.
fn known(loaded: &Loaded) -> impl Iterator<Item = ((&str, &str, usize), (&spillgate::Quota, &Arc<LimitInsight>))> {
    loaded.rules.rules().zip(&loaded.insights.by_rule).flat_map(|(rule, insights)| {
        let limits = rule.limits.iter().zip(insights).enumerate();
        limits.filter_map(|(index, (limit, insight))| {
            Some(((&*rule.domain, &*rule.path, index), (&limit.quota, insight.as_ref()?)))
        })
    })
}

impl Loaded {
    /// Returns each watched limit with its insight.
    pub fn watched(&self) -> impl Iterator<Item = Watched<'_>> {
        self.rules.rules().zip(&self.insights.by_rule).flat_map(|(rule, insights)| {
            rule.limits
                .iter()
                .zip(insights)
                .filter_map(move |(limit, insight)| Some((rule, limit, &**insight.as_ref()?)))
        })
    }
}

impl<C: Clock> Service<C> {
    /// Counts the takes of an answer.
    #[inline]
    pub(super) fn watch(&self, loaded: &Loaded, request: &Request<'_>, answer: AnswerView<'_, '_>) {
        if !loaded.insights.by_rule.is_empty() {
            watch_all(loaded, request, answer);
        }
    }
}

fn watch_all(loaded: &Loaded, request: &Request<'_>, answer: AnswerView<'_, '_>) {
    let planned = &answer.plan.descriptors;
    for (index, descriptor) in request.descriptors().enumerate() {
        let Some(rule) = planned[index].rule else { continue };
        let insights = &loaded.insights.by_rule[rule.index()];
        for (hit, limit) in &planned[index].hits {
            // Descriptors with the same counter share a hit, which is one take.
            let counted = |before: &spillgate::rules::Planned<'_>| before.hits.iter().any(|(there, _)| there == hit);
            if index > 0 && planned[..index].iter().any(counted) {
                continue;
            }
            let of_limit = rule.limits.iter().zip(insights).find(|(known, _)| ptr::eq(*known, *limit));
            let Some((_, Some(insight))) = of_limit else { continue };
            let decision = &answer.decisions[*hit];
            let units = match answer.plan.hits[*hit].op {
                Op::Take { cost, .. } | Op::Force { cost } => cost,
                _ => 0,
            };
            // A peek that is allowed, and a decision that says nothing about the limit, are not counted.
            let judged = matches!(decision.reason, Reason::Fits | Reason::Exceeded | Reason::CostAboveCapacity)
                || matches!(decision.reason, Reason::Penalty | Reason::WaitTooLong);
            if !judged || units == 0 && decision.allowed {
                continue;
            }
            let take = Take::of(units, decision).of_request(answer.verdict.allowed);
            let (now, key) = (answer.verdict.now, answer.plan.hits[*hit].key);
            if loaded.insights.names {
                insight.count_named(now, key, &take, || name(descriptor.entries));
            } else {
                insight.count(now, key, &take);
            }
        }
    }
}

/// Returns the beginning of a descriptor as text: `user_id=7, path=/search`.
fn name(entries: &[(&str, &str)]) -> CallerName {
    let parts = |(index, (key, value))| [if index > 0 { ", " } else { "" }, key, "=", value];
    CallerName::of(entries.iter().copied().enumerate().flat_map(parts))
}
