//! Computes random waits. Without them, all processes that share a failed Redis server would try to reach it at the
//! same times.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A sequence of random numbers (splitmix64). Their quality does not matter, but they must differ between processes.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Jitter {
    /// Returns a sequence with a random seed. The standard library makes the seed, as it does for each hash map.
    pub(crate) fn new() -> Jitter {
        Jitter(AtomicU64::new(RandomState::new().hash_one(0)))
    }

    /// Returns a random time between half of `wait` and `wait`. For a `wait` of 1 s, this is 500 ms to 1 s.
    pub(crate) fn of(&self, wait: Duration) -> Duration {
        let mut bits = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let share = f64::from((bits >> 32) as u32) / f64::from(u32::MAX);
        wait.mul_f64(0.5 + share / 2.0)
    }
}
