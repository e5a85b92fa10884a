//! Where the entries of one shard lie, and the locks over some of them.

use spillgate_core::Time;

use super::bucket::{Bucket, Content, Moved, Width};
use super::fingerprint::Fingerprint;

/// Buckets behind the last home, for what does not fit there.
const SPILL: usize = 6;
/// How far from its home an entry may lie, in buckets: so much is looked at in a call at most.
const MAX_CHAIN: usize = 32;

/// The entries of one shard. An entry lies in its home bucket or in one of the next; each bucket
/// counts the entries that have passed it, so that a search knows where to end.
#[derive(Debug)]
pub(super) struct Table {
    width: Width,
    /// There are 2 to this power shards.
    shard_bits: u32,
    /// How many of the buckets are home to keys; the rest takes what the last of them cannot.
    homes: usize,
    buckets: Vec<Bucket>,
}

impl Table {
    /// One bucket for no homes: at its lock, too, it is seen that the table has been replaced.
    pub(super) fn new(width: Width, shard_bits: u32, homes: usize) -> Table {
        Table::with_spill(width, shard_bits, homes, if homes == 0 { 1 } else { SPILL })
    }

    /// With so many buckets behind the last home.
    pub(super) fn with_spill(width: Width, shard_bits: u32, homes: usize, spill: usize) -> Table {
        let buckets = (0..homes + spill).map(|_| Bucket::default()).collect();
        Table { width, shard_bits, homes, buckets }
    }

    pub(super) fn homes(&self) -> usize {
        self.homes
    }

    /// How many entries the home buckets have slots for.
    pub(super) fn capacity(&self) -> usize {
        self.homes * self.width.slots()
    }

    #[inline]
    pub(super) fn home(&self, key: Fingerprint) -> usize {
        key.home(self.shard_bits, self.homes)
    }

    /// How many entries have passed each bucket.
    #[cfg(test)]
    pub(super) fn passed(&self) -> Vec<u64> {
        self.buckets.iter().map(Bucket::passed).collect()
    }

    /// Asks for the home bucket of `key`; the value only says that something was read.
    #[inline]
    pub(super) fn touch(&self, key: Fingerprint) -> u64 {
        self.buckets.get(self.home(key)).map_or(0, Bucket::touch)
    }

    /// Moves the entries that have not expired to `new`, which nobody else sees yet; `gone` gets the others.
    pub(super) fn move_to(&self, new: &mut Table, now_ns: u64, mut gone: impl FnMut(Content)) {
        for bucket in &self.buckets {
            // One lock at a time, so nobody who waits for it is waited for here. None has moved: only
            // one thread at a time replaces a table.
            if bucket.lock().is_err() {
                continue;
            }
            for slot in 0..self.width.slots() {
                let Some(key) = bucket.fingerprint(self.width, slot) else { continue };
                let content = bucket.content(self.width, slot);
                if content.has_expired(now_ns) {
                    gone(content);
                } else {
                    new.place(key, content);
                }
            }
            bucket.unlock_as_moved();
        }
    }

    fn place(&mut self, key: Fingerprint, content: Content) {
        let mut bucket = self.home(key);
        loop {
            if bucket == self.buckets.len() {
                self.buckets.push(Bucket::default());
            }
            let here = &self.buckets[bucket];
            if let Some(slot) = here.free_slot(self.width) {
                let fits = here.write(self.width, slot, key, content);
                debug_assert!(fits, "it came out of a slot of this width");
                return;
            }
            here.note_passing();
            bucket += 1;
        }
    }
}

/// Why a request has to begin anew. It has charged nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The table is being replaced.
    Moved,
    /// The table has no free slot near the key's home.
    Crowded,
    /// The store has no room; some of it may be expired.
    Full,
}

impl From<Moved> for Obstacle {
    fn from(Moved: Moved) -> Obstacle {
        Obstacle::Moved
    }
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) bucket: usize,
    pub(super) slot: usize,
}

/// Neighbouring buckets whose locks are held. Locks are taken in ascending order only, so that no
/// two requests can wait for each other.
#[derive(Debug)]
pub(super) struct Locked<'t> {
    table: &'t Table,
    from: usize,
    to: usize,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        for bucket in &self.table.buckets[self.from..self.to] {
            bucket.unlock();
        }
    }
}

