//! The bounds of the memory store, and what the store does when a bound is reached.
//!
//! A client can send any number of different keys. Without bounds, such a client could use up the memory of the
//! process.

/// What happens to a hit for which the store has no capacity.
///
/// * If the store has [`max_keys`](MemoryOptions::max_keys) states, it has no capacity for a new key.
/// * A large state is a state that does not fit a slot of the hash table, for example a log or a set of leases. If
///   large states use [`max_heap_bytes`](MemoryOptions::max_heap_bytes) bytes, the store has no capacity for an
///   operation that adds units to a log or to a set of leases. It also has no capacity for a key that needs its first
///   large state, for example because its limit has several segments or a penalty. There is one exception: the very
///   large count of a fixed window is stored even then.
///
/// The store never evicts a live state to get capacity, because the key of that state could then exceed its limit.
///
/// ```
/// use spillgate::{Limiter, MemoryOptions, MemoryStore, OnFull, Quota, Reason};
///
/// let options = MemoryOptions { max_keys: 1, on_full: OnFull::Deny, ..MemoryOptions::default() };
/// let limiter = Limiter::new(MemoryStore::new(options));
/// let quota = Quota::per_minute(5).build()?;
/// assert!(limiter.take_now(&quota, ("login", "user-7"), 1).allowed);
/// assert_eq!(limiter.take_now(&quota, ("login", "user-8"), 1).reason, Reason::StoreFull);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnFull {
    /// A request is refused if the store has no capacity for one of its takes, even a take of cost 0. The refused
    /// request charges nothing, not even its forces. A take in shadow mode never causes this refusal, because a shadow
    /// hit never refuses its request.
    #[default]
    Deny,
    /// A hit for which the store has no capacity is decided, but not counted, and a take gets no receipt. So a client
    /// that uses a new key for each request is not limited while the store is full.
    Allow,
    /// A new key for which the store has no capacity is limited by a [sketch](crate::sketch). No such key is admitted
    /// above the bound of its limit, and some are refused too early. When the store has capacity again, the key gets a
    /// state that counts at least the units that it has used. If other keys have raised its cells, this state can count
    /// the whole limit as used.
    ///
    /// The sketch has four parts of equal size: for windows of up to 10 s, up to 10 min, up to 10 h, and for longer
    /// windows. Limits in different parts do not disturb each other.
    ///
    /// | limit | how the sketch limits a new key |
    /// |---|---|
    /// | token bucket, leaky bucket | by the same limit |
    /// | window, log or counter of `L` units in `W` | by a token bucket: `ceil(L/2)` units at once, and then one unit every `W/(floor(L/2) + 1)`, rounded up |
    /// | concurrency | the key is refused, as with [`Deny`](OnFull::Deny) |
    ///
    /// For such a key, no penalty starts, and refusals cost nothing. Units in the sketch cannot be given back. So while
    /// the sketch counts units for a key, a reset of the key is [unsupported](spillgate_core::Reason::Unsupported), and
    /// so is a refund. There is one exception: if the key has got a state, a refund with a receipt gives back units of
    /// this state.
    ///
    /// These requests are refused as with [`Deny`](OnFull::Deny):
    ///
    /// * a take of more units than the token bucket admits at once
    /// * an operation on a state that is in the store but cannot grow
    /// * a take on a new key, if the request also takes a permit or makes a reservation
    Sketch {
        /// The bytes of the sketch. They are a part of [`max_heap_bytes`](MemoryOptions::max_heap_bytes), and the
        /// process has them from the start.
        bytes: usize,
    },
}

/// The bounds of a [`MemoryStore`](crate::MemoryStore).
///
/// The store allocates almost all its memory when states arrive. A high bound therefore costs little until it is used.
/// For example, 10 million keys of token buckets take about 310 MB of memory.
///
/// ```
/// use spillgate::{MemoryOptions, MemoryStore};
///
/// let options = MemoryOptions { max_keys: 100_000, ..MemoryOptions::default() };
/// assert!(MemoryStore::new(options).is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The highest number of states; 10 million by default. A key has a separate state for each algorithm and window.
    pub max_keys: usize,
    /// The highest number of bytes in states that do not fit a slot of the hash table; 1 GiB by default.
    ///
    /// Such states are logs, counters of several segments, leases, states under a penalty, very large counts, and the
    /// buckets of some [shares](spillgate_core::Quota::share). When the bound is reached, no such state grows. Only the
    /// very large count of a fixed window is stored even then. If several threads reach the bound together, each thread
    /// can exceed it by the growth of one state. If a state cannot grow, the store leaves it unchanged, and decides on
    /// a copy. The copy needs memory until the request is decided, and the bound does not count this memory.
    pub max_heap_bytes: usize,
    /// What happens when one of the two bounds is reached. [`OnFull`] has an example.
    pub on_full: OnFull,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { max_keys: 10_000_000, max_heap_bytes: 1 << 30, on_full: OnFull::Deny }
    }
}
