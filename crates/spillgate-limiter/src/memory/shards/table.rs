//! The table of one shard: its buckets, and which bucket is the home bucket of a key.
//!
//! An entry is in its home bucket or in one of the next buckets. Each bucket counts the entries that passed it because
//! it was full. A search uses these counts to find its end.
//!
//! ```text
//! bucket            0      1      2      3   ...   last home   spill   spill
//! overflow count    0      2      1      0
//! entries                  full   full   a
//! ```
//!
//! Here bucket 1 is the home bucket of the entry `a`. Buckets 1 and 2 were full, so `a` is in bucket 3, and buckets 1
//! and 2 both count it. Another entry with the home bucket 1 is in bucket 2, so the count of bucket 1 is 2. A search
//! for a key with the home bucket 1 ends in bucket 3 at the latest, because the count of bucket 3 is 0.

use super::bucket::Bucket;
use super::fingerprint::Fingerprint;
use super::slot::{Content, Width};

/// Buckets are allocated in blocks of this many buckets. Because all blocks have the same size, a new table can reuse
/// the memory of an old table with every allocator.
const BLOCK: usize = 64;
/// A table has this many spill buckets after its last home bucket, and one more for each `SPILL_SHARE` home buckets.
/// Spill buckets store entries for which the last home buckets have no free slot.
const SPILL: usize = 6;
const SPILL_SHARE: usize = 256;

/// The entries of one shard.
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) width: Width,
    /// The number of shards of the store is 2 to this power.
    shard_bits: u32,
    /// The number of home buckets. The buckets after them are spill buckets.
    home_buckets: usize,
    /// Each block has `BLOCK` buckets, except the last.
    blocks: Vec<Box<[Bucket]>>,
}

impl Table {
    /// Makes a table with at least this many home buckets, in whole blocks.
    ///
    /// A table for one home bucket has a single bucket. Even an empty table needs a bucket, because a thread has to
    /// lock a bucket to learn whether the table was replaced.
    pub(crate) fn new(width: Width, shard_bits: u32, home_buckets: usize) -> Table {
        if home_buckets <= 1 {
            return Table::with_spill(width, shard_bits, 1, 0);
        }
        Table::with_spill(width, shard_bits, Table::rounded_up(home_buckets), Table::spill(home_buckets))
    }

    /// Returns the number of home buckets in a table that was made for `home_buckets`.
    pub(super) fn rounded_up(home_buckets: usize) -> usize {
        let spill = Table::spill(home_buckets);
        (home_buckets + spill).next_multiple_of(BLOCK) - spill
    }

    /// Returns the number of spill buckets behind this many home buckets.
    fn spill(home_buckets: usize) -> usize {
        SPILL + home_buckets / SPILL_SHARE
    }

    /// Makes a table with exactly this many home buckets, and with `spill` spill buckets after them.
    pub(super) fn with_spill(width: Width, shard_bits: u32, home_buckets: usize, spill: usize) -> Table {
        let buckets = home_buckets + spill;
        let block = |first: usize| (first..buckets.min(first + BLOCK)).map(|_| Bucket::default()).collect();
        Table { width, shard_bits, home_buckets, blocks: (0..buckets).step_by(BLOCK).map(block).collect() }
    }

    /// Adds a bucket after the last bucket.
    fn add_bucket(&mut self) {
        let short = self.blocks.pop_if(|last| last.len() < BLOCK);
        let last = short.into_iter().flatten().chain([Bucket::default()]);
        self.blocks.push(last.collect());
    }

    /// Returns the number of all buckets: home buckets and spill buckets.
    pub(super) fn buckets(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    #[inline]
    pub(super) fn bucket(&self, index: usize) -> &Bucket {
        &self.blocks[index / BLOCK][index % BLOCK]
    }

    /// Returns the buckets that an entry passed if its home bucket is `home` and its slot is in `bucket`.
    pub(super) fn between(&self, home: usize, bucket: usize) -> impl Iterator<Item = &Bucket> {
        (home..bucket).map(|index| self.bucket(index))
    }

    pub(crate) fn home_buckets(&self) -> usize {
        self.home_buckets
    }

    /// Returns the number of slots in all home buckets.
    pub(super) fn home_slots(&self) -> usize {
        self.home_buckets * self.width.slots()
    }

    /// Returns the index of the home bucket of `key`.
    #[inline]
    pub(crate) fn home_bucket(&self, key: Fingerprint) -> usize {
        key.home_bucket(self.shard_bits, self.home_buckets)
    }

    #[cfg(test)]
    pub(crate) fn overflows(&self) -> Vec<u64> {
        self.between(0, self.buckets()).map(Bucket::overflows).collect()
    }

    /// Makes the processor fetch the home bucket of `key`. The returned value has no meaning.
    #[inline]
    pub(crate) fn touch(&self, key: Fingerprint) -> u64 {
        self.bucket(self.home_bucket(key)).touch()
    }

    /// Returns a hint whether an entry with the home bucket `home` has expired. `true` and `false` can both be wrong,
    /// because the function reads without a lock.
    pub(super) fn may_have_expired(&self, home: usize, now_ns: u64) -> bool {
        for bucket in self.between(home, self.buckets()) {
            if bucket.may_have_expired(self.width, now_ns) {
                return true;
            }
            if bucket.overflows() == 0 {
                break;
            }
        }
        false
    }

    /// Moves the entries that have not expired to `new`, which no other thread sees yet. Calls `removed` for each
    /// expired entry.
    pub(crate) fn move_entries_to(&self, new: &mut Table, now_ns: u64, mut removed: impl FnMut(Content)) {
        for bucket in self.blocks.iter().flat_map(|block| block.iter()) {
            // This thread has the lock of only one bucket at a time, so it cannot deadlock. `lock` fails only if the
            // bucket was moved already, which cannot happen: only one thread replaces this table.
            if bucket.lock().is_err() {
                continue;
            }
            for slot in 0..self.width.slots() {
                let Some(key) = bucket.fingerprint(self.width, slot) else { continue };
                let content = bucket.content(self.width, slot);
                if content.has_expired(now_ns) {
                    removed(content);
                } else {
                    new.copy_entry(key, bucket, slot, now_ns);
                }
            }
            bucket.unlock_as_moved();
        }
    }

    /// Copies the entry of `key` from the slot `slot` of the bucket `from`, which belongs to another table.
    fn copy_entry(&mut self, key: Fingerprint, from: &Bucket, slot: usize, now_ns: u64) {
        let mut bucket = self.home_bucket(key);
        while !self.bucket(bucket).copy_slot(self.width, from, slot, now_ns) {
            self.bucket(bucket).count_overflow();
            bucket += 1;
            if bucket == self.buckets() {
                self.add_bucket();
            }
        }
    }
}
