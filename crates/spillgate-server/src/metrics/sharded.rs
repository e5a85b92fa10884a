//! Counters that several threads add to at the same time, without moving a cache line from one core to another.
//!
//! Two threads that add to one counter take its cache line from each other at each addition. So a group of counters has
//! one copy for each of a few threads, the shards, and each copy begins a cache line of its own. The page of metrics
//! shows the sum of the copies.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

/// The maximum number of copies. More copies would only take memory: a thread that shares its copy with others is still
/// correct, and seldom meets them.
const MAX_SHARDS: usize = 8;
/// One in this many requests is sampled. The number is a power of two.
const SAMPLED_OF: u64 = 16;

thread_local! {
    static THREAD: ThreadCells = const { ThreadCells { number: Cell::new(usize::MAX), random: Cell::new(0) } };
}

/// The numbers that a thread keeps for itself.
struct ThreadCells {
    /// The number of the thread, which selects its shard. `usize::MAX` before the thread counts for the first time.
    number: Cell<usize>,
    /// The state of a generator of random numbers.
    random: Cell<u64>,
}

/// The number of the current thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadNumber(usize);

impl ThreadNumber {
    /// Returns the number of the current thread. Threads are numbered in the order in which they first call this
    /// function.
    #[inline]
    pub(crate) fn current() -> ThreadNumber {
        THREAD.with(|thread| match thread.number.get() {
            usize::MAX => ThreadNumber::first(thread),
            number => ThreadNumber(number),
        })
    }

    #[cold]
    fn first(thread: &ThreadCells) -> ThreadNumber {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % MAX_SHARDS;
        thread.number.set(number);
        // Threads with the same state would sample the same requests in the order of their requests.
        thread.random.set(number as u64);
        ThreadNumber(number)
    }
}

/// Returns true for one in sixteen calls, chosen at random. A fixed order could always choose the same kind of request.
#[inline]
pub(crate) fn is_sampled() -> bool {
    // This linear congruential generator has the constants of Knuth's MMIX. Its highest bits are the most random ones.
    let next = |random: u64| random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    THREAD.with(|thread| {
        let random = next(thread.random.get());
        thread.random.set(random);
        random >> (u64::BITS - SAMPLED_OF.ilog2()) == 0
    })
}

/// A group of `N` counters, in as many copies as there are shards.
#[derive(Clone, Debug)]
pub(super) struct Sharded<const N: usize>(Arc<[Shard<N>]>);

/// One copy. It begins a cache line, so up to eight counters are in one line.
#[derive(Debug)]
#[repr(align(64))]
struct Shard<const N: usize>([AtomicU64; N]);

impl<const N: usize> Sharded<N> {
    /// Makes counters with one copy for each core, up to a bound.
    pub(super) fn new() -> Sharded<N> {
        // The system reads files to find the number of cores, and there can be a million rules.
        static SHARDS: LazyLock<usize> = LazyLock::new(|| {
            let cores = thread::available_parallelism().map_or(MAX_SHARDS, usize::from);
            cores.next_power_of_two().min(MAX_SHARDS)
        });
        Sharded::with_shards(*SHARDS)
    }

    /// Makes counters with one copy. They take little memory.
    pub(super) fn single() -> Sharded<N> {
        Sharded::with_shards(1)
    }

    /// The number of copies is a power of two.
    fn with_shards(shards: usize) -> Sharded<N> {
        Sharded((0..shards).map(|_| Shard([const { AtomicU64::new(0) }; N])).collect())
    }

    /// Returns the counters of the current thread's shard.
    #[inline]
    pub(super) fn of(&self, thread: ThreadNumber) -> Option<&[AtomicU64; N]> {
        self.0.get(thread.0 & self.0.len().wrapping_sub(1)).map(|shard| &shard.0)
    }

    /// Adds `count` to the counter `index`.
    #[inline]
    pub(super) fn add(&self, thread: ThreadNumber, index: usize, count: u64) {
        if let Some(counter) = self.of(thread).and_then(|counters| counters.get(index)) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Returns the sum of each counter over all copies.
    pub(super) fn sums(&self) -> [u64; N] {
        let mut sums = [0_u64; N];
        for shard in &self.0[..] {
            for (sum, counter) in sums.iter_mut().zip(&shard.0) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        sums
    }
}

impl<const N: usize> Default for Sharded<N> {
    fn default() -> Self {
        Sharded::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_of_any_thread_is_lost() {
        let counters = [Sharded::<3>::new(), Sharded::single()];
        thread::scope(|scope| {
            for _ in 0..2 * MAX_SHARDS + 1 {
                scope.spawn(|| {
                    for counter in &counters {
                        (0..100).for_each(|_| counter.add(ThreadNumber::current(), 1, 2));
                    }
                });
            }
        });
        let sum = 200 * (2 * MAX_SHARDS as u64 + 1);
        assert_eq!(counters.map(|counter| counter.sums()), [[0, sum, 0]; 2]);
    }

    #[test]
    fn each_copy_begins_a_cache_line() {
        let counters = Sharded::<8>::with_shards(4);
        for shard in &counters.0[..] {
            assert_eq!((size_of_val(shard), std::ptr::from_ref(shard).addr() % 64), (64, 0));
        }
    }

    #[test]
    fn about_one_in_sixteen_is_sampled() {
        let sampled = (0..160_000).filter(|_| is_sampled()).count();
        // The standard deviation of 160,000 random choices is below 100.
        assert!((9_500..10_500).contains(&sampled), "{sampled}");
    }
}
