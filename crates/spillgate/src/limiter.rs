//! The limiter: a store, a clock and the secret for keys.
//!
//! A limiter decides each request with one call of the store. It reads the clock only if the store has no clock of its
//! own.

use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store, StoreError, Time, Timing, Verdict};

use crate::{Clock, KeyHasher, SystemClock};

/// A store, a clock and the secret that keys are hashed with.
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
pub struct Limiter<S, C = SystemClock> {
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

    /// Decides all `hits` of one request. A hit is one operation on one limit for one key. If one limit refuses the
    /// request, no take is charged to the limits that would allow it.
    ///
    /// A request has at most [`MAX_HITS`](crate::MAX_HITS) hits. `decisions` must have the same length as `hits`.
    ///
    /// ```
    /// use spillgate::{Binding, Decision, Hit, Limiter, MemoryOptions, MemoryStore, Op, Quota};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new(MemoryOptions::default()));
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

    /// Does what [`decide`](Limiter::decide) does, for a caller that has read the clock already.
    ///
    /// A store that has a clock ignores `now`. The call waits at most `timeout`. If `timeout` is `None`, the settings
    /// of the store say how long the call waits at most.
    ///
    /// ```
    /// use spillgate::{Binding, Decision, Hit, Limiter, MemoryOptions, MemoryStore, Op, Quota};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new(MemoryOptions::default()));
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

    /// Takes `cost` units for `key`, if they fit `quota`. A cost of 0 takes nothing and reads what is left. If it is
    /// refused, it starts the penalty of the quota.
    ///
    /// `bucket` is a name for a group of keys, for example `login`. The same key in another group is counted
    /// separately.
    ///
    /// Two calls for the same key can have different quotas. Both calls use the same count if their quotas have the
    /// same algorithm and the same window. In a queue (`leaky_bucket`), the limit must be the same too.
    ///
    /// If the store has a clock, the time of the decision comes from the store. Otherwise it comes from the limiter's
    /// clock. The waits in the decision start at that time.
    ///
    /// ```
    /// use spillgate::{Limiter, MemoryOptions, MemoryStore, Quota};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new(MemoryOptions::default()));
    /// let decision = limiter.hit("login", "user-7", &Quota::per_minute(5).build()?, 1).await?;
    /// if !decision.allowed {
    ///     println!("try again in {:?} s", decision.retry_after.secs_ceil());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store failed, as for [`decide`](Limiter::decide).
    pub async fn hit(&self, bucket: &str, key: &str, quota: &Quota, cost: u64) -> Result<Decision, StoreError> {
        let mut decisions = [Decision::default()];
        self.decide(&[self.hit_on(bucket, key, quota, cost)], &mut decisions).await?;
        let [decision] = decisions;
        Ok(decision)
    }

    /// Returns the hit that [`hit`](Limiter::hit) decides.
    pub(crate) fn hit_on<'q>(&self, bucket: &str, key: &str, quota: &'q Quota, cost: u64) -> Hit<'q> {
        let key = self.keys.start().part(bucket.as_bytes()).part(key.as_bytes()).finish();
        Hit::new(key, quota, Op::take(cost), Binding::Enforce)
    }

    /// Returns the time now, by the limiter's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Returns the store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Returns the clock.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns the hasher of keys, with its secret.
    #[must_use]
    pub const fn keys(&self) -> &KeyHasher {
        &self.keys
    }
}
