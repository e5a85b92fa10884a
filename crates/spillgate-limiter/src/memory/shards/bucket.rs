//! A bucket: a few slots and their lock, in two neighbouring cache lines.
//!
//! The lock, the fingerprints of the keys and the states share these cache lines for two reasons. A decision waits for
//! memory only once. And two threads slow each other down only if they need the same bucket.
//!
//! ```text
//! words 0 to 14    five narrow or three wide slots
//! word 15          bit 63         a thread has the lock
//!                  bit 62         the entries are in a newer table
//!                  bits 20 to 61  the newest time at which a token bucket in these slots was charged
//!                  bits 0 to 19   the overflow count
//! ```
//!
//! The time in word 15 is needed for late requests, whose time is earlier than the time of a request that was decided
//! before. [`decide_late`](spillgate_core::decide_late) says more.

use spillgate_core::{MAX_LATE_NS, Packed};

use super::fingerprint::Fingerprint;
use super::slot::{Content, IN_SLAB, PAYLOAD_BITS, Width, has_expired, scaled, unscaled};
use crate::sync::{AtomicU64, Ordering, relax};

/// The number of words in a bucket.
const WORDS: usize = 16;
/// The index of the word with everything except the slots.
const META: usize = WORDS - 1;
/// This bit says that a thread has the lock.
const LOCKED: u64 = 1 << 63;
/// This bit says that the entries of the bucket are in a newer table. No thread can lock this bucket again.
const MOVED: u64 = 1 << 62;
/// The number of bits of the overflow count (how many entries passed this bucket because it was full). 20 bits can
/// count a million entries, and a chain (the buckets of one search) has far fewer.
const OVERFLOW_BITS: u32 = 20;
const OVERFLOWS: u64 = (1 << OVERFLOW_BITS) - 1;
/// The mask for the newest time, in nanoseconds, at which a token bucket in these slots was charged. Only the low bits
/// of this time are stored.
///
/// These bits repeat every 2^42 ns, which is 4398 s or 73 minutes. An old time can therefore look as if it were up to a
/// second after the time of a request. This happens to about one request in 4000 (one second in 4398 s). The mistake
/// matters only if the request has another time between two tokens than the charge before. A part of the debt (used
/// tokens, measured as time) is then not converted to the new rate. This part is at most one second.
const NEWEST: u64 = (1 << 42) - 1;
/// A shift by this many bits moves the 42 bits of the newest time to the top of a word.
const TOP_SHIFT: u32 = NEWEST.leading_zeros();

/// The slots of a bucket, and the word with its lock.
///
/// All words are atomic, because one of them has the lock, and because a sweep reads times without the lock.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Bucket {
    words: [AtomicU64; WORDS],
}

/// The reason why a bucket cannot be locked: it belongs to a table that has been replaced.
#[derive(Debug)]
pub(crate) struct Moved;

impl Bucket {
    /// Waits for the lock. A thread that gets the lock must call [`unlock`](Bucket::unlock).
    ///
    /// Returns [`Moved`] if the table was replaced. The entries of the bucket are then in the new table.
    #[inline]
    pub(super) fn lock(&self) -> Result<(), Moved> {
        let mut tries = 0;
        loop {
            let meta = self.get(META);
            if meta & MOVED != 0 {
                return Err(Moved);
            }
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if meta & LOCKED == 0
                && self.words[META].compare_exchange_weak(meta, meta | LOCKED, order.0, order.1).is_ok()
            {
                return Ok(());
            }
            tries += 1;
            relax(tries);
        }
    }

    #[inline]
    pub(super) fn unlock(&self) {
        self.words[META].store(self.get(META) & !LOCKED, Ordering::Release);
    }

    /// Ends the use of this bucket, after its entries were copied to a newer table. No thread can lock it again.
    pub(super) fn unlock_as_moved(&self) {
        self.words[META].store(MOVED, Ordering::Release);
    }

    /// Returns the overflow count: the number of entries whose home bucket is this bucket or an earlier one, and whose
    /// slot is in a later bucket.
    #[inline]
    pub(super) fn overflows(&self) -> u64 {
        self.get(META) & OVERFLOWS
    }

