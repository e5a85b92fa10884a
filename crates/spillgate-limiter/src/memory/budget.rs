//! The budget of the memory store: its maximum numbers of keys and bytes, and the numbers in use.
//!
//! All shards share one budget, because the bounds of [`MemoryOptions`](super::MemoryOptions) apply to the whole store.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The numbers in use, and their bounds. A decision on a known key usually does not write to the budget, because all
/// threads would compete for its one cache line.
#[derive(Debug)]
pub(super) struct Budget {
    max_keys: usize,
    max_heap_bytes: usize,
    /// The number of entries in all shards.
    keys: AtomicUsize,
    /// The number of bytes of the states in all slabs. Each shard has a slab, a list of the states that do not fit a
    /// slot of its table.
    heap_bytes: AtomicUsize,
    /// The number of entries that were removed because they had expired.
    expired: AtomicU64,
    /// The bytes that the program uses elsewhere. They count as a part of `max_heap_bytes`.
    reserved_bytes: AtomicUsize,
}

impl Budget {
    pub(super) fn new(max_keys: usize, max_heap_bytes: usize) -> Budget {
        Budget {
            max_keys,
            max_heap_bytes,
            keys: AtomicUsize::new(0),
            heap_bytes: AtomicUsize::new(0),
            expired: AtomicU64::new(0),
            reserved_bytes: AtomicUsize::new(0),
        }
    }

    pub(super) const fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Counts one more key. If there are `max_keys` keys already, counts nothing and returns false.
    ///
    /// The count can exceed the bound for an instant, but the function never returns true for a key above the bound.
    pub(super) fn add_key(&self) -> bool {
        let fits = self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys;
        if !fits {
            self.remove_key();
        }
        fits
    }

    pub(super) fn remove_key(&self) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one key less, because it had expired.
    pub(super) fn remove_expired_key(&self) {
        self.expired.fetch_add(1, Ordering::Relaxed);
        self.remove_key();
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Returns whether a state in a slab is allowed to grow.
    ///
    /// The bytes are counted only after the growth. Several threads can therefore see the same free bytes. If each of
    /// these threads then grows one state, the states together can have more than `max_heap_bytes` bytes.
    pub(super) fn has_bytes(&self) -> bool {
        let used = self.heap_bytes.load(Ordering::Relaxed).saturating_add(self.reserved_bytes.load(Ordering::Relaxed));
        used < self.max_heap_bytes
    }

    pub(super) fn reserve(&self, bytes: usize) {
        self.reserved_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts that the size of a state in a slab changed from `from` bytes to `to` bytes.
    pub(super) fn resize(&self, from: usize, to: usize) {
        if to >= from {
            self.heap_bytes.fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.heap_bytes.fetch_sub(from - to, Ordering::Relaxed);
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn heap_bytes(&self) -> usize {
        self.heap_bytes.load(Ordering::Relaxed)
    }
}
