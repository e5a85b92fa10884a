//! A plain bounded map of states, used by one thread at a time.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use spillgate_core::{Algorithm, Quota, State, Time};

/// How many states are looked at for expiry at each new key, and how many when there is no room.
const STEPS: usize = 2;
const STEPS_WHEN_FULL: usize = 32;

pub(super) struct Shard {
    slots: HashMap<u128, Slot, BuildHasherDefault<LowBits>>,
    /// Every key of `slots` once: the hand of a clock that looks for expired states.
    hand: VecDeque<u128>,
    max_keys: usize,
    heap_bytes: usize,
    max_heap_bytes: usize,
}

struct Slot {
    state: State,
    /// From when on the state equals none, in nanoseconds since the epoch.
    expires_at: u64,
}

impl Shard {
    pub(super) fn new(max_keys: usize, max_heap_bytes: usize) -> Shard {
        Shard { slots: HashMap::default(), hand: VecDeque::new(), max_keys, heap_bytes: 0, max_heap_bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    fn is_new(&self, state_key: u128) -> bool {
        !self.slots.contains_key(&state_key)
    }

    /// The state, to be [`put`](Shard::put) back under the same lock.
    pub(super) fn take(&mut self, state_key: u128) -> Option<State> {
        let slot = self.slots.get_mut(&state_key)?;
        self.heap_bytes -= slot.state.heap_bytes();
        Some(std::mem::take(&mut slot.state))
    }

    /// Whether a charge on `state` under `quota` has room beside `reserved` new states of the same
    /// request, after looking for expired states.
    pub(super) fn has_room(
        &mut self,
        state_key: u128,
        state: &State,
        quota: &Quota,
        reserved: usize,
        now: Time,
    ) -> bool {
        let grows = match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::FixedWindow(_) => false,
            // Segments are as large when new as they ever get.
            Algorithm::SlidingWindowCounter { .. } => state.heap_bytes() == 0,
            Algorithm::SlidingWindowLog | Algorithm::Concurrency => true,
        };
        let new = self.is_new(state_key);
        let full = |shard: &Shard| {
            (new && shard.slots.len() + reserved >= shard.max_keys)
                || (grows && shard.heap_bytes >= shard.max_heap_bytes)
        };
        if full(self) {
            self.forget_expired(STEPS_WHEN_FULL, now);
        }
        !full(self)
    }

    /// Keeps the state, unless it is new and equals none.
    pub(super) fn put(&mut self, state_key: u128, state: State, quota: &Quota, now: Time) {
        let expires_at = state.expires_at(quota);
        if let Some(slot) = self.slots.get_mut(&state_key) {
            self.heap_bytes += state.heap_bytes();
            *slot = Slot { state, expires_at };
        } else if expires_at > now.as_nanos() {
            self.forget_expired(STEPS, now);
            self.heap_bytes += state.heap_bytes();
            self.slots.insert(state_key, Slot { state, expires_at });
            self.hand.push_back(state_key);
        }
    }

    /// Looks at the next `steps` states and forgets those that equal none.
    fn forget_expired(&mut self, steps: usize, now: Time) {
        for _ in 0..steps.min(self.hand.len()) {
            let Some(state_key) = self.hand.pop_front() else { return };
            match self.slots.get(&state_key) {
                Some(slot) if slot.expires_at <= now.as_nanos() => {
                    self.heap_bytes -= slot.state.heap_bytes();
                    self.slots.remove(&state_key);
                }
                _ => self.hand.push_back(state_key),
            }
        }
    }
}

/// Keys are uniformly random already: their low bits are their hash.
#[derive(Default)]
pub(super) struct LowBits(u64);

impl Hasher for LowBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            self.0 = chunk.iter().fold(self.0, |hash, &byte| hash.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn write_u128(&mut self, state_key: u128) {
        self.0 = state_key as u64;
    }
}
