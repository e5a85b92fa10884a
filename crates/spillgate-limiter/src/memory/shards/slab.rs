//! The slab of a shard: states that do not fit a slot.
//!
//! Such states are, for example, logs, counters of several segments, leases, states under a penalty, and very large
//! counts. A slot of the table stores only the index of such a state. So every slot has the same size, and a bucket
//! always fits two cache lines.

use spillgate_core::State;

/// States are allocated in blocks of this many states. A slab grows by whole blocks, so no state is copied.
const BLOCK: usize = u64::BITS as usize;

/// The states of one shard that are not in slots, each with an index.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    /// The state of index i is in block i / 64.
    blocks: Vec<Block>,
    /// A search for a free index begins at the block with this index, because no earlier block has a free index.
    first_free: usize,
}

/// The states of 64 neighbouring indices.
#[derive(Debug)]
struct Block {
    /// One state for each index that was ever used. The capacity is enough for 64 states, so that no state is ever
    /// moved.
    states: Vec<State>,
    /// One bit for each index; 1 means free.
    free: u64,
}

impl Default for Block {
    fn default() -> Self {
        Block { states: Vec::with_capacity(BLOCK), free: u64::MAX }
    }
}

impl Slab {
    /// Returns how many bytes a state takes in the slab, including its memory on the heap.
    pub(crate) fn bytes(state: &State) -> usize {
        size_of::<State>() + state.heap_bytes()
    }

    /// Allocates an index, with an empty state.
    pub(crate) fn allocate(&mut self) -> u32 {
        while self.blocks.get(self.first_free).is_some_and(|block| block.free == 0) {
            self.first_free += 1;
        }
        if self.first_free == self.blocks.len() {
            self.blocks.push(Block::default());
        }
        let Block { states, free } = &mut self.blocks[self.first_free];
        let index = free.trailing_zeros() as usize;
        *free &= *free - 1;
        if index == states.len() {
            // The lowest free index is allocated first, so it is never above `states.len()`.
            states.push(State::default());
        }
        u32::try_from(self.first_free * BLOCK + index).expect("a shard has far fewer keys than 2^32")
    }

    /// Takes the state out of the slab. The caller must [store](Slab::store) the state again before it releases its
    /// locks.
    pub(crate) fn load(&mut self, index: u32) -> State {
        std::mem::take(self.state(index))
    }

    pub(crate) fn store(&mut self, index: u32, state: State) {
        *self.state(index) = state;
    }

    pub(crate) fn get(&self, index: u32) -> &State {
        &self.blocks[index as usize / BLOCK].states[index as usize % BLOCK]
    }

    fn state(&mut self, index: u32) -> &mut State {
        &mut self.blocks[index as usize / BLOCK].states[index as usize % BLOCK]
    }

    /// Frees the index and returns its state. Also deallocates the blocks at the end of the slab that have only free
    /// indices.
    ///
    /// The lowest free index is always allocated first, so new states rarely go to the last blocks. When the slab has
    /// fewer states than before, the last blocks are therefore the first that become free.
    pub(crate) fn remove(&mut self, index: u32) -> State {
        let state = self.load(index);
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
mod tests;
