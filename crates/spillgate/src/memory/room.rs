//! How many keys and bytes there may be, and are.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The store's two bounds. Written to only when keys come and go or large states change their size.
#[derive(Debug)]
pub(super) struct Room {
    max_keys: usize,
    max_heap_bytes: usize,
    keys: AtomicUsize,
    heap_bytes: AtomicUsize,
}

impl Room {
    pub(super) fn new(max_keys: usize, max_heap_bytes: usize) -> Room {
        Room { max_keys, max_heap_bytes, keys: AtomicUsize::new(0), heap_bytes: AtomicUsize::new(0) }
    }

    /// Takes the place of one key, if there is one.
    pub(super) fn take_key(&self) -> bool {
        let taken = self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys;
        if !taken {
            self.give_back_key();
        }
        taken
    }

    pub(super) fn give_back_key(&self) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a large state may grow.
    pub(super) fn has_bytes(&self) -> bool {
        self.heap_bytes.load(Ordering::Relaxed) < self.max_heap_bytes
    }

    /// A large state went from one size to another.
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
