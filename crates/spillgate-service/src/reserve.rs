//! Reservations by the rules: an estimate is taken before the work, and corrected after it.
//!
//! [`spillgate::reservation`] explains the records, by which a reservation is settled only once.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use spillgate::reservation::{record, record_key};
use spillgate::rules::{Limit, Plan, Request};
use spillgate::{
    Algorithm, Binding, Clock, Decision, Hit, OnStoreFailure, Op, OpKind, Quota, QuotaError, Reason, Receipt, Source,
    Store as _, Verdict, Wait,
};
use tracing::Level;

use super::answer::{self, Answer, AnswerView};
use super::sketched::{place_of, refuse_sketches};
use super::{Client, Loaded, Service, ServiceError};
use crate::metrics::{Metrics, Protocol};

/// The two limits that records of reservations can have. They differ in what happens while the shared store fails.
#[derive(Clone, Debug)]
pub struct Records {
    /// For keys with a limit that is `on_store_failure: local`: the server then makes the record in its own memory.
    local: Quota,
    /// For all other keys: the record is then not made, because no limit of its key counts.
    shared: Quota,
}

impl Records {
    /// Returns the limits of records whose reservations can be settled during `life`.
    ///
    /// # Errors
    /// `life` is 0, or longer than a lease can be.
    pub fn new(life: Duration) -> Result<Records, QuotaError> {
        let local = record(life)?;
        let shared = Quota::concurrency(local.limit()).lease(life).on_store_failure(OnStoreFailure::Allow).build()?;
        Ok(Records { local, shared })
    }
}

/// Units that a limit has counted for a reservation, or the lease of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The hashed key of the counter, or of the record.
    pub key: u128,
    /// The limit. For a record, this is a concurrency limit.
    pub quota: Quota,
    /// The units that were taken, or 1 for a record.
    pub taken: u64,
    /// The receipt of the take, which the settlement has to show.
    pub receipt: Receipt,
}

/// A reservation that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The units that the caller estimated, at least 1.
    pub estimate: u64,
    /// The number of the server that counted the estimate in its own memory, because the shared store failed. `None` if
    /// the configured store counted the estimate.
    pub server: Option<u64>,
    /// What was taken. The list is empty if no limit counts the request.
    pub claims: Vec<Claim>,
}

/// What a settlement has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The estimate was corrected.
    Settled,
    /// Nothing was changed: the reservation was settled before, or its life has ended.
    Gone,
    /// Nothing was changed: the estimate is in the memory of another server.
    Elsewhere,
}

impl<C: Clock> Service<C> {
    /// Takes an estimate from all limits that match the request, or from none. All takes of `request` have the cost
    /// `estimate`. The reservation is `None` if the request is refused.
    ///
    /// A `post_paid` limit takes the estimate too, and refuses an estimate that does not fit.
    ///
    /// # Errors
    /// The request is malformed, exceeds a bound or is not allowed on its listener, a limit has permits or turns instead
    /// of units, the store cannot keep records, or the store failed.
    pub async fn reserve<'p, 'q: 'p>(
        &self,
        loaded: &'p Loaded,
        request: &Request<'q>,
        client: Client,
        (estimate, records): (u64, &'p Records),
    ) -> Result<(Answer<'p>, Option<Reserved>), ServiceError> {
        let begun = Metrics::begin_decision();
        let now = self.limiter.now();
        if self.operator.is_on() {
            self.validate(request, client.grants).map_err(|error| self.rejected(error))?;
            if let Some(refused) = self.refuse_blocked(now, loaded, request, client.protocol) {
                self.metrics.end_decision(begun);
                return Ok((refused, None));
            }
        }
        let mut plan = self.plan(loaded, request, client.grants).map_err(|error| self.rejected(error))?;
        let limits = plan.hits.len();
        let keys = self.add_records(&mut plan, estimate, records).map_err(|error| self.rejected(error))?;
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); plan.hits.len()];
        let decided = self.decide_hits(now, None, &plan.hits, &mut decisions).await;
        let decided = decided.map_err(|error| self.failed(begun, error))?;
        let verdict = without_records(&plan.hits, (limits, &keys), &mut decisions, decided);
        let reserved = verdict.allowed.then(|| Reserved {
            estimate,
            server: (verdict.source == Source::Local).then_some(self.number),
            claims: claims(&plan.hits, (limits, &keys), &decisions),
        });
        let statuses = answer::statuses(&plan, &decisions);
        let view = AnswerView { verdict: &verdict, statuses: &statuses, plan: &plan, decisions: &decisions };
        self.count(now, client.protocol, loaded, request, view);
        if tracing::enabled!(Level::DEBUG) {
            self.log.request(now, request, view);
        }
        self.metrics.end_decision(begun);
        Ok((Answer::new(verdict, statuses, plan, decisions), reserved))
    }

    /// Adds one record for each key of the plan. Returns the keys, in the order of the records.
    fn add_records<'p>(
        &self,
        plan: &mut Plan<'p>,
        estimate: u64,
        records: &'p Records,
    ) -> Result<SmallVec<[u128; 4]>, ServiceError> {
        refuse_sketches(plan)?;
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
        if !self.limiter.store().supports(&records.local, OpKind::Take) {
            let text = "reservations need scripts in the store, and this server has store.scripts: off";
            return Err(ServiceError::BadRequest(text.into()));
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
        let of_keys: SmallVec<[Hit<'p>; 4]> = keys.iter().map(|key| record_hit(&plan.hits, *key, records)).collect();
        plan.hits.extend(of_keys);
        Ok(keys)
    }

    /// Counts `used` units instead of the estimate. [`Settlement`] says whether the reservation was still open.
    ///
    /// In a Redis Cluster, the limits of one reservation can be in several slots. Then the slot of the first limit is
    /// settled alone, with its records, and the other slots follow only if this succeeds. If the store fails in between,
    /// the estimate stays charged in the other slots.
    ///
    /// # Errors
    /// The store failed.
    pub async fn settle(&self, reserved: &Reserved, used: u64) -> Result<Settlement, ServiceError> {
        if reserved.server.is_some_and(|server| server != self.number) {
            return Ok(Settlement::Elsewhere);
        }
        let settle = |claim: &Claim| match claim.quota.algorithm() {
            Algorithm::Concurrency => Op::settle(claim.taken, 0, claim.receipt),
            // Two descriptors with the same counter have each taken the estimate.
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
        let (first, others) = if self.limiter.store().is_atomic(&hits) {
            (hits, SmallVec::new())
        } else {
            let slot = |hit: &Hit<'_>| hit.key >> Hit::SLOT_SHIFT;
            let first_slot = hits.first().map(slot);
            hits.into_iter().partition(|hit| Some(slot(hit)) == first_slot)
        };
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); first.len()];
        if !self.hit(Protocol::Http, None, &first, &mut decisions).await?.allowed {
            return Ok(Settlement::Gone);
        }
        if !others.is_empty() {
            decisions.resize(others.len(), Decision::default());
            // If the reservation's life has ended meanwhile, the slot refuses. Then the estimate stays charged in this
            // slot.
            self.hit(Protocol::Http, None, &others, &mut decisions).await?;
        }
        Ok(Settlement::Settled)
    }
}

