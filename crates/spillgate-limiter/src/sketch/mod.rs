//! Limits for any number of keys, in memory that never grows.
//!
//! The memory store keeps a state for each key, so an attacker can fill it with a billion different keys. A [`Sketch`]
//! has a fixed number of cells instead, and each key shares its cells with other keys. So a sketch only estimates how
//! much a key has used, and the estimate is never too low:
//!
//! * No key is ever admitted above the bound of its limit. The bounds are those of [`Algorithm`].
//! * Its errors are wrong refusals only. [`Sketch::wrong_refusals`] says how many there are, and [`Sketch::forecast`]
//!   says how many there can be in a sketch of some size.
//!
//! ```
//! use spillgate::sketch::Sketch;
//! use spillgate::{KeyHasher, Quota, Time};
//!
//! const PER_ADDRESS: Quota = Quota::per_second(10).constant();
//!
//! let sketch = Sketch::new(&PER_ADDRESS, 1 << 20)?; // 1 MiB, for any number of keys
//! let keys = KeyHasher::random();
//! let now = Time::from_nanos(1_000_000_000);
//! let admitted = (0..100).filter(|_| {
//!     let key = keys.start().key("192.0.2.1").finish();
//!     sketch.take_now(now, &PER_ADDRESS, key, 1).allowed
//! });
//! assert_eq!(admitted.count(), 10);
//! # Ok::<(), spillgate::sketch::SketchError>(())
//! ```
//!
//! | algorithm | what its cells have |
//! |---|---|
//! | `token_bucket`, `leaky_bucket` | the time at which the debt of a key is paid, that is, at which its bucket is full again or its queue is empty (a GCRA sketch) |
//! | `fixed_window`, `sliding_window_counter` of one segment | counts of the current window and of the window before it: a [Bloom filter](BloomFilter) and a [Count-Min sketch](CountMin) for each |
//!
//! Why the bound holds for every key: while the clock is not set back, a time in a cell only rises, and so does a count
//! until its window ends. So each cell of a key is at least as high as this key alone would make it, and the same is
//! true for the smallest of its cells. The kernel decides on this smallest cell. Requests on one key are decided one
//! after the other, because each of them holds a lock that the hash of the key chooses.
//!
//! A sketch cannot give units back, because other keys may have raised the same cells. So it supports no refund, no
//! reset, no lease and no penalty.

mod available;
mod beside;
mod bloom;
mod counts;
mod data;
mod debts;
mod decide;
mod error;
mod locks;
mod mixer;
mod request;
mod rows;
mod size;
#[cfg(test)]
mod tests;
mod windows;

pub(crate) use mixer::{Mixed, Mixer};
pub(crate) use rows::DEPTH;

use std::fmt;

use spillgate_core::{Algorithm, Quota, Time};

pub use available::has_memory;
pub use data::{BloomFilter, CountMin};
pub use error::SketchError;

use debts::{Debt, Debts};
use locks::Locks;
use windows::Windows;

/// The smallest sketch, in bytes. The locks use half of it.
pub const MIN_BYTES: usize = 128 << 10;

/// A store of fixed size for one limit, and for any number of keys. The [module](self) says what it promises.
///
/// It is a [`Store`](spillgate_core::Store), so a [`Limiter`](crate::Limiter) can use it:
///
/// ```
/// use spillgate::sketch::Sketch;
/// use spillgate::{Limiter, Quota};
///
/// const PER_ADDRESS: Quota = Quota::per_second(10).constant();
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Sketch::new(&PER_ADDRESS, 64 << 20)?);
/// let decision = limiter.take(&PER_ADDRESS, ("address", "192.0.2.1"), 1).await?;
/// # Ok(())
/// # }
/// ```
///
/// A clock that is set back does no lasting harm. Let `B` be the burst of a bucket, or the length of a queue plus 1,
/// and let `T` be the time between two units. Let `W` be the length of a window:
///
/// * In a sketch of buckets or queues, the time in a cell can then be later than any debt can reach. The next request
///   that reads such a cell lowers it. So the times that were written before the jump refuse a key for less than
///   `2 * (2 * B * T + 1 s)`.
/// * In a sketch of windows, the time of a request can then be before the newest window. Such a request is decided at
///   the start of the newest window. But if this start is more than `W + 1 s` after the time of the request, all keys
///   continue in the window of the request. Each key can then use up to one limit more.
pub struct Sketch {
    mixer: Mixer,
    locks: Locks,
    cells: Cells,
    algorithm: Algorithm,
    /// The time between two units of a bucket or a queue, or the length of a window, in nanoseconds. The cells have no
    /// meaning for a quota with another interval.
    interval_ns: u64,
}

