//! The outcome of a request, for handlers and for functions that make refusals.

use std::borrow::Cow;

use smallvec::SmallVec;
use spillgate_core::{Binding, Decision, Hit, Op, Source, Time, Verdict, Wait};

use spillgate_limiter::headers::Policy;

use super::QuotaRef;

/// What the layer decided about a request.
///
/// A handler reads the outcome from the extensions of the request, if the layer [stores it
/// there](super::RateLimitLayer::outcome_in_extensions). A function that makes
/// [refusals](super::RateLimitLayer::refusal) gets the outcome as an argument.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The verdict on the whole request.
    pub verdict: Verdict,
    pub(super) limits: SmallVec<[LimitOutcome; 1]>,
}

/// What one limit decided about a request. [`Outcome::limits`] returns these.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitOutcome {
    /// `None` for a limit of a rules file that has no name.
    pub name: Option<Cow<'static, str>>,
    /// The quota that counted the request. If the limit was added with [`limit_by`](super::RateLimitLayer::limit_by),
    /// the quota depends on the request.
    pub quota: QuotaRef,
    /// What this limit alone decided. Even if it allows the request, another limit can refuse the request.
    pub decision: Decision,
    /// Whether clients see the limit. A limit of a rules file is hidden with `expose: false`.
    pub exposed: bool,
    /// The hashed key that was counted.
    pub(super) key: u128,
    /// What the hit did with the limit, usually a take.
    pub(super) op: Op,
    pub(super) binding: Binding,
}

impl LimitOutcome {
    pub(super) fn hit(&self) -> Hit<'_> {
        Hit::new(self.key, &self.quota, self.op, self.binding)
    }

    /// Returns the units that an allowed request has taken, or `None` if the operation takes none.
    pub(super) const fn taken(&self) -> Option<u64> {
        match self.op {
            Op::Take { cost, .. } | Op::Force { cost } => Some(cost),
            Op::Peek | Op::Refund { .. } | Op::Renew { .. } | Op::Settle { .. } | Op::Reset => None,
        }
    }
}

impl Outcome {
    /// Returns the outcome of a request before its limits are asked.
    pub(super) fn undecided() -> Outcome {
        Outcome { verdict: Verdict::unlimited(Time::EPOCH), limits: SmallVec::new() }
    }

    /// Returns the outcome for a request that is refused because the store failed, and a quota has the policy `Deny`.
    pub(super) fn refused_by_policy() -> Outcome {
        let mut outcome = Outcome::undecided();
        outcome.verdict = outcome.verdict.with_source(Source::Policy);
        (outcome.verdict.allowed, outcome.verdict.retry_after) = (false, Wait::Unknown);
        outcome
    }

    /// Returns the limits that were asked, in the order in which they were added to the layer. The list is empty if the
    /// store failed, and the policy of a quota refused the request.
    #[must_use]
    pub fn limits(&self) -> &[LimitOutcome] {
        &self.limits
    }

    /// Returns the limit that determines the answer. In a refusal, this is the refusing limit with the longest wait. In
    /// an allowed request, this is the limit under which the fewest further requests of its cost fit. Returns `None` if no
    /// limit can refuse the request, or if the store failed.
    #[must_use]
    pub fn binding_limit(&self) -> Option<&LimitOutcome> {
        self.limits.get(self.verdict.binding?)
    }

    /// Notes what is left after the charge of an allowed request was changed. `settled` has the index of each limit whose
    /// charge was changed, with the new decision.
    pub(super) fn settle(&mut self, settled: impl Iterator<Item = (usize, Decision)>) {
        for (index, now) in settled {
            let decision = &mut self.limits[index].decision;
            *decision = decision.with_remaining(now.remaining).with_reset_after_ns(now.reset_after_ns);
        }
        let hits: SmallVec<[Hit<'_>; 4]> = self.limits.iter().map(LimitOutcome::hit).collect();
        let decisions: SmallVec<[Decision; 4]> = self.limits.iter().map(|limit| limit.decision).collect();
        self.verdict.binding = Verdict::of(&hits, &decisions, self.verdict.now).binding;
    }

    /// Returns the limits that a client sees, and the index of the limit that determines the answer. Limits in shadow
    /// mode and hidden limits are left out.
    pub(super) fn policies(&self) -> (SmallVec<[Policy<'_>; 2]>, Option<usize>) {
        let mut policies = SmallVec::new();
        let (mut binding, mut fewest) = (None, None::<(usize, &LimitOutcome)>);
        let is_seen = |limit: &LimitOutcome| limit.exposed && limit.binding != Binding::Shadow;
        for (index, limit) in self.limits.iter().enumerate().filter(|(_, limit)| is_seen(limit)) {
            if self.verdict.binding == Some(index) {
                binding = Some(policies.len());
            }
            let is_fewer = |(_, other): (usize, &LimitOutcome)| {
                limit.decision.cmp_left(limit.op.cost(), &other.decision, other.op.cost()).is_lt()
            };
            if fewest.is_none_or(is_fewer) {
                fewest = Some((policies.len(), limit));
            }
            policies.push(Policy { name: limit.name.as_deref(), quota: &limit.quota, decision: &limit.decision });
        }
        // If a hidden limit determines the answer, the client sees the one among the others that matters most.
        (policies, binding.or_else(|| fewest.filter(|_| self.verdict.allowed).map(|(index, _)| index)))
    }
}