/// Returns the hit on the record of `key`. `hits` are the hits on the limits.
fn record_hit<'p>(hits: &[Hit<'p>], key: u128, records: &'p Records) -> Hit<'p> {
    let of_key = || hits.iter().filter(|hit| hit.key == key);
    let is_local = of_key().any(|hit| hit.quota.on_store_failure() == OnStoreFailure::Local);
    let quota = if is_local { &records.local } else { &records.shared };
    // If no limit of the key refuses requests, its record refuses none either.
    let is_shadow = of_key().all(|hit| hit.binding == Binding::Shadow);
    let binding = if is_shadow { Binding::Shadow } else { Binding::Enforce };
    Hit::new(record_key(key), quota, Op::take(1), binding)
}

/// Returns the verdict without the records, which a caller should not see. The first `limits` hits are those on limits,
/// and the hits on the records of `keys` follow.
///
/// Only a full memory store refuses a record. Then the limits of the record's key refuse instead, with the reason
/// [`Reason::StoreFull`].
fn without_records(
    hits: &[Hit<'_>],
    (limits, keys): (usize, &[u128]),
    decisions: &mut [Decision],
    decided: Verdict,
) -> Verdict {
    let (of_limits, of_records) = decisions.split_at_mut(limits);
    for (key, _) in keys.iter().zip(of_records).filter(|(_, record)| !record.allowed) {
        for (hit, decision) in hits.iter().zip(&mut *of_limits).filter(|(hit, _)| hit.key == *key) {
            if decision.allowed {
                *decision = Decision::refuse(hit.quota.capacity(), Reason::StoreFull, Wait::Unknown);
            }
        }
    }
    let mut verdict = Verdict::of(&hits[..limits], of_limits, decided.now).with_source(decided.source);
    if verdict.allowed && !decided.allowed {
        // Limits with `quota_mode` allow a request if one of them does. But a full store must refuse the whole request.
        let refusing = of_limits.iter().position(|decision| !decision.allowed);
        (verdict.allowed, verdict.binding, verdict.retry_after) = (false, refusing, decided.retry_after);
    }
    verdict
}

/// Returns what was taken, with the records last. Units under a key without a record cannot be settled, so they are
/// left out.
fn claims(hits: &[Hit<'_>], (limits, keys): (usize, &[u128]), decisions: &[Decision]) -> Vec<Claim> {
    let has_record = |hit: &Hit<'_>| {
        let record = keys.iter().position(|key| *key == hit.key);
        record.is_none_or(|record| decisions[limits + record].receipt.is_some())
    };
    let taken = hits.iter().zip(decisions).filter(|(hit, _)| has_record(hit));
    let claim = |(hit, decision): (&Hit<'_>, &Decision)| match (hit.op, decision.receipt) {
        (Op::Take { cost: taken, .. }, Some(receipt)) => {
            Some(Claim { key: hit.key, quota: hit.quota.clone(), taken, receipt })
        }
        _ => None,
    };
    taken.filter_map(claim).collect()
}
