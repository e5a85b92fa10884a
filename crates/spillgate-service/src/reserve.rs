//! Reservations by the rules: an estimate is taken before the work, and corrected after it.
//!
//! [`spillgate::reservation`] explains the records, which make sure that a reservation is settled only once.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use spillgate::reservation::{record, record_key};
use spillgate::rules::{Limit, Plan, Request};
use spillgate::{
    Algorithm, Binding, Clock, Decision, Hit, OnStoreFailure, Op, OpKind, Quota, QuotaError, Reason, Receipt, Source,
    Store as _, StoreError, StoreErrorKind, Verdict, Wait,
};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tracing::Level;

use super::answer::{self, Answer, AnswerView};
use super::sketched::{place_of, refuse_sketches};
use super::{Client, Loaded, Service, ServiceError};
use crate::metrics::{Metrics, Protocol};

/// The most claims of all settlements that go on if their clients hang up. At 10 ms for a settlement of 4 claims, this is
/// enough for 25,600 settlements a second. Beyond it, a settlement whose client hangs up can stop between two slots.
const MAX_SETTLING: usize = 1_024;

/// The memory of these settlements: a claim with its hit and its decision has less than 512 bytes.
pub const SETTLEMENTS_BYTES: usize = MAX_SETTLING * 512;
const _: () = assert!(size_of::<Claim>() + 2 * size_of::<Hit<'_>>() + size_of::<Decision>() < 512, "as stated above");

/// The settlements of several slots, which go on if their clients hang up.
#[derive(Debug)]
pub(super) struct Settlements(Arc<Semaphore>);

impl Default for Settlements {
    fn default() -> Settlements {
        Settlements(Arc::new(Semaphore::new(MAX_SETTLING)))
    }
}

/// The two quotas that records of reservations can have. They differ in what happens while the shared store fails.
#[derive(Clone, Debug)]
pub struct Records {
    /// For keys with a limit that is `on_store_failure: local`. While the shared store fails, the server counts such a
    /// limit in its own memory, and makes the record there too.
    local: Quota,
    /// For all other keys. While the shared store fails, none of their limits counts, so no record is made.
    shared: Quota,
}

impl Records {
    /// Returns the quotas of records whose reservations can be settled during `life`.
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
    /// The quota that counted the units. For a record, it is a concurrency limit.
    pub quota: Quota,
    /// The units that were taken, or 1 for a record.
    pub taken: u64,
    /// The receipt of the take. With this receipt, the settlement changes only units of that take.
    pub receipt: Receipt,
}

/// A reservation that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The units that the client estimated, at least 1.
    pub estimate: u64,
    /// If the shared store failed and a server counted the estimate in its own memory, the number of this server.
    /// `None` if the configured store counted the estimate.
    pub server: Option<u64>,
    /// The units that were taken, and the leases of the records. Empty if no limit counts the request.
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
    /// Takes an estimate from all limits that match the request, or from none. The caller must give each descriptor of
    /// `request` the cost `estimate`. The reservation is `None` if the request is refused.
    ///
    /// A `post_paid` limit takes the estimate too. Unlike at other times, it refuses units that do not fit.
    ///
    /// # Errors
    /// * The request is malformed, exceeds a bound or is not allowed on its listener.
    /// * A limit has permits (`concurrency`) or turns (`leaky_bucket`) instead of units, or regions share it.
    /// * The store cannot keep records, because it has no scripts.
    /// * The store failed.
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

    /// Adds the hits on the records to the plan: one for each key. Returns the keys, in the order of these hits.
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
        if plan.hits.iter().any(|hit| hit.quota.is_shared()) {
            let place = place_of(plan, |limit: &Limit| limit.quota.is_shared());
            return Err(ServiceError::BadRequest(format!(
                "{place}: a limit that regions share cannot be reserved, because no region would learn of the correction: ask \
                 with /v1/check, or use `across_regions: split` or `each`"
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
    /// In a Redis Cluster, the limits of one reservation can be in several slots. Then the first request to the store
    /// settles only the slot of the first limit. If it succeeds, a second request settles the other slots. If the store
    /// fails between the two, the estimate stays charged in the other slots. If the client hangs up between the two, a task
    /// goes on.
    ///
    /// # Errors
    /// The store failed.
    pub async fn settle(self: &Arc<Self>, reserved: Reserved, used: u64) -> Result<Settlement, ServiceError>
    where
        C: 'static,
    {
        if reserved.server.is_some_and(|server| server != self.number) {
            return Ok(Settlement::Elsewhere);
        }
        if self.limiter.store().is_atomic(&settlement(&reserved, used)) {
            return self.settle_slots(&reserved, used).await;
        }
        let claims = u32::try_from(reserved.claims.len()).unwrap_or(u32::MAX);
        let Ok(permits) = Arc::clone(&self.settlements.0).try_acquire_many_owned(claims) else {
            return self.settle_slots(&reserved, used).await;
        };
        let service = Arc::clone(self);
        let task = tokio::spawn(async move {
            let _permits = permits;
            service.settle_slots(&reserved, used).await
        });
        match task.await.map_err(JoinError::try_into_panic) {
            Ok(settled) => settled,
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(_)) => Err(StoreError::new(StoreErrorKind::Disconnected, "the server ends").into()),
        }
    }

    async fn settle_slots(&self, reserved: &Reserved, used: u64) -> Result<Settlement, ServiceError> {
        let hits = settlement(reserved, used);
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
            // If the life of the reservation has ended since the first request, the other slots refuse this one. Then
            // the estimate stays charged in these slots.
            self.hit(Protocol::Http, None, &others, &mut decisions).await?;
        }
        Ok(Settlement::Settled)
    }
}

/// Returns the hits of a settlement.
fn settlement(reserved: &Reserved, used: u64) -> SmallVec<[Hit<'_>; 4]> {
    let settle = |claim: &Claim| match claim.quota.algorithm() {
        Algorithm::Concurrency => Op::settle(claim.taken, 0, claim.receipt),
        // If descriptors have the same counter, their claim contains the estimate once for each of them.
        _ => {
            let times = claim.taken / reserved.estimate.max(1);
            Op::settle(claim.taken, used.saturating_mul(times), claim.receipt)
        }
    };
    reserved.claims.iter().map(|claim| Hit::new(claim.key, &claim.quota, settle(claim), Binding::Enforce)).collect()
}

/// Returns the hit that makes the record of `key`. `hits` are the hits on the limits.
fn record_hit<'p>(hits: &[Hit<'p>], key: u128, records: &'p Records) -> Hit<'p> {
    let of_key = || hits.iter().filter(|hit| hit.key == key);
    let is_local = of_key().any(|hit| hit.quota.on_store_failure() == OnStoreFailure::Local);
    let quota = if is_local { &records.local } else { &records.shared };
    // If all limits of the key are in shadow mode, its record must not refuse the request either.
    let is_shadow = of_key().all(|hit| hit.binding == Binding::Shadow);
    let binding = if is_shadow { Binding::Shadow } else { Binding::Enforce };
    Hit::new(record_key(key), quota, Op::take(1), binding)
}

/// Returns the verdict on the limits alone, because clients should not see the records. The first `limits` hits are
/// those on limits. The hits on the records of `keys` follow, in the order of `keys`.
///
/// Only a full memory store refuses a record. In this case, the limits of the record's key get a refusal with the
/// reason [`Reason::StoreFull`].
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
        // If several limits have `quota_mode`, the request is allowed if one of them allows it. But if the store is too
        // full for a record, the request must be refused.
        let refusing = of_limits.iter().position(|decision| !decision.allowed);
        (verdict.allowed, verdict.binding, verdict.retry_after) = (false, refusing, decided.retry_after);
    }
    verdict
}

/// Returns the units that were taken, and then the records. Units under a key whose record was not made are left out,
/// because they cannot be settled.
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
