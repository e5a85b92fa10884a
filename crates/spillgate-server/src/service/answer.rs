//! What the service answers: a verdict, and a status for each descriptor.

use std::cmp::Ordering;

use smallvec::SmallVec;
use spillgate::rules::{Limit, Plan, Planned, Rule};
use spillgate::{Decision, Hit, Reason, Verdict};

/// The answer to one request.
#[derive(Debug)]
pub struct Answer<'p> {
    /// Whether the request passes; under the global shadow it always does.
    pub verdict: Verdict,
    /// One for each descriptor, in their order.
    pub statuses: SmallVec<[Status<'p>; 2]>,
    plan: Plan<'p>,
    decisions: SmallVec<[Decision; 4]>,
}

/// What became of one descriptor.
#[derive(Clone, Debug)]
pub struct Status<'p> {
    /// One of its limits refuses, whether that counts or not.
    pub over: bool,
    /// One of its limits refuses and is not a shadow: what is shown as over the limit. Quota-mode
    /// rules and the global shadow show it although the request may pass.
    pub enforced_over: bool,
    /// It passes without being counted.
    pub unlimited: bool,
    /// The rule that matched.
    pub rule: Option<&'p Rule>,
    /// The limit that binds: of those that refuse the one with the longest wait, else the one
    /// with the least share left. `None` where nothing limits, or no limit was asked
    /// ([`Reason::NotAsked`]). One that is not [exposed](Limit::exposed) only if it is to be shown as over the limit.
    pub limit: Option<&'p Limit>,
    /// The decision of that limit.
    pub decision: Decision,
}

/// One limit of a descriptor with its question and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a, 'p> {
    /// The limit.
    pub limit: &'p Limit,
    /// What was asked; its key and quota make a lease's name.
    pub hit: &'a Hit<'p>,
    /// What was answered.
    pub decision: &'a Decision,
}

/// What an answer is made of, while it is still in its place: an answer that something has looked at is copied once more
/// where it is returned, which costs a tenth of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a, 'p> {
    pub(super) verdict: &'a Verdict,
    pub(super) statuses: &'a [Status<'p>],
    pub(super) plan: &'a Plan<'p>,
    pub(super) decisions: &'a [Decision],
}

impl<'a, 'p> Parts<'a, 'p> {
    /// As [`Answer::limits`].
    pub(super) fn limits(self, index: usize) -> impl Iterator<Item = Judged<'a, 'p>> {
        let hits = self.plan.descriptors.get(index).map_or(&[][..], |planned| &planned.hits[..]);
        hits.iter().map(move |&(hit, limit)| Judged {
            limit,
            hit: &self.plan.hits[hit],
            decision: &self.decisions[hit],
        })
    }
}

/// One for each descriptor of the plan.
pub(super) fn statuses<'p>(plan: &Plan<'p>, decisions: &[Decision]) -> SmallVec<[Status<'p>; 2]> {
    plan.descriptors.iter().map(|planned| status(planned, decisions)).collect()
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

    /// All limits of the descriptor at `index`, in their order; none if there is no such descriptor.
    pub fn limits<'a>(&'a self, index: usize) -> impl Iterator<Item = Judged<'a, 'p>> {
        let (plan, decisions) = (&self.plan, &self.decisions[..]);
        Parts { verdict: &self.verdict, statuses: &self.statuses, plan, decisions }.limits(index)
    }

    /// The limit that the verdict names, and the number of its descriptor.
    pub fn binding(&self) -> Option<(usize, Judged<'_, 'p>)> {
        let bound = self.verdict.binding?;
        let mut planned = self.plan.descriptors.iter().enumerate();
        planned.find_map(|(descriptor, planned)| {
            let &(hit, limit) = planned.hits.iter().find(|(hit, _)| *hit == bound)?;
            Some((descriptor, Judged { limit, hit: &self.plan.hits[hit], decision: &self.decisions[hit] }))
        })
    }
}

fn status<'p>(planned: &Planned<'p>, decisions: &[Decision]) -> Status<'p> {
    let over = planned.hits.iter().any(|(hit, _)| !decisions[*hit].allowed);
    let shadow = planned.rule.is_some_and(|rule| rule.shadow_mode);
    let asked = planned.hits.iter().filter(|(hit, limit)| {
        decisions[*hit].reason != Reason::NotAsked && (limit.exposed || !(decisions[*hit].allowed || shadow))
    });
    let shown =
        asked.reduce(|shown, other| if tighter(&decisions[other.0], &decisions[shown.0]) { other } else { shown });
    Status {
        over,
        enforced_over: over && !shadow,
        unlimited: planned.unlimited,
        rule: planned.rule,
        limit: shown.map(|(_, limit)| *limit),
        decision: shown.map_or_else(Decision::default, |(hit, _)| decisions[*hit]),
    }
}

/// Whether `a` is what a caller has to know rather than `b`: a refusal before a pass, then the
/// longer wait, or the smaller share left.
fn tighter(a: &Decision, b: &Decision) -> bool {
    match (a.allowed, b.allowed) {
        (false, true) => true,
        (true, false) => false,
        (false, false) => a.retry_after > b.retry_after,
        (true, true) => a.cmp_share_left(b) == Ordering::Less,
    }
}
