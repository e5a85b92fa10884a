//! The budget of the store: how many keys and bytes it has, and how many it may have.
//!
//! One budget counts for all shards together, so that the bounds of [`MemoryOptions`](super::MemoryOptions) are exact.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The two bounds of a store, and what is in use.
///
/// A decision on a known key in its slot does not write to it. Otherwise all threads would wait for this one cache
/// line.
#[derive(Debug)]
pub(super) struct Budget {
    max_keys: usize,
    max_heap_bytes: usize,
    /// The entries in all shards.
    keys: AtomicUsize,
    /// The bytes of the states in all slabs.
    heap_bytes: AtomicUsize,
}

impl Budget {
    /// An unused budget.
    pub(super) fn new(max_keys: usize, max_heap_bytes: usize) -> Budget {
        Budget { max_keys, max_heap_bytes, keys: AtomicUsize::new(0), heap_bytes: AtomicUsize::new(0) }
    }

    /// Counts one more key, and returns false if there are `max_keys` already.
    ///
    /// The count may exceed the bound for an instant, but no caller gets a key above it.
    pub(super) fn add_key(&self) -> bool {
        let fits = self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys;
        if !fits {
            self.remove_key();
        }
        fits
    }

    /// Counts one key less.
    pub(super) fn remove_key(&self) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a state in a slab may grow.
    ///
    /// The bytes are counted only after the growth. Several threads can therefore see the last free bytes, and each can
    /// grow one state.
    pub(super) fn has_bytes(&self) -> bool {
        self.heap_bytes.load(Ordering::Relaxed) < self.max_heap_bytes
    }

    /// Counts that a state in a slab changed from one size to another, in bytes.
    pub(super) fn resize(&self, from: usize, to: usize) {
        if to >= from {
            self.heap_bytes.fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.heap_bytes.fetch_sub(from - to, Ordering::Relaxed);
        }
    }

    /// The bytes in use.
    #[cfg(all(test, not(loom)))]
    pub(super) fn heap_bytes(&self) -> usize {
        self.heap_bytes.load(Ordering::Relaxed)
    }
}
