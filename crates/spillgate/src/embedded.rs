//! Functions of a limiter with a memory store. None of them returns a future.
//!
//! The memory store never waits for a network. A program that uses it therefore needs no async runtime.

use smallvec::SmallVec;
use spillgate_core::{Decision, Quota, StoreError};

use crate::{Clock, Limiter, MemoryStore};
#[cfg(feature = "snapshot")]
use crate::{MemoryOptions, Restored, Saved, SnapshotError};
#[cfg(feature = "snapshot")]
use std::{io, path::Path};

/// A batch is decided in groups of this many keys. All keys of a group are hashed before the first of them is decided.
/// The hits of a group are stored on the stack.
const BATCH: usize = 32;

impl<C: Clock> Limiter<MemoryStore, C> {
    /// Does what [`Limiter::hit`] does, without a future. It returns no error, because one hit on a memory store never
    /// fails.
    #[must_use]
    pub fn hit_now(&self, bucket: &str, key: &str, quota: &Quota, cost: u64) -> Decision {
        // The key is hashed before the clock is read, so that the decision follows the reading as soon as possible.
        let hit = self.hit_on(bucket, key, quota, cost);
        self.store().hit_now(self.now(), &hit)
    }

    /// Decides as [`hit_now`](Limiter::hit_now) does for each of `keys`, in order. The clock is read only once.
    /// `decisions` must have the same length as `keys`.
    ///
    /// With many keys, this is faster than one call for each key. [`MemoryStore::hit_batch_now`] says why.
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
    /// The error is [`Malformed`](crate::StoreErrorKind::Malformed) if `keys` and `decisions` have different lengths.
    pub fn hit_batch_now(
        &self,
        bucket: &str,
        keys: &[&str],
        quota: &Quota,
        cost: u64,
        decisions: &mut [Decision],
    ) -> Result<(), StoreError> {
        if keys.len() != decisions.len() {
            return Err(StoreError::malformed("keys and decisions differ in length"));
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
    /// Writes all counts to `path`, where [`restored`](Limiter::restored) finds them.
    ///
    /// [`MemoryStore::save`] says which counts the file has if decisions are made during the call. If a program saves
    /// after its last decision, no counts are lost. If a program saves at intervals, a crash loses the counts since the
    /// last save.
    ///
    /// # Errors
    /// The folder does not exist or is not writable, or the disk is full.
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
    /// The file does not exist, or is not a whole snapshot in the format of this version.
    pub fn restored(
        options: MemoryOptions,
        clock: C,
        path: &Path,
    ) -> Result<(Limiter<MemoryStore, C>, Restored), SnapshotError> {
        let (store, keys, restored) = MemoryStore::restored(options, clock.now(), path)?;
        Ok((Limiter::with_keys(store, clock, keys), restored))
    }
}