    /// Counts an entry that found no slot here and goes to a later bucket.
    pub(super) fn count_overflow(&self) {
        self.set(META, self.get(META) + 1);
    }

    /// Counts that an entry in a later bucket was removed. [`count_overflow`](Bucket::count_overflow) had counted this
    /// entry here.
    pub(super) fn uncount_overflow(&self) {
        debug_assert!(self.overflows() > 0, "the entry was counted");
        self.set(META, self.get(META) - 1);
    }

    /// Notes that a token bucket was charged at `now_ns`, unless the noted time is up to a second later already.
    #[inline]
    pub(crate) fn note_time(&self, now_ns: u64) {
        let meta = self.get(META);
        // `ahead` is the noted time minus `now_ns`, modulo 2^42, shifted to the top of a word. The shift drops all
        // other bits of `meta`, so that no bits have to be masked. `MAX_LATE_NS` is shifted in the same way.
        let ahead = (meta >> OVERFLOW_BITS).wrapping_sub(now_ns) << TOP_SHIFT;
        if ahead > MAX_LATE_NS << TOP_SHIFT {
            self.set(META, meta & !(NEWEST << OVERFLOW_BITS) | now_ns << TOP_SHIFT >> (TOP_SHIFT - OVERFLOW_BITS));
        }
    }

    /// Returns the newest time at which token buckets in this bucket were charged. If this time is not between `now_ns`
    /// and one second later, returns `now_ns`.
    pub(super) fn newest_ns(&self, now_ns: u64) -> u64 {
        let ahead_ns = self.ahead_ns(now_ns);
        if ahead_ns > MAX_LATE_NS { now_ns } else { now_ns + ahead_ns }
    }

    /// Returns how many nanoseconds the newest time is after `now_ns`, modulo 2^42.
    #[inline]
    fn ahead_ns(&self, now_ns: u64) -> u64 {
        (self.get(META) >> OVERFLOW_BITS).wrapping_sub(now_ns) & NEWEST
    }

    /// Returns the slot of `key`. The code compares all slots without a branch, because a processor cannot predict
    /// which slot matches.
    #[inline]
    pub(super) fn find(&self, width: Width, key: Fingerprint) -> Option<usize> {
        let found = match width {
            Width::Narrow => self.scan::<3>(key, 64 - Fingerprint::LOW_BITS),
            Width::Wide => self.scan::<5>(key, 0),
        };
        (found < width.slots()).then_some(found)
    }

    /// Returns the slot of `key`, or `usize::MAX` if no slot has this key. Each slot has `SLOT` words.
    #[inline]
    fn scan<const SLOT: usize>(&self, key: Fingerprint, low_shift: u32) -> usize {
        let mut found = usize::MAX;
        for slot in 0..META / SLOT {
            let differs = (self.get(slot * SLOT) ^ key.high) | ((self.get(slot * SLOT + 1) ^ key.low) >> low_shift);
            found = if differs == 0 { slot } else { found };
        }
        found
    }

    /// Returns the first free slot, or `None` if no slot is free.
    pub(super) fn free_slot(&self, width: Width) -> Option<usize> {
        (0..width.slots()).find(|&slot| self.get(slot * width.words()) == 0)
    }

    /// Returns the bits of the fingerprint that a slot stores, or `None` if the slot is free.
    pub(super) fn fingerprint(&self, width: Width, slot: usize) -> Option<Fingerprint> {
        let word = slot * width.words();
        let (high, low) = (self.get(word), self.get(word + 1));
        let low = match width {
            Width::Narrow => low >> PAYLOAD_BITS << PAYLOAD_BITS,
            Width::Wide => low,
        };
        (high != 0).then_some(Fingerprint { high, low })
    }

    /// Returns the content of a slot that is not free. The caller must have the lock of the bucket.
    #[inline]
    pub(crate) fn content(&self, width: Width, slot: usize) -> Content {
        let word = slot * width.words();
        let time = self.get(word + 2);
        let (first, second) = match width {
            Width::Narrow => (unscaled(self.get(word + 1) & ((1 << PAYLOAD_BITS) - 1)), 0),
            Width::Wide => (self.get(word + 3), self.get(word + 4)),
        };
        if time & IN_SLAB == 0 {
            return Content::Inline { expires_at: time, first, second };
        }
        Content::InSlab { expires_at: time & !IN_SLAB, index: u32::try_from(first).unwrap_or(u32::MAX) }
    }

