//! How blocks and shadow switches change decisions.
//!
//! A decision calls these functions only while a flag says that a block or a shadow switch may be on. At other times, a
//! decision pays only for reading this flag.

use smallvec::{SmallVec, smallvec};
use spillgate::rules::{Action, Descriptor, Plan, Planned, Request};
use spillgate::{Binding, Clock, Decision, Hit, Op, Reason, Time, Verdict, Wait};
use tracing::Level;

use super::answer::{Answer, AnswerView, Status};
use super::{Loaded, Service};
use crate::metrics::{Protocol, ThreadNumber};
use crate::operator::{RefusedCount, millis};

/// How a blocked request is refused.
pub(super) struct Blocked<'p> {
    pub(super) plan: Plan<'p>,
    /// The decision on the only hit of the plan.
    pub(super) decision: Decision,
    /// The count of each block that refuses the request.
    counts: SmallVec<[RefusedCount; 2]>,
}

impl<C: Clock> Service<C> {
    /// If an entry of the request is blocked, counts the request and returns its answer. A block uses neither the rules
    /// nor the store, so it works even while the store fails.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_blocked<'p>(
        &self,
        now: Time,
        loaded: &'p Loaded,
        request: &Request<'_>,
        protocol: Protocol,
    ) -> Option<Answer<'p>> {
        let Blocked { plan, decision, counts } = self.blocked(now, loaded, request)?;
        let decisions: SmallVec<[Decision; 4]> = smallvec![decision];
        let verdict = Verdict::of(&plan.hits, &decisions, now);
        // `answer::statuses` would return the same statuses. But if it were called here too, the compiler would no
        // longer inline it, and every other decision would pay for a function call.
        let status = |planned: &Planned<'p>| {
            let limit = planned.hits.first().map(|(_, limit)| *limit);
            let decision = limit.map_or_else(Decision::default, |_| decision);
            let over = limit.is_some();
            Status { over, enforced_over: over, unlimited: false, rule: None, limit, decision }
        };
        let statuses: SmallVec<[Status<'p>; 2]> = plan.descriptors.iter().map(status).collect();
        self.metrics.count_request(ThreadNumber::current(), protocol, &verdict);
        self.metrics.operator.blocked.inc();
        counts.iter().for_each(RefusedCount::add_one);
        if tracing::enabled!(Level::DEBUG) {
            let view = AnswerView { verdict: &verdict, statuses: &statuses, plan: &plan, decisions: &decisions };
            self.log.request(now, request, view);
        }
        Some(Answer::new(verdict, statuses, plan, decisions))
    }

    /// If an entry of the request is blocked, returns how the request is refused.
    ///
    /// With the setting `shadow: true`, a server refuses nothing, so it does not refuse blocked requests either.
    pub(super) fn blocked<'p>(&self, now: Time, loaded: &'p Loaded, request: &Request<'_>) -> Option<Blocked<'p>> {
        let (in_force, now_ms) = (self.operator.in_force(), millis(now));
        if self.options.shadow || !in_force.has_blocks() {
            return None;
        }
        let value_bytes = self.options.bounds.value_bytes;
        let block = |descriptor: Descriptor<'_, '_>| match descriptor.action {
            Action::Refund(_) => None,
            _ => in_force.block_on(request.domain, descriptor.entries, value_bytes, now_ms),
        };
        let blocks: SmallVec<[_; 4]> = request.descriptors().map(block).collect();
        let last_ms = blocks.iter().flatten().map(|block| block.term.until_ms).max()?;
        let mut counts: SmallVec<[RefusedCount; 2]> = SmallVec::new();
        for block in blocks.iter().flatten() {
            if !counts.iter().any(|count| count.is(&block.refused)) {
                counts.push(block.refused.clone());
            }
        }
        let mut plan = Plan::default();
        // All blocked descriptors share one hit. This hit is never sent to a store, so its key does not matter.
        plan.hits.push(Hit::new(0, &loaded.blocked.quota, Op::take(1), Binding::Enforce));
        for block in &blocks {
            let mut planned = Planned::default();
            if block.is_some() {
                planned.hits.push((0, &loaded.blocked));
            }
            plan.descriptors.push(planned);
        }
        let wait = Wait::After(last_ms.saturating_mul(1_000_000).saturating_sub(now.as_nanos()));
        Some(Blocked { plan, decision: Decision::refuse(0, Reason::Exceeded, wait), counts })
    }

    /// Puts each rule of the plan into shadow mode if a shadow switch applies to the rule.
    #[cold]
    #[inline(never)]
    pub(super) fn apply_switches(&self, now: Time, plan: &mut Plan<'_>) {
        let (in_force, now_ms) = (self.operator.in_force(), millis(now));
        for planned in &mut plan.descriptors {
            if planned.rule.is_some_and(|rule| in_force.is_in_shadow(rule, now_ms)) {
                planned.shadow = true;
                for (hit, _) in &planned.hits {
                    plan.hits[*hit].binding = Binding::Shadow;
                }
            }
        }
    }
}
