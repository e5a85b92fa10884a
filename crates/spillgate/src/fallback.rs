//! Decides requests while a shared store fails.
//!
//! Without it, every request would fail as long as the store does. Each limit has a policy that says what happens then.

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;
use spillgate_core::{
    Anchor, Binding, Decision, Hit, OnStoreFailure, Op, OpKind, Quota, Reason, Receipt, Source, State, Store,
    StoreError, StoreErrorKind, Time, Timing, Verdict, Wait, decide,
};

use crate::MemoryStore;

/// The bit of a receipt's mark that says: taken from the local store. Marks are times in nanoseconds, at most 73 years
/// ahead. So no store issues a mark with this bit before the year 2189. After that, a refund of such a take does
/// nothing.
const LOCAL: u64 = 1 << 63;

/// The window of our placeholder limits. It is longer than any real window, so that no real limit shares their state.
/// It is a whole number of the units that any store counts time in.
const NEVER: Duration = Duration::from_secs((1 << 62) / 1_000_000_000);

/// A shared store, and the answers by each limit's [policy](OnStoreFailure) while it fails.
///
/// * [`Allow`](OnStoreFailure::Allow) allows, with one exception: a take that costs more than the limit's capacity is
///   refused, as the store would refuse it. Every take of a unit from a limit of 0 is such a take.
/// * [`Deny`](OnStoreFailure::Deny) refuses everything.
/// * [`Error`](OnStoreFailure::Error) returns the error of the store. A shadow hit, which refuses nothing, is allowed.
/// * [`Local`](OnStoreFailure::Local) decides by this node's [share](Quota::share) of the quota, in a local memory store.
///
/// The answer is one verdict over all hits, all or nothing like any other. Nothing is taken locally if a policy
/// refuses.
///
/// # What a fleet admits
///
/// A limit admits at most f(s) units in any time s, and a share of it at most f'(s). If m nodes send requests while the
/// store fails and recovers, they admit at most f(s) + m * f'(s). Local counts are kept while the store answers.
///
/// # Refunds, renewals and resets
///
/// No policy refunds, renews or resets: such a request gets the error. There is one exception. A take from the local
/// store is refunded and renewed there, whether the shared store answers or not. Its receipt says where it was taken.
/// Another node does not know such a receipt. A reset applies to the shared store and to the local one.
///
/// # Time
///
/// A caller always passes the time. The local store counts by it. The shared store uses its own clock if it has one.
///
/// # Examples
///
/// ```
/// use std::num::NonZeroU32;
/// use spillgate::{FallbackStore, Limiter, MemoryOptions, MemoryStore, Quota};
///
/// # let shared = MemoryStore::new(MemoryOptions::default());
/// let local = MemoryStore::new(MemoryOptions::default());
/// let nodes = NonZeroU32::new(3).unwrap();
/// let limiter = Limiter::new(FallbackStore::new(shared, local, nodes));
/// # drop(limiter.hit("login", "user-7", &Quota::per_minute(5).build()?, 1));
/// # Ok::<(), spillgate::QuotaError>(())
/// ```
#[derive(Debug)]
pub struct FallbackStore<S> {
    shared: S,
    local: MemoryStore,
    /// The number of nodes that share each limit.
    nodes: NonZeroU32,
    /// The quota of a placeholder that is allowed. A placeholder is a hit in place of one that is decided elsewhere.
    /// This quota is a limit of 0, which has no state. Every store and the policy allow a peek on it.
    allowing: Quota,
    /// The quota of a placeholder that is refused. Every store and the policy refuse a take from it.
    refusing: Quota,
}

impl<S: Store> FallbackStore<S> {
    /// A store that asks `shared`. While that fails, limits with the policy `local` count in `local`.
    ///
    /// `expected_nodes` is the number of nodes that share each limit. If it is too low, the fleet admits more than the
    /// limit while the shared store fails. If it is too high, the fleet admits less.
    ///
    /// # Panics
    /// Never: its own placeholder limits are valid.
    #[must_use]
    pub fn new(shared: S, local: MemoryStore, expected_nodes: NonZeroU32) -> FallbackStore<S> {
        let placeholder = |policy| {
            let quota = Quota::fixed_window(0, NEVER).anchor(Anchor::FirstHit).on_store_failure(policy);
            quota.build().expect("invariant: a limit of 0 is valid")
        };
        let (allowing, refusing) = (placeholder(OnStoreFailure::Allow), placeholder(OnStoreFailure::Deny));
        FallbackStore { shared, local, nodes: expected_nodes, allowing, refusing }
    }

    /// The shared store.
    #[must_use]
    pub const fn shared(&self) -> &S {
        &self.shared
    }

