//! A part of the callers of a limit, which one lock protects.
//!
//! The hash of a caller chooses its shard. Threads that count different callers therefore seldom wait for each other.

use super::counts::{SLOT_NS, Slot, Slots};
use super::model::Model;
use super::reading::{CallerName, Span, TopCallers};
use super::sample::Sample;
use super::top::Top;
use super::{LONGEST_SPAN_NS, Take};

/// The callers of one shard.
#[derive(Debug)]
pub(super) struct Shard {
    sample: Sample,
    allowed: Top,
    refused: Top,
    /// The counts of the slot of time that is now.
    slot: Slot,
    slot_ns: u64,
}

impl Shard {
    pub(super) fn new(callers: usize, named: bool) -> Shard {
        Shard {
            sample: Sample::new(callers),
            allowed: Top::new(named),
            refused: Top::new(named),
            slot: Slot::default(),
            slot_ns: 0,
        }
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
        // A clock that is set back by more than all spans was wrong before, and so is all that was counted.
        if self.slot_ns > now_ns + LONGEST_SPAN_NS {
            self.clear();
        }
        let ended = (now_ns >= self.slot_ns + SLOT_NS).then(|| {
            let began_ns = std::mem::replace(&mut self.slot_ns, now_ns - now_ns % SLOT_NS);
            (began_ns, std::mem::take(&mut self.slot))
        });
        self.slot.count(take.units, take.refused.then_some(take.wait));
        self.sample.count(model, now_ns, hash, take);
        if take.units > 0 {
            let top = if take.refused { &mut self.refused } else { &mut self.allowed };
            top.add(now_ns, hash, take.units, name);
        }
        ended
    }

    #[cold]
    fn clear(&mut self) {
        self.sample.clear();
        self.allowed.clear();
        self.refused.clear();
        (self.slot, self.slot_ns) = (Slot::default(), 0);
    }

    /// Adds the counts of the slot that has not ended to `slots`.
    pub(super) fn flush(&mut self, slots: &mut Slots, now_ns: u64) {
        slots.add(self.slot_ns, &std::mem::take(&mut self.slot), now_ns);
    }

    pub(super) fn read(&mut self, model: &Model, now_ns: u64, spans: &mut [Span], tops: [&mut TopCallers; 2]) {
        for (index, span) in spans.iter_mut().enumerate() {
            self.sample.read(model, now_ns, index, &mut span.sampled);
        }
        let [allowed, refused] = tops;
        self.allowed.read(now_ns, allowed);
        self.refused.read(now_ns, refused);
    }
}
