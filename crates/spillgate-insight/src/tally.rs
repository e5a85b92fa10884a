//! The counts that one thread, or a few threads, have made for a limit.
//!
//! Most threads have a tally of their own. So they seldom wait for each other, and the counts stay in the cache of one
//! processor core. A limit with a small sample has fewer tallies, so that it needs less memory. A reading adds up the
//! tallies.

use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::Take;
use super::counts::{SLOT_NS, Slot, Slots};
use super::model::Model;
use super::name::CallerName;
use super::reading::TopCallers;
use super::top::Top;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of this thread. Threads are numbered in the order in which they first count.
#[inline]
pub(super) fn thread_number() -> usize {
    NUMBER.with(|number| *number)
}

/// Returns how many threads can run at the same time.
pub(super) fn threads() -> usize {
    static THREADS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));
    *THREADS
}

/// The counts of one thread or a few threads. Tallies are in different cache lines, so that threads do not slow each
/// other down.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Tally {
    allowed: Top,
    refused: Top,
    /// The counts of the current slot of time.
    slot: Slot,
    slot_ns: u64,
    /// The time of the newest take.
    newest_ns: u64,
}

impl Tally {
    pub(super) fn new(named: bool) -> Tally {
        Tally { allowed: Top::new(named), refused: Top::new(named), slot: Slot::default(), slot_ns: 0, newest_ns: 0 }
    }

    /// Counts a take. If a slot of time ended, returns when it began, and its counts.
    #[inline]
    pub(super) fn count(
        &mut self,
        model: &Model,
        now_ns: u64,
        hash: u64,
        take: &Take,
        name: impl FnOnce() -> CallerName,
    ) -> Option<(u64, Slot)> {
        self.newest_ns = self.newest_ns.max(now_ns);
        let ended = (now_ns >= self.slot_ns.saturating_add(SLOT_NS)).then(|| {
            let began_ns = std::mem::replace(&mut self.slot_ns, now_ns - now_ns % SLOT_NS);
            (began_ns, std::mem::take(&mut self.slot))
        });
        self.slot.count(model, take);
        if take.units > 0 && !take.is_oversized(model) {
            if take.is_refused_elsewhere() {
                self.allowed.add_elsewhere(now_ns, take.units);
            } else {
                let top = if take.refused { &mut self.refused } else { &mut self.allowed };
                top.add(now_ns, hash, take.units, name);
            }
        }
        ended
    }

    pub(super) const fn newest_ns(&self) -> u64 {
        self.newest_ns
    }

    pub(super) fn keep_names(&mut self, named: bool) {
        self.allowed.keep_names(named);
        self.refused.keep_names(named);
    }

    pub(super) fn clear(&mut self) {
        self.allowed.clear();
        self.refused.clear();
        (self.slot, self.slot_ns, self.newest_ns) = (Slot::default(), 0, 0);
    }

    /// Moves the counts of the current slot to `slots`.
    pub(super) fn flush(&mut self, slots: &mut Slots) {
        slots.add(self.slot_ns, &std::mem::take(&mut self.slot));
    }

    /// Does what [`flush`](Tally::flush) does, and adds the callers with the most units to `tops`.
    pub(super) fn read(&mut self, now_ns: u64, slots: &mut Slots, tops: [&mut TopCallers; 2]) {
        self.flush(slots);
        let [allowed, refused] = tops;
        self.allowed.read(now_ns, allowed);
        self.refused.read(now_ns, refused);
    }
}
