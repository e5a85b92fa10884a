//! The tables of all shards: growing, shrinking and forgetting, a little at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::bucket::{Content, Width};
use super::fingerprint::{Fingerprint, first_rank, home_of_rank};
use super::slab::Slab;
use super::table::{Locked, Table};

/// Above this share of full slots a table grows: more would make chains long, fewer cost memory.
const MAX_LOAD: f64 = 0.89;
/// Below this share it shrinks.
const MIN_LOAD: f64 = 0.4;
/// Below this share it does not grow for a crowd: no larger table would tell those keys apart.
const MIN_LOAD_TO_GROW: f64 = 1.0 / 16.0;
/// A table grows by 2^(1/8), about a tenth, and the shards not at the same time.
const STEPS_TO_DOUBLE: f64 = 8.0;
/// A table of so many homes has room for all new keys of a request. A smaller one may grow though it is empty:
/// what a request has claimed before it meets an obstacle is not there any more.
const HOMES_FOR_ANY: usize = 4 * MIN_HOMES;
/// The smallest table that is not empty has about so many homes: a table has whole blocks.
const MIN_HOMES: usize = 56;

/// All tables of one width.
#[derive(Debug)]
pub(super) struct Shards {
    width: Width,
    bits: u32,
    /// Apart from the rest of the shards: these are read by every decision and seldom written.
    tables: Box<[ArcSwap<Table>]>,
    shards: Box<[Shard]>,
}

/// What belongs to a table and is seldom needed.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    entries: AtomicUsize,
    /// The home bucket that is looked at next for expired entries. Held while the table is replaced.
    hand: Mutex<usize>,
    slab: Mutex<Slab>,
}

impl Shards {
    pub(super) fn new(width: Width, bits: u32) -> Shards {
        let count = 1 << bits;
        Shards {
            width,
            bits,
            tables: (0..count).map(|_| ArcSwap::from_pointee(Table::new(width, bits, 1))).collect(),
            shards: (0..count).map(|_| Shard::default()).collect(),
        }
    }

    /// The table of a shard; as long as the guard lives, so does the table.
    #[inline]
    pub(super) fn load(&self, shard: usize) -> Guard<Arc<Table>> {
        self.tables[shard].load()
    }

    #[inline]
    pub(super) fn shard_of(&self, key: Fingerprint) -> usize {
        key.shard(self.bits)
    }

    pub(super) fn slab(&self, shard: usize) -> &Mutex<Slab> {
        &self.shards[shard].slab
    }

