//! Slots in an order: first in, first out, and each of them can leave from the middle.

const END: u32 = u32::MAX;
/// The link of a slot that is not in the order.
const OUT: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// A list of slots. Each slot is in it at most once. All operations take the same short time.
#[derive(Debug)]
pub(super) struct Order {
    links: Vec<Link>,
    first: u32,
    last: u32,
}

impl Order {
    /// The bytes of one slot.
    pub(super) const SLOT_BYTES: usize = size_of::<Link>();

    /// Makes an empty order, with room for so many slots.
    pub(super) fn new(room: usize) -> Order {
        Order { links: Vec::with_capacity(room), first: END, last: END }
    }

    /// Makes one more slot known, which is not in the order.
    pub(super) fn add_slot(&mut self) {
        self.links.push(Link { before: OUT, after: OUT });
    }

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != END).then_some(self.first)
    }

    pub(super) fn has(&self, slot: u32) -> bool {
        self.links[slot as usize].before != OUT
    }

    /// Puts a slot behind all others, if it is not in the order.
    pub(super) fn push(&mut self, slot: u32) {
        if self.has(slot) {
            return;
        }
        self.links[slot as usize] = Link { before: self.last, after: END };
        match self.last {
            END => self.first = slot,
            last => self.links[last as usize].after = slot,
        }
        self.last = slot;
    }

    /// Takes a slot out, if it is in the order.
    pub(super) fn remove(&mut self, slot: u32) {
        if !self.has(slot) {
            return;
        }
        let Link { before, after } = self.links[slot as usize];
        match before {
            END => self.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            END => self.last = before,
            after => self.links[after as usize].before = before,
        }
        self.links[slot as usize] = Link { before: OUT, after: OUT };
    }
}
