//! Where the entries of one shard lie, and the locks over some of them.

use super::bucket::{Bucket, Content, Moved, Width};
use super::fingerprint::Fingerprint;

/// Buckets behind the last home, for what does not fit there.
const SPILL: usize = 6;
/// How far from its home an entry may lie, in buckets: so much is looked at in a call at most.
const MAX_CHAIN: usize = 32;

/// The memory of one shard's entries.
#[derive(Debug)]
pub(super) struct Slots {
    /// How many of the buckets are home to keys; the rest takes what the last of them cannot.
    homes: usize,
    buckets: Vec<Bucket>,
}

impl Slots {
    /// None at all for no homes.
    pub(super) fn new(homes: usize) -> Slots {
        let buckets = if homes == 0 { 0 } else { homes + SPILL };
        Slots { homes, buckets: (0..buckets).map(|_| Bucket::default()).collect() }
    }

    /// Writes an entry while nobody else sees the table.
    pub(super) fn place(&mut self, width: Width, key: Fingerprint, home: usize, content: Content) {
        let mut bucket = home;
        loop {
            if bucket == self.buckets.len() {
                self.buckets.push(Bucket::default());
            }
            let here = &self.buckets[bucket];
            if let Some(slot) = here.free_slot(width) {
                let fits = here.write(width, slot, key, content);
                debug_assert!(fits, "it came out of a slot of this width");
                return;
            }
            here.note_passing();
            bucket += 1;
        }
    }
}

/// The buckets of one shard. An entry lies in its home bucket or in one of the next; each bucket
/// counts the entries that have passed it, so that a search knows where to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'t> {
    pub(super) homes: usize,
    pub(super) buckets: &'t [Bucket],
    pub(super) width: Width,
    /// There are 2 to this power shards.
    pub(super) shard_bits: u32,
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

impl<'t> Table<'t> {
    #[inline]
    pub(super) fn new(slots: &'t Slots, width: Width, shard_bits: u32) -> Table<'t> {
        Table { homes: slots.homes, buckets: &slots.buckets, width, shard_bits }
    }

    #[inline]
    pub(super) fn home(&self, key: Fingerprint) -> usize {
        key.home(self.shard_bits, self.homes)
    }

    /// Locks the bucket; the others of its chain follow as they are needed.
    #[inline]
    pub(super) fn lock(self, bucket: usize) -> Result<Locked<'t>, Moved> {
        let mut locked = Locked { table: self, from: bucket, to: bucket };
        // A table that has no bucket yet has nothing to lock either.
        if !self.buckets.is_empty() {
            locked.extend_to(bucket)?;
        }
        Ok(locked)
    }
}

/// Neighbouring buckets whose locks are held. Locks are taken in ascending order only, so that no
/// two requests can wait for each other.
#[derive(Debug)]
pub(super) struct Locked<'t> {
    pub(super) table: Table<'t>,
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

impl Locked<'_> {
    /// Whether the bucket of `table` is among those that are locked.
    pub(super) fn holds(&self, table: &Table<'_>, bucket: usize) -> bool {
        std::ptr::eq(self.table.buckets, table.buckets) && (self.from..self.to).contains(&bucket)
    }

    #[inline]
    fn extend_to(&mut self, bucket: usize) -> Result<&Bucket, Moved> {
        while self.to <= bucket {
            self.table.buckets[self.to].lock()?;
            self.to += 1;
        }
        Ok(&self.table.buckets[bucket])
    }

    /// Looks for `key` from its home on, which is locked.
    #[inline]
    pub(super) fn find(&mut self, key: Fingerprint) -> Result<Option<At>, Moved> {
        if self.table.buckets.is_empty() {
            return Ok(None);
        }
        let (mut bucket, width) = (self.table.home(key), self.table.width);
        loop {
            let here = self.extend_to(bucket)?;
            if let Some(slot) = here.find(width, key) {
                return Ok(Some(At { bucket, slot }));
            }
            if here.passed() == 0 {
                return Ok(None);
            }
            bucket += 1;
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

    /// Gives `each` the entries whose home is the first locked bucket: all of them or none.
    pub(super) fn each_of_home(&mut self, mut each: impl FnMut(&Self, Fingerprint, At)) -> Result<(), Moved> {
        let (home, width) = (self.from, self.table.width);
        let mut last = home;
        while self.extend_to(last)?.passed() > 0 {
            last += 1;
        }
        for bucket in home..=last {
            for slot in 0..width.slots() {
                let key = self.table.buckets[bucket].fingerprint(width, slot);
                if let Some(key) = key.filter(|&key| self.table.home(key) == home) {
                    each(self, key, At { bucket, slot });
                }
            }
        }
        Ok(())
    }

    /// Removes what expired of the entries whose home is the first locked bucket, and gives it to `gone`.
    pub(super) fn forget_expired(&mut self, now_ns: u64, mut gone: impl FnMut(Content)) -> Result<(), Moved> {
        self.each_of_home(|locked, key, at| {
            let content = locked.content(at);
            if content.expires_at() <= now_ns {
                locked.remove(key, at);
                gone(content);
            }
        })
    }
}

impl Content {
    #[inline]
    pub(super) fn expires_at(self) -> u64 {
        match self {
            Content::Inline { expires_at, .. } | Content::Boxed { expires_at, .. } => expires_at,
        }
    }
}
