//! A bucket of slots behind a lock of its own, all in two neighbouring cache lines.
//!
//! Lock, fingerprints and states share the lines on purpose: a decision then waits for memory
//! once, and two threads meet only where they want the same bucket.

use spillgate_core::{MAX_LATE_NS, Packed, Time};

use super::fingerprint::Fingerprint;
use super::sync::{AtomicU64, Ordering, relax};

const WORDS: usize = 16;
/// The last word: lock, moved, the newest time, and how many entries have passed.
const META: usize = WORDS - 1;
const LOCKED: u64 = 1 << 63;
/// The bucket's entries are in a newer table; nobody gets this lock any more.
const MOVED: u64 = 1 << 62;
/// Of the count of entries that have passed: a chain is shorter than a thousand.
const PASSED_BITS: u32 = 20;
const PASSED: u64 = (1 << PASSED_BITS) - 1;
/// The lowest bits of the newest time at which a token bucket here was charged, in nanoseconds. They repeat every 73
/// minutes. So a time that was noted longer ago may seem to lie ahead of a request, by a second at most. That happens to
/// one request in 4000, and a charge under another T then leaves up to a second of the debt at the old T.
const NEWEST: u64 = (1 << 42) - 1;
const TOP_SHIFT: u32 = NEWEST.leading_zeros();

/// How many words a slot has, and so how many slots a bucket: five or three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// Three words: 88 bits of fingerprint, 40 of payload, and a time.
    Narrow,
    /// Five words: 128 bits of fingerprint, a time, and two payloads.
    Wide,
}

impl Width {
    pub(super) const fn slots(self) -> usize {
        match self {
            Width::Narrow => 5,
            Width::Wide => 3,
        }
    }

    const fn words(self) -> usize {
        match self {
            Width::Narrow => 3,
            Width::Wide => 5,
        }
    }
}

/// What a slot holds beside the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The state itself: when it expires (below 2^63, not 0), and its two integers.
    Inline { expires_at: u64, first: u64, second: u64 },
    /// When it expires (below 2^63), and where in the slab of its shard the state lies.
    Boxed { expires_at: u64, index: u32 },
}

impl Content {
    /// Whether the state equals none at `now_ns`.
    pub(super) fn has_expired(self, now_ns: u64) -> bool {
        let (Content::Inline { expires_at, .. } | Content::Boxed { expires_at, .. }) = self;
        has_expired(expires_at, now_ns)
    }
}

/// Of the word of time.
const BOXED: u64 = 1 << 63;
const PAYLOAD_BITS: u32 = 40;
/// A payload of a narrow slot is a number below 2^38, times 10^(3 * its scale).
const SCALE_SHIFT: u32 = PAYLOAD_BITS - 2;

#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Bucket {
    words: [AtomicU64; WORDS],
}

/// The bucket belongs to a table that has been replaced.
#[derive(Debug)]
pub(super) struct Moved;

impl Bucket {
    /// Waits for the lock; whoever has it calls [`unlock`](Bucket::unlock).
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

    /// In place of an unlock, after the entries were copied elsewhere.
    pub(super) fn unlock_as_moved(&self) {
        self.words[META].store(MOVED, Ordering::Release);
    }

    /// How many entries belong to this bucket or one before it, and lie in one after it.
    #[inline]
    pub(super) fn passed(&self) -> u64 {
        self.get(META) & PASSED
    }

    /// Remembers that a token bucket was charged at `now_ns`; a time less than a second before the newest is late.
    #[inline]
    pub(super) fn note_time(&self, now_ns: u64) {
        let meta = self.get(META);
        // Compared at the top of the word, where nothing has to be masked.
        let ahead = (meta >> PASSED_BITS).wrapping_sub(now_ns) << TOP_SHIFT;
        if ahead > MAX_LATE_NS << TOP_SHIFT {
            self.set(META, meta & !(NEWEST << PASSED_BITS) | now_ns << TOP_SHIFT >> (TOP_SHIFT - PASSED_BITS));
        }
    }

    /// The newest time that token buckets here were charged at, if `now_ns` is less than a second before it; else `now_ns`.
    pub(super) fn newest_ns(&self, now_ns: u64) -> u64 {
        let ahead_ns = self.ahead_ns(now_ns);
        if ahead_ns > MAX_LATE_NS { now_ns } else { now_ns + ahead_ns }
    }

    #[inline]
    fn ahead_ns(&self, now_ns: u64) -> u64 {
        (self.get(META) >> PASSED_BITS).wrapping_sub(now_ns) & NEWEST
    }

    pub(super) fn note_passing(&self) {
        self.set(META, self.get(META) + 1);
    }

    pub(super) fn note_removal(&self) {
        debug_assert!(self.passed() > 0, "it has passed");
        self.set(META, self.get(META) - 1);
    }

    /// The slot of `key`. All slots are compared without a branch: which one matches cannot be predicted.
    #[inline]
    pub(super) fn find(&self, width: Width, key: Fingerprint) -> Option<usize> {
        let found = match width {
            Width::Narrow => self.scan::<3>(key, 64 - Fingerprint::LOW_BITS),
            Width::Wide => self.scan::<5>(key, 0),
        };
        (found < width.slots()).then_some(found)
    }

    #[inline]
    fn scan<const SLOT: usize>(&self, key: Fingerprint, low_shift: u32) -> usize {
        let mut found = usize::MAX;
        for slot in 0..META / SLOT {
            let differs = (self.get(slot * SLOT) ^ key.high) | ((self.get(slot * SLOT + 1) ^ key.low) >> low_shift);
            found = if differs == 0 { slot } else { found };
        }
        found
    }

