//! Finds the slot of an entry by its name.
//!
//! The table has one size for its whole life, so no request waits while it grows, and a slot costs 8 to 16 bytes.

use spillgate_core::Span;

/// What an entry counts: the units of one state in one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// [`Hit::state_key`](spillgate_core::Hit::state_key): bits that a secret has mixed.
    pub(super) state: u128,
    pub(super) span: Span,
}

/// A hash table with open addressing. It holds at most half as many slots as it has places.
#[derive(Debug)]
pub(super) struct Index {
    /// A slot plus 1, or 0 if the place is free.
    places: Vec<u32>,
}

impl Index {
    /// The most bytes for one slot of a full table.
    pub(super) const SLOT_BYTES: usize = 4 * size_of::<u32>();

    /// Makes a table for so many slots. The operating system gives memory to its parts when they are used.
    pub(super) fn new(room: usize) -> Index {
        Index { places: vec![0; (room * 2).next_power_of_two()] }
    }

    /// The first place of a name. The key of the state is well mixed already. The span is mixed in, because the spans of
    /// one state would have the same place.
    fn home(&self, name: &Name) -> usize {
        let mixed = (name.state as u64) ^ (name.span.start_ns ^ name.span.length_ns.rotate_left(32)).wrapping_mul(MIX);
        (mixed.wrapping_mul(MIX) >> 32) as usize & (self.places.len() - 1)
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// Returns the slot of this name. `name_of` returns the name of a slot.
    pub(super) fn get(&self, name: &Name, name_of: impl Fn(u32) -> Name) -> Option<u32> {
        let mut place = self.home(name);
        while let Some(slot) = self.places[place].checked_sub(1) {
            if name_of(slot) == *name {
                return Some(slot);
            }
            place = self.next(place);
        }
        None
    }

    /// Adds the slot of a name that has none.
    pub(super) fn insert(&mut self, name: &Name, slot: u32) {
        let mut place = self.home(name);
        while self.places[place] != 0 {
            place = self.next(place);
        }
        self.places[place] = slot + 1;
    }

    /// Removes the slot of this name. Slots behind it move up, so that a search never meets a gap before its slot.
    pub(super) fn remove(&mut self, name: &Name, slot: u32, name_of: impl Fn(u32) -> Name) {
        let mut gap = self.home(name);
        while self.places[gap] != slot + 1 {
            gap = self.next(gap);
        }
        let mut place = self.next(gap);
        while let Some(slot) = self.places[place].checked_sub(1) {
            let home = self.home(&name_of(slot));
            let mask = self.places.len() - 1;
            // The slot may move to the gap if the gap is not before its home.
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(gap) & mask) {
                self.places[gap] = slot + 1;
                gap = place;
            }
            place = self.next(place);
        }
        self.places[gap] = 0;
    }
}

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
