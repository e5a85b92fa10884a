//! Reserves an estimate before the work, and settles it after the work.
//!
//! How many tokens a language model uses, or how many bytes an upload has, is known only after the work. Without a
//! reservation, many requests could start at the same time and together use far more than the limit allows.
//!
//! A reservation takes its estimate from each quota. In the same atomic step, the reservation stores a *record*: a
//! lease under a key of its own. A settlement ends this lease and corrects the estimate, again in one atomic step. The
//! lease can end only once, so an estimate can be settled only once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use spillgate_core::{
    Algorithm, Binding, Decision, Hit, Op, Quota, QuotaError, Reason, Receipt, Store, StoreError, Wait,
};
use tokio::runtime::Handle;

use crate::{Clock, Key, Limiter, MemoryStore, SystemClock};

/// The default of [`Reservations::life`].
const LIFE: Duration = Duration::from_secs(600);
/// The number of permits in the concurrency limit of a record. A record takes only one of them. But a `FallbackStore`
/// divides the number by the number of servers, and the share of one server must not be 0.
const RECORDS: u64 = 65_536;

/// Returns the concurrency limit under which a store keeps the record of a reservation. Its lease is `life`, the
/// longest life of the reservation.
///
/// [`Reservations`] calls this function. Call it yourself only to reserve under several keys in one request. Then take
/// one unit of this limit for each key, under the [key of its record](record_key), and settle these units together with
/// the estimates.
///
/// # Errors
/// `life` is 0, or longer than a lease can be.
pub fn record(life: Duration) -> Result<Quota, QuotaError> {
    Quota::concurrency(RECORDS).lease(life).build()
}

/// Returns a new key for the record of a reservation under `key`. In a Redis Cluster, both keys are in the same slot.
///
/// # Panics
/// Panics if the operating system gives no random bytes.
#[must_use]
pub fn record_key(key: u128) -> u128 {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the operating system gives random bytes");
    let slot = key >> Hit::SLOT_SHIFT << Hit::SLOT_SHIFT;
    slot | u128::from_le_bytes(random) & ((1 << Hit::SLOT_SHIFT) - 1)
}

/// Makes reservations: takes an estimate before the work, and replaces the estimate by the real use after the work.
///
/// ```
/// use std::time::Duration;
/// use spillgate::{Limiter, Quota, Reservations};
///
/// const PER_MINUTE: Quota = Quota::sliding_window_counter(40_000, Duration::from_secs(60)).constant();
/// const PER_DAY: Quota = Quota::per_day(1_000_000).constant();
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let tokens = Reservations::new(Limiter::in_memory(), PER_MINUTE).and(PER_DAY);
/// let (decision, reservation) = tokens.reserve(("tokens", "red"), 3_000).await?;
/// let Some(mut reservation) = reservation else {
///     println!("try again in {:?} s", decision.retry_after.secs_ceil());
///     return Ok(());
/// };
/// // Ask the model here. It used 2,150 tokens:
/// reservation.commit(2_150).await?;
/// # let left = tokens.reserve(("tokens", "red"), 1).await?.0.remaining;
/// # assert_eq!(left, 37_849);
/// # Ok::<(), spillgate::StoreError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What is guaranteed
///
/// Let `f(s)` be the largest number of units that a quota admits in an interval of length `s`. [`Quota`] has `f` for
/// each algorithm. If no commit is larger than its estimate, the reservations that were made in an interval of length
/// `s` have at most the following number of units. Units that are given back do not count:
///
/// * For windows, counters and logs: `f(s)`.
/// * For token buckets: `f(s)`, plus the units that were reserved before the interval and are given back in it. The
///   units given back are at most the estimates of the reservations that were open when the interval began.
///
/// A commit that is larger than its estimate is counted even if it does not fit. The use can then exceed the quota by
/// the difference between commit and estimate. There are two exceptions: a log counts at most one unit more than its
/// limit, and a token bucket counts at most twice its burst.
///
/// A token bucket refills with time, so a commit gives back only units that time has not given back yet. If the bucket
/// has refilled everything that was taken until the reservation was made, a commit gives nothing back.
///
/// # A full memory store
///
/// Each reservation needs a record, which is a new key. A full [`MemoryStore`] therefore refuses every reservation. The
/// reason is then [`StoreFull`](Reason::StoreFull). With [`OnFull::Allow`](crate::OnFull::Allow), the store allows the
/// reservation without a record, so this reservation cannot be settled. If the store has a state for the key, the
/// estimate stays charged.
pub struct Reservations<S = MemoryStore, C = SystemClock> {
    limiter: Arc<Limiter<S, C>>,
    quotas: Vec<Quota>,
    record: Quota,
}