    /// The store of local counts. It is empty if the shared store never failed.
    #[must_use]
    pub const fn local(&self) -> &MemoryStore {
        &self.local
    }

    /// Asks the shared store. The policies answer if it fails.
    async fn decide_in_shared(
        &self,
        now: Time,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let mut timing = timing;
        if self.shared.has_clock() {
            timing.now = None;
        }
        match self.shared.decide(timing, hits, decisions).await {
            Err(error) if error.kind() != StoreErrorKind::Malformed => {
                self.decide_by_policies(now, hits, decisions, error)
            }
            decided => decided,
        }
    }

    /// Sends local takes to the local store, resets to both stores, and everything else to the shared one.
    ///
    /// Local renewals come first. So a lease that cannot be renewed refuses the rest too, and nothing is taken.
    ///
    /// Local refunds come last. So nothing is refunded if the shared store fails, and a caller that tries again refunds
    /// once.
    async fn decide_in_both(
        &self,
        now: Time,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let is_local_refund = |hit: &Hit<'_>| was_taken_locally(hit) && hit.op.kind() == OpKind::Refund;
        let before = self.decide_locally(now, hits, |hit| !is_local_refund(hit), decisions)?;
        let mut local = decisions.to_vec();
        let shared = hits.iter().zip(&local);
        let shared: Vec<Hit<'_>> = shared
            .map(|(hit, local)| if was_taken_locally(hit) { self.placeholder(hit, local.allowed) } else { *hit })
            .collect();
        let verdict = if hits.iter().all(was_taken_locally) {
            before.with_source(Source::Local)
        } else {
            self.decide_in_shared(now, timing, &shared, decisions).await?
        };
        if hits.iter().any(is_local_refund) {
            let mut refunded = vec![Decision::default(); hits.len()];
            self.decide_locally(now, hits, is_local_refund, &mut refunded)?;
            let refunded = hits.iter().zip(refunded).enumerate().filter(|(_, (hit, _))| is_local_refund(hit));
            refunded.for_each(|(i, (_, decision))| local[i] = decision);
        }
        for (i, decision) in local.into_iter().enumerate().filter(|(i, _)| was_taken_locally(&hits[*i])) {
            decisions[i] = decision;
        }
        Ok(verdict_of(hits, decisions, verdict))
    }

    /// Decides the `selected` resets and local takes in the local store. Every other hit is allowed.
    fn decide_locally(
        &self,
        now: Time,
        hits: &[Hit<'_>],
        selected: impl Fn(&Hit<'_>) -> bool,
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let shares: Vec<Quota> = hits.iter().map(|hit| hit.quota.share(self.nodes)).collect();
        let local = hits.iter().zip(&shares).map(|(hit, share)| match hit.op {
            Op::Reset if selected(hit) => hit.with_quota(share),
            op if was_taken_locally(hit) && selected(hit) => hit.with_quota(share).with_op(without_mark(op)),
            _ => self.placeholder(hit, true),
        });
        self.local.decide_now(now, &local.collect::<Vec<Hit<'_>>>(), decisions)
    }

    /// Answers by the policies. `error` is that of the shared store.
    fn decide_by_policies(
        &self,
        now: Time,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
        error: StoreError,
    ) -> Result<Verdict, StoreError> {
        if hits.iter().any(needs_shared_store) {
            return Err(error);
        }
        let any_local = hits.iter().any(is_local);
        let source = if any_local { Source::Local } else { Source::Policy };
        let mut verdict = None;
        if any_local {
            let shares: SmallVec<[Quota; 4]> = hits.iter().map(|hit| hit.quota.share(self.nodes)).collect();
            let local = hits.iter().zip(&shares).map(|(hit, share)| match is_local(hit) {
                true => hit.with_quota(share),
                false => self.placeholder(hit, by_policy(hit, now).allowed),
            });
            let local: SmallVec<[Hit<'_>; 4]> = local.collect();
            verdict = Some(self.local.decide_now(now, &local, decisions)?);
        }
        for (hit, decision) in hits.iter().zip(&mut *decisions) {
            if is_local(hit) {
                mark(hit, decision);
            } else {
                *decision = by_policy(hit, now);
            }
        }
        let verdict = verdict.unwrap_or_else(|| Verdict::of(hits, decisions, now));
        Ok(verdict_of(hits, decisions, verdict.with_source(source)))
    }

    /// A hit in place of one that is decided elsewhere. Its answer counts in the verdict of the store that gets it.
    fn placeholder<'q>(&'q self, hit: &Hit<'_>, allowed: bool) -> Hit<'q> {
        let (quota, op) = if allowed { (&self.allowing, Op::Peek) } else { (&self.refusing, Op::take(1)) };
        Hit::new(hit.key, quota, op, hit.binding)
    }
}

impl<S: Store> Store for FallbackStore<S> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.shared.supports(quota, op)
    }

    /// Asks the shared store. If it fails, each hit is answered by its policy.
    ///
    /// `timing.now` is the time of the local store. It is also the time of the shared store, unless that has a clock.
    ///
    /// The verdict's source is that of the shared store. While the shared store fails, the source is
    /// [`Local`](Source::Local) if a local limit took part, else [`Policy`](Source::Policy).
    ///
    /// # Errors
    /// * The request is [malformed](StoreErrorKind::Malformed), or `timing` has no time.
    /// * The shared store failed, and a hit with the policy `error` is not a shadow.
    /// * The shared store failed, and a hit refunds, renews or resets a take that it has.
    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::malformed("hits and decisions differ in length"));
        }
        let Some(now) = timing.now else {
            return Err(StoreError::malformed("the local store has no clock of its own: pass the time"));
        };
        if hits.iter().any(|hit| hit.op == Op::Reset || was_taken_locally(hit)) {
            // The box keeps this rare case out of the future of every other request.
            return Box::pin(self.decide_in_both(now, timing, hits, decisions)).await;
        }
        self.decide_in_shared(now, timing, hits, decisions).await
    }
}

