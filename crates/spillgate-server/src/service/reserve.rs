//! Reservations by the rules: an estimate is taken before the work, and corrected after it.
//!
//! Each key of a reservation has a record: a lease that a settlement ends. [`spillgate::reservation`] explains this.

use smallvec::{SmallVec, smallvec};
use spillgate::reservation::record_key;
use spillgate::rules::{Limit, Plan, Request};
use spillgate::{Algorithm, Binding, Clock, Decision, Hit, Op, Quota, Receipt, Verdict};
use tracing::Level;

use super::answer::{self, Answer, AnswerView};
use super::sketched::{place_of, refuse_sketches};
use super::{Loaded, Service, ServiceError};
use crate::settings::Grants;

/// Units that a limit has counted for a reservation, or the lease of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The hashed key of the counter, or of the record.
    pub key: u128,
    /// The limit. For a record, this is a concurrency limit.
    pub quota: Quota,
    /// The units that were taken.
    pub taken: u64,
    /// The receipt of the take.
    pub receipt: Receipt,
}

/// A reservation that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The units that the caller has estimated.
    pub estimate: u64,
    /// What was taken. The list is empty if no limit counts the request.
    pub claims: Vec<Claim>,
}

impl<C: Clock> Service<C> {
    /// Takes an estimate from all limits that match the request, or from none. All takes of `request` have the cost
    /// `estimate`. `record` is the limit of the records. The reservation is `None` if the request is refused.
    ///
    /// A limit that is `post_paid` takes the estimate too, and refuses it if it does not fit.
    ///
    /// # Errors
    /// The request is malformed, exceeds a bound or is not allowed on its listener, a limit has permits or turns instead
    /// of units, or the store failed.
    pub async fn reserve<'p, 'q: 'p>(
        &self,
        loaded: &'p Loaded,
        request: &Request<'q>,
        grants: Grants,
        (estimate, record): (u64, &'p Quota),
    ) -> Result<(Answer<'p>, Option<Reserved>), ServiceError> {
        let mut plan = self.plan(loaded, request, grants).map_err(|error| self.rejected(error))?;
        refuse_sketches(&plan).map_err(|error| self.rejected(error))?;
        let limits = plan.hits.len();
        self.add_records(&mut plan, estimate, record).map_err(|error| self.rejected(error))?;
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); plan.hits.len()];
        let now = self.limiter.now();
        let decided = self.decide_hits(now, None, &plan.hits, &mut decisions).await;
        let mut verdict = decided.map_err(|error| self.rejected(error))?;
        let claim = |(hit, decision): (&Hit<'_>, &Decision)| match (hit.op, decision.receipt) {
            (Op::Take { cost: taken, .. }, Some(receipt)) => {
                Some(Claim { key: hit.key, quota: hit.quota.clone(), taken, receipt })
            }
            _ => None,
        };
        let claims = verdict.allowed.then(|| plan.hits.iter().zip(&decisions).filter_map(claim).collect());
        // A caller sees limits, and no records. So the limits get the refusal of a record.
        let (of_limits, of_records) = decisions.split_at_mut(limits);
        let refused_record = of_records.iter().find(|record| !record.allowed).filter(|_| !verdict.allowed);
        if let Some(record) = refused_record {
            for decision in of_limits.iter_mut().filter(|decision| decision.allowed) {
                let limit = decision.limit;
                *decision = *record;
                decision.limit = limit;
            }
        }
        if verdict.allowed || refused_record.is_some() {
            let seen = Verdict::of(&plan.hits[..limits], of_limits, verdict.now);
            let allowed = verdict.allowed;
            verdict = seen.with_source(verdict.source);
            verdict.allowed = allowed;
        }
        let statuses = answer::statuses(&plan, &decisions);
        let view = AnswerView { verdict: &verdict, statuses: &statuses, plan: &plan, decisions: &decisions };
        self.count(now, loaded, request, view);
        if tracing::enabled!(Level::DEBUG) {
            self.log.request(now, request, view);
        }
        let reserved = claims.map(|claims| Reserved { estimate, claims });
        Ok((Answer::new(verdict, statuses, plan, decisions), reserved))
    }

    /// Adds one record for each key of the plan.
    fn add_records<'p>(&self, plan: &mut Plan<'p>, estimate: u64, record: &'p Quota) -> Result<(), ServiceError> {
        if estimate == 0 {
            let text = "an estimate of 0 units reserves nothing: estimate at least 1 unit";
            return Err(ServiceError::BadRequest(text.into()));
        }
        let has_units = |quota: &Quota| !matches!(quota.algorithm(), Algorithm::Concurrency | Algorithm::LeakyBucket);
        if !plan.hits.iter().all(|hit| has_units(hit.quota)) {
            let place = place_of(plan, |limit: &Limit| !has_units(&limit.quota));
            return Err(ServiceError::BadRequest(format!(
                "{place}: a limit with permits (concurrency) or turns (leaky_bucket) cannot be reserved: ask for them with \
                 /v1/check"
            )));
        }
        let mut keys: SmallVec<[u128; 4]> = SmallVec::new();
        for hit in &mut plan.hits {
            if let Op::Force { cost } = hit.op {
                hit.op = Op::take(cost);
            }
            if !keys.contains(&hit.key) {
                keys.push(hit.key);
            }
        }
        let binding = if self.options.shadow { Binding::Shadow } else { Binding::Enforce };
        plan.hits.extend(keys.into_iter().map(|key| Hit::new(record_key(key), record, Op::take(1), binding)));
        Ok(())
    }

    /// Counts `used` units instead of the estimate. Returns whether the reservation was still open. If not, nothing is
    /// changed.
    ///
    /// In a Redis Cluster, the limits of one reservation can be in several slots. Then each slot settles its part by
    /// itself, and the result is true only if all parts were open.
    ///
    /// # Errors
    /// The store failed.
    pub async fn settle(&self, reserved: &Reserved, used: u64) -> Result<bool, ServiceError> {
        let settle = |claim: &Claim| match claim.quota.algorithm() {
            Algorithm::Concurrency => Op::settle(claim.taken, 0, claim.receipt),
            // Two descriptors with the same counter have taken the estimate twice.
            _ => {
                let times = claim.taken / reserved.estimate.max(1);
                Op::settle(claim.taken, used.saturating_mul(times), claim.receipt)
            }
        };
        let hits = reserved.claims.iter().map(|claim| {
            let op = settle(claim);
            Hit::new(claim.key, &claim.quota, op, Binding::Enforce)
        });
        let hits: SmallVec<[Hit<'_>; 4]> = hits.collect();
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
        Ok(self.hit(None, &hits, &mut decisions).await?.allowed)
    }
}
