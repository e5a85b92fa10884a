//! Decides requests while a shared store fails.
//!
//! Without this module, every request would fail while the shared store fails. Each limit has a policy, which says how
//! the hits of this limit are answered during that time.
//!
//! In this file, a server is a process that uses the shared store: a spillgate server, or another program with this
//! library. In the code, `nodes` is the number of these servers.

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use spillgate_core::{
    Anchor, Binding, Decision, Hit, OnStoreFailure, Op, OpKind, Quota, Reason, Receipt, Source, State, Store,
    StoreError, StoreErrorKind, Time, Timing, Verdict, Wait, decide,
};

use crate::MemoryStore;

/// A bit in the mark of a receipt. The mark is a number that the store sets. If this bit is set, the units were taken
/// from the local store.
///
/// The marks that stores set are times in nanoseconds since 1970, at most 73 years in the future. In such a time, this
/// bit is 0 until 2^63 ns, which is in the year 2262. So no store sets this bit itself before the year 2189, which is
/// 73 years earlier. After that year, a refund for the shared store can go to the local store by mistake, where it does
/// nothing.
const LOCAL: u64 = 1 << 63;

/// The window of a placeholder. If a store must not decide a hit of a request, it gets a placeholder in place of this
/// hit.
///
/// This window is longer than any real window, so that no real limit shares a state with a placeholder. It is a whole
/// number of seconds, so that every store can represent it exactly.
const NEVER: Duration = Duration::from_secs((1 << 62) / 1_000_000_000);

/// A shared store and a local store. While the shared store fails, each hit is answered by the [policy](OnStoreFailure)
/// of its limit:
///
/// * [`Allow`](OnStoreFailure::Allow) allows every hit, with one exception. A take that costs more than the limit's
///   capacity is refused, as the shared store would refuse it. A limit of 0 therefore refuses every take of one unit or
///   more.
/// * [`Deny`](OnStoreFailure::Deny) refuses every hit.
/// * [`Error`](OnStoreFailure::Error) returns the error of the store. But a hit in shadow mode is allowed, because such
///   a hit never refuses a request.
/// * [`Local`](OnStoreFailure::Local) decides in a local memory store. In this store, the limit is the
///   [share](Quota::share) of one server: its part of the quota.
///
/// A request gets one verdict over all its hits. Either all hits of the request take their units, or none. If a policy
/// refuses the request, nothing is taken locally.
///
/// # What a fleet admits
///
/// Let `f(s)` be the maximum number of units that a limit admits in any period of length `s`. Let `f'(s)` be the
/// maximum number of units that one server's share of the limit admits in such a period. If `m` servers decide requests
/// while the shared store fails and recovers, all servers together admit at most `f(s) + m * f'(s)` units. This is also
/// true if the shared store fails several times in one period, because the local store keeps its counts while the
/// shared store answers.
///
/// # Too many new keys
///
/// A shared store can take no more new keys of a limit for a while ([`NewKeys`](StoreErrorKind::NewKeys)). Callers whose
/// keys exist are decided as always. A take with a new key is decided in the local store by this server's share,
/// whatever the policy of its limit says. Its receipt is that of a local take, and the source of the verdict is
/// [`Local`](Source::Local). Such a newcomer can be refused although the shared store has counted nothing for it. When
/// the shared store takes new keys again, it counts from 0 for this newcomer. So the bound above holds for newcomers.
///
/// # Refunds, renewals and resets
///
/// No policy can answer a refund, a renewal, a settlement or a reset. While the shared store fails, such a request gets
/// the error of the store. There is one exception: a take from the local store is refunded, renewed and settled in the
/// local store, whether the shared store answers or not. The receipt of a take says from which store the units were
/// taken. A receipt of a local store is of use only to the server of this store. A reset applies to the shared store
/// and to the local store.
///
/// # Time
///
/// The caller must always pass the time, because the local store decides at this time. A shared store with a clock
/// decides by its own clock. A shared store without a clock decides at the time of the caller too.
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
/// # drop(limiter.take(&Quota::per_minute(5).build()?, ("login", "user-7"), 1));
/// # Ok::<(), spillgate::QuotaError>(())
/// ```
#[derive(Debug)]
pub struct FallbackStore<S> {
    shared: S,
    local: MemoryStore,
    /// The number of servers that share each limit.
    nodes: NonZeroU32,
    /// The quota of a placeholder that is allowed. The limit of this quota is 0, so nothing is ever counted for it.
    /// Every store allows a peek on it, and so does the policy of this quota.
    allowing: Quota,
    /// The quota of a placeholder that is refused. Its limit is 0 too. Every store refuses a take of one unit from it,
    /// and so does the policy of this quota.
    refusing: Quota,
}

