//! The limiter: a store, a clock and the secret for keys.
//!
//! A limiter decides each request with one call of the store. The limiter reads its clock only if the store has no
//! clock of its own. `ask.rs` has the functions for one limit and one key.

mod ask;

use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store, StoreError, Time, Timing, Verdict};

use crate::{Clock, Key, KeyHasher, MemoryStore, SystemClock};

/// A store, a clock and the secret that keys are hashed with.
///
/// ```
/// use spillgate::{Limiter, Quota};
///
/// const LOGIN: Quota = Quota::per_minute(5).constant();
///
/// let limiter = Limiter::in_memory();
/// let decision = limiter.take_now(&LOGIN, ("login", "user-7"), 1);
/// assert!(decision.allowed);
/// assert_eq!(decision.remaining, 4);
/// ```
///
/// | what | with any store | in memory |
/// |---|---|---|
/// | take units if they fit | [`take`](Limiter::take) | [`take_now`](Limiter::take_now) |
/// | read what is left | [`peek`](Limiter::peek) | [`peek_now`](Limiter::peek_now) |
/// | count units that were used already | [`force`](Limiter::force) | [`force_now`](Limiter::force_now) |
/// | give units back | [`refund`](Limiter::refund) | [`refund_now`](Limiter::refund_now) |
/// | forget what was counted | [`reset`](Limiter::reset) | [`reset_now`](Limiter::reset_now) |
/// | several limits or keys: if one refuses, those that would allow the request are not charged | [`decide_all`](Limiter::decide_all) | [`decide_all_now`](Limiter::decide_all_now) |
/// | many keys, each by itself | | [`take_batch_now`](Limiter::take_batch_now) |
///
/// Two calls for the same key can have different quotas. Both calls use the same count if their quotas have the same
/// algorithm and the same window. For a queue (`leaky_bucket`), the limit must be the same too. So when a user changes
/// to a plan with a larger quota, the units that the user has used still count.
///
/// Use one limiter in a program, behind an `Arc`, because two limiters with memory stores count separately. The
/// limiters of several programs count together if they use the same store outside the process, and hash keys with the
/// same secret:
///
/// ```text
/// let store = RedisStore::connect("redis://10.0.0.7/").await?; // from the crate spillgate-redis
/// let local = MemoryStore::new(MemoryOptions::default());
/// let store = FallbackStore::new(store, local, expected_nodes);
/// let limiter = Limiter::with_keys(store, SystemClock::start(), KeyHasher::with_secret(secret));
/// ```
///
/// A store that has a clock decides by that clock, so the clocks of the programs can differ. The limiter's clock is for
/// stores without a clock, and for the local store of a [`FallbackStore`](crate::FallbackStore).
#[derive(Debug)]
pub struct Limiter<S = MemoryStore, C = SystemClock> {
    store: S,
    clock: C,
    keys: KeyHasher,
}

