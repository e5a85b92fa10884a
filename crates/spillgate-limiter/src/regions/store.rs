//! The store of a region that shares limits with others: it counts what it admitted, and gives the region its guaranteed
//! share.
//!
//! The region's own store decides, as if no other region existed. Two things are added for limits that regions share:
//!
//! ```text
//! take 1 on the bucket        allowed   tell the other regions 1 unit
//!
//! take 1 on the bucket        refused   another region may have used what was there
//! take 1 on the share, and
//! settle 1 on the bucket      allowed   the share is this region's own; tell the other regions 1 unit
//! ```
//!
//! The second call charges both, or nothing, because a settlement counts only if its request is allowed. If the bucket
//! were charged later, it would admit units that are spent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::Either;
use smallvec::{SmallVec, smallvec};
use spillgate_core::{
    Algorithm, Binding, Decision, Hit, MAX_HITS, Op, OpKind, Quota, Reason, Receipt, Source, Store, StoreError, Time,
    Timing, Verdict,
};
use tokio::time::Instant;

use super::peers::Peers;

/// A bit in the mark of a receipt. If it is set, the units were taken by the guaranteed share, and the other bits are the
/// time from the take until they are free again, which is shorter than 2^62 ns.
///
/// The mark of another take on a shared bucket is a time, at most 37 years after the take. In such a time this bit is 0
/// until the year 2116. So no store sets it itself before 2079. After that year, a refund can give units back to the share
/// by mistake.
const BY_SHARE: u64 = 1 << 62;

/// A store of one region, whose limits may be [shared](spillgate_core::AcrossRegions::Shared) with other regions.
///
/// It decides with the store of the region, and records in its peers what it admitted of shared limits, so that the other
/// regions are told. If a shared bucket refuses, the region still has its [guaranteed share](Quota::guaranteed): the
/// request is then decided a second time, with takes by the share in place of those that the bucket refused. Both calls
/// have one deadline. If the second call fails, the first refusal stays.
///
/// A [`FallbackStore`](crate::FallbackStore) lies around this store, never in it: what a local store or a policy decides is
/// not told, and never answers for the guaranteed share.
///
/// A shared limit supports takes, peeks, resets, and refunds with a receipt. A reset clears the state of this region only.
#[derive(Debug)]
pub struct RegionStore<S> {
    store: S,
    /// `None` if this is the only region.
    told: Option<Arc<Peers>>,
    /// How long both calls of a request may take, if the request does not say it.
    timeout: Duration,
    guaranteed: AtomicU64,
}

impl<S: Store> RegionStore<S> {
    /// Returns the store of the only region. It decides as `store` does.
    #[must_use]
    pub const fn alone(store: S) -> RegionStore<S> {
        RegionStore { store, told: None, timeout: Duration::ZERO, guaranteed: AtomicU64::new(0) }
    }

    /// Returns the store of one of several regions. `timeout` is that of `store`: how long a request takes that does not
    /// say it itself.
    #[must_use]
    pub const fn new(store: S, peers: Arc<Peers>, timeout: Duration) -> RegionStore<S> {
        RegionStore { store, told: Some(peers), timeout, guaranteed: AtomicU64::new(0) }
    }

    /// Returns the store that decides.
    #[must_use]
    pub const fn inner(&self) -> &S {
        &self.store
    }

    /// Returns the other regions, or `None` if this is the only one.
    #[must_use]
    pub fn peers(&self) -> Option<&Peers> {
        self.told.as_deref()
    }

    /// Returns how many requests were admitted by the guaranteed share of a limit.
    #[must_use]
    pub fn guaranteed(&self) -> u64 {
        self.guaranteed.load(Ordering::Relaxed)
    }

