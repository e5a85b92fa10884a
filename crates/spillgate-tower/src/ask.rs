//! Asks the limits of a layer about one request.

use std::net::IpAddr;
use std::slice;

use smallvec::SmallVec;
use spillgate_core::{Algorithm, Binding, Decision, Hit, MAX_HITS, Op, Reason, Store, StoreError, Verdict};

use spillgate_limiter::Clock;

use super::head::RequestHead;
use super::layer::{Charge, Config, Options, QuotaOf};
use super::outcome::{LimitOutcome, Outcome};

/// The limits that have to decide a request. Until the store has decided, each limit has the default decision.
pub(super) type Asked = SmallVec<[LimitOutcome; 1]>;

pub(super) const TOO_MANY: &str = "the request has more limits than one request can have, which is 256";
pub(super) const CONCURRENCY: &str =
    "a layer cannot hold the permits of a concurrency limit; use Limiter::hold in the handler";
const NO_REFUND: &str = "the store counts with a sketch, which cannot give back the units of this request";

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
    /// Fills `asked` with the limits that have to decide the request, each with its key. If the layer cannot decide the
    /// request, returns why.
    ///
    /// The limits are written into `asked` directly, because a copy of them would cost as much as a decision.
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
            let binding = if options.is_shadow { Binding::Shadow } else { Binding::Enforce };
            let (name, key, decision) = (Some(limit.name.clone()), key.finish(), Decision::default());
            asked.push(LimitOutcome { name, quota, decision, exposed: true, key, op: Op::take(cost), binding });
        }
        #[cfg(feature = "rules")]
        if let Some(rules) = &options.rules {
            rules.limits_of(&request, cost, options.is_shadow, self.limiter.keys(), asked)?;
        }
        if asked.len() > MAX_HITS { Err(TOO_MANY) } else { Ok(()) }
    }

    /// Decides the request at once. Returns `None` if the store would have to wait.
    pub(super) fn try_decide(&self, asked: &mut Asked) -> Option<Result<Verdict, StoreError>> {
        // Most layers have one limit. The store writes the decision of this limit directly into `asked`.
        if let [limit] = &mut asked[..] {
            let hit = Hit::new(limit.key, &limit.quota, limit.op, limit.binding);
            return self.limiter.try_decide(slice::from_ref(&hit), slice::from_mut(&mut limit.decision));
        }
        let mut decisions = decisions(asked);
        let verdict = self.limiter.try_decide(&hits(asked), &mut decisions)?;
        fill(asked, &decisions);
        Some(verdict)
    }

    /// Decides the request, and waits for the store if necessary.
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
    asked.iter().map(LimitOutcome::hit).collect()
}

fn fill(asked: &mut Asked, decisions: &[Decision]) {
    for (limit, decision) in asked.iter_mut().zip(decisions) {
        limit.decision = *decision;
    }
}

/// Returns whether the units of an allowed request were counted and cannot be given back, for example in a sketch.
fn is_counted_for_good(limit: &LimitOutcome) -> bool {
    let decision = &limit.decision;
    let is_counted = decision.allowed && decision.reason == Reason::Fits && limit.taken().is_some_and(|cost| cost > 0);
    is_counted && decision.receipt.is_none()
}

/// Returns the hits that change what an allowed request was charged, and the indices of their limits.
fn settling(outcome: &Outcome, charge: Charge) -> (SmallVec<[Hit<'_>; 4]>, SmallVec<[usize; 4]>) {
    let op = |limit: &LimitOutcome| match charge {
        Charge::Refund => Some(Op::Refund { cost: limit.taken()?, receipt: Some(limit.decision.receipt?) }),
        Charge::Add(cost) => Some(Op::Force { cost }),
        Charge::Keep => None,
    };
    let asked = outcome.limits.iter().enumerate();
    asked
        .filter_map(|(index, limit)| Some((limit.hit().with_op(op(limit)?).with_binding(Binding::Enforce), index)))
        .unzip()
}

impl<S: Store, C: Clock> Config<S, C> {
    /// Reports a refund that cannot be made, because the store gave no receipt.
    pub(super) fn report_lost(&self, outcome: &Outcome, charge: Charge) {
        if charge == Charge::Refund && outcome.limits.iter().any(is_counted_for_good) {
            self.report(&StoreError::malformed(NO_REFUND));
        }
    }

    /// Changes the charge of an allowed request at once, and notes in the outcome what is left then. Returns false if the
    /// store would have to wait.
    pub(super) fn try_settle(&self, outcome: &mut Outcome, charge: Charge) -> bool {
        let (hits, indices) = settling(outcome, charge);
        let mut decisions: SmallVec<[Decision; 4]> = SmallVec::from_elem(Decision::default(), hits.len());
        if hits.is_empty() {
            return true;
        }
        let settled = self.limiter.try_decide(&hits, &mut decisions);
        match &settled {
            Some(Ok(_)) => {
                drop(hits);
                outcome.settle(indices.into_iter().zip(decisions));
            }
            Some(Err(error)) => self.report(error),
            None => {}
        }
        settled.is_some()
    }

    /// Changes the charge of an allowed request, and notes in the outcome what is left then.
    pub(super) async fn settle(&self, outcome: &mut Outcome, charge: Charge) {
        let (hits, indices) = settling(outcome, charge);
        let mut decisions: SmallVec<[Decision; 4]> = SmallVec::from_elem(Decision::default(), hits.len());
        if hits.is_empty() {
            return;
        }
        match self.limiter.decide(&hits, &mut decisions).await {
            Ok(_) => {
                drop(hits);
                outcome.settle(indices.into_iter().zip(decisions));
            }
            Err(error) => self.report(&error),
        }
    }
}