    pub(super) fn free_slot(&self, width: Width) -> Option<usize> {
        (0..width.slots()).find(|&slot| self.get(slot * width.words()) == 0)
    }

    /// The fingerprint in a slot, as far as it is kept; `None` if the slot is free.
    pub(super) fn fingerprint(&self, width: Width, slot: usize) -> Option<Fingerprint> {
        let at = slot * width.words();
        let (high, low) = (self.get(at), self.get(at + 1));
        let low = match width {
            Width::Narrow => low >> PAYLOAD_BITS << PAYLOAD_BITS,
            Width::Wide => low,
        };
        (high != 0).then_some(Fingerprint { high, low })
    }

    #[inline]
    pub(super) fn content(&self, width: Width, slot: usize) -> Content {
        let at = slot * width.words();
        let time = self.get(at + 2);
        let (first, second) = match width {
            Width::Narrow => (unscaled(self.get(at + 1) & ((1 << PAYLOAD_BITS) - 1)), 0),
            Width::Wide => (self.get(at + 3), self.get(at + 4)),
        };
        if time & BOXED == 0 {
            return Content::Inline { expires_at: time, first, second };
        }
        Content::Boxed { expires_at: time & !BOXED, index: u32::try_from(first).unwrap_or(u32::MAX) }
    }

    /// Writes the slot; false, and nothing is written, if a number is too large for it.
    #[inline]
    pub(super) fn write(&self, width: Width, slot: usize, key: Fingerprint, content: Content) -> bool {
        let (time, first, second) = match content {
            Content::Inline { expires_at, first, second } if expires_at < BOXED => (expires_at, first, second),
            Content::Inline { .. } => return false,
            Content::Boxed { expires_at, index } => (expires_at.min(BOXED - 1) | BOXED, u64::from(index), 0),
        };
        let at = slot * width.words();
        match width {
            Width::Narrow => {
                let (Some(payload), 0) = (scaled(first), second) else { return false };
                self.set(at + 1, key.low >> PAYLOAD_BITS << PAYLOAD_BITS | payload);
            }
            Width::Wide => {
                self.set(at + 1, key.low);
                self.set(at + 3, first);
                self.set(at + 4, second);
            }
        }
        self.set(at, key.high);
        self.set(at + 2, time);
        true
    }

    /// Writes the state of a slot that holds one itself; false, and nothing is written, if a number is too large for it.
    #[inline]
    pub(super) fn replace(&self, width: Width, slot: usize, packed: Packed) -> bool {
        let at = slot * width.words();
        if packed.expires_at >= BOXED {
            return false;
        }
        match width {
            Width::Narrow => {
                let (Some(payload), 0) = (scaled(packed.first), packed.second) else { return false };
                self.set(at + 1, self.get(at + 1) >> PAYLOAD_BITS << PAYLOAD_BITS | payload);
            }
            Width::Wide => {
                self.set(at + 3, packed.first);
                self.set(at + 4, packed.second);
            }
        }
        self.set(at + 2, packed.expires_at);
        true
    }

    /// Copies a slot of `from` as it is into a free one of this bucket; false if there is none. This bucket
    /// then keeps the newer of both newest times.
    #[inline]
    pub(super) fn copy_slot(&self, width: Width, from: &Bucket, slot: usize, now_ns: u64) -> bool {
        let Some(free) = self.free_slot(width) else { return false };
        for word in 0..width.words() {
            self.set(free * width.words() + word, from.get(slot * width.words() + word));
        }
        let (meta, other) = (self.get(META), from.get(META));
        // Requests may be ahead of this one by as much as they may be late.
        let age = |meta: u64| (now_ns + MAX_LATE_NS).wrapping_sub(meta >> PASSED_BITS) & NEWEST;
        if age(other) < age(meta) {
            let newest = NEWEST << PASSED_BITS;
            self.set(META, meta & !newest | other & newest);
        }
        true
    }

    pub(super) fn clear(&self, width: Width, slot: usize) {
        for word in 0..width.words() {
            self.set(slot * width.words() + word, 0);
        }
    }

    /// Whether some entry may have expired, for those who have no lock: they may be told what was never so.
    pub(super) fn may_have_expired(&self, width: Width, now_ns: u64) -> bool {
        let mut times = (0..width.slots()).map(|slot| self.get(slot * width.words() + 2) & !BOXED);
        times.any(|time| time != 0 && has_expired(time, now_ns))
    }

    /// Asks for both lines at once; the values only have to arrive some time.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        self.get(0) ^ self.get(META)
    }

    // Whoever reads or writes slots has the lock, which orders all of it.
    #[inline]
    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }
}

/// Whether what expires at `time_ns` equals no state at `now_ns`. The last of all times stands for any after it,
/// too: what a slot cannot tell from that is kept.
fn has_expired(time_ns: u64, now_ns: u64) -> bool {
    time_ns <= now_ns && time_ns < Time::MAX.as_nanos()
}

const SCALES: [u64; 4] = [1, 1_000, 1_000_000, 1_000_000_000];

/// Any number below 2^38 (10^11 units, and all that is packed of a bucket), and round larger ones.
#[inline]
fn scaled(value: u64) -> Option<u64> {
    if value >> SCALE_SHIFT == 0 {
        return Some(value);
    }
    (1..SCALES.len()).find_map(|scale| {
        let whole = value.is_multiple_of(SCALES[scale]).then(|| value / SCALES[scale])?;
        (whole >> SCALE_SHIFT == 0).then_some((scale as u64) << SCALE_SHIFT | whole)
    })
}

#[inline]
fn unscaled(payload: u64) -> u64 {
    (payload & ((1 << SCALE_SHIFT) - 1)) * SCALES[(payload >> SCALE_SHIFT) as usize & 3]
}