    /// Returns the other regions, if they have to be told of these hits.
    #[inline]
    fn told_of(&self, hits: &[Hit<'_>]) -> Option<&Peers> {
        self.told.as_deref().filter(|_| hits.iter().any(|hit| hit.quota.is_shared()))
    }

    /// Decides a request with a shared limit.
    async fn decide_told(
        &self,
        peers: &Peers,
        (timing, are_keys_known): (Timing, bool),
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::malformed("hits and decisions differ in length"));
        }
        if let Some(why) = hits.iter().find_map(not_supported) {
            return Err(StoreError::malformed(why));
        }
        let started = Instant::now();
        let all = timing.timeout.unwrap_or(self.timeout);
        if hits.iter().any(|hit| hit.quota.is_shared() && matches!(hit.op.kind(), OpKind::Refund | OpKind::Reset)) {
            return self.decide_in_both_states(peers, timing, hits, decisions).await;
        }
        let verdict = self.decide_once((timing, are_keys_known), hits, decisions).await?;
        if verdict.allowed {
            record(peers, hits, decisions, verdict.source);
            return Ok(verdict);
        }
        let left = all.saturating_sub(started.elapsed());
        if !left.is_zero() && may_ask_share(hits, decisions) {
            return Ok(self.ask_share(peers, timing.within(left), hits, decisions, verdict).await);
        }
        Ok(verdict)
    }

    async fn decide_once(
        &self,
        (timing, are_keys_known): (Timing, bool),
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        if are_keys_known {
            self.store.decide_known_keys(timing, hits, decisions).await
        } else {
            self.store.decide(timing, hits, decisions).await
        }
    }

    /// Decides the request with a take by the share and a settlement of the bucket, in place of each take that a shared
    /// bucket refused. If this is refused or fails, the first refusal stays, with the shorter of the two waits.
    async fn ask_share(
        &self,
        peers: &Peers,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
        first: Verdict,
    ) -> Verdict {
        let share_of = |(hit, decision): (&Hit<'_>, &Decision)| {
            if is_full(hit, decision) { hit.quota.guaranteed(hit.op.cost()) } else { None }
        };
        let shares: SmallVec<[Option<Quota>; 4]> = hits.iter().zip(&*decisions).map(share_of).collect();
        let mut both: SmallVec<[Hit<'_>; 4]> = SmallVec::new();
        for (hit, share) in hits.iter().zip(&shares) {
            both.push(share.as_ref().map_or(*hit, |share| hit.with_quota(share)));
        }
        // The settlements come after all takes, so that a hit and its answer have the same position.
        for (hit, _) in hits.iter().zip(&shares).filter(|(_, share)| share.is_some()) {
            both.push(hit.with_op(Op::settle(0, hit.op.cost(), Receipt::new(Time::EPOCH, 0))));
        }
        if both.len() > MAX_HITS {
            return first;
        }
        let mut answers: SmallVec<[Decision; 4]> = smallvec![Decision::default(); both.len()];
        let Ok(second) = self.store.decide(timing, &both, &mut answers).await else { return first };
        let (taken, settled) = answers.split_at(hits.len());
        if !second.allowed {
            for ((decision, answer), _) in
                decisions.iter_mut().zip(taken).zip(&shares).filter(|(_, share)| share.is_some())
            {
                if !answer.allowed {
                    decision.retry_after = decision.retry_after.min(answer.retry_after);
                }
            }
            return Verdict::of(hits, decisions, first.now).with_source(first.source);
        }
        let mut settled = settled.iter();
        for ((decision, answer), share) in decisions.iter_mut().zip(taken).zip(&shares) {
            *decision = *answer;
            if share.is_some()
                && let Some(bucket) = settled.next()
            {
                // What is left is said of the bucket, and the units were taken by the share.
                *decision = bucket.with_reason(Reason::Fits);
                (decision.allowed, decision.receipt) = (true, answer.receipt.map(by_share));
            }
        }
        self.guaranteed.fetch_add(1, Ordering::Relaxed);
        record(peers, hits, decisions, second.source);
        Verdict::of(hits, decisions, second.now).with_source(second.source)
    }

    /// Decides a request that gives units of a shared limit back, or resets one: a take by the share is given back to the
    /// share and to the bucket, and a reset clears both.
    async fn decide_in_both_states(
        &self,
        peers: &Peers,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let share_of = |hit: &Hit<'_>| match hit.op {
            Op::Reset => hit.quota.guaranteed(1),
            Op::Refund { cost, receipt: Some(receipt) } if is_by_share(receipt) => {
                hit.quota.guaranteed(cost.clamp(1, hit.quota.capacity().max(1)))
            }
            _ => None,
        };
        let shares: SmallVec<[Option<Quota>; 4]> =
            hits.iter().map(|hit| if hit.quota.is_shared() { share_of(hit) } else { None }).collect();
        let mut both: SmallVec<[Hit<'_>; 4]> = hits.iter().copied().collect();
        for ((i, hit), share) in hits.iter().enumerate().zip(&shares) {
            let Some(share) = share else { continue };
            let (of_share, of_bucket) = match hit.op {
                Op::Refund { cost, receipt: Some(receipt) } => {
                    let receipt = Some(receipt.with_mark(receipt.at.as_nanos() + (receipt.mark & !BY_SHARE)));
                    (Op::Refund { cost, receipt }, Op::Refund { cost, receipt: None })
                }
                op => (op, op),
            };
            both[i] = hit.with_op(of_bucket);
            both.push(hit.with_quota(share).with_op(of_share).with_binding(Binding::Shadow));
        }
        let mut answers: SmallVec<[Decision; 4]> = smallvec![Decision::default(); both.len()];
        let verdict = self.store.decide(timing, &both, &mut answers).await?;
        decisions.copy_from_slice(&answers[..hits.len()]);
        record(peers, hits, decisions, verdict.source);
        for hit in hits.iter().filter(|hit| hit.quota.is_shared()) {
            if let Op::Refund { cost, receipt: Some(receipt) } = hit.op {
                peers.refund(hit.key, hit.quota, receipt.at, cost);
            }
        }
        Ok(Verdict::of(hits, decisions, verdict.now).with_source(verdict.source))
    }
}

