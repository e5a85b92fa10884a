//! Asks the limits of a layer about one request.

use std::net::IpAddr;
use std::slice;

use smallvec::SmallVec;
use spillgate_core::{Algorithm, Binding, Decision, Hit, MAX_HITS, OnStoreFailure, Op, Store, StoreError, Verdict};

use crate::{Clock, Limiter};

use super::head::RequestHead;
use super::layer::{Charge, Config, Options, QuotaOf};
use super::outcome::{LimitOutcome, Outcome};

/// The limits that are asked about a request. Their decisions are still empty.
pub(super) type Asked = SmallVec<[LimitOutcome; 1]>;

pub(super) const TOO_MANY: &str = "the request has more limits than one request can have, which is 256";
pub(super) const CONCURRENCY: &str =
    "a layer cannot hold the permits of a concurrency limit; use Limiter::hold in the handler";

impl Options {
    /// Returns whether the request is never limited.
    pub(super) fn skips(&self, request: RequestHead<'_>) -> bool {
        if self.skip_if.as_ref().is_some_and(|skip| skip(&request)) {
            return true;
        }
        let allowed = |address: IpAddr| self.allowed_networks.iter().any(|net| net.contains(&address));
        !self.allowed_networks.is_empty() && request.client_address().is_some_and(allowed)
    }
}

impl<S: Store, C: Clock> Config<S, C> {
    /// Fills `asked` with the limits to ask, each with its key. If the layer cannot decide the request, returns why.
    ///
    /// The limits are written where they stay, because copies would cost as much as a decision.
    pub(super) fn limits_of(&self, request: RequestHead<'_>, asked: &mut Asked) -> Result<(), &'static str> {
        let options = &self.options;
        let cost = options.cost.as_ref().map_or(1, |cost| cost(&request));
        for limit in &options.limits {
            let mut key = limit.start.clone();
            limit.key.add_to(&request, options.ipv6_prefix, &mut key)?;
            let quota = match &limit.quota {
                QuotaOf::Same(quota) => quota.clone(),
                QuotaOf::ByRequest(quota) => quota(&request),
            };
            if quota.algorithm() == Algorithm::Concurrency {
                return Err(CONCURRENCY);
            }
            let binding = if options.is_shadow { Binding::Shadow } else { limit.binding };
            let (name, decision) = (Some(limit.name.clone()), Decision::default());
            asked.push(LimitOutcome { name, quota, decision, key: key.finish(), op: Op::take(cost), binding });
        }
        #[cfg(feature = "rules")]
        if let Some(rules) = &options.rules {
            rules.limits_of(&request, cost, options.is_shadow, self.limiter.keys(), asked)?;
        }
        if asked.len() > MAX_HITS { Err(TOO_MANY) } else { Ok(()) }
    }

    /// Decides the request at once, if the store does not have to wait.
    pub(super) fn try_decide(&self, asked: &mut Asked) -> Option<Result<Verdict, StoreError>> {
        // Most layers have one limit, so its decision is written where it stays.
        if let [limit] = &mut asked[..] {
            let hit = Hit::new(limit.key, &limit.quota, limit.op, limit.binding);
            return self.limiter.try_decide(slice::from_ref(&hit), slice::from_mut(&mut limit.decision));
        }
        let mut decisions = decisions(asked);
        let verdict = self.limiter.try_decide(&hits(asked), &mut decisions)?;
        fill(asked, &decisions);
        Some(verdict)
    }

    /// Decides the request.
    pub(super) async fn decide(&self, asked: &mut Asked) -> Result<Verdict, StoreError> {
        let mut decisions = decisions(asked);
        let verdict = self.limiter.decide(&hits(asked), &mut decisions).await;
        fill(asked, &decisions);
        verdict
    }

    pub(super) fn report(&self, error: &StoreError) {
        if let Some(report) = &self.options.on_error {
            report(error);
        }
    }
}

fn decisions(asked: &Asked) -> SmallVec<[Decision; 4]> {
    SmallVec::from_elem(Decision::default(), asked.len())
}

fn hits(asked: &Asked) -> SmallVec<[Hit<'_>; 4]> {
    asked.iter().map(|limit| Hit::new(limit.key, &limit.quota, limit.op, limit.binding)).collect()
}

fn fill(asked: &mut Asked, decisions: &[Decision]) {
    for (limit, decision) in asked.iter_mut().zip(decisions) {
        limit.decision = *decision;
    }
}

/// What the quotas of a request say about a store that fails.
pub(super) enum WithoutStore {
    Pass,
    Refuse,
    Error,
}

impl WithoutStore {
    pub(super) fn of(asked: &Asked) -> WithoutStore {
        let mut found = WithoutStore::Pass;
        for limit in asked {
            match limit.quota.on_store_failure() {
                OnStoreFailure::Allow => {}
                OnStoreFailure::Deny => found = WithoutStore::Refuse,
                OnStoreFailure::Error | OnStoreFailure::Local => return WithoutStore::Error,
            }
        }
        found
    }
}

/// Returns the hits that change the charge of an allowed request.
pub(super) fn settling(outcome: &Outcome, charge: Charge) -> SmallVec<[Hit<'_>; 4]> {
    let op = |limit: &LimitOutcome| match charge {
        Charge::Refund => Some(Op::Refund { cost: limit.taken()?, receipt: Some(limit.decision.receipt?) }),
        Charge::Add(cost) => Some(Op::Force { cost }),
        Charge::Keep => None,
    };
    let asked = outcome.limits.iter();
    asked.filter_map(|limit| Some(Hit::new(limit.key, &limit.quota, op(limit)?, Binding::Enforce))).collect()
}

/// Changes the charge of an allowed request at once, if the store never waits.
pub(super) fn try_settle<S: Store, C: Clock>(
    limiter: &Limiter<S, C>,
    outcome: &Outcome,
    charge: Charge,
) -> Option<Result<(), StoreError>> {
    let hits = settling(outcome, charge);
    if hits.is_empty() {
        return Some(Ok(()));
    }
    let mut decisions: SmallVec<[Decision; 4]> = SmallVec::from_elem(Decision::default(), hits.len());
    Some(limiter.try_decide(&hits, &mut decisions)?.map(drop))
}

/// Changes the charge of an allowed request.
pub(super) async fn settle<S: Store, C: Clock>(
    limiter: &Limiter<S, C>,
    outcome: &Outcome,
    charge: Charge,
) -> Result<(), StoreError> {
    let hits = settling(outcome, charge);
    let mut decisions: SmallVec<[Decision; 4]> = SmallVec::from_elem(Decision::default(), hits.len());
    limiter.decide(&hits, &mut decisions).await.map(drop)
}
