//! Functions of a limiter with a memory store or a sketch. None of them returns a future.
//!
//! These stores never wait for a network. A program that uses only these functions needs no async runtime.

use smallvec::SmallVec;
use spillgate_core::{Decision, Hit, Op, Quota, Receipt, StoreError, Verdict};

use crate::sketch::Sketch;
use crate::{Clock, Key, Limiter, MemoryOptions, MemoryStore};
#[cfg(feature = "snapshot")]
use crate::{Restored, Saved, SnapshotError};
#[cfg(feature = "snapshot")]
use std::{io, path::Path};

/// [`Limiter::take_batch_now`] decides its keys in groups of this many keys. The hits of one group are stored on the
/// stack.
const BATCH: usize = 32;

impl Limiter {
    /// Makes a limiter that counts in the memory of this process. It keeps up to 10 million states: one for each key,
    /// algorithm and window.
    ///
    /// `Limiter::new(MemoryStore::new(options))` makes the same limiter with other [bounds](MemoryOptions).
    ///
    /// ```
    /// use spillgate::{Limiter, Quota};
    ///
    /// struct App {
    ///     limiter: Limiter,
    /// }
    /// let app = App { limiter: Limiter::in_memory() };
    /// assert!(app.limiter.take_now(&Quota::per_second(10).constant(), "ann", 1).allowed);
    /// ```
    #[must_use]
    pub fn in_memory() -> Limiter {
        Limiter::new(MemoryStore::new(MemoryOptions::default()))
    }
}

impl<C: Clock> Limiter<Sketch, C> {
    /// Takes `cost` units for `key`, if they fit `quota`, as [`take`](Limiter::take) does. One hit on a sketch never
    /// fails, so this function returns no error. If the sketch does not support the quota, the hit is refused.
    ///
    /// ```
    /// use spillgate::sketch::Sketch;
    /// use spillgate::{Limiter, Quota};
    ///
    /// const PER_ADDRESS: Quota = Quota::per_second(10).constant();
    /// let limiter = Limiter::new(Sketch::new(&PER_ADDRESS, 1 << 20)?);
    /// assert!(limiter.take_now(&PER_ADDRESS, "192.0.2.1", 1).allowed);
    /// # Ok::<(), spillgate::sketch::SketchError>(())
    /// ```
    #[inline]
    #[must_use = "the decision says whether the request may pass"]
    pub fn take_now(&self, quota: &Quota, key: impl Key, cost: u64) -> Decision {
        let hit = self.hit(quota, key, cost);
        self.store().decide_one(|| self.now(), &hit)
    }
}

impl<C: Clock> Limiter<MemoryStore, C> {
    /// Takes `cost` units for `key`, if they fit `quota`, as [`take`](Limiter::take) does. One hit on a memory store
    /// never fails, so this function returns no error.
    #[inline]
    #[must_use = "the decision says whether the request may pass"]
    pub fn take_now(&self, quota: &Quota, key: impl Key, cost: u64) -> Decision {
        // The key is hashed before the clock is read, so that little time passes between the reading of the clock and
        // the decision.
        self.decide_one_now(self.hit(quota, key, cost))
    }

    /// Reads what is left for `key`, and changes nothing.
    ///
    /// ```
    /// use spillgate::{Limiter, Quota};
    ///
    /// const EXPORT: Quota = Quota::per_day(3).constant();
    /// let limiter = Limiter::in_memory();
    /// let _ = limiter.take_now(&EXPORT, "ann", 1);
    /// assert_eq!(limiter.peek_now(&EXPORT, "ann").remaining, 2);
    /// assert_eq!(limiter.peek_now(&EXPORT, "ann").remaining, 2);
    /// ```
    #[must_use]
    pub fn peek_now(&self, quota: &Quota, key: impl Key) -> Decision {
        self.decide_one_now(self.hit(quota, key, 0).with_op(Op::Peek))
    }

    /// Counts `cost` units that were used already, even if they do not fit.
    ///
    /// ```
    /// use spillgate::{Limiter, Quota};
    ///
    /// const TOKENS: Quota = Quota::per_hour(1_000).constant();
    /// let limiter = Limiter::in_memory();
    /// limiter.force_now(&TOKENS, "ann", 1_200);
    /// assert!(!limiter.take_now(&TOKENS, "ann", 1).allowed);
    /// ```
    pub fn force_now(&self, quota: &Quota, key: impl Key, cost: u64) -> Decision {
        self.decide_one_now(self.hit(quota, key, 0).with_op(Op::Force { cost }))
    }

    /// Gives `cost` units back, as [`refund`](Limiter::refund) does.
    pub fn refund_now(&self, quota: &Quota, key: impl Key, cost: u64, receipt: Option<Receipt>) -> Decision {
        self.decide_one_now(self.hit(quota, key, 0).with_op(Op::Refund { cost, receipt }))
    }

    /// Forgets everything that was counted for `key`, and any penalty.
    ///
    /// ```
    /// use spillgate::{Limiter, Quota};
    ///
    /// const LOGIN: Quota = Quota::per_hour(3).constant();
    /// let limiter = Limiter::in_memory();
    /// let _ = limiter.take_now(&LOGIN, "ann", 3);
    /// limiter.reset_now(&LOGIN, "ann"); // a correct password
    /// assert_eq!(limiter.peek_now(&LOGIN, "ann").remaining, 3);
    /// ```
    pub fn reset_now(&self, quota: &Quota, key: impl Key) -> Decision {
        self.decide_one_now(self.hit(quota, key, 0).with_op(Op::Reset))
    }

