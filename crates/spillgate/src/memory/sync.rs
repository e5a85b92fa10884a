//! The atomics of the table, which the model checker replaces.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};

/// Spins before the processor is given to others, one of whom may hold the lock.
#[cfg(not(loom))]
const SPINS: u32 = 64;

/// Waits a moment for somebody else's short work.
#[cfg(not(loom))]
pub(super) fn relax(tries: u32) {
    if tries < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

#[cfg(loom)]
pub(super) fn relax(_: u32) {
    loom::thread::yield_now();
}
