//! A concurrent hash table that is split into shards (parts of the keys). It grows, shrinks and removes expired entries
//! in small steps.
//!
//! While one large table grows, every request would have to wait. The table of one shard is copied in a short time, and
//! only requests for the keys of this shard wait. The code in this folder knows nothing about quotas or decisions.
//!
//! A table is replaced in these steps:
//!
//! 1. A thread gets the lock of the sweep cursor (the index of the bucket that is swept next). No other thread can then
//!    replace this table.
//! 2. The thread locks one bucket at a time, copies its live entries to the new table, and marks the bucket as moved.
//! 3. A request that meets a moved bucket releases its locks and waits for the lock of the sweep cursor.
//! 4. The thread stores the pointer to the new table and releases the lock of the sweep cursor. The waiting requests
//!    start again with the new table.
//!
//! The file `tests/model.rs` has small programs that make these steps in several threads. The model checker Loom runs
//! each program in all orders of events with a bounded number of preemptions, from one to three. A preemption switches
//! away from a thread that could continue.

mod bucket;
mod fingerprint;
mod locked;
mod slab;
mod slot;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use spillgate_core::{MAX_LATE_NS, Time};

use fingerprint::{first_rank_of_bucket, home_bucket_of_rank};

pub(super) use fingerprint::Fingerprint;
pub(super) use locked::{LockedBuckets, Obstacle, Position};
pub(super) use slab::Slab;
pub(super) use slot::{Content, Width};
pub(super) use table::Table;

/// The load of a table is the number of its entries, divided by the number of slots in its home buckets. A table grows
/// if its load is above this bound. A higher bound would make searches longer. A lower bound would need more memory.
const MAX_LOAD: f64 = 0.89;
/// A table shrinks if its load is below this bound.
const MIN_LOAD: f64 = 0.4;
/// If there is no free slot near the home bucket of a key, the table usually grows. The table does not grow if its load
/// is below this bound. If a table with so few entries is crowded, many keys agree in most bits, and no larger table
/// would separate them.
const MIN_LOAD_TO_GROW: f64 = 1.0 / 16.0;
/// A table doubles its size in this many steps. Each step multiplies its size by 2^(1/8), which is about 1.09.
const STEPS_TO_DOUBLE: f64 = 8.0;
/// A table with this many home buckets has slots for all new keys of one request. A smaller table is always allowed to
/// grow, even if it seems to be empty. Before a request makes the table grow, it removes the entries that it has
/// claimed, although it needs slots for all of them again.
const HOME_BUCKETS_FOR_ANY_REQUEST: usize = 4 * MIN_HOME_BUCKETS;
/// A table has either a single home bucket, or at least this many home buckets. The smallest table of the second kind
/// has a few more home buckets, because buckets are allocated in blocks.
const MIN_HOME_BUCKETS: usize = 56;

/// All tables with slots of one width.
#[derive(Debug)]
pub(super) struct Shards {
    width: Width,
    /// The number of shards is 2 to this power.
    bits: u32,
    /// The table of each shard. Every decision reads these pointers, and they seldom change. They are therefore stored
    /// apart from the data that often changes.
    tables: Box<[ArcSwap<Table>]>,
    /// The other data of each shard.
    shards: Box<[Shard]>,
}

/// The data of a shard, except its table. Most decisions do not need this data.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    /// The number of entries, including expired entries.
    entries: AtomicUsize,
    /// The latest expiry time of the states that were removed because they had expired, in nanoseconds since the epoch.
    forgotten_until: AtomicU64,
    /// The home bucket that is swept next. A thread that replaces the table has the lock of this cursor.
    sweep_cursor: Mutex<usize>,
    /// The states that do not fit a slot. A thread that has the lock of a bucket is allowed to lock the slab. A
    /// thread that has the lock of the slab must not lock a bucket.
    slab: Mutex<Slab>,
}

impl Shards {
    /// Makes `2^bits` empty shards.
    pub(super) fn new(width: Width, bits: u32) -> Shards {
        let count = 1 << bits;
        Shards {
            width,
            bits,
            tables: (0..count).map(|_| ArcSwap::from_pointee(Table::new(width, bits, 1))).collect(),
            shards: (0..count).map(|_| Shard::default()).collect(),
        }
    }