    pub(super) fn entries(&self) -> usize {
        self.shards.iter().map(|shard| shard.entries.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn note_entry(&self, shard: usize) {
        self.shards[shard].entries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_removal(&self, shard: usize) {
        self.shards[shard].entries.fetch_sub(1, Ordering::Relaxed);
    }

    /// Slots in all home buckets.
    #[cfg(all(test, not(loom)))]
    pub(super) fn slots(&self) -> usize {
        self.tables.iter().map(|table| table.load().capacity()).sum()
    }

    pub(super) fn width(&self) -> Width {
        self.width
    }

    /// Waits until the table that is being replaced has been.
    pub(super) fn wait(&self, shard: usize) {
        drop(self.shards[shard].hand.lock());
    }

    pub(super) fn count(&self) -> usize {
        self.shards.len()
    }

    /// Gives `each` the entries of one home bucket of `shard`, those from `rank` on, while their buckets are
    /// locked; says the rank to go on from. Going on like this meets each entry once that is there all the
    /// while, also when the table is replaced in between: a rank outlives its bucket.
    pub(super) fn scan(&self, shard: usize, rank: u64, mut each: impl FnMut(Fingerprint, Content)) -> Option<u64> {
        let table = self.load(shard);
        let home = home_of_rank(rank, table.homes());
        let scanned = Locked::from(&table, home).each_of_home(|locked, key, at| {
            if key.rank(self.bits) >= rank {
                each(key, locked.content(at));
            }
        });
        if scanned.is_err() {
            self.wait(shard);
            return Some(rank);
        }
        first_rank(home + 1, table.homes())
    }

    /// Makes room for so many `entries` at once, evenly spread, in a store that is empty.
    pub(super) fn reserve(&self, entries: usize) {
        let homes = self.homes_for(entries / self.shards.len());
        for shard in (0..self.shards.len()).filter(|_| entries > 0) {
            self.tables[shard].store(Arc::new(Table::new(self.width, self.bits, self.size_above(shard, homes))));
        }
    }

    /// How many homes so many entries fill as far as they may.
    fn homes_for(&self, entries: usize) -> usize {
        (entries as f64 / (self.width.slots() as f64 * MAX_LOAD)) as usize
    }

    /// Makes the table of `shard` larger; false if that would be of no use.
    pub(super) fn grow(&self, shard: usize, now_ns: u64, gone: impl FnMut(Content)) -> bool {
        let mut hand = self.shards[shard].hand.lock();
        let entries = self.shards[shard].entries.load(Ordering::Relaxed) as f64;
        let table = self.load(shard);
        let useful = table.homes() < HOMES_FOR_ANY || entries >= table.capacity() as f64 * MIN_LOAD_TO_GROW;
        drop(table);
        if useful {
            self.replace(shard, &mut hand, true, now_ns, gone);
        }
        useful
    }

    /// Looks at the next `steps` home buckets of `shard`, forgets what expired there, and has the
    /// table grow or shrink if that is due. Does nothing while another thread is at it.
    pub(super) fn tend(&self, shard: usize, steps: usize, now_ns: u64, mut gone: impl FnMut(Content)) {
        let Some(mut hand) = self.shards[shard].hand.try_lock() else { return };
        let table = self.load(shard);
        let mut been_round = false;
        for _ in 0..steps.min(table.homes()) {
            // Locking costs more than looking, and mostly there is nothing to do.
            if table.may_have_expired(*hand, now_ns) {
                let forgotten = Locked::from(&table, *hand).forget_expired(now_ns, |content| {
                    self.note_removal(shard);
                    gone(content);
                });
                // It cannot have moved: the hand is held.
                debug_assert!(forgotten.is_ok());
            }
            *hand += 1;
            if *hand >= table.homes() {
                *hand = 0;
                been_round = true;
            }
        }
        let capacity = table.capacity() as f64;
        let entries = self.shards[shard].entries.load(Ordering::Relaxed) as f64;
        let too_large = been_round
            && entries < capacity * MIN_LOAD
            && Table::whole(self.size_above(shard, self.homes_for(entries as usize))) < table.homes();
        if entries > capacity * MAX_LOAD || too_large {
            self.replace(shard, &mut hand, false, now_ns, gone);
        }
    }

    /// Copies the entries of `shard` that have not expired into a table of the right size.
    fn replace(&self, shard: usize, hand: &mut usize, larger: bool, now_ns: u64, mut gone: impl FnMut(Content)) {
        let old = self.load(shard);
        let entries = self.shards[shard].entries.load(Ordering::Relaxed);
        let wanted = self.homes_for(entries);
        let homes = self.size_above(shard, if larger { wanted.max(old.homes()) } else { wanted });
        let mut new = Table::new(self.width, self.bits, homes);
        old.move_to(&mut new, now_ns, |content| {
            self.note_removal(shard);
            gone(content);
        });
        *hand = 0;
        self.tables[shard].store(Arc::new(new));
    }

    /// The next size above `homes` in the shard's own row of sizes: the rows of different shards
    /// are shifted against each other, so that they do not all grow at once.
    fn size_above(&self, shard: usize, homes: usize) -> usize {
        let shift = shard as f64 / self.shards.len() as f64;
        let of_step = |step: f64| (MIN_HOMES as f64 * ((step + shift) / STEPS_TO_DOUBLE).exp2()) as usize;
        let near = ((homes as f64 / MIN_HOMES as f64).max(1.0).log2() * STEPS_TO_DOUBLE - shift).floor();
        let mut step = near.max(0.0);
        while of_step(step) <= homes {
            step += 1.0;
        }
        of_step(step)
    }
}
