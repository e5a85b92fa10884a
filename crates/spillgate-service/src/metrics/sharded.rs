//! Counters to which several threads add at the same time without slowing each other down.
//!
//! If two threads add to one counter, its cache line moves between their cores at each addition. So a group of counters
//! has several copies, and each copy begins a cache line of its own. The page of metrics shows the sum of the copies.
//!
//! On a machine with few cores, each of the first threads that count owns a copy, to which no other thread adds. So an
//! owner needs no atomic addition, which would wait until all earlier writes of its core are done.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

/// On a machine with at most this many cores, each group of counters has one owned copy for each core. More copies
/// would take too much memory, because there can be a million rules, each with such a group.
const MAX_OWNED: usize = 8;
/// [`is_sampled`] chooses one in this many calls. The number must be a power of two.
const SAMPLED_OF: u64 = 16;

/// How many copies each group of counters has. This is computed once, because the system has to read files to find the
/// number of cores.
static COPIES: LazyLock<Copies> =
    LazyLock::new(|| Copies::for_cores(thread::available_parallelism().map_or(MAX_OWNED + 1, usize::from)));

/// The numbers of copies of both kinds.
#[derive(Clone, Copy, Debug)]
struct Copies {
    /// The number of copies that one thread owns. These copies come first.
    owned: usize,
    /// The number of copies that all other threads share.
    shared: usize,
}

thread_local! {
    static THREAD: ThreadCells = const { ThreadCells { number: Cell::new(None), random: Cell::new(0) } };
}

/// What each thread keeps for itself.
struct ThreadCells {
    /// The copy that the thread adds to. `None` before the thread counts for the first time.
    number: Cell<Option<ThreadNumber>>,
    /// The state of the random numbers of [`is_sampled`].
    random: Cell<u64>,
}

/// The copy that a thread adds to, in every group of counters.
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

    /// Returns the copy of a thread. `first` is the number of the thread: threads are numbered from 0, in the order in
    /// which they begin to count.
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
        // Each thread begins with another state. With equal states, all threads would choose the same calls: for
        // example, each thread would choose its third call.
        thread.random.set(first as u64);
        let number = COPIES.of(first);
        thread.number.set(Some(number));
        number
    }
}

/// Returns true for one in sixteen calls, chosen at random. If every sixteenth call were chosen and a client repeated
/// its requests in a fixed order, the same kind of request could be chosen each time.
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

/// One copy of a group. A copy begins a cache line (64 bytes), so up to eight counters fit into one line.
#[derive(Debug)]
#[repr(align(64))]
struct Shard<const N: usize>([AtomicU64; N]);

/// The copy that a thread adds to, in one group of counters.
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
    /// Makes counters with as many copies as [`COPIES`] says.
    pub(super) fn new() -> Sharded<N> {
        Sharded::with_copies(COPIES.owned + COPIES.shared)
    }

    /// Makes counters with one copy, which all threads share. This saves memory.
    pub(super) fn single() -> Sharded<N> {
        Sharded::with_copies(1)
    }

    fn with_copies(copies: usize) -> Sharded<N> {
        Sharded((0..copies).map(|_| Shard([const { AtomicU64::new(0) }; N])).collect())
    }

    /// Returns a number that is equal for all clones of the same counters. No other counters that exist at the same
    /// time have this number.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the copy that `thread` adds to.
    #[inline]
    pub(super) fn of(&self, thread: ThreadNumber) -> Option<ThreadCopy<'_, N>> {
        // If there is only one copy, all threads share it, so none of them is its owner.
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