    /// Returns the table of a shard. The table lives at least as long as the guard.
    #[inline]
    pub(super) fn load(&self, shard: usize) -> Guard<Arc<Table>> {
        self.tables[shard].load()
    }

    /// Returns the index of the shard that has `key`.
    #[inline]
    pub(super) fn shard_of(&self, key: Fingerprint) -> usize {
        key.shard(self.bits)
    }

    pub(super) fn slab(&self, shard: usize) -> &Mutex<Slab> {
        &self.shards[shard].slab
    }

    /// Returns the number of entries in all shards, including expired entries.
    pub(super) fn entries(&self) -> usize {
        self.shards.iter().map(|shard| shard.entries.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn count_entry(&self, shard: usize) {
        self.shards[shard].entries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn uncount_entry(&self, shard: usize) {
        self.shards[shard].entries.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one entry less, because its state had expired, and notes when it expired. The caller has the lock of the
    /// entry's bucket.
    fn forget(&self, shard: usize, content: Content) {
        self.uncount_entry(shard);
        self.shards[shard].forgotten_until.fetch_max(content.expires_at(), Ordering::Relaxed);
    }

    /// Returns the time at which a request for a key without a state is decided. The caller has the lock of the key's
    /// home bucket.
    ///
    /// This is `now`, unless the request is late: a state that expired after `now` was removed already. The removed
    /// state can have been the state of this key, so the request is decided at the latest time at which a removed state
    /// expired. If that time is later than `now` by more than [`MAX_LATE_NS`], the clock was set back, and the request
    /// is decided at `now`.
    pub(super) fn not_before(&self, shard: usize, now: Time) -> Time {
        let forgotten_until = self.shards[shard].forgotten_until.load(Ordering::Relaxed);
        match forgotten_until.checked_sub(now.as_nanos()) {
            Some(1..=MAX_LATE_NS) => Time::from_nanos(forgotten_until),
            _ => now,
        }
    }

    /// Returns the number of slots in all home buckets.
    #[cfg(all(test, not(loom)))]
    pub(super) fn slots(&self) -> usize {
        self.tables.iter().map(|table| table.load().home_slots()).sum()
    }

    pub(super) fn width(&self) -> Width {
        self.width
    }

    pub(super) fn count(&self) -> usize {
        self.shards.len()
    }

    /// Returns the number of home buckets in the table of `shard`.
    pub(super) fn home_buckets(&self, shard: usize) -> usize {
        self.load(shard).home_buckets()
    }

    /// Waits for the thread that replaces the table of `shard`.
    pub(super) fn wait(&self, shard: usize) {
        drop(self.shards[shard].sweep_cursor.lock());
    }

    /// Scans one home bucket of `shard`: the home bucket of a key with the rank `rank`. A rank is a number that sorts
    /// the keys of a shard. Calls `each` for the entries of this home bucket that have at least this rank, while their
    /// buckets are locked. Returns the rank for the next call, or `None` after the last home bucket.
    ///
    /// A scan of all home buckets in such steps meets each entry exactly once, if the entry is in the table during the
    /// whole scan. This is true even if the table is replaced between two steps, because the rank of a key does not
    /// depend on the table.
    pub(super) fn scan(&self, shard: usize, rank: u64, mut each: impl FnMut(Fingerprint, Content)) -> Option<u64> {
        let table = self.load(shard);
        let home = home_bucket_of_rank(rank, table.home_buckets());
        let scanned =
            LockedBuckets::starting_at(&table, home).for_each_entry_of_home_bucket(|locked, key, position| {
                if key.rank(self.bits) >= rank {
                    each(key, locked.content(position));
                }
            });
        if scanned.is_err() {
            self.wait(shard);
            return Some(rank);
        }
        first_rank_of_bucket(home + 1, table.home_buckets())
    }

    /// Allocates tables for this many `entries`, evenly spread over the shards. The store must be empty.
    pub(super) fn reserve(&self, entries: usize) {
        let home_buckets = self.home_buckets_for(entries / self.shards.len());
        for shard in (0..self.shards.len()).filter(|_| entries > 0) {
            let size = self.size_above(shard, home_buckets);
            self.tables[shard].store(Arc::new(Table::new(self.width, self.bits, size)));
        }
    }

    /// Returns the number of home buckets with which a table of this many entries has the load `MAX_LOAD`.
    fn home_buckets_for(&self, entries: usize) -> usize {
        (entries as f64 / (self.width.slots() as f64 * MAX_LOAD)) as usize
    }

    /// Makes the table of `shard` larger. Returns false if a larger table would not help.
    pub(super) fn grow(&self, shard: usize, now_ns: u64, removed: impl FnMut(Content)) -> bool {
        let mut cursor = self.shards[shard].sweep_cursor.lock();
        let entries = self.shards[shard].entries.load(Ordering::Relaxed) as f64;
        let table = self.load(shard);
        let useful = table.home_buckets() < HOME_BUCKETS_FOR_ANY_REQUEST
            || entries >= table.home_slots() as f64 * MIN_LOAD_TO_GROW;
        drop(table);
        if useful {
            self.replace(shard, &mut cursor, true, now_ns, removed);
        }
        useful
    }

    /// Removes expired entries from the next `steps` home buckets of `shard`, and calls `removed` for each of these
    /// entries. Then grows the table if it is too full, or shrinks it if it is too empty. Does nothing while another
    /// thread sweeps the shard or replaces its table.
    pub(super) fn sweep(&self, shard: usize, steps: usize, now_ns: u64, mut removed: impl FnMut(Content)) {
        let Some(mut cursor) = self.shards[shard].sweep_cursor.try_lock() else { return };
        let table = self.load(shard);
        let mut round_complete = false;
        for _ in 0..steps.min(table.home_buckets()) {
            // The check without a lock comes first, because usually nothing has expired, and a lock costs more than the
            // check.
            if table.may_have_expired(*cursor, now_ns) {
                let swept = LockedBuckets::starting_at(&table, *cursor).remove_expired(now_ns, |content| {
                    self.forget(shard, content);
                    removed(content);
                });
                // No thread can replace the table while this thread has the lock of the cursor.
                debug_assert!(swept.is_ok());
            }
            *cursor += 1;
            if *cursor >= table.home_buckets() {
                *cursor = 0;
                round_complete = true;
            }
        }
        let slots = table.home_slots() as f64;
        let entries = self.shards[shard].entries.load(Ordering::Relaxed) as f64;
        let too_large = round_complete
            && entries < slots * MIN_LOAD
            && Table::rounded_up(self.size_above(shard, self.home_buckets_for(entries as usize)))
                < table.home_buckets();
        if entries > slots * MAX_LOAD || too_large {
            self.replace(shard, &mut cursor, false, now_ns, removed);
        }
    }

    /// Moves the entries of `shard` that have not expired into a new table of the right size.
    fn replace(&self, shard: usize, cursor: &mut usize, larger: bool, now_ns: u64, mut removed: impl FnMut(Content)) {
        let old = self.load(shard);
        let entries = self.shards[shard].entries.load(Ordering::Relaxed);
        let wanted = self.home_buckets_for(entries);
        let size = self.size_above(shard, if larger { wanted.max(old.home_buckets()) } else { wanted });
        let mut new = Table::new(self.width, self.bits, size);
        old.move_entries_to(&mut new, now_ns, |content| {
            self.forget(shard, content);
            removed(content);
        });
        *cursor = 0;
        self.tables[shard].store(Arc::new(new));
    }

    /// Returns the next table size above `home_buckets`. Each shard has its own series of table sizes.
    ///
    /// The sizes differ a little from shard to shard, so that the shards do not all grow at the same time.
    fn size_above(&self, shard: usize, home_buckets: usize) -> usize {
        let shift = shard as f64 / self.shards.len() as f64;
        let of_step = |step: f64| (MIN_HOME_BUCKETS as f64 * ((step + shift) / STEPS_TO_DOUBLE).exp2()) as usize;
        let near = ((home_buckets as f64 / MIN_HOME_BUCKETS as f64).max(1.0).log2() * STEPS_TO_DOUBLE - shift).floor();
        let mut step = near.max(0.0);
        while of_step(step) <= home_buckets {
            step += 1.0;
        }
        of_step(step)
    }
}

#[cfg(test)]
mod tests;
