//! Where the entries of one shard lie, and the locks over some of them.

use super::bucket::{Bucket, Content, Moved, Width};
use super::fingerprint::Fingerprint;

/// Buckets are allocated in blocks of this many, all of one size, so that what one table gives back
/// the next can have, whatever the allocator.
const BLOCK: usize = 64;
/// Buckets behind the last home, for what does not fit there: one in `SPILL_SHARE`, and this many.
const SPILL: usize = 6;
const SPILL_SHARE: usize = 256;
/// How far from its home a new entry may lie, in buckets: hashes come nowhere near.
const MAX_CHAIN: usize = 128;

/// The entries of one shard. An entry lies in its home bucket or in one of the next; each bucket
/// counts the entries that have passed it, so that a search knows where to end.
#[derive(Debug)]
pub(super) struct Table {
    width: Width,
    /// There are 2 to this power shards.
    shard_bits: u32,
    /// How many of the buckets are home to keys; the rest takes what the last of them cannot.
    homes: usize,
    /// All of `BLOCK` buckets but for the last.
    blocks: Vec<Box<[Bucket]>>,
}

impl Table {
    /// At least this many homes, in whole blocks, or a single bucket for one: a table without a lock could
    /// not tell that it has been replaced.
    pub(super) fn new(width: Width, shard_bits: u32, homes: usize) -> Table {
        if homes <= 1 {
            return Table::with_spill(width, shard_bits, 1, 0);
        }
        Table::with_spill(width, shard_bits, Table::whole(homes), Table::spill(homes))
    }

    /// How many homes a table for so many has.
    pub(super) fn whole(homes: usize) -> usize {
        let spill = Table::spill(homes);
        (homes + spill).next_multiple_of(BLOCK) - spill
    }

    fn spill(homes: usize) -> usize {
        SPILL + homes / SPILL_SHARE
    }

    /// With so many buckets behind the last home.
    pub(super) fn with_spill(width: Width, shard_bits: u32, homes: usize, spill: usize) -> Table {
        let buckets = homes + spill;
        let block = |first: usize| (first..buckets.min(first + BLOCK)).map(|_| Bucket::default()).collect();
        Table { width, shard_bits, homes, blocks: (0..buckets).step_by(BLOCK).map(block).collect() }
    }

    /// A further bucket behind all others.
    fn add_bucket(&mut self) {
        let short = self.blocks.pop_if(|last| last.len() < BLOCK);
        let last = short.into_iter().flatten().chain([Bucket::default()]);
        self.blocks.push(last.collect());
    }

    /// How many buckets there are, those behind the last home among them.
    fn len(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    #[inline]
    fn bucket(&self, index: usize) -> &Bucket {
        &self.blocks[index / BLOCK][index % BLOCK]
    }

    /// The buckets that an entry passes which belongs to `home` and lies in `bucket`.
    fn between(&self, home: usize, bucket: usize) -> impl Iterator<Item = &Bucket> {
        (home..bucket).map(|index| self.bucket(index))
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
        self.between(0, self.len()).map(Bucket::passed).collect()
    }

    /// Asks for the home bucket of `key`; the value only says that something was read.
    #[inline]
    pub(super) fn touch(&self, key: Fingerprint) -> u64 {
        self.bucket(self.home(key)).touch()
    }

    /// Whether an entry of `home` may have expired, for those who have no lock.
    pub(super) fn may_have_expired(&self, home: usize, now_ns: u64) -> bool {
        for bucket in self.between(home, self.len()) {
            if bucket.may_have_expired(self.width, now_ns) {
                return true;
            }
            if bucket.passed() == 0 {
                break;
            }
        }
        false
    }

    /// Moves the entries that have not expired to `new`, which nobody else sees yet; `gone` gets the others.
    pub(super) fn move_to(&self, new: &mut Table, now_ns: u64, mut gone: impl FnMut(Content)) {
        for bucket in self.blocks.iter().flat_map(|block| block.iter()) {
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
                    new.place(key, bucket, slot, now_ns);
                }
            }
            bucket.unlock_as_moved();
        }
    }

    /// Copies the entry of `key` from a slot of another table's bucket.
    fn place(&mut self, key: Fingerprint, from: &Bucket, slot: usize, now_ns: u64) {
        let mut bucket = self.home(key);
        while !self.bucket(bucket).copy_slot(self.width, from, slot, now_ns) {
            self.bucket(bucket).note_passing();
            bucket += 1;
            if bucket == self.len() {
                self.add_bucket();
            }
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
        for bucket in self.from..self.to {
            self.table.bucket(bucket).unlock();
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

    // A decision locks one bucket; a call for that costs a tenth of what is not memory.
    #[inline(always)]
    fn extend_to(&mut self, bucket: usize) -> Result<&'t Bucket, Moved> {
        while self.to <= bucket {
            self.table.bucket(self.to).lock()?;
            self.to += 1;
        }
        Ok(self.table.bucket(bucket))
    }

    /// Looks for `key` from its home on.
    #[inline]
    pub(super) fn find(&mut self, key: Fingerprint) -> Result<Option<At>, Moved> {
        let bucket = self.table.home(key);
        // Both lines are asked for at once; else the second would wait for the lock in the first.
        std::hint::black_box(self.table.bucket(bucket).touch());
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
        for bucket in home..self.table.len().min(home + MAX_CHAIN) {
            let here = self.extend_to(bucket)?;
            if let Some(slot) = here.free_slot(width) {
                let fits = here.write(width, slot, key, Content::Inline { expires_at: 1, first: 0, second: 0 });
                debug_assert!(fits, "these numbers fit everywhere");
                self.table.between(home, bucket).for_each(Bucket::note_passing);
                return Ok(At { bucket, slot });
            }
        }
        Err(Obstacle::Crowded)
    }

    /// Frees the slot of `key`.
    pub(super) fn remove(&self, key: Fingerprint, at: At) {
        self.table.bucket(at.bucket).clear(self.table.width, at.slot);
        self.table.between(self.table.home(key), at.bucket).for_each(Bucket::note_removal);
    }

    /// Where the entry is, and how wide its slot.
    #[inline]
    pub(super) fn bucket(&self, at: At) -> (&'t Bucket, Width) {
        (self.table.bucket(at.bucket), self.table.width)
    }

    #[inline]
    pub(super) fn content(&self, at: At) -> Content {
        self.table.bucket(at.bucket).content(self.table.width, at.slot)
    }

    #[inline]
    pub(super) fn write(&self, key: Fingerprint, at: At, content: Content) -> bool {
        self.table.bucket(at.bucket).write(self.table.width, at.slot, key, content)
    }

    /// Remembers that a token bucket at `at` was charged at `now_ns`.
    #[inline]
    pub(super) fn note_time(&self, at: At, now_ns: u64) {
        self.table.bucket(at.bucket).note_time(now_ns);
    }

    /// The newest time that a token bucket near `at` was charged at, as far as it is known.
    pub(super) fn newest_ns(&self, at: At, now_ns: u64) -> u64 {
        self.table.bucket(at.bucket).newest_ns(now_ns)
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
                let key = self.table.bucket(bucket).fingerprint(width, slot);
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
            if content.has_expired(now_ns) {
                locked.remove(key, at);
                gone(content);
            }
        })
    }
}
