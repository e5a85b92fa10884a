//! The atomics of the memory store's table and of the sketches.
//!
//! The table and the sketches import atomics only from this file. Loom, a model checker for threads, can therefore
//! replace these atomics when it checks the locks (`tests/model.rs` in `memory/shards/` and in `sketch/`).

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// A thread that waits for a lock spins this many times. Then it yields the processor, because the thread that has the
/// lock may be waiting for a processor.
#[cfg(not(loom))]
const SPINS: u32 = 64;

/// Waits a short time after `tries` attempts to get a lock.
#[cfg(not(loom))]
pub(crate) fn relax(tries: u32) {
    if tries < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Without a yield, loom would let a thread that waits spin without end.
#[cfg(loom)]
pub(crate) fn relax(_: u32) {
    loom::thread::yield_now();
}

/// Runs `model` in all orders of its threads that have at most `preemptions` preemptions. A preemption switches away
/// from a thread that could continue. For a short run, the environment variable PREEMPTIONS_MAX lowers the number.
#[cfg(all(test, loom))]
pub(crate) fn in_all_orders(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let most =
        std::env::var("PREEMPTIONS_MAX").map_or(preemptions, |most| most.parse().expect("PREEMPTIONS_MAX is a number"));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions.min(most));
    builder.max_branches = 10_000;
    builder.check(model);
}
