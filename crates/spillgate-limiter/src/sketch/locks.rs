//! Locks for keys: two requests on one key never use its cells at the same time.
//!
//! Without these locks, two threads could both read the cells of a key before one of them writes. Both requests would
//! then be admitted, and only one of them would be counted. An atomic operation on the smallest cell is not enough:
//! after a request, the cells of a key can all have the same value, and two threads could then raise two different
//! cells.
//!
//! There are far fewer locks than keys, and a hash of the key chooses its lock. Two keys with different locks can share
//! cells, and two threads can then write such a cell at the same time. This is safe, because the higher value always
//! stays.

use super::mixer::Mixed;
use crate::sync::{AtomicU64, Ordering, relax};

/// The number of locks. If 8 threads decide requests with one key each, the other 7 threads hold at most 7 of the 1024
/// locks. So a key finds its lock taken because of another key in less than one of 100 cases.
const LOCKS: u32 = if cfg!(loom) { 2 } else { 1 << 10 };

/// A mixed key gives a number for each of eight lanes. The number of this lane chooses the lock, and the numbers of the
/// lower lanes choose cells.
const LANE: usize = 7;

/// One lock in its own cache line, so that threads with different locks do not slow each other down.
#[derive(Default)]
#[repr(align(64))]
struct Lock(AtomicU64);

pub(super) struct Locks(Box<[Lock]>);

/// A lock that this thread has until it drops this value.
pub(super) struct Held<'l>(&'l Lock);

impl Locks {
    pub(super) const BYTES: usize = LOCKS as usize * size_of::<Lock>();

    pub(super) fn new() -> Locks {
        Locks((0..LOCKS).map(|_| Lock::default()).collect())
    }

    /// Returns the number of the lock of a key.
    #[inline]
    pub(super) fn index_of(&self, key: Mixed) -> usize {
        key.below(LANE, LOCKS)
    }

    /// Takes a lock, as soon as no other thread has it.
    ///
    /// A thread that needs several locks takes them in ascending order, so that threads cannot wait for each other in a
    /// circle.
    #[inline]
    pub(super) fn lock(&self, index: usize) -> Held<'_> {
        let lock = &self.0[index];
        let mut tries = 0;
        while lock.0.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tries += 1;
            relax(tries);
        }
        Held(lock)
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}