    /// Writes key and content of a slot. Returns false and writes nothing if a number is too large for the slot.
    #[inline]
    pub(super) fn write(&self, width: Width, slot: usize, key: Fingerprint, content: Content) -> bool {
        let (time, first, second) = match content {
            Content::Inline { expires_at, first, second } if expires_at < IN_SLAB => (expires_at, first, second),
            Content::Inline { .. } => return false,
            Content::InSlab { expires_at, index } => (expires_at.min(IN_SLAB - 1) | IN_SLAB, u64::from(index), 0),
        };
        let word = slot * width.words();
        match width {
            Width::Narrow => {
                let (Some(payload), 0) = (scaled(first), second) else { return false };
                self.set(word + 1, key.low >> PAYLOAD_BITS << PAYLOAD_BITS | payload);
            }
            Width::Wide => {
                self.set(word + 1, key.low);
                self.set(word + 3, first);
                self.set(word + 4, second);
            }
        }
        self.set(word, key.high);
        self.set(word + 2, time);
        true
    }

    /// Writes a new state into a slot that stores a state, and not an index of the slab. Returns false and writes
    /// nothing if a number is too large.
    #[inline]
    pub(crate) fn replace(&self, width: Width, slot: usize, packed: Packed) -> bool {
        let word = slot * width.words();
        if packed.expires_at >= IN_SLAB {
            return false;
        }
        match width {
            Width::Narrow => {
                let (Some(payload), 0) = (scaled(packed.first), packed.second) else { return false };
                self.set(word + 1, self.get(word + 1) >> PAYLOAD_BITS << PAYLOAD_BITS | payload);
            }
            Width::Wide => {
                self.set(word + 3, packed.first);
                self.set(word + 4, packed.second);
            }
        }
        self.set(word + 2, packed.expires_at);
        true
    }

    /// Copies a slot of `from` into a free slot of this bucket, and returns false if no slot is free.
    ///
    /// Each of the two buckets stores the newest time at which its token buckets were charged. After the copy, this
    /// bucket stores the later of the two times.
    #[inline]
    pub(super) fn copy_slot(&self, width: Width, from: &Bucket, slot: usize, now_ns: u64) -> bool {
        let Some(free) = self.free_slot(width) else { return false };
        for word in 0..width.words() {
            self.set(free * width.words() + word, from.get(slot * width.words() + word));
        }
        let (meta, other) = (self.get(META), from.get(META));
        // The request at `now_ns` can be late by up to a second. So the noted times can be up to a second after
        // `now_ns`, and an age is counted from this later time.
        let age = |meta: u64| (now_ns + MAX_LATE_NS).wrapping_sub(meta >> OVERFLOW_BITS) & NEWEST;
        if age(other) < age(meta) {
            let newest = NEWEST << OVERFLOW_BITS;
            self.set(META, meta & !newest | other & newest);
        }
        true
    }

    pub(super) fn clear(&self, width: Width, slot: usize) {
        for word in 0..width.words() {
            self.set(slot * width.words() + word, 0);
        }
    }

    /// Returns a hint whether an entry has expired. `true` and `false` can both be wrong, because the function reads
    /// without the lock.
    pub(super) fn may_have_expired(&self, width: Width, now_ns: u64) -> bool {
        let mut times = (0..width.slots()).map(|slot| self.get(slot * width.words() + 2) & !IN_SLAB);
        times.any(|time| time != 0 && has_expired(time, now_ns))
    }

    /// Makes the processor fetch both cache lines at once. The returned value has no meaning.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        self.get(0) ^ self.get(META)
    }

    /// Relaxed order is enough. A thread that reads or writes slots has the lock, and the lock orders its reads and
    /// writes.
    #[inline]
    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    /// See [`get`](Bucket::get) for the order.
    #[inline]
    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }
}
