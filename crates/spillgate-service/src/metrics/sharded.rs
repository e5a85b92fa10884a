//! Counters to which several threads add at the same time without slowing each other down.
//!
//! Two threads that add to one counter take its cache line from each other at each addition. So a group of counters has
//! several copies, and each copy begins a cache line of its own. The page of metrics shows the sum of the copies.
//!
//! On a machine with few cores, each of the first threads owns a copy, to which no other thread adds. An owner needs no
//! atomic addition, which would wait until all earlier writes of its core are done.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

/// On a machine with at most this many cores, there is one copy with an owner for each core. More copies would take too
/// much memory, because there can be a million rules.
const MAX_OWNED: usize = 8;
/// One in this many requests is sampled. The number is a power of two.
const SAMPLED_OF: u64 = 16;

/// The copies of each group of counters. The system reads files to find the number of cores, so this is done once.
static COPIES: LazyLock<Copies> =
    LazyLock::new(|| Copies::for_cores(thread::available_parallelism().map_or(MAX_OWNED + 1, usize::from)));

/// How many copies there are.
#[derive(Clone, Copy, Debug)]
struct Copies {
    /// The copies that have one thread as their owner. They come first.
    owned: usize,
    /// The copies that all other threads share.
    shared: usize,
}

thread_local! {
    static THREAD: ThreadCells = const { ThreadCells { number: Cell::new(None), random: Cell::new(0) } };
}

/// The numbers that a thread keeps for itself.
struct ThreadCells {
    /// The copy of the thread. `None` before the thread counts for the first time.
    number: Cell<Option<ThreadNumber>>,
    /// The state of a generator of random numbers.
    random: Cell<u64>,
}

/// The copy that the current thread adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadNumber {
    copy: usize,
    /// Whether no other thread adds to this copy.
    is_owner: bool,
}

impl Copies {
    const fn for_cores(cores: usize) -> Copies {
        if cores <= MAX_OWNED { Copies { owned: cores, shared: 1 } } else { Copies { owned: 0, shared: MAX_OWNED } }
    }

    /// Returns the copy of a thread. Threads are numbered in the order in which they begin to count, and `first` is
    /// this number. No two threads have the same number.
    const fn of(self, first: usize) -> ThreadNumber {
        match first.checked_sub(self.owned) {
            None => ThreadNumber { copy: first, is_owner: true },
            Some(later) => ThreadNumber { copy: self.owned + later % self.shared, is_owner: false },
        }
    }
}

impl ThreadNumber {
    /// Returns the copy of the current thread.
    #[inline]
    pub(crate) fn current() -> ThreadNumber {
        THREAD.with(|thread| thread.number.get().unwrap_or_else(|| ThreadNumber::first(thread)))
    }

    #[cold]
    fn first(thread: &ThreadCells) -> ThreadNumber {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        // With equal states, all threads would sample alike: if one thread samples its third request, every thread
        // does.
        thread.random.set(first as u64);
        let number = COPIES.of(first);
        thread.number.set(Some(number));
        number
    }
}

/// Returns true for one in sixteen calls, chosen at random. A fixed order could choose the same kind of request each
/// time.
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

/// A group of `N` counters, in several copies.
#[derive(Clone, Debug)]
pub(super) struct Sharded<const N: usize>(Arc<[Shard<N>]>);

/// One copy. It begins a cache line, so up to eight counters are in one line.
#[derive(Debug)]
#[repr(align(64))]
struct Shard<const N: usize>([AtomicU64; N]);

/// The copy of one thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadCopy<'a, const N: usize> {
    counters: &'a [AtomicU64; N],
    is_owner: bool,
}

impl<const N: usize> ThreadCopy<'_, N> {
    #[inline]
    pub(super) fn add(self, index: usize, count: u64) {
        let Some(counter) = self.counters.get(index) else { return };
        if self.is_owner {
            // No other thread writes this counter.
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
        } else {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl<const N: usize> Sharded<N> {
    /// Makes counters with a copy for each core, up to a bound.
    pub(super) fn new() -> Sharded<N> {
        Sharded::with_copies(COPIES.owned + COPIES.shared)
    }

    /// Makes counters with one copy, which saves memory.
    pub(super) fn single() -> Sharded<N> {
        Sharded::with_copies(1)
    }

    fn with_copies(copies: usize) -> Sharded<N> {
        Sharded((0..copies).map(|_| Shard([const { AtomicU64::new(0) }; N])).collect())
    }

    /// Returns a number that all clones share, and no other counters that exist.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the copy of the current thread.
    #[inline]
    pub(super) fn of(&self, thread: ThreadNumber) -> Option<ThreadCopy<'_, N>> {
        // All threads share a single copy.
        let (copy, is_owner) = if self.0.len() == 1 { (0, false) } else { (thread.copy, thread.is_owner) };
        self.0.get(copy).map(|shard| ThreadCopy { counters: &shard.0, is_owner })
    }

    #[inline]
    pub(super) fn add(&self, thread: ThreadNumber, index: usize, count: u64) {
        if let Some(copy) = self.of(thread) {
            copy.add(index, count);
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
            for _ in 0..2 * MAX_OWNED + 1 {
                scope.spawn(|| {
                    for counter in &counters {
                        (0..1000).for_each(|_| counter.add(ThreadNumber::current(), 1, 2));
                    }
                });
            }
        });
        let sum = 2000 * (2 * MAX_OWNED as u64 + 1);
        assert_eq!(counters.map(|counter| counter.sums()), [[0, sum, 0]; 2]);
    }

    #[test]
    fn an_owned_copy_has_one_thread_and_each_thread_has_a_copy() {
        for cores in 1..=4 * MAX_OWNED {
            let copies = Copies::for_cores(cores);
            let threads: Vec<_> = (0..100).map(|first| copies.of(first)).collect();
            for (first, thread) in threads.iter().enumerate() {
                assert!(thread.copy < copies.owned + copies.shared, "{cores} cores, thread {first}");
                let sharing = threads.iter().filter(|other| other.copy == thread.copy).count();
                assert!(!thread.is_owner || sharing == 1, "{cores} cores, thread {first}");
            }
        }
    }

    #[test]
    fn each_copy_begins_a_cache_line() {
        let counters = Sharded::<8>::with_copies(4);
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
