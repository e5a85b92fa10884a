//! States that own memory or do not fit a slot: logs, several segments, leases, penalties.

use spillgate_core::State;

/// The states of one shard, by an index that its slots keep.
#[derive(Debug, Default)]
pub(super) struct Slab {
    states: Vec<State>,
    free: Vec<u32>,
}

impl Slab {
    /// What a state costs here, in bytes.
    pub(super) fn bytes(state: &State) -> usize {
        size_of::<State>() + state.heap_bytes()
    }

    /// A place; its state is none.
    pub(super) fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.states.push(State::default());
            u32::try_from(self.states.len() - 1).expect("a shard has far fewer keys than 2^32")
        })
    }

    /// The state, to be [`put`](Slab::put) back.
    pub(super) fn take(&mut self, index: u32) -> State {
        std::mem::take(&mut self.states[index as usize])
    }

    pub(super) fn put(&mut self, index: u32, state: State) {
        self.states[index as usize] = state;
    }

    pub(super) fn get(&self, index: u32) -> &State {
        &self.states[index as usize]
    }

    /// Frees the place.
    pub(super) fn remove(&mut self, index: u32) -> State {
        self.free.push(index);
        self.take(index)
    }
}