enum Cells {
    Buckets(Debts),
    Windows(Windows),
}

impl Sketch {
    /// Makes an empty sketch for `quota` in at most `bytes` bytes, but at least 128 KiB. The process gets all this
    /// memory at once, and needs no more later.
    ///
    /// The more memory, the fewer wrong refusals. [`Sketch::wrong_refusals`] says how many there are.
    ///
    /// # Errors
    /// The quota needs something that a sketch does not have: leases, a penalty, charged refusals, a log, several
    /// segments, windows that start at the first hit of a key, or counts above 2^32 - 2. Or the machine does not
    /// [have](has_memory) that much memory.
    pub fn new(quota: &Quota, bytes: usize) -> Result<Sketch, SketchError> {
        SketchError::check(quota)?;
        // If the machine has less memory, the allocation below would end the program.
        if !has_memory(bytes) {
            return Err(SketchError::Memory);
        }
        Ok(Sketch::with_cells(quota, Sketch::cell_bytes(bytes)))
    }

    /// Makes a sketch whose cells have at most this many bytes, but at least one cell in each row.
    fn with_cells(quota: &Quota, bytes: usize) -> Sketch {
        let cells = match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Cells::Buckets(Debts::with_bytes(bytes)),
            _ => Cells::Windows(Windows::new(quota, bytes)),
        };
        let (algorithm, interval_ns) = (quota.algorithm(), quota.interval_ns());
        Sketch { mixer: Mixer::random(), locks: Locks::new(), cells, algorithm, interval_ns }
    }

    /// Returns the bytes of memory that the sketch uses. This number never grows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let cells = match &self.cells {
            Cells::Buckets(debts) => debts.rows.bytes(),
            Cells::Windows(windows) => windows.bytes(),
        };
        size_of::<Sketch>() + Locks::BYTES + cells
    }

    /// Returns the share of new keys (0 to 1) whose take of `cost` units [`take_now`](Sketch::take_now) would refuse at
    /// `now`, although new keys have used nothing.
    ///
    /// This function reads all cells, so do not call it for each request. In a sketch of buckets, let `h` be the share
    /// of cells that are too high for the take. A key is refused if all its four cells are too high, so the result is
    /// about `h^4`. A key that has used some units is wrongly refused more often than a new key. In a queue, a take
    /// that can wait for its turn is refused less often than this function returns.
    ///
    /// ```
    /// use spillgate::sketch::Sketch;
    /// use spillgate::{Quota, Time};
    ///
    /// const QUOTA: Quota = Quota::per_second(10).constant();
    /// let sketch = Sketch::new(&QUOTA, 1 << 20)?;
    /// assert_eq!(sketch.wrong_refusals(Time::EPOCH, &QUOTA, 1), 0.0);
    /// # Ok::<(), spillgate::sketch::SketchError>(())
    /// ```
    #[must_use]
    pub fn wrong_refusals(&self, now: Time, quota: &Quota, cost: u64) -> f64 {
        let Some(free) = quota.hard_capacity().checked_sub(cost) else { return 1.0 };
        match &self.cells {
            Cells::Buckets(Debts { rows, .. }) => {
                // In a queue, a take that does not wait is refused if the key seems to have any debt.
                let in_queue = quota.algorithm() == Algorithm::LeakyBucket && cost > 0;
                let debt_ns = if in_queue { 0 } else { free.saturating_mul(quota.interval_ns()) };
                let highest = now.as_nanos().saturating_add(debt_ns);
                rows.share(|paid_at| paid_at > highest).powi(DEPTH as i32)
            }
            Cells::Windows(windows) => windows.wrong_refusals(now, free),
        }
    }
}

impl fmt::Debug for Sketch {
    /// Prints neither the secret nor the cells.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sketch")
            .field("algorithm", &self.algorithm)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