impl<S: Store> Store for RegionStore<S> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        let is_plain = matches!(op, OpKind::Take | OpKind::Peek | OpKind::Refund | OpKind::Reset);
        (!quota.is_shared() || is_plain && self.told.is_some()) && self.store.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        self.store.has_clock()
    }

    fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        match self.told_of(hits) {
            // The box keeps the large future of shared limits out of the future of all other requests.
            Some(peers) => Either::Left(Box::pin(self.decide_told(peers, (timing, false), hits, decisions))),
            None => Either::Right(self.store.decide(timing, hits, decisions)),
        }
    }

    fn decide_known_keys(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        match self.told_of(hits) {
            Some(peers) => Either::Left(Box::pin(self.decide_told(peers, (timing, true), hits, decisions))),
            None => Either::Right(self.store.decide_known_keys(timing, hits, decisions)),
        }
    }

    fn try_decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Option<Result<Verdict, StoreError>> {
        if self.told_of(hits).is_some() { None } else { self.store.try_decide(timing, hits, decisions) }
    }
}

/// Returns why a hit on a shared limit cannot be decided, or `None`.
#[must_use]
pub fn not_supported(hit: &Hit<'_>) -> Option<&'static str> {
    match hit.op {
        _ if !hit.quota.is_shared() => None,
        Op::Take { .. } | Op::Peek | Op::Reset | Op::Refund { receipt: Some(_), .. } => None,
        Op::Refund { receipt: None, .. } => {
            Some("a limit that regions share is refunded with a receipt only. Use `across_regions: split` or `each`")
        }
        Op::Force { .. } | Op::Renew { .. } | Op::Settle { .. } => Some(
            "a limit that regions share takes no forces, renewals or settlements. Use `across_regions: split` or `each`",
        ),
    }
}

/// Returns whether the guaranteed share may be asked: all hits are takes whose refusal costs nothing, and only shared
/// buckets that are [full](is_full) have refused.
#[must_use]
pub fn may_ask_share(hits: &[Hit<'_>], decisions: &[Decision]) -> bool {
    let is_free = |hit: &Hit<'_>| matches!(hit.op, Op::Take { cost: 1.., .. }) && hit.quota.refusal_is_free();
    let with_share = hits.iter().zip(decisions).map(|(hit, decision)| {
        let mut decision = *decision;
        decision.allowed |= is_full(hit, &decision);
        decision
    });
    let with_share: SmallVec<[Decision; 4]> = with_share.collect();
    hits.iter().all(is_free) && Verdict::of(hits, &with_share, Time::EPOCH).allowed
}

/// Returns whether a shared bucket refused the hit because too many units are used.
#[must_use]
pub fn is_full(hit: &Hit<'_>, decision: &Decision) -> bool {
    let is_refused = !decision.allowed && decision.reason == Reason::Exceeded && hit.binding == Binding::Enforce;
    is_refused && hit.quota.is_shared() && hit.quota.algorithm() == Algorithm::TokenBucket
}

/// Records what the store took of shared limits.
fn record(peers: &Peers, hits: &[Hit<'_>], decisions: &[Decision], source: Source) {
    if source != Source::Store {
        return;
    }
    for (hit, decision) in hits.iter().zip(decisions).filter(|(hit, _)| hit.quota.is_shared()) {
        if let (Op::Take { cost, .. }, Some(receipt)) = (hit.op, decision.receipt) {
            peers.record(hit.key, hit.quota, receipt.at, cost);
        }
    }
}

/// Marks the receipt of a take by the share.
const fn by_share(receipt: Receipt) -> Receipt {
    receipt.with_mark(receipt.mark.saturating_sub(receipt.at.as_nanos()) | BY_SHARE)
}

/// Returns whether the units of a receipt were taken by the guaranteed share of a region.
const fn is_by_share(receipt: Receipt) -> bool {
    receipt.mark & BY_SHARE != 0
}
