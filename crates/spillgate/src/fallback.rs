//! What answers while the store that many processes share fails.

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;
use spillgate_core::{
    Anchor, Binding, Decision, Hit, OnStoreFailure, Op, OpKind, Quota, Reason, Receipt, Source, State, Store,
    StoreError, Time, Verdict, Wait, decide,
};

use crate::MemoryStore;

/// The bit of a receipt's mark that says: taken here. Marks are times in nanoseconds, at most 73 years ahead, so no store
/// gives one out that has it before the year 2189. After that, giving back such a take does nothing.
const HERE: u64 = 1 << 63;

/// Longer than any window that somebody counts in, so that no other limit has this state; and a whole number of the
/// units that any store counts time in.
const NEVER: Duration = Duration::from_secs((1 << 62) / 1_000_000_000);

/// Answers by each limit's [policy](OnStoreFailure) while a shared store fails.
///
/// * [`Allow`](OnStoreFailure::Allow) lets pass, but for a take that costs more by itself than the limit ever has room for
///   (one on a limit of nothing does): that is refused, as by the store.
/// * [`Deny`](OnStoreFailure::Deny) refuses whatever is asked.
/// * [`Error`](OnStoreFailure::Error) hands on what the store said; of a shadow hit, which refuses nothing, it lets pass.
/// * [`Local`](OnStoreFailure::Local) decides by this node's [share](Quota::share) of the quota, in local memory.
///
/// The answer is one verdict over all hits, all or nothing like any other: nothing is taken locally where a policy
/// refuses. For a limit of bound f, with shares of bound f', m nodes that are asked while the store comes and goes
/// admit at most f(s) + m * f'(s) in any time s. What was used locally is kept while the store is back.
///
/// No policy gives back, renews or resets: what asks for that gets the error. What was taken locally is given back
/// and renewed locally, whether the store answers or not: its receipt says where it was taken. Another node does not
/// know such a receipt. A reset is for the store and for the local state.
///
/// ```
/// use std::num::NonZeroU32;
/// use spillgate::{Fallback, FallbackStore, Limiter, MemoryOptions, MemoryStore, Quota};
///
/// # let shared = MemoryStore::new(MemoryOptions::default());
/// let nodes = NonZeroU32::new(3).unwrap();
/// let fallback = Fallback::new(MemoryStore::new(MemoryOptions::default()), nodes);
/// let limiter = Limiter::new(FallbackStore::new(shared, fallback));
/// # drop(limiter.hit("login", "user-7", &Quota::per_minute(5).build()?, 1));
/// # Ok::<(), spillgate::QuotaError>(())
/// ```
#[derive(Debug)]
pub struct Fallback {
    local: MemoryStore,
    nodes: NonZeroU32,
    /// Limits of nothing, which keep no state. Hits on them stand for what is decided elsewhere: one lets a look
    /// pass, the other refuses a take, whoever decides them.
    passes: Quota,
    refuses: Quota,
}

impl Fallback {
    /// With `local` for what is decided here, and as many nodes as may be asked while the store fails.
    ///
    /// # Panics
    /// Never: the limits that it makes for itself are valid.
    #[must_use]
    pub fn new(local: MemoryStore, expected_nodes: NonZeroU32) -> Fallback {
        let nothing = |policy| {
            let quota = Quota::fixed_window(0, NEVER).anchor(Anchor::FirstHit).on_store_failure(policy);
            quota.build().expect("invariant: a limit of nothing is valid")
        };
        let (passes, refuses) = (nothing(OnStoreFailure::Allow), nothing(OnStoreFailure::Deny));
        Fallback { local, nodes: expected_nodes, passes, refuses }
    }

    /// Where local state lies.
    #[must_use]
    pub const fn local(&self) -> &MemoryStore {
        &self.local
    }

