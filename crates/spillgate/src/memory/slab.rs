//! States that own memory or do not fit a slot: logs, several segments, leases, penalties.

use spillgate_core::State;

/// States are allocated in blocks of so many: none is ever moved for others to come.
const BLOCK: usize = u64::BITS as usize;

/// The states of one shard, by an index that its slots keep.
#[derive(Debug, Default)]
pub(super) struct Slab {
    blocks: Vec<Block>,
    /// No block before this one has a free place.
    first_free: usize,
}

#[derive(Debug)]
struct Block {
    /// Those that were ever in use; there is room for all, so that none is moved.
    states: Vec<State>,
    /// One bit for each place.
    free: u64,
}

impl Default for Block {
    fn default() -> Self {
        Block { states: Vec::with_capacity(BLOCK), free: u64::MAX }
    }
}

impl Slab {
    /// What a state costs here, in bytes.
    pub(super) fn bytes(state: &State) -> usize {
        size_of::<State>() + state.heap_bytes()
    }

    /// A place; its state is none.
    pub(super) fn reserve(&mut self) -> u32 {
        while self.blocks.get(self.first_free).is_some_and(|block| block.free == 0) {
            self.first_free += 1;
        }
        if self.first_free == self.blocks.len() {
            self.blocks.push(Block::default());
        }
        let Block { states, free } = &mut self.blocks[self.first_free];
        let place = free.trailing_zeros() as usize;
        *free &= *free - 1;
        if place == states.len() {
            // The lowest free place comes first, so it is one of these or the next.
            states.push(State::default());
        }
        u32::try_from(self.first_free * BLOCK + place).expect("a shard has far fewer keys than 2^32")
    }

    /// The state, to be [`put`](Slab::put) back.
    pub(super) fn take(&mut self, index: u32) -> State {
        std::mem::take(self.state(index))
    }

    pub(super) fn put(&mut self, index: u32, state: State) {
        *self.state(index) = state;
    }

    pub(super) fn get(&self, index: u32) -> &State {
        &self.blocks[index as usize / BLOCK].states[index as usize % BLOCK]
    }

    fn state(&mut self, index: u32) -> &mut State {
        &mut self.blocks[index as usize / BLOCK].states[index as usize % BLOCK]
    }

    /// Frees the place, and the last blocks if nothing is left in them.
    pub(super) fn remove(&mut self, index: u32) -> State {
        let state = self.take(index);
        let block = index as usize / BLOCK;
        self.blocks[block].free |= 1 << (index as usize % BLOCK);
        self.first_free = self.first_free.min(block);
        while self.blocks.pop_if(|last| last.free == u64::MAX).is_some() {}
        if self.blocks.capacity() > 4 * self.blocks.len() {
            self.blocks.shrink_to(2 * self.blocks.len());
        }
        state
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_once_used_again_and_given_back() {
        let mut slab = Slab::default();
        let places: Vec<u32> = (0..200).map(|_| slab.reserve()).collect();
        assert_eq!(places, (0..200).collect::<Vec<u32>>());
        for place in [70, 3, 199, 130] {
            slab.remove(place);
        }
        let again: Vec<u32> = (0..5).map(|_| slab.reserve()).collect();
        assert_eq!(again, [3, 70, 130, 199, 200]);
        for place in 0..=200 {
            slab.remove(place);
        }
        assert_eq!((slab.blocks.len(), slab.blocks.capacity()), (0, 0));
        assert_eq!(slab.reserve(), 0);
    }

    #[test]
    fn a_block_that_is_dropped_leaves_none_of_its_places_behind() {
        let mut slab = Slab::default();
        for _ in 0..130 {
            slab.reserve();
        }
        for place in 64..130 {
            slab.remove(place);
        }
        assert_eq!(slab.blocks.len(), 1);
        assert_eq!((slab.reserve(), slab.reserve()), (64, 65));
        slab.remove(5);
        assert_eq!((slab.reserve(), slab.reserve()), (5, 66));
    }
}