impl<S: Store> FallbackStore<S> {
    /// Makes a store that sends its requests to `shared`. While `shared` fails, the units of limits with the policy
    /// [`Local`](OnStoreFailure::Local) are counted in `local`.
    ///
    /// `expected_nodes` is the number of servers that share each limit. If this number is too low, the shares of all
    /// servers together are more than the limit. If this number is too high, the shares together are less than the
    /// limit.
    ///
    /// # Panics
    /// Never, because the limits of the placeholders are valid.
    #[must_use]
    pub fn new(shared: S, local: MemoryStore, expected_nodes: NonZeroU32) -> FallbackStore<S> {
        let placeholder = |policy| {
            let quota = Quota::fixed_window(0, NEVER).anchor(Anchor::FirstHit).on_store_failure(policy);
            quota.build().expect("invariant: a limit of 0 is valid")
        };
        let (allowing, refusing) = (placeholder(OnStoreFailure::Allow), placeholder(OnStoreFailure::Deny));
        FallbackStore { shared, local, nodes: expected_nodes, allowing, refusing }
    }

    /// Returns the store that all servers share, for functions that only this kind of store has.
    #[must_use]
    pub const fn shared(&self) -> &S {
        &self.shared
    }

    /// Returns the local store of this server. It is empty if the shared store never failed.
    #[must_use]
    pub const fn local(&self) -> &MemoryStore {
        &self.local
    }

    /// Returns the timing for the shared store. If the shared store has a clock, the timing has no time.
    fn for_shared(&self, mut timing: Timing) -> Timing {
        if self.shared.has_clock() {
            timing.now = None;
        }
        timing
    }

    /// Returns what the shared store decides. If it fails, returns the answer of the policies. If it takes no new keys of
    /// a limit, the local store decides the hits with these keys.
    async fn decide_shared(
        &self,
        now: Time,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let decided = self.shared.decide(self.for_shared(timing), hits, decisions).await;
        if takes_no_new_keys(&decided) {
            // Only requests during an attack get here, so the future of all others stays small.
            return Box::pin(self.decide_new_keys(now, timing, hits, decisions)).await;
        }
        self.or_by_policies(decided, now, hits, decisions)
    }

    /// Decides the hits that the shared store has marked as new in the local store, and the other hits in the shared
    /// store. Either all hits of the request take their units, or none.
    async fn decide_new_keys(
        &self,
        now: Time,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let is_new: SmallVec<[bool; 8]> = decisions.iter().map(|known| known.reason == Reason::NotAsked).collect();
        let shares: SmallVec<[Quota; 4]> = hits.iter().map(|hit| hit.quota.share(self.nodes)).collect();
        let new_hits = hits.iter().zip(&shares).zip(&is_new);
        let new_hits: SmallVec<[Hit<'_>; 4]> = new_hits
            .map(|((hit, share), is_new)| if *is_new { hit.with_quota(share) } else { self.placeholder(hit, true) })
            .collect();
        let mut local: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
        let mut verdict = self.local.decide_now(now, &new_hits, &mut local)?;
        if !is_new.iter().all(|is_new| *is_new) {
            // If the caller leaves before the shared store answers, dropping the takes gives them back.
            let mut taken = LocalTakes::of(&self.local, now, &new_hits, &local);
            let refused_binding = |hit: &Hit<'_>| if verdict.allowed { hit.binding } else { Binding::Enforce };
            let shared = hits.iter().zip(&local).zip(&is_new);
            let shared: SmallVec<[Hit<'_>; 4]> = shared
                .map(|((hit, local), is_new)| match is_new {
                    // A full local store can refuse a request although it allows a hit of it.
                    true => self.placeholder(hit, local.allowed && verdict.allowed).with_binding(refused_binding(hit)),
                    false => *hit,
                })
                .collect();
            let decided = self.shared.decide_known_keys(self.for_shared(timing), &shared, decisions).await;
            verdict = self.or_by_policies(decided, now, &shared, decisions)?;
            if verdict.allowed {
                taken.refunds.clear();
            } else {
                taken.give_back(&mut local);
            }
        }
        for (((hit, local), decision), _) in
            hits.iter().zip(local).zip(decisions.iter_mut()).zip(&is_new).filter(|(_, is_new)| **is_new)
        {
            *decision = local;
            mark(hit, decision);
        }
        Ok(verdict_of(hits, decisions, verdict.with_source(Source::Local)))
    }

    /// Returns what the shared store decided. If the shared store failed, returns the answer of the policies. A
    /// malformed request stays an error.
    fn or_by_policies(
        &self,
        decided: Result<Verdict, StoreError>,
        now: Time,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        match decided {
            Err(error) if error.kind() != StoreErrorKind::Malformed => {
                self.decide_by_policies(now, hits, decisions, error)
            }
            decided => decided,
        }
    }

    /// Sends refunds, renewals and settlements of local takes (takes from the local store) to the local store. Sends
    /// resets to both stores, and all other hits to the shared store.
    ///
    /// Renewals and settlements of local takes are decided first. If one of them is refused, the whole request is
    /// refused, and nothing is taken.
    ///
    /// Refunds of local takes are decided last. So if the shared store fails, nothing has been refunded yet, and a
    /// caller that tries again refunds only once.
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
            self.decide_shared(now, timing, &shared, decisions).await?
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

    /// Decides some hits in the local store: the resets, and the refunds, renewals and settlements of local takes.
    /// Decides only hits for which `selected` returns true, and allows every other hit.
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

    /// Answers each hit by its policy. `error` is the error of the shared store.
    fn decide_by_policies(
        &self,
        now: Time,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
        mut error: StoreError,
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
        let verdict = verdict_of(hits, decisions, verdict.with_source(source));
        if verdict.allowed {
            error.keep_charge();
        }
        Ok(verdict)
    }

    /// Returns a placeholder for a hit that another store or a policy decides. If `allowed` is true, the store that
    /// gets the placeholder allows it. If `allowed` is false, the store refuses it. The verdict of this store is then
    /// about the whole request.
    fn placeholder<'q>(&'q self, hit: &Hit<'_>, allowed: bool) -> Hit<'q> {
        let (quota, op) = if allowed { (&self.allowing, Op::Peek) } else { (&self.refusing, Op::take(1)) };
        Hit::new(hit.key, quota, op, hit.binding)
    }
}

impl<S: Store> Store for FallbackStore<S> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.shared.supports(quota, op)
    }