    /// Asks `store`, and where it is [unavailable](StoreError::Unavailable) answers by the policy of each hit.
    ///
    /// `now` is the time of the local state, and of the store's if that has no clock of its own. The verdict's source
    /// is what `store` says, or [`Local`](Source::Local) if a local limit took part, or [`Policy`](Source::Policy).
    ///
    /// # Errors
    /// The request is malformed; or the store failed, and a hit that counts has the policy `error` or gives back,
    /// renews or resets.
    pub async fn decide<S: Store>(
        &self,
        store: &S,
        now: Time,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::Malformed("hits and decisions differ in length"));
        }
        if hits.iter().any(|hit| hit.op == Op::Reset || was_taken_here(hit)) {
            // In a box: all other requests would carry its size around.
            return Box::pin(self.ask_both(store, now, hits, decisions)).await;
        }
        self.ask(store, now, hits, decisions).await
    }

    /// Asks the store, or the policies.
    async fn ask<S: Store>(
        &self,
        store: &S,
        now: Time,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let time = if store.has_clock() { None } else { Some(now) };
        match store.decide(time, hits, decisions).await {
            Err(error @ StoreError::Unavailable(_)) => self.stand_in(now, hits, decisions, error),
            decided => decided,
        }
    }

    /// Asks for what was taken here in local state, resets both, and asks the store for the rest.
    ///
    /// Renewals here come first, so that a lease that cannot be renewed refuses the rest too, and nothing is taken; what
    /// is given back here comes last, so that nothing is if the store fails, and whoever asks again gives it back once.
    async fn ask_both<S: Store>(
        &self,
        store: &S,
        now: Time,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let gives_back = |hit: &Hit<'_>| was_taken_here(hit) && hit.op.kind() == OpKind::Refund;
        let before = self.ask_here(now, hits, |hit| !gives_back(hit), decisions)?;
        let mut answers = decisions.to_vec();
        let rest = hits.iter().zip(&answers);
        let rest: Vec<Hit<'_>> = rest
            .map(|(hit, answer)| if was_taken_here(hit) { self.settled(hit, answer.allowed) } else { *hit })
            .collect();
        let verdict = if hits.iter().all(was_taken_here) {
            before.with_source(Source::Local)
        } else {
            self.ask(store, now, &rest, decisions).await?
        };
        if hits.iter().any(gives_back) {
            let mut given_back = vec![Decision::default(); hits.len()];
            self.ask_here(now, hits, gives_back, &mut given_back)?;
            let given_back = hits.iter().zip(given_back).enumerate().filter(|(_, (hit, _))| gives_back(hit));
            given_back.for_each(|(i, (_, decision))| answers[i] = decision);
        }
        for (i, answer) in answers.into_iter().enumerate().filter(|(i, _)| was_taken_here(&hits[*i])) {
            decisions[i] = answer;
        }
        Ok(verdict_of(hits, decisions, verdict))
    }

    /// Asks local state for those of the resets and of what was taken here that are `asked`; all others pass.
    fn ask_here(
        &self,
        now: Time,
        hits: &[Hit<'_>],
        asked: impl Fn(&Hit<'_>) -> bool,
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let shares: Vec<Quota> = hits.iter().map(|hit| hit.quota.share(self.nodes)).collect();
        let here = hits.iter().zip(&shares).map(|(hit, share)| match hit.op {
            Op::Reset if asked(hit) => hit.with_quota(share),
            op if was_taken_here(hit) && asked(hit) => hit.with_quota(share).with_op(unmarked(op)),
            _ => self.settled(hit, true),
        });
        self.local.decide_now(now, &here.collect::<Vec<Hit<'_>>>(), decisions)
    }

    /// Answers by the policies; `error` is what the store said.
    fn stand_in(
        &self,
        now: Time,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
        error: StoreError,
    ) -> Result<Verdict, StoreError> {
        if hits.iter().any(has_no_policy) {
            return Err(error);
        }
        let local = hits.iter().any(is_local);
        let source = if local { Source::Local } else { Source::Policy };
        let mut verdict = None;
        if local {
            let shares: SmallVec<[Quota; 4]> = hits.iter().map(|hit| hit.quota.share(self.nodes)).collect();
            let asked = hits.iter().zip(&shares).map(|(hit, share)| match is_local(hit) {
                true => hit.with_quota(share),
                false => self.settled(hit, by_policy(hit, now).allowed),
            });
            let asked: SmallVec<[Hit<'_>; 4]> = asked.collect();
            verdict = Some(self.local.decide_now(now, &asked, decisions)?);
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

    /// A hit in place of one that is decided elsewhere, so that its answer counts where this one is asked.
    fn settled<'q>(&'q self, hit: &Hit<'_>, passes: bool) -> Hit<'q> {
        let (quota, op) = if passes { (&self.passes, Op::Peek) } else { (&self.refuses, Op::take(1)) };
        Hit::new(hit.key, quota, op, hit.binding)
    }
}

/// A shared store with what answers while it fails, as one store: see [`Fallback`].
///
/// It is asked with the caller's time, which local state counts by; the store by its own clock if it has one.
#[derive(Debug)]
pub struct FallbackStore<S> {
    store: S,
    fallback: Fallback,
}

impl<S: Store> FallbackStore<S> {
    /// `store`, and `fallback` for when it fails.
    #[must_use]
    pub const fn new(store: S, fallback: Fallback) -> FallbackStore<S> {
        FallbackStore { store, fallback }
    }

    /// The store that many share.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// What answers while it fails.
    #[must_use]
    pub const fn fallback(&self) -> &Fallback {
        &self.fallback
    }
}

impl<S: Store> Store for FallbackStore<S> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.store.supports(quota, op)
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let now = now.ok_or(StoreError::Malformed("local state has no clock of its own: pass the time"))?;
        self.fallback.decide(&self.store, now, hits, decisions).await
    }
}

/// Whether the hit is about a take that was decided in local state.
fn was_taken_here(hit: &Hit<'_>) -> bool {
    match hit.op {
        Op::Refund { receipt: Some(receipt), .. } | Op::Renew { receipt } => receipt.mark & HERE != 0,
        _ => false,
    }
}

/// The operation with the receipt as local state gave it out.
fn unmarked(op: Op) -> Op {
    let unmarked = |receipt: Receipt| receipt.with_mark(receipt.mark & !HERE);
    match op {
        Op::Refund { cost, receipt } => Op::Refund { cost, receipt: receipt.map(unmarked) },
        Op::Renew { receipt } => Op::Renew { receipt: unmarked(receipt) },
        other => other,
    }
}

/// Whether there is no answer to this hit but the store's.
fn has_no_policy(hit: &Hit<'_>) -> bool {
    let errs = hit.quota.on_store_failure() == OnStoreFailure::Error && hit.binding != Binding::Shadow;
    errs || matches!(hit.op.kind(), OpKind::Refund | OpKind::Renew | OpKind::Reset)
}

fn is_local(hit: &Hit<'_>) -> bool {
    hit.quota.on_store_failure() == OnStoreFailure::Local
}

/// Marks a local decision's receipt. What only the share has no room for may fit once the store is back.
fn mark(hit: &Hit<'_>, decision: &mut Decision) {
    if let Some(receipt) = &mut decision.receipt {
        receipt.mark |= HERE;
    }
    if let Op::Take { cost, .. } = hit.op
        && decision.reason == Reason::CostAboveCapacity
        && cost <= hit.quota.hard_capacity()
    {
        decision.reason = Reason::StoreFailed;
        decision.retry_after = Wait::Unknown;
    }
}

/// The decision of the policies that need no state.
fn by_policy(hit: &Hit<'_>, now: Time) -> Decision {
    let (quota, limit) = (hit.quota, hit.quota.capacity());
    match quota.on_store_failure() {
        OnStoreFailure::Deny => Decision::refuse(limit, Reason::StoreFailed, Wait::Unknown),
        OnStoreFailure::Allow if matches!(hit.op, Op::Take { cost, .. } if cost > quota.hard_capacity()) => {
            // Whatever the state is.
            let mut decisions = [Decision::default()];
            decide(&mut [State::default()], &[0], &[*hit], now, &mut decisions);
            decisions[0].without_receipt()
        }
        // As much as this would pass now.
        OnStoreFailure::Allow | OnStoreFailure::Error | OnStoreFailure::Local => {
            Decision::allow(limit, limit).with_reason(Reason::StoreFailed)
        }
    }
}

/// The verdict over all hits, of which those that were asked came to `decided`.
fn verdict_of(hits: &[Hit<'_>], decisions: &[Decision], decided: Verdict) -> Verdict {
    let verdict = Verdict::of(hits, decisions, decided.now).with_source(decided.source);
    // A full store refuses a request also where its quota-mode hits would let it pass.
    if verdict.allowed == decided.allowed { verdict } else { decided }
}
