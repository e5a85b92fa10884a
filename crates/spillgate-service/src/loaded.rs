//! The rules of one load, with their counters.
//!
//! A reload replaces the rules and the counters together, so that counters always belong to the right rules.

use std::ops::Deref;

use parking_lot::Mutex;
use spillgate::rules::{Action, Limit, Plan, Request, Rules, Unit};
use spillgate::{Binding, Hit, Op, Time};

use super::ServiceOptions;
use super::history::Histories;
use super::insight::Insights;
use super::readiness::Policies;
use crate::metrics::{Metrics, RuleCounters};
use crate::operator::BLOCKED;

/// The name of the limit that refuses descriptors without a matching rule.
pub const UNMATCHED: &str = "unmatched";

/// The rules of one load, with everything that is counted and remembered about them.
#[derive(Debug)]
pub struct Loaded {
    pub(super) rules: Rules,
    pub(super) counters: Box<[RuleCounters]>,
    pub(super) policies: Policies,
    pub(super) insights: Insights,
    pub(super) histories: Histories,
    /// 0 for the rules at the start of the service. Each reload adds 1.
    number: u64,
    /// Locked while refusals are written to the log, so that a thread can wait until another one has written them.
    pub(super) writing: Mutex<()>,
    /// The limit of 0 that refuses descriptors without a matching rule. `None` if the options allow such descriptors.
    unmatched: Option<Limit>,
    /// The limit of 0 that refuses descriptors with a blocked entry.
    pub(super) blocked: Limit,
}

impl Loaded {
    pub(super) fn new(
        rules: Rules,
        metrics: &Metrics,
        (options, caller_seed): (&ServiceOptions, u64),
        previous: Option<&Loaded>,
        now: Time,
    ) -> Loaded {
        let refusing = |name: &str| {
            let mut limit = Limit::overriding(Unit::Second, 0);
            limit.name = Some(name.into());
            limit
        };
        let counters = metrics.for_rules(&rules);
        Loaded {
            number: previous.map_or(0, |previous| previous.number + 1),
            histories: Histories::new(&rules, &counters, previous),
            counters,
            policies: Policies::of(&rules),
            insights: Insights::new(&rules, (options.insight, caller_seed), previous, now),
            rules,
            writing: Mutex::new(()),
            unmatched: options.deny_unmatched.then(|| refusing(UNMATCHED)),
            blocked: refusing(BLOCKED),
        }
    }

    /// Returns the number of this load: 0 for the rules at the start of the service. Each reload adds 1.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether descriptors without a matching rule are refused.
    #[inline]
    #[must_use]
    pub const fn denies_unmatched(&self) -> bool {
        self.unmatched.is_some()
    }

    /// If the options refuse descriptors without a matching rule, gives each such descriptor of the plan a limit of 0.
    /// A refund is not refused.
    #[cold]
    pub(super) fn refuse_unmatched<'p>(&'p self, plan: &mut Plan<'p>, request: &Request<'_>) {
        let Some(limit) = &self.unmatched else { return };
        // In a Redis Cluster, this key is in the slot of the first hit. So a request whose keys are all in one slot
        // stays in one slot.
        let key = plan.hits.first().map_or(0, |hit| hit.key ^ 1);
        let mut refusing = None;
        for (planned, descriptor) in plan.descriptors.iter_mut().zip(request.descriptors()) {
            let unmatched = planned.rule.is_none() && planned.hits.is_empty();
            if !unmatched || matches!(descriptor.action, Action::Refund(_)) {
                continue;
            }
            // This hit takes one unit even if the descriptor is only a peek (a cost of 0), because a limit of 0 allows
            // peeks.
            let index = *refusing.get_or_insert_with(|| {
                plan.hits.push(Hit::new(key, &limit.quota, Op::take(1), Binding::Enforce));
                plan.hits.len() - 1
            });
            planned.hits.push((index, limit));
        }
    }
}

impl Deref for Loaded {
    type Target = Rules;

    #[inline]
    fn deref(&self) -> &Rules {
        &self.rules
    }
}