    /// Asks the shared store. If the shared store fails, each hit is answered by its policy.
    ///
    /// The local store decides at the time `timing.now`. So does the shared store, unless it has a clock.
    ///
    /// The source in the verdict is usually the source that the shared store reports. While the shared store fails, the
    /// source is [`Local`](Source::Local) if a limit of the request has the policy `local` or a new key, and
    /// [`Policy`](Source::Policy) if no limit of the request has it.
    ///
    /// # Errors
    /// * The request is [malformed](StoreErrorKind::Malformed), or `timing` has no time.
    /// * The shared store failed, and a hit with the policy `error` is not a shadow hit.
    /// * The shared store failed, and a hit is a reset, or refunds, renews or settles a take from the shared store.
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
            return Err(StoreError::malformed("the local store has no clock, so pass the time"));
        };
        if hits.iter().any(|hit| hit.op == Op::Reset || was_taken_locally(hit)) {
            // Such requests are rare. The box keeps the large future of `decide_in_both` out of the future of `decide`,
            // so that the futures of all other requests stay small.
            return Box::pin(self.decide_in_both(now, timing, hits, decisions)).await;
        }
        // The same as `decide_shared`, without its future: each future around another one costs every request.
        let decided = self.shared.decide(self.for_shared(timing), hits, decisions).await;
        if takes_no_new_keys(&decided) {
            return Box::pin(self.decide_new_keys(now, timing, hits, decisions)).await;
        }
        self.or_by_policies(decided, now, hits, decisions)
    }
}

/// Returns whether the shared store has decided nothing, because it takes no new keys of a limit.
fn takes_no_new_keys(decided: &Result<Verdict, StoreError>) -> bool {
    decided.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::NewKeys)
}

/// Units that the local store took for a request that is not decided yet. If this value is dropped, they are given back.
struct LocalTakes<'l> {
    local: &'l MemoryStore,
    now: Time,
    /// The refund of each take, with the position of the take in the request.
    refunds: SmallVec<[(usize, Hit<'l>); 4]>,
}

impl<'l> LocalTakes<'l> {
    fn of(local: &'l MemoryStore, now: Time, hits: &[Hit<'l>], decisions: &[Decision]) -> LocalTakes<'l> {
        // In reverse order, because a queue takes back only its last turn.
        let refund = |(i, (hit, decision)): (usize, (&Hit<'l>, &Decision))| match (hit.op, decision.receipt) {
            (Op::Take { cost, .. }, Some(_)) => {
                let op = Op::Refund { cost, receipt: decision.receipt };
                Some((i, hit.with_op(op).with_binding(Binding::Shadow)))
            }
            _ => None,
        };
        let refunds = hits.iter().zip(decisions).enumerate().rev().filter_map(refund).collect();
        LocalTakes { local, now, refunds }
    }

    /// Gives the units back, and writes into `decisions` what is left then.
    fn give_back(&mut self, decisions: &mut [Decision]) {
        let refunds = std::mem::take(&mut self.refunds);
        for (i, refund) in refunds {
            let mut after = [Decision::default()];
            // A refund of units that the store has just taken cannot fail. If it did, they would come back with time.
            if self.local.decide_now(self.now, &[refund], &mut after).is_ok() {
                let [after] = after;
                let left = decisions[i].without_receipt().with_remaining(after.remaining);
                decisions[i] = left.with_reset_after_ns(after.reset_after_ns).with_delay_ns(0);
            }
        }
    }
}

