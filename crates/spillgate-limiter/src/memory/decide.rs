//! The functions with which callers of the memory store decide requests.
//!
//! There is separate code for a request of one hit, for a request of several hits, and for many requests of one hit
//! each. So the usual request, with one hit, is fast. This module checks the arguments and calls that code.

use spillgate_core::{Decision, Hit, MAX_HITS, OpKind, Quota, Store, StoreError, Time, Timing, Verdict};

use super::store::MemoryStore;

impl MemoryStore {
    /// Decides all `hits` of one request at `now`. The answer to `hits[i]` is written to `decisions[i]`.
    ///
    /// ```
    /// use spillgate::{Binding, Decision, Hit, MemoryOptions, MemoryStore, Op, Quota, Time};
    ///
    /// let store = MemoryStore::new(MemoryOptions::default());
    /// let (per_second, per_day) = (Quota::per_second(5).build()?, Quota::per_day(1).build()?);
    /// let hits = [&per_second, &per_day].map(|quota| Hit::new(7, quota, Op::take(1), Binding::Enforce));
    /// let mut decisions = [Decision::default(); 2];
    /// let now = Time::from_nanos(1_000_000_000);
    /// assert!(store.decide_now(now, &hits, &mut decisions)?.allowed);
    /// // The second limit refuses, so neither limit is charged.
    /// assert!(!store.decide_now(now, &hits, &mut decisions)?.allowed);
    /// assert_eq!(decisions.map(|decision| decision.remaining), [4, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error is [`Malformed`](spillgate_core::StoreErrorKind::Malformed) if `hits` and `decisions` have different
    /// lengths, or if there are more than [`MAX_HITS`] hits.
    pub fn decide_now(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<Verdict, StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::malformed("hits and decisions differ in length"));
        }
        if hits.len() > MAX_HITS {
            return Err(StoreError::malformed("more hits than one request can have"));
        }
        Ok(match (hits, &mut *decisions) {
            ([hit], [decision]) => {
                self.decide_one(now, hit, decision);
                Verdict::of(hits, decisions, now)
            }
            _ => self.decide_all(now, hits, decisions),
        })
    }

    /// Decides one hit at `now`, as [`decide_now`](MemoryStore::decide_now) does. Returns the decision without a
    /// verdict.
    #[must_use]
    pub fn hit_now(&self, now: Time, hit: &Hit<'_>) -> Decision {
        let mut decision = Decision::default();
        self.decide_one(now, hit, &mut decision);
        decision
    }

    /// Decides each of `hits` at `now`, in order, as a separate request.
    ///
    /// The decisions are the same as with one call of [`hit_now`](MemoryStore::hit_now) for each hit. If there are many
    /// different keys, this function is faster, because it fetches the memory of several keys at the same time.
    ///
    /// ```
    /// use spillgate::{Binding, Decision, Hit, MemoryOptions, MemoryStore, Op, Quota, Time};
    ///
    /// let store = MemoryStore::new(MemoryOptions::default());
    /// let quota = Quota::per_second(2).build()?;
    /// let hits = [1, 1, 1, 2].map(|key| Hit::new(key, &quota, Op::take(1), Binding::Enforce));
    /// let mut decisions = [Decision::default(); 4];
    /// store.hit_batch_now(Time::from_nanos(1_000_000_000), &hits, &mut decisions)?;
    /// assert_eq!(decisions.map(|decision| decision.allowed), [true, true, false, true]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error is [`Malformed`](spillgate_core::StoreErrorKind::Malformed) if `hits` and `decisions` have different
    /// lengths.
    pub fn hit_batch_now(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<(), StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::malformed("hits and decisions differ in length"));
        }
        self.decide_each(now, hits, decisions);
        Ok(())
    }
}

impl MemoryStore {
    fn decide_at(&self, timing: Timing, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<Verdict, StoreError> {
        let now = timing.now.ok_or(StoreError::malformed("the memory store has no clock, so pass the time"))?;
        self.decide_now(now, hits, decisions)
    }
}

impl Store for MemoryStore {
    /// The memory store supports every operation that the kernel supports for `quota`.
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        quota.supports(op)
    }

    /// Decides as [`decide_now`](MemoryStore::decide_now) does. The caller must pass the time in `timing.now`.
    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        self.decide_at(timing, hits, decisions)
    }

    fn try_decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Option<Result<Verdict, StoreError>> {
        Some(self.decide_at(timing, hits, decisions))
    }
}