impl<'t> Locked<'t> {
    /// Nothing yet; the buckets from `bucket` on are locked as they are needed.
    #[inline]
    pub(super) fn from(table: &'t Table, bucket: usize) -> Locked<'t> {
        Locked { table, from: bucket, to: bucket }
    }

    /// Whether the bucket of `table` is among those that are locked.
    pub(super) fn holds(&self, table: &Table, bucket: usize) -> bool {
        std::ptr::eq(self.table, table) && (self.from..self.to).contains(&bucket)
    }

    #[inline]
    fn extend_to(&mut self, bucket: usize) -> Result<&'t Bucket, Moved> {
        while self.to <= bucket {
            self.table.buckets[self.to].lock()?;
            self.to += 1;
        }
        Ok(&self.table.buckets[bucket])
    }

    /// Looks for `key` from its home on.
    #[inline]
    pub(super) fn find(&mut self, key: Fingerprint) -> Result<Option<At>, Moved> {
        let bucket = self.table.home(key);
        // Both lines are asked for at once; else the second would wait for the lock in the first.
        std::hint::black_box(self.table.buckets[bucket].touch());
        let here = self.extend_to(bucket)?;
        match here.find(self.table.width, key) {
            Some(slot) => Ok(Some(At { bucket, slot })),
            None if here.passed() == 0 => Ok(None),
            None => self.find_behind(bucket, key),
        }
    }

    /// Looks for `key` in the buckets behind its home.
    #[inline(never)]
    fn find_behind(&mut self, home: usize, key: Fingerprint) -> Result<Option<At>, Moved> {
        let mut bucket = home;
        loop {
            bucket += 1;
            let here = self.extend_to(bucket)?;
            if let Some(slot) = here.find(self.table.width, key) {
                return Ok(Some(At { bucket, slot }));
            }
            if here.passed() == 0 {
                return Ok(None);
            }
        }
    }

    /// Puts `key`, which is not there, into a free slot, as something that has expired long ago.
    pub(super) fn claim(&mut self, key: Fingerprint) -> Result<At, Obstacle> {
        let (home, width) = (self.table.home(key), self.table.width);
        for bucket in home..self.table.buckets.len().min(home + MAX_CHAIN) {
            let here = self.extend_to(bucket)?;
            if let Some(slot) = here.free_slot(width) {
                let fits = here.write(width, slot, key, Content::Inline { expires_at: 1, first: 0, second: 0 });
                debug_assert!(fits, "these numbers fit everywhere");
                self.table.buckets[home..bucket].iter().for_each(Bucket::note_passing);
                return Ok(At { bucket, slot });
            }
        }
        Err(Obstacle::Crowded)
    }

    /// Frees the slot of `key`.
    pub(super) fn remove(&self, key: Fingerprint, at: At) {
        self.table.buckets[at.bucket].clear(self.table.width, at.slot);
        self.table.buckets[self.table.home(key)..at.bucket].iter().for_each(Bucket::note_removal);
    }

    #[inline]
    pub(super) fn content(&self, at: At) -> Content {
        self.table.buckets[at.bucket].content(self.table.width, at.slot)
    }

    #[inline]
    pub(super) fn write(&self, key: Fingerprint, at: At, content: Content) -> bool {
        self.table.buckets[at.bucket].write(self.table.width, at.slot, key, content)
    }

    /// Removes what expired of the entries whose home is the first locked bucket, and gives it to `gone`.
    pub(super) fn forget_expired(&mut self, now_ns: u64, mut gone: impl FnMut(Content)) -> Result<(), Moved> {
        let (home, width) = (self.from, self.table.width);
        let mut bucket = home;
        while bucket < self.table.buckets.len() {
            self.extend_to(bucket)?;
            for slot in 0..width.slots() {
                let at = At { bucket, slot };
                let Some(key) = self.table.buckets[bucket].fingerprint(width, slot) else { continue };
                let content = self.content(at);
                if self.table.home(key) == home && content.has_expired(now_ns) {
                    self.remove(key, at);
                    gone(content);
                }
            }
            if self.table.buckets[bucket].passed() == 0 {
                break;
            }
            bucket += 1;
        }
        Ok(())
    }
}

impl Content {
    /// Whether the state equals none at `now_ns`. The last of all times stands for any after it, too:
    /// what a slot cannot tell from that is kept.
    pub(super) fn has_expired(self, now_ns: u64) -> bool {
        let (Content::Inline { expires_at, .. } | Content::Boxed { expires_at, .. }) = self;
        expires_at <= now_ns && expires_at < Time::MAX.as_nanos()
    }
}
