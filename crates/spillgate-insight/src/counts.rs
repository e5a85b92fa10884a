//! What a limit did: how many requests and units were allowed and refused, and how long refused callers have to wait.
//!
//! Counts are kept in slots of time. A longer span has longer slots, so an hour needs no more slots than a minute.

use spillgate_core::Reason;

use super::model::Model;
use super::reading::Counts;
use super::waits::Waits;
use super::{SPANS_NS, Take};

/// The number of slots for each span. A span is as long as six slots, but it touches seven if it begins within a slot.
const SLOTS: usize = 7;
/// The length of the slots of the shortest span, in nanoseconds: 10 s.
pub(super) const SLOT_NS: u64 = slot_ns(0);

/// Returns the length of the slots of the span `SPANS_NS[span]`, in nanoseconds.
const fn slot_ns(span: usize) -> u64 {
    SPANS_NS[span] / (SLOTS as u64 - 1)
}

/// The counts of one slot of time. `used` and all of `counts` but its last two numbers, which most takes change, are in
/// one cache line.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct Slot {
    /// The most units of the limit that any caller used at one time, whether the caller is in the sample or not.
    pub(super) used: u64,
    pub(super) counts: Counts,
    pub(super) waits: Waits,
}

impl Slot {
    #[inline]
    pub(super) fn count(&mut self, model: &Model, take: &Take) {
        let counts = &mut self.counts;
        counts.requests += 1;
        counts.units = counts.units.saturating_add(take.units);
        if !take.refused {
            self.used = self.used.max(take.used());
            if take.is_refused_elsewhere() {
                counts.refused_elsewhere_requests += 1;
            }
        } else {
            counts.refused_requests += 1;
            counts.refused_units = counts.refused_units.saturating_add(take.units);
            if take.is_oversized(model) {
                counts.oversized_requests += 1;
                counts.oversized_units = counts.oversized_units.saturating_add(take.units);
            }
            counts.unwaited_requests += u64::from(take.reason == Reason::WaitTooLong);
            counts.unenforced_requests += u64::from(!take.enforced);
            self.waits.add(take.wait);
        }
    }

    pub(super) fn merge(&mut self, other: &Slot) {
        self.counts.merge(&other.counts);
        self.used = self.used.max(other.used);
        self.waits.merge(&other.waits);
    }
}

#[derive(Debug)]
pub(super) struct Slots {
    rings: [Box<[(u64, Slot)]>; SPANS_NS.len()],
}

impl Slots {
    pub(super) fn new() -> Slots {
        Slots { rings: std::array::from_fn(|_| vec![(0, Slot::default()); SLOTS].into()) }
    }

    pub(super) fn clear(&mut self) {
        self.rings.iter_mut().for_each(|ring| ring.fill((0, Slot::default())));
    }

    /// Adds the counts of a slot of the shortest span to all spans. The slot contains the time `at_ns`.
    pub(super) fn add(&mut self, at_ns: u64, slot: &Slot) {
        for (span, ring) in self.rings.iter_mut().enumerate() {
            let number = at_ns / slot_ns(span);
            let (there, counts) = &mut ring[number as usize % SLOTS];
            if *there < number {
                (*there, *counts) = (number, Slot::default());
            }
            // A slot that is older than all slots that are kept is not counted.
            if *there == number {
                counts.merge(slot);
            }
        }
    }

    /// Returns the counts of the span `SPANS_NS[span]`, which ends at `now_ns`. The counts can cover up to one slot
    /// more than the span. If `now_ns` is the last nanosecond of a slot, they cover exactly the span.
    pub(super) fn read(&self, now_ns: u64, span: usize) -> Slot {
        // 1 is added because the nanosecond `now_ns` belongs to the span.
        let first = now_ns.saturating_add(1).saturating_sub(SPANS_NS[span]) / slot_ns(span);
        let mut sum = Slot::default();
        for (number, slot) in &self.rings[span] {
            if (first..=now_ns / slot_ns(span)).contains(number) {
                sum.merge(slot);
            }
        }
        sum
    }
}