impl<S: Store + 'static, C: Clock + 'static> Reservations<S, C> {
    /// Makes reservations under one quota.
    ///
    /// # Panics
    /// Panics for a concurrency limit, whose permits are released anyway, and for a leaky bucket, which cannot give
    /// back a turn in the middle of its queue.
    #[must_use]
    pub fn new(limiter: impl Into<Arc<Limiter<S, C>>>, quota: Quota) -> Reservations<S, C> {
        let record = record(LIFE).expect("invariant: the default life is a valid lease");
        Reservations { limiter: limiter.into(), quotas: Vec::new(), record }.and(quota)
    }

    /// Adds a quota. A reservation takes its estimate from all quotas, or from none. The window or the algorithm of the
    /// quota must differ from those of the other quotas, so that the quotas count separately.
    ///
    /// # Panics
    /// Panics as [`new`](Reservations::new) does, and if the quota would count in the state of another quota.
    #[must_use]
    pub fn and(mut self, quota: Quota) -> Reservations<S, C> {
        assert!(quota.algorithm() != Algorithm::Concurrency, "a concurrency limit has permits; use Limiter::hold");
        assert!(quota.algorithm() != Algorithm::LeakyBucket, "a leaky bucket has turns; use pace::Pacer");
        let is_new = self.quotas.iter().all(|other| other.identity() != quota.identity());
        assert!(
            is_new,
            "a quota with the same window and algorithm counts the same units; give them different windows"
        );
        self.quotas.push(quota);
        self
    }

    /// Sets the longest life of a reservation. The default is 10 minutes.
    ///
    /// A reservation that was not settled in this time is gone: its estimate stays charged, and cannot be corrected any
    /// more. Choose a time that is longer than the longest work.
    ///
    /// # Panics
    /// Panics if `life` is 0, or longer than a lease can be ([`QuotaBuilder::lease`](crate::QuotaBuilder::lease)).
    #[must_use]
    pub fn life(mut self, life: Duration) -> Reservations<S, C> {
        self.record = record(life).unwrap_or_else(|error| panic!("the life of a reservation is not valid: {error}"));
        self
    }

    /// Reserves `estimate` units for `key`, if they fit all quotas.
    ///
    /// If a quota refuses, returns its decision and no reservation. If all quotas allow the estimate, returns the
    /// reservation, and the decision of the quota under which the fewest such estimates still fit. If the store has no
    /// capacity for the record of the reservation, the returned decision is a refusal by the first quota.
    ///
    /// If this future is dropped before it returns, the estimate may have been taken. A store on Redis gives such an
    /// estimate back. With another store, it stays charged.
    ///
    /// # Errors
    /// The store failed, as for [`Limiter::decide`], or `estimate` is 0.
    pub async fn reserve(
        &self,
        key: impl Key,
        estimate: u64,
    ) -> Result<(Decision, Option<Reservation<S, C>>), StoreError> {
        let key = self.limiter.keys().start().key(&key).finish();
        if estimate == 0 {
            return Err(StoreError::malformed("an estimate of 0 units reserves nothing; estimate at least 1 unit"));
        }
        let own = Claim { key: record_key(key), quota: self.record.clone(), taken: 1, receipt: None };
        let claims =
            self.quotas.iter().map(|quota| Claim { key, quota: quota.clone(), taken: estimate, receipt: None });
        let mut claims: Claims = claims.chain([own]).collect();
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); claims.len()];
        let verdict = self.limiter.decide(&takes(&claims), &mut decisions).await?;
        if !verdict.allowed {
            let refusing = match verdict.binding.and_then(|index| Some((claims.get(index)?, decisions[index]))) {
                // The store has no capacity for the record.
                Some((claim, _)) if claim.quota == self.record => {
                    Decision::refuse(self.quotas[0].capacity(), Reason::StoreFull, Wait::Unknown)
                }
                refusing => refusing.map_or_else(Decision::default, |(_, decision)| decision),
            };
            return Ok((refusing, None));
        }
        for (claim, decision) in claims.iter_mut().zip(&decisions) {
            claim.receipt = decision.receipt;
        }
        let reservation = Reservation {
            limiter: Arc::clone(&self.limiter),
            runtime: Handle::try_current().ok(),
            claims,
            cancels_on_drop: true,
        };
        Ok((tightest(&decisions[..self.quotas.len()], estimate), Some(reservation)))
    }
}

impl<S, C> Clone for Reservations<S, C> {
    fn clone(&self) -> Self {
        Reservations { limiter: Arc::clone(&self.limiter), quotas: self.quotas.clone(), record: self.record.clone() }
    }
}

impl<S, C> fmt::Debug for Reservations<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservations").field("quotas", &self.quotas).finish_non_exhaustive()
    }
}

/// Units that were taken from one quota. The last claim of a reservation is its record.
#[derive(Clone, Debug)]
struct Claim {
    key: u128,
    quota: Quota,
    taken: u64,
    /// `None` if the take was allowed without being counted: the store failed, or it was full.
    receipt: Option<Receipt>,
}

type Claims = SmallVec<[Claim; 3]>;