impl<S: Store> Limiter<S> {
    /// Makes a limiter with the clock of the system and a random secret.
    #[must_use]
    pub fn new(store: S) -> Limiter<S> {
        Limiter::with_clock(store, SystemClock::start())
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Makes a limiter with the caller's clock and a random secret.
    #[must_use]
    pub fn with_clock(store: S, clock: C) -> Limiter<S, C> {
        Limiter::with_keys(store, clock, KeyHasher::random())
    }

    /// Makes a limiter that hashes keys with the secret of `keys`.
    ///
    /// Programs that share a store need the same secret. With different secrets, each program counts separately.
    ///
    /// ```
    /// use spillgate::{KeyHasher, Limiter, ManualClock, MemoryOptions, MemoryStore, Time};
    ///
    /// let secret = *b"16 random bytes!";
    /// let store = MemoryStore::new(MemoryOptions::default());
    /// let limiter = Limiter::with_keys(store, ManualClock::at(Time::EPOCH), KeyHasher::with_secret(secret));
    /// assert_eq!(limiter.now(), Time::EPOCH);
    /// ```
    #[must_use]
    pub const fn with_keys(store: S, clock: C, keys: KeyHasher) -> Limiter<S, C> {
        Limiter { store, clock, keys }
    }

    /// Decides all `hits` of one request. If one limit refuses the request, no take is charged to the limits that would
    /// allow it.
    ///
    /// A request has at most [`MAX_HITS`](crate::MAX_HITS) hits. `decisions` must have the same length as `hits`.
    ///
    /// ```
    /// use spillgate::{Binding, Decision, Hit, Limiter, MemoryOptions, MemoryStore, Op, Quota};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::in_memory();
    /// let (per_second, per_day) = (Quota::per_second(10).build()?, Quota::per_day(1_000).build()?);
    /// let key = limiter.keys().start().part(b"api").part(b"ann").finish();
    /// let hits = [&per_second, &per_day].map(|quota| Hit::new(key, quota, Op::take(1), Binding::Enforce));
    /// let mut decisions = [Decision::default(); 2];
    /// if !limiter.decide(&hits, &mut decisions).await?.allowed {
    ///     // At least one of the two limits refuses, and neither limit is charged.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store failed. [`StoreErrorKind::may_have_been_applied`](crate::StoreErrorKind::may_have_been_applied) says
    /// whether it is possible that the request was charged.
    pub async fn decide(&self, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<Verdict, StoreError> {
        let timing = if self.store.has_clock() { Timing::BY_STORE } else { Timing::at(self.clock.now()) };
        self.store.decide(timing, hits, decisions).await
    }

    /// Does what [`decide`](Limiter::decide) does, but without a future. Returns `None` if the store would have to
    /// wait.
    ///
    /// Call this function in code that works with any store, but has to be fast with a store in memory.
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    #[inline]
    pub fn try_decide(&self, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Option<Result<Verdict, StoreError>> {
        let timing = if self.store.has_clock() { Timing::BY_STORE } else { Timing::at(self.clock.now()) };
        self.store.try_decide(timing, hits, decisions)
    }

    /// Does what [`decide`](Limiter::decide) does, for a caller that has read the clock already.
    ///
    /// A store that has a clock ignores `now`. The call waits at most `timeout`. If `timeout` is `None`, the settings
    /// of the store limit the wait.
    ///
    /// ```
    /// use spillgate::{Binding, Decision, Hit, Limiter, MemoryOptions, MemoryStore, Op, Quota};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::in_memory();
    /// let quota = Quota::per_minute(5).build()?;
    /// let now = limiter.now();
    /// for key in [1, 2] {
    ///     let hits = [Hit::new(key, &quota, Op::take(1), Binding::Enforce)];
    ///     let verdict = limiter.decide_at(now, None, &hits, &mut [Decision::default()]).await?;
    ///     assert_eq!(verdict.now, now);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    #[inline]
    pub fn decide_at(
        &self,
        now: Time,
        timeout: Option<Duration>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        let mut timing = if self.store.has_clock() { Timing::BY_STORE } else { Timing::at(now) };
        timing.timeout = timeout;
        self.store.decide(timing, hits, decisions)
    }

    /// Decides all `hits` of one request, as [`decide`](Limiter::decide) does. Returns the verdict on the request, and
    /// the decision on each hit.
    ///
    /// ```
    /// use spillgate::{Limiter, Quota};
    ///
    /// const PER_SECOND: Quota = Quota::per_second(10).constant();
    /// const PER_DAY: Quota = Quota::per_day(1_000).constant();
    ///
    /// # async fn example() -> Result<(), spillgate::StoreError> {
    /// let limiter = Limiter::in_memory();
    /// let hits = [limiter.hit(&PER_SECOND, "ann", 1), limiter.hit(&PER_DAY, ("team", 7), 3)];
    /// let (verdict, decisions) = limiter.decide_all(hits).await?;
    /// if !verdict.allowed {
    ///     println!("not charged; left: {} and {}", decisions[0].remaining, decisions[1].remaining);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    pub async fn decide_all<const N: usize>(&self, hits: [Hit<'_>; N]) -> Result<(Verdict, [Decision; N]), StoreError> {
        let mut decisions = [Decision::default(); N];
        let verdict = self.decide(&hits, &mut decisions).await?;
        Ok((verdict, decisions))
    }

    /// Returns a hit that takes `cost` units for `key`, if they fit `quota`. [`decide_all`](Limiter::decide_all) and
    /// [`decide`](Limiter::decide) decide it.
    ///
    /// [`Hit::with_op`] gives the hit another operation, and [`Hit::with_binding`] makes it a shadow.
    #[inline]
    #[must_use]
    pub fn hit<'q>(&self, quota: &'q Quota, key: impl Key, cost: u64) -> Hit<'q> {
        Hit::new(self.keys.start().key(&key).finish(), quota, Op::take(cost), Binding::Enforce)
    }

    /// Returns the time now, by the limiter's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Returns the store, for functions that only this kind of store has.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Returns the limiter's clock. A store that has a clock of its own does not use the limiter's clock.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns the hasher that makes the keys of this limiter. The hasher has the secret.
    #[must_use]
    pub const fn keys(&self) -> &KeyHasher {
        &self.keys
    }
}
