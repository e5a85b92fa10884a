//! The atomics of the memory store's table and of the sketches.
//!
//! The table and the sketches import atomics only from this file. Loom, a model checker for threads, can therefore
//! replace these atomics when it checks the locks (`tests/model.rs` in `memory/shards/` and in `sketch/`).

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// A thread that waits for a lock spins this many times. Then it yields the processor, because the thread that has the
/// lock is perhaps waiting for a processor.
#[cfg(not(loom))]
const SPINS: u32 = 64;

/// Waits a short time after `tries` attempts to get a lock.
#[cfg(not(loom))]
pub(crate) fn relax(tries: u32) {
    if tries < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Under loom a thread that waits always yields.
#[cfg(loom)]
pub(crate) fn relax(_: u32) {
    loom::thread::yield_now();
}