/// Units that were taken as an estimate. [`Reservations`] has an example.
///
/// * **Once.** A reservation is settled once, by a commit or by a cancellation. A later settlement returns `None` and
///   changes nothing.
/// * **Drop.** A reservation that is dropped without a settlement is cancelled: at once if the store is in memory, and
///   by a task of tokio if the store is outside the process. The task runs in the runtime in which the reservation was
///   made. Without a runtime, and after a crash, the estimate stays charged.
pub struct Reservation<S: Store + 'static = MemoryStore, C: Clock + 'static = SystemClock> {
    limiter: Arc<Limiter<S, C>>,
    runtime: Option<Handle>,
    claims: Claims,
    cancels_on_drop: bool,
}

impl<S: Store + 'static, C: Clock + 'static> Reservation<S, C> {
    /// Counts `used` units instead of the estimate.
    ///
    /// If `used` is smaller than the estimate, the difference is given back, except what time has given back already.
    /// If `used` is larger, the difference is counted even if it does not fit, because these units were used already.
    /// [`Reservations`] names two exceptions.
    ///
    /// Returns `None` if the reservation is gone: it was settled before, its life has ended, or the store does not have
    /// its record.
    ///
    /// # Errors
    /// The store failed. The settlement may have been applied. It is safe to call this function again. If no call
    /// succeeds, the estimate stays charged.
    pub async fn commit(&mut self, used: u64) -> Result<Option<Decision>, StoreError> {
        // From now on, a drop of the reservation must not give units back, because they may have been used.
        self.cancels_on_drop = false;
        settle(&self.limiter, &self.claims, used).await
    }

    /// Gives the whole estimate back, except what time has given back already.
    ///
    /// Returns `None` if the reservation is gone, as for [`commit`](Reservation::commit).
    ///
    /// # Errors
    /// The store failed, as for [`commit`](Reservation::commit).
    pub async fn cancel(&mut self) -> Result<Option<Decision>, StoreError> {
        let settled = settle(&self.limiter, &self.claims, 0).await;
        self.cancels_on_drop &= settled.is_err();
        settled
    }
}

impl<S: Store + 'static, C: Clock + 'static> Drop for Reservation<S, C> {
    fn drop(&mut self) {
        if !self.cancels_on_drop || !has_record(&self.claims) {
            return;
        }
        let hits = settlement(&self.claims, 0);
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
        if self.limiter.try_decide(&hits, &mut decisions).is_some() {
            return;
        }
        drop(hits);
        if let Some(runtime) = &self.runtime {
            let (limiter, claims) = (Arc::clone(&self.limiter), std::mem::take(&mut self.claims));
            // If the store fails, the estimate stays charged.
            runtime.spawn(async move { settle(&limiter, &claims, 0).await.map(drop) });
        }
    }
}

impl<S: Store + 'static, C: Clock + 'static> fmt::Debug for Reservation<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("claims", &self.claims).finish_non_exhaustive()
    }
}

/// Returns the hits of a reservation.
fn takes(claims: &Claims) -> SmallVec<[Hit<'_>; 4]> {
    let take = |claim: &Claim| Op::take(claim.taken);
    claims.iter().map(|claim| Hit::new(claim.key, &claim.quota, take(claim), Binding::Enforce)).collect()
}

/// Returns whether the store has made a record of the reservation. Without a record, the reservation could be settled
/// twice.
fn has_record(claims: &Claims) -> bool {
    claims.last().is_some_and(|record| record.receipt.is_some())
}

/// Returns the hits of a settlement. The record comes last, as in the reservation.
fn settlement(claims: &Claims, used: u64) -> SmallVec<[Hit<'_>; 4]> {
    let (last, claims) = claims.split_last().expect("invariant: a reservation has a record");
    let settle = |claim: &Claim, used| Some(Op::settle(claim.taken, used, claim.receipt?));
    let taken = claims.iter().filter_map(|claim| Some((claim, settle(claim, used)?)));
    let all = taken.chain(settle(last, 0).map(|op| (last, op)));
    all.map(|(claim, op)| Hit::new(claim.key, &claim.quota, op, Binding::Enforce)).collect()
}

async fn settle<S: Store, C: Clock>(
    limiter: &Limiter<S, C>,
    claims: &Claims,
    used: u64,
) -> Result<Option<Decision>, StoreError> {
    if !has_record(claims) {
        return Ok(None);
    }
    let hits = settlement(claims, used);
    let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len()];
    let verdict = limiter.decide(&hits, &mut decisions).await?;
    let estimate = claims.first().map_or(1, |claim| claim.taken);
    Ok(verdict.allowed.then(|| tightest(&decisions[..decisions.len().saturating_sub(1)], estimate)))
}

/// Returns the decision of the quota under which the fewest further estimates fit.
fn tightest(decisions: &[Decision], estimate: u64) -> Decision {
    decisions.iter().copied().min_by(|a, b| a.cmp_left(estimate, b, estimate)).unwrap_or_default()
}
