//! Locks a chain of buckets, and reads and writes entries in it. A chain is a home bucket, where the search for a key
//! begins, and the buckets after it.
//!
//! An entry can be in any bucket of the chain that begins at its home bucket. A thread locks the chain bucket by
//! bucket, in ascending order. All threads use this order, so no two requests can wait for each other.
//!
//! A search keeps the locks of all buckets that it has read. If it released them, two requests could claim two slots
//! for the same new key. A lock is one bit of its bucket, so a lock needs no additional cache line.

use super::bucket::{Bucket, Moved};
use super::fingerprint::Fingerprint;
use super::slot::{Content, Width};
use super::table::Table;

/// A new entry gets a slot in its home bucket or in a bucket after it, within this many buckets. Hashed keys need far
/// fewer buckets. The bound limits the work if a program passes keys that are not hashed.
const MAX_CHAIN: usize = 128;

/// The reason why a request must be tried again. The request has charged nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The table is being replaced.
    Moved,
    /// The table has no free slot near the home bucket of the key.
    Crowded,
    /// The budget of the store is used up. Expired entries may still count in the budget, so a sweep can help.
    Full,
}

impl From<Moved> for Obstacle {
    fn from(Moved: Moved) -> Obstacle {
        Obstacle::Moved
    }
}

/// The place of an entry in a table. A position is valid as long as its bucket is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The index of the bucket in the table.
    pub(crate) bucket: usize,
    /// The index of the slot in the bucket.
    pub(crate) slot: usize,
}

/// Neighbouring buckets of a table whose locks this thread has. The locks are released on drop.
#[derive(Debug)]
pub(crate) struct LockedBuckets<'t> {
    table: &'t Table,
    /// The index of the first locked bucket.
    from: usize,
    /// The index after the last locked bucket.
    to: usize,
}

impl Drop for LockedBuckets<'_> {
    fn drop(&mut self) {
        for bucket in self.from..self.to {
            self.table.bucket(bucket).unlock();
        }
    }
}

impl<'t> LockedBuckets<'t> {
    /// Prepares to lock a chain that begins at the index `bucket`. Each bucket of the chain is locked later, when it is
    /// needed.
    #[inline]
    pub(crate) fn starting_at(table: &'t Table, bucket: usize) -> LockedBuckets<'t> {
        LockedBuckets { table, from: bucket, to: bucket }
    }

    /// Returns whether this value has the lock of this bucket of `table`.
    pub(crate) fn contains(&self, table: &Table, bucket: usize) -> bool {
        std::ptr::eq(self.table, table) && (self.from..self.to).contains(&bucket)
    }

    /// Locks all buckets up to this index, and returns the bucket with this index.
    // This function is always inlined, because every search calls it. If all memory that a decision needs is in the
    // processor's cache, a function call would take a tenth of the time of the decision.
    #[inline(always)]
    fn extend_to(&mut self, bucket: usize) -> Result<&'t Bucket, Moved> {
        while self.to <= bucket {
            self.table.bucket(self.to).lock()?;
            self.to += 1;
        }
        Ok(self.table.bucket(bucket))
    }

    /// Searches for `key`, from its home bucket on.
    #[inline]
    pub(crate) fn find(&mut self, key: Fingerprint) -> Result<Option<Position>, Moved> {
        let bucket = self.table.home_bucket(key);
        // Both cache lines of the bucket are fetched at the same time. Without this call, the thread could wait for
        // memory twice: for the lock, and then for the slots.
        std::hint::black_box(self.table.bucket(bucket).touch());
        let here = self.extend_to(bucket)?;
        match here.find(self.table.width, key) {
            Some(slot) => Ok(Some(Position { bucket, slot })),
            None if here.overflows() == 0 => Ok(None),
            None => self.find_behind(bucket, key),
        }
    }

    /// Searches for `key` in the buckets behind its home bucket.
    #[inline(never)]
    fn find_behind(&mut self, home: usize, key: Fingerprint) -> Result<Option<Position>, Moved> {
        let mut bucket = home;
        loop {
            bucket += 1;
            let here = self.extend_to(bucket)?;
            if let Some(slot) = here.find(self.table.width, key) {
                return Ok(Some(Position { bucket, slot }));
            }
            if here.overflows() == 0 {
                return Ok(None);
            }
        }
    }