    /// Decides all `hits` of one request, as [`decide_all`](Limiter::decide_all) does.
    ///
    /// ```
    /// use spillgate::{Limiter, Quota};
    ///
    /// const USER: Quota = Quota::per_second(5).constant();
    /// const TEAM: Quota = Quota::per_day(1).constant();
    /// let limiter = Limiter::in_memory();
    /// let hits = [limiter.hit(&USER, ("user", 7), 1), limiter.hit(&TEAM, ("team", 2), 1)];
    /// assert!(limiter.decide_all_now(hits)?.0.allowed);
    /// let (verdict, [user, team]) = limiter.decide_all_now(hits)?;
    /// assert!(!verdict.allowed, "the team has used its unit, so the user is not charged either");
    /// assert_eq!((user.remaining, team.remaining), (4, 0));
    /// # Ok::<(), spillgate::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// The error is [`Malformed`](crate::StoreErrorKind::Malformed) if there are more than
    /// [`MAX_HITS`](crate::MAX_HITS) hits.
    pub fn decide_all_now<const N: usize>(&self, hits: [Hit<'_>; N]) -> Result<(Verdict, [Decision; N]), StoreError> {
        let mut decisions = [Decision::default(); N];
        let verdict = self.store().decide_now(self.now(), &hits, &mut decisions)?;
        Ok((verdict, decisions))
    }

    #[inline]
    fn decide_one_now(&self, hit: Hit<'_>) -> Decision {
        self.store().hit_now(self.now(), &hit)
    }

    /// Decides as [`take_now`](Limiter::take_now) does for each of `keys`, in order. The clock is read only once.
    /// `decisions` must have the same length as `keys`.
    ///
    /// With many keys, this is faster than one call for each key. [`MemoryStore::hit_batch_now`] says why.
    ///
    /// ```
    /// use spillgate::{Decision, Limiter, Quota};
    ///
    /// const LOGIN: Quota = Quota::per_minute(2).constant();
    /// let limiter = Limiter::in_memory();
    /// let mut decisions = [Decision::default(); 4];
    /// limiter.take_batch_now(&LOGIN, &["ann", "bob", "ann", "ann"], 1, &mut decisions)?;
    /// assert_eq!(decisions.map(|decision| decision.allowed), [true, true, true, false]);
    /// # Ok::<(), spillgate::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// The error is [`Malformed`](crate::StoreErrorKind::Malformed) if `keys` and `decisions` have different lengths.
    pub fn take_batch_now(
        &self,
        quota: &Quota,
        keys: &[impl Key],
        cost: u64,
        decisions: &mut [Decision],
    ) -> Result<(), StoreError> {
        if keys.len() != decisions.len() {
            return Err(StoreError::malformed("keys and decisions differ in length"));
        }
        let now = self.now();
        for (keys, decisions) in keys.chunks(BATCH).zip(decisions.chunks_mut(BATCH)) {
            let hits: SmallVec<[_; BATCH]> = keys.iter().map(|key| self.hit(quota, key, cost)).collect();
            self.store().hit_batch_now(now, &hits, decisions)?;
        }
        Ok(())
    }
}

#[cfg(feature = "snapshot")]
impl<C: Clock> Limiter<MemoryStore, C> {
    /// Writes all counts to `path`, where [`restored`](Limiter::restored) finds them.
    ///
    /// [`MemoryStore::save`] says which counts the file has if decisions are made during the call. If a program saves
    /// after its last decision, no counts are lost. If a program saves at intervals, a crash loses the counts since the
    /// last save.
    ///
    /// # Errors
    /// The file cannot be written, for example because its folder does not exist, or because the disk is full.
    pub fn save(&self, path: &Path) -> io::Result<Saved> {
        self.store().save(self.keys(), self.now(), path)
    }

    /// Makes a limiter that continues with the counts that were [saved](Limiter::save) at `path`.
    ///
    /// ```
    /// use spillgate::{Limiter, MemoryOptions, MemoryStore, Quota, SystemClock};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("state");
    /// let daily = Quota::per_day(2).build()?;
    /// let limiter = Limiter::in_memory();
    /// assert_eq!(limiter.take_now(&daily, ("export", "user-7"), 1).remaining, 1);
    /// limiter.save(&path)?;
    ///
    /// let (limiter, found) = Limiter::restored(MemoryOptions::default(), SystemClock::start(), &path)?;
    /// assert_eq!(found.entries, 1);
    /// assert_eq!(limiter.take_now(&daily, ("export", "user-7"), 1).remaining, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The file cannot be read, or it is not a whole snapshot in the format of this version.
    pub fn restored(
        options: MemoryOptions,
        clock: C,
        path: &Path,
    ) -> Result<(Limiter<MemoryStore, C>, Restored), SnapshotError> {
        let (store, keys, restored) = MemoryStore::restored(options, clock.now(), path)?;
        Ok((Limiter::with_keys(store, clock, keys), restored))
    }
}