impl Drop for LocalTakes<'_> {
    fn drop(&mut self) {
        for (_, refund) in std::mem::take(&mut self.refunds) {
            let _ = self.local.decide_now(self.now, &[refund], &mut [Decision::default()]);
        }
    }
}

/// Returns whether the units of a receipt were taken from the local store of a [`FallbackStore`], and not from its shared
/// store.
///
/// A request can have receipts of both stores. [`Verdict::source`] is [`Local`](Source::Local) for the whole request then.
///
/// ```
/// use spillgate_limiter::{Receipt, Time, is_local_receipt};
///
/// assert!(!is_local_receipt(Receipt::new(Time::EPOCH, 9)));
/// ```
#[must_use]
pub const fn is_local_receipt(receipt: Receipt) -> bool {
    receipt.mark & LOCAL != 0
}

/// Returns whether the hit refunds, renews or settles a take from the local store.
fn was_taken_locally(hit: &Hit<'_>) -> bool {
    match hit.op {
        Op::Refund { receipt: Some(receipt), .. } | Op::Renew { receipt } | Op::Settle { receipt, .. } => {
            is_local_receipt(receipt)
        }
        _ => false,
    }
}

/// Returns the operation with its receipt as the local store issued it, without the bit `LOCAL`.
fn without_mark(op: Op) -> Op {
    let without_mark = |receipt: Receipt| receipt.with_mark(receipt.mark & !LOCAL);
    match op {
        Op::Refund { cost, receipt } => Op::Refund { cost, receipt: receipt.map(without_mark) },
        Op::Renew { receipt } => Op::Renew { receipt: without_mark(receipt) },
        Op::Settle { change, receipt } => Op::Settle { change, receipt: without_mark(receipt) },
        other => other,
    }
}

/// Returns whether only the shared store can answer this hit.
fn needs_shared_store(hit: &Hit<'_>) -> bool {
    let errs = hit.quota.on_store_failure() == OnStoreFailure::Error && hit.binding != Binding::Shadow;
    errs || matches!(hit.op.kind(), OpKind::Refund | OpKind::Renew | OpKind::Settle | OpKind::Reset)
}

fn is_local(hit: &Hit<'_>) -> bool {
    hit.quota.on_store_failure() == OnStoreFailure::Local
}

/// Marks the receipt of a local decision. A take that costs more than the share, but not more than the limit, can fit
/// when the shared store answers again. The wait for such a take is therefore unknown.
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

/// Returns how its policy answers a hit. The answer does not depend on any state. `Error` allows the hit, because only
/// a hit in shadow mode gets here with this policy.
fn by_policy(hit: &Hit<'_>, now: Time) -> Decision {
    let (quota, limit) = (hit.quota, hit.quota.capacity());
    match quota.on_store_failure() {
        OnStoreFailure::Deny => Decision::refuse(limit, Reason::StoreFailed, Wait::Unknown),
        OnStoreFailure::Allow if matches!(hit.op, Op::Take { cost, .. } if cost > quota.hard_capacity()) => {
            // This take is refused whatever the state is. So the kernel can decide on an empty state.
            let mut decisions = [Decision::default()];
            decide(&mut [State::default()], &[0], &[*hit], now, &mut decisions);
            decisions[0].without_receipt()
        }
        // Every request up to the limit is allowed, so the whole limit is reported as remaining.
        OnStoreFailure::Allow | OnStoreFailure::Error | OnStoreFailure::Local => {
            Decision::allow(limit, limit).with_reason(Reason::StoreFailed)
        }
    }
}

/// Returns the verdict over all hits. `decided` is the verdict of the store that decided some of these hits.
fn verdict_of(hits: &[Hit<'_>], decisions: &[Decision], decided: Verdict) -> Verdict {
    let verdict = Verdict::of(hits, decisions, decided.now).with_source(decided.source);
    // `verdict` and `decided` can differ in one case. If several hits have [`Binding::Quota`], one allowed hit of them
    // is enough to allow the request. But a full local store refuses the whole request.
    if verdict.allowed == decided.allowed { verdict } else { decided }
}
