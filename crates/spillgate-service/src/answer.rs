//! The answer of the service: a verdict, and a status for each descriptor.
//!
//! Protocols translate this answer, so that none of them has to know limits and decisions.

use std::cmp::Ordering;

use smallvec::SmallVec;
use spillgate::rules::{Limit, Plan, Planned, Rule};
use spillgate::{Decision, Hit, Reason, Verdict};

/// The answer to one request.
#[derive(Debug)]
pub struct Answer<'p> {
    /// Whether the request is allowed, and when to try again. If the whole server is in shadow mode, every request is
    /// allowed.
    pub verdict: Verdict,
    /// One status for each descriptor, in the order of the descriptors.
    pub statuses: SmallVec<[Status<'p>; 2]>,
    plan: Plan<'p>,
    decisions: SmallVec<[Decision; 4]>,
}

/// The result for one descriptor.
#[derive(Clone, Debug)]
pub struct Status<'p> {
    /// Whether at least one limit of the descriptor refuses. Limits in shadow mode count here too.
    pub over: bool,
    /// Whether `over` is true and the rule is not in shadow mode. Clients then see the descriptor as over the limit.
    /// The request can be allowed all the same: if the rule has `quota_mode`, or if the server is in shadow mode.
    pub enforced_over: bool,
    /// Whether the descriptor is allowed without being counted.
    pub unlimited: bool,
    /// The rule that matched. `None` if no rule did, or if the descriptor brought its own limit.
    pub rule: Option<&'p Rule>,
    /// The binding limit, which is the one that clients see. If some limits refuse, the binding limit is the refusing
    /// one with the longest wait. If all limits allow, it is the one under which the fewest further requests fit, if they
    /// cost as much as this one.
    ///
    /// Limits that the store was not asked about ([`Reason::NotAsked`]) are left out. A limit that is not
    /// [exposed](Limit::exposed) counts only if it refuses and the rule is not in shadow mode. `None` if no limit is
    /// left.
    pub limit: Option<&'p Limit>,
    /// The decision of the binding limit, or [`Decision::default`] if there is no such limit.
    pub decision: Decision,
}

/// One limit of a descriptor, with its hit and its decision.
#[derive(Clone, Copy, Debug)]
pub struct LimitDecision<'a, 'p> {
    /// A limit of a rule, or a limit that came with the request.
    pub limit: &'p Limit,
    /// The operation on this limit. A lease id contains the key and the quota of this hit.
    pub hit: &'a Hit<'p>,
    /// What the store decided. Descriptors that share a hit share this decision too.
    pub decision: &'a Decision,
}

/// The parts of an answer, borrowed before the [`Answer`] is built.
///
/// Code that counts and logs a decision uses this view. If such code borrowed the [`Answer`] itself, the answer would
/// be copied once more when it is returned. That copy takes a tenth of the time of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerView<'a, 'p> {
    pub(super) verdict: &'a Verdict,
    pub(super) statuses: &'a [Status<'p>],
    pub(super) plan: &'a Plan<'p>,
    pub(super) decisions: &'a [Decision],
}

impl<'a, 'p> AnswerView<'a, 'p> {
    /// Does what [`Answer::limits`] does.
    #[inline]
    pub(super) fn limits(self, index: usize) -> impl Iterator<Item = LimitDecision<'a, 'p>> {
        let hits = self.plan.descriptors.get(index).map_or(&[][..], |planned| &planned.hits[..]);
        hits.iter().map(move |&(hit, limit)| LimitDecision {
            limit,
            hit: &self.plan.hits[hit],
            decision: &self.decisions[hit],
        })
    }
}

#[inline]
pub(super) fn statuses<'p>(plan: &Plan<'p>, decisions: &[Decision]) -> SmallVec<[Status<'p>; 2]> {
    // `with_capacity` would copy the empty list once more.
    let mut statuses = SmallVec::new();
    for planned in &plan.descriptors {
        statuses.push(status(planned, &plan.hits, decisions));
    }
    statuses
}

impl<'p> Answer<'p> {
    #[inline]
    pub(super) fn new(
        verdict: Verdict,
        statuses: SmallVec<[Status<'p>; 2]>,
        plan: Plan<'p>,
        decisions: SmallVec<[Decision; 4]>,
    ) -> Answer<'p> {
        Answer { verdict, statuses, plan, decisions }
    }

    /// Returns all limits of the descriptor at `index`, with their hits and decisions, in the order of the hits. The
    /// result is empty if the request has no descriptor at `index`.
    #[inline]
    pub fn limits<'a>(&'a self, index: usize) -> impl Iterator<Item = LimitDecision<'a, 'p>> {
        let (plan, decisions) = (&self.plan, &self.decisions[..]);
        AnswerView { verdict: &self.verdict, statuses: &self.statuses, plan, decisions }.limits(index)
    }

    /// Returns all hits of the request with their decisions. Descriptors can share a hit, which is here only once.
    pub fn hits(&self) -> impl Iterator<Item = (&Hit<'p>, &Decision)> {
        self.plan.hits.iter().zip(&self.decisions)
    }

    /// Returns the binding limit of the whole request ([`Verdict::binding`]), with the index of its descriptor. Returns
    /// `None` if the verdict names no limit.
    #[inline]
    pub fn binding(&self) -> Option<(usize, LimitDecision<'_, 'p>)> {
        let bound = self.verdict.binding?;
        let mut planned = self.plan.descriptors.iter().enumerate();
        planned.find_map(|(descriptor, planned)| {
            let &(hit, limit) = planned.hits.iter().find(|(hit, _)| *hit == bound)?;
            Some((descriptor, LimitDecision { limit, hit: &self.plan.hits[hit], decision: &self.decisions[hit] }))
        })
    }
}

#[inline]
fn status<'p>(planned: &Planned<'p>, hits: &[Hit<'p>], decisions: &[Decision]) -> Status<'p> {
    let over = planned.hits.iter().any(|(hit, _)| !decisions[*hit].allowed);
    let shadow = planned.shadow;
    let visible = planned.hits.iter().filter(|(hit, limit)| {
        decisions[*hit].reason != Reason::NotAsked && (limit.exposed || !(decisions[*hit].allowed || shadow))
    });
    let asked = |index: usize| (&decisions[index], hits[index].op.cost());
    let binding = visible.reduce(|a, b| if tighter(asked(b.0), asked(a.0)) { b } else { a });
    Status {
        over,
        enforced_over: over && !shadow,
        unlimited: planned.unlimited,
        rule: planned.rule,
        limit: binding.map(|(_, limit)| *limit),
        decision: binding.map_or_else(Decision::default, |(hit, _)| decisions[*hit]),
    }
}

/// Returns whether a client should see the decision `a` instead of `b`, each with the cost of its hit. A refusal comes
/// before an allowed decision. If both refuse, the longer wait comes first. If both allow, the one under which fewer
/// further requests of the cost fit comes first.
#[inline]
fn tighter((a, cost): (&Decision, u64), (b, other_cost): (&Decision, u64)) -> bool {
    match (a.allowed, b.allowed) {
        (false, true) => true,
        (true, false) => false,
        (false, false) => a.retry_after > b.retry_after,
        (true, true) => a.cmp_left(cost, b, other_cost) == Ordering::Less,
    }
}
