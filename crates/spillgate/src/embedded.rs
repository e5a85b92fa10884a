//! A limiter over memory answers at once: the same calls without a future.

use smallvec::SmallVec;
use spillgate_core::{Decision, Quota, StoreError};

use crate::{Clock, Limiter, MemoryStore};
#[cfg(feature = "snapshot")]
use crate::{MemoryOptions, Restored, Saved, SnapshotError};
#[cfg(feature = "snapshot")]
use std::{io, path::Path};

/// Keys that are hashed before any is decided: few enough to stay on the stack.
const BATCH: usize = 32;

impl<C: Clock> Limiter<MemoryStore, C> {
    /// [`Limiter::hit`] without a future to wait for, and without an error: one hit to memory has none.
    #[must_use]
    pub fn hit_now(&self, bucket: &str, key: &str, quota: &Quota, cost: u64) -> Decision {
        // The key first, so that the time is that of the decision.
        let hit = self.hit_on(bucket, key, quota, cost);
        self.store().hit_now(self.now(), &hit)
    }

    /// [`hit_now`](Limiter::hit_now) for each of `keys`, in order, at one reading of the clock;
    /// `decisions` has the same length. Faster than one by one where keys are many: see
    /// [`MemoryStore::hit_batch_now`].
    ///
    /// ```
    /// use spillgate::{Decision, Limiter, MemoryOptions, MemoryStore, Quota};
    ///
    /// let limiter = Limiter::new(MemoryStore::new(MemoryOptions::default()));
    /// let quota = Quota::per_minute(2).build()?;
    /// let mut decisions = [Decision::default(); 4];
    /// limiter.hit_batch_now("login", &["ann", "bob", "ann", "ann"], &quota, 1, &mut decisions)?;
    /// assert_eq!(decisions.map(|decision| decision.allowed), [true, true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Malformed`] if the lengths differ.
    pub fn hit_batch_now(
        &self,
        bucket: &str,
        keys: &[&str],
        quota: &Quota,
        cost: u64,
        decisions: &mut [Decision],
    ) -> Result<(), StoreError> {
        if keys.len() != decisions.len() {
            return Err(StoreError::Malformed("keys and decisions differ in length"));
        }
        let now = self.now();
        for (keys, decisions) in keys.chunks(BATCH).zip(decisions.chunks_mut(BATCH)) {
            let hits: SmallVec<[_; BATCH]> = keys.iter().map(|key| self.hit_on(bucket, key, quota, cost)).collect();
            self.store().hit_batch_now(now, &hits, decisions)?;
        }
        Ok(())
    }
}

#[cfg(feature = "snapshot")]
impl<C: Clock> Limiter<MemoryStore, C> {
    /// Writes all that was counted to `path`, so that [`restored`](Limiter::restored) finds it.
    ///
    /// See [`MemoryStore::save`] for what a snapshot is while decisions go on. Called when none do
    /// any more, it forgets nothing; called every so often, a crash forgets what was counted since.
    ///
    /// # Errors
    /// The folder is missing or not ours to write to, or the disk is full.
    pub fn save(&self, path: &Path) -> io::Result<Saved> {
        self.store().save(self.keys(), self.now(), path)
    }

    /// A limiter that counts on from what was [saved](Limiter::save) at `path`.
    ///
    /// ```
    /// use spillgate::{Limiter, MemoryOptions, MemoryStore, Quota, SystemClock};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("state");
    /// let daily = Quota::per_day(2).build()?;
    /// let limiter = Limiter::new(MemoryStore::new(MemoryOptions::default()));
    /// assert_eq!(limiter.hit_now("export", "user-7", &daily, 1).remaining, 1);
    /// limiter.save(&path)?;
    ///
    /// let (limiter, found) = Limiter::restored(MemoryOptions::default(), SystemClock::start(), &path)?;
    /// assert_eq!(found.entries, 1);
    /// assert_eq!(limiter.hit_now("export", "user-7", &daily, 1).remaining, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no file, or it is not a whole snapshot of this version's format.
    pub fn restored(
        options: MemoryOptions,
        clock: C,
        path: &Path,
    ) -> Result<(Limiter<MemoryStore, C>, Restored), SnapshotError> {
        let (store, keys, restored) = MemoryStore::restored(options, clock.now(), path)?;
        Ok((Limiter::with_keys(store, clock, keys), restored))
    }
}
