//! The atomics of the table.
//!
//! They are imported here only, so that loom can replace them when it checks the locks (`tests/model.rs`).

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};

/// A thread spins this many times before it yields the processor: the thread that has the lock may be waiting for it.
#[cfg(not(loom))]
const SPINS: u32 = 64;

/// Waits a short time after `tries` attempts to get a lock.
#[cfg(not(loom))]
pub(super) fn relax(tries: u32) {
    if tries < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Under loom a thread that waits always yields.
#[cfg(loom)]
pub(super) fn relax(_: u32) {
    loom::thread::yield_now();
}