/// Whether the hit is about a take from the local store.
fn was_taken_locally(hit: &Hit<'_>) -> bool {
    match hit.op {
        Op::Refund { receipt: Some(receipt), .. } | Op::Renew { receipt } => receipt.mark & LOCAL != 0,
        _ => false,
    }
}

/// The operation with the receipt that the local store issued.
fn without_mark(op: Op) -> Op {
    let without_mark = |receipt: Receipt| receipt.with_mark(receipt.mark & !LOCAL);
    match op {
        Op::Refund { cost, receipt } => Op::Refund { cost, receipt: receipt.map(without_mark) },
        Op::Renew { receipt } => Op::Renew { receipt: without_mark(receipt) },
        other => other,
    }
}

/// Whether only the shared store can answer this hit.
fn needs_shared_store(hit: &Hit<'_>) -> bool {
    let errs = hit.quota.on_store_failure() == OnStoreFailure::Error && hit.binding != Binding::Shadow;
    errs || matches!(hit.op.kind(), OpKind::Refund | OpKind::Renew | OpKind::Reset)
}

fn is_local(hit: &Hit<'_>) -> bool {
    hit.quota.on_store_failure() == OnStoreFailure::Local
}

/// Marks the receipt of a local decision. A take that exceeds only the share may fit once the store is back, so its
/// wait becomes unknown.
fn mark(hit: &Hit<'_>, decision: &mut Decision) {
    if let Some(receipt) = &mut decision.receipt {
        receipt.mark |= LOCAL;
    }
    if let Op::Take { cost, .. } = hit.op
        && decision.reason == Reason::CostAboveCapacity
        && cost <= hit.quota.hard_capacity()
    {
        decision.reason = Reason::StoreFailed;
        decision.retry_after = Wait::Unknown;
    }
}

/// The decision of a policy that needs no state.
fn by_policy(hit: &Hit<'_>, now: Time) -> Decision {
    let (quota, limit) = (hit.quota, hit.quota.capacity());
    match quota.on_store_failure() {
        OnStoreFailure::Deny => Decision::refuse(limit, Reason::StoreFailed, Wait::Unknown),
        OnStoreFailure::Allow if matches!(hit.op, Op::Take { cost, .. } if cost > quota.hard_capacity()) => {
            // Every state refuses this take, so the kernel decides on an empty one.
            let mut decisions = [Decision::default()];
            decide(&mut [State::default()], &[0], &[*hit], now, &mut decisions);
            decisions[0].without_receipt()
        }
        // Each request is allowed now, whatever it costs up to the limit.
        OnStoreFailure::Allow | OnStoreFailure::Error | OnStoreFailure::Local => {
            Decision::allow(limit, limit).with_reason(Reason::StoreFailed)
        }
    }
}

/// The verdict over all hits. `decided` is the verdict of the store that was asked.
fn verdict_of(hits: &[Hit<'_>], decisions: &[Decision], decided: Verdict) -> Verdict {
    let verdict = Verdict::of(hits, decisions, decided.now).with_source(decided.source);
    // A full local store refuses a request even if its quota-mode hits would allow it.
    if verdict.allowed == decided.allowed { verdict } else { decided }
}