    /// Claims a free slot for `key`, which must not be in the table. The entry counts as expired until it is written.
    ///
    /// Returns [`Obstacle::Crowded`] if none of the first `MAX_CHAIN` buckets of the chain has a free slot.
    pub(crate) fn claim(&mut self, key: Fingerprint) -> Result<Position, Obstacle> {
        let (home, width) = (self.table.home_bucket(key), self.table.width);
        for bucket in home..self.table.buckets().min(home + MAX_CHAIN) {
            let here = self.extend_to(bucket)?;
            if let Some(slot) = here.free_slot(width) {
                let fits = here.write(width, slot, key, Content::Inline { expires_at: 1, first: 0, second: 0 });
                debug_assert!(fits, "these numbers fit every slot");
                self.table.between(home, bucket).for_each(Bucket::count_overflow);
                return Ok(Position { bucket, slot });
            }
        }
        Err(Obstacle::Crowded)
    }

    /// Frees the slot of `key`, and corrects the overflow counts of the buckets that the entry passed.
    pub(crate) fn remove(&self, key: Fingerprint, position: Position) {
        self.table.bucket(position.bucket).clear(self.table.width, position.slot);
        self.table.between(self.table.home_bucket(key), position.bucket).for_each(Bucket::uncount_overflow);
    }

    /// Returns the bucket of an entry, and the width of its slots.
    #[inline]
    pub(crate) fn bucket(&self, position: Position) -> (&'t Bucket, Width) {
        (self.table.bucket(position.bucket), self.table.width)
    }

    #[inline]
    pub(crate) fn content(&self, position: Position) -> Content {
        self.table.bucket(position.bucket).content(self.table.width, position.slot)
    }

    /// Writes the slot of `key`. Returns false and writes nothing if a number is too large for the slot.
    #[inline]
    pub(crate) fn write(&self, key: Fingerprint, position: Position, content: Content) -> bool {
        self.table.bucket(position.bucket).write(self.table.width, position.slot, key, content)
    }

    /// Notes that the token bucket at `position` was charged at `now_ns`.
    #[inline]
    pub(crate) fn note_time(&self, position: Position, now_ns: u64) {
        self.table.bucket(position.bucket).note_time(now_ns);
    }

    /// Returns the newest time at which any token bucket was charged whose state is in the same table bucket as `position`. If this time is not
    /// between `now_ns` and one second later, returns `now_ns`.
    pub(crate) fn newest_ns(&self, position: Position, now_ns: u64) -> u64 {
        self.table.bucket(position.bucket).newest_ns(now_ns)
    }

    /// Calls `each` for every entry whose home bucket is the first bucket of this chain. If the table was replaced,
    /// returns an error and calls `each` for no entry.
    pub(super) fn for_each_entry_of_home_bucket(
        &mut self,
        mut each: impl FnMut(&Self, Fingerprint, Position),
    ) -> Result<(), Moved> {
        let (home, width) = (self.from, self.table.width);
        let mut last = home;
        while self.extend_to(last)?.overflows() > 0 {
            last += 1;
        }
        for bucket in home..=last {
            for slot in 0..width.slots() {
                let key = self.table.bucket(bucket).fingerprint(width, slot);
                if let Some(key) = key.filter(|&key| self.table.home_bucket(key) == home) {
                    each(self, key, Position { bucket, slot });
                }
            }
        }
        Ok(())
    }

    /// Removes the expired entries whose home bucket is the first bucket of this chain. Calls `removed` for each of
    /// these entries.
    pub(super) fn remove_expired(&mut self, now_ns: u64, mut removed: impl FnMut(Content)) -> Result<(), Moved> {
        self.for_each_entry_of_home_bucket(|locked, key, position| {
            let content = locked.content(position);
            if content.has_expired(now_ns) {
                locked.remove(key, position);
                removed(content);
            }
        })
    }
}
