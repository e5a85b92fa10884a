//! The two data structures from which a sketch of windows is made, for programs that need one of them alone.

use std::fmt;

use super::bloom::{BITS_PER_KEY, Filter, LINE_BITS, LINE_BYTES};
use super::counts::{Counts, MAX_COUNT};
use super::locks::Locks;
use super::mixer::Mixer;
use super::rows::DEPTH;
use super::{SketchError, has_memory};

/// A set that answers "no" or "perhaps": it finds every key that was inserted, and also a few keys that were not.
///
/// All bits of a key are in one cache line, so a call waits for memory only once. A random secret chooses the bits of a
/// key.
///
/// ```
/// use spillgate::KeyHasher;
/// use spillgate::sketch::BloomFilter;
///
/// let filter = BloomFilter::for_keys(100_000, 0.01)?;
/// let keys = KeyHasher::random();
/// filter.insert(keys.start().key("ann").finish());
/// assert!(filter.contains(keys.start().key("ann").finish()));
/// assert!(filter.bytes() < 200_000);
/// # Ok::<(), spillgate::sketch::SketchError>(())
/// ```
///
/// Let `n` be the number of different keys in the filter, and `m` the number of its cache lines. Each line has 384 bits
/// of the filter, and each key sets 4 of them. The number `j` of keys in a line has a Poisson distribution with the
/// mean `n/m`. So a key that was not inserted is found with the probability `p`:
///
/// ```text
/// p = sum over j of  Poisson(j; n/m) * (1 - (1 - 1/384)^(4*j))^4
/// ```
///
/// Source: Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters", 2007.
pub struct BloomFilter {
    mixer: Mixer,
    filter: Filter,
}

impl BloomFilter {
    /// Makes an empty filter of at most `bytes` bytes, but at least 64 bytes.
    ///
    /// # Errors
    /// The operating system does not promise the program that much memory.
    pub fn with_bytes(bytes: usize) -> Result<BloomFilter, SketchError> {
        if !has_memory(bytes) {
            return Err(SketchError::Memory);
        }
        Ok(BloomFilter { mixer: Mixer::random(), filter: Filter::with_bytes(bytes) })
    }

    /// Makes the smallest filter that is good enough for `keys` different keys: of all keys that were not inserted, it
    /// finds at most the share `error`. An `error` that is not between 10^-9 and 1 is moved into this range.
    ///
    /// # Errors
    /// The filter would need more than 256 GiB, or more memory than the operating system promises the program.
    pub fn for_keys(keys: u64, error: f64) -> Result<BloomFilter, SketchError> {
        let error = if error.is_nan() { 1e-9 } else { error.clamp(1e-9, 1.0) };
        let (mut lowest, mut highest) = (1, keys.saturating_mul(32).max(1));
        while lowest < highest {
            let lines = lowest + (highest - lowest) / 2;
            if wrong_hits(keys, lines) <= error { highest = lines } else { lowest = lines + 1 }
        }
        let bytes = usize::try_from(lowest).unwrap_or(usize::MAX).saturating_mul(LINE_BYTES);
        if Filter::lines_of(bytes) as u64 == lowest { BloomFilter::with_bytes(bytes) } else { Err(SketchError::Memory) }
    }

    /// Inserts a key. The key is a hash, as [`KeyHasher`](crate::KeyHasher) makes it.
    pub fn insert(&self, key: u128) {
        self.filter.insert(self.mixer.mix(key), 0, || true);
    }

    /// Returns false if the key was certainly never inserted. True means "perhaps".
    #[must_use]
    pub fn contains(&self, key: u128) -> bool {
        self.filter.contains(self.mixer.mix(key), 0)
    }

    /// Returns the expected share of wrong answers, when `keys` different keys are in the filter: of all keys that were
    /// not inserted, this share is found.
    #[must_use]
    pub fn wrong_hits(&self, keys: u64) -> f64 {
        wrong_hits(keys, (self.filter.bytes() / LINE_BYTES) as u64)
    }

    /// Returns the memory of the filter in bytes, which is a multiple of 64.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.filter.bytes()
    }
}

/// Computes the formula in the documentation of [`BloomFilter`].
pub(super) fn wrong_hits(keys: u64, lines: u64) -> f64 {
    let mean = keys as f64 / lines as f64;
    let full = |keys: f64| 1.0 - (1.0 - 1.0 / f64::from(LINE_BITS)).powf(BITS_PER_KEY as f64 * keys);
    if mean > 500.0 {
        // Nearly all lines have about this number of keys. The sum below would begin with a term that can be too small
        // for a float.
        return full(mean).powi(BITS_PER_KEY as i32);
    }
    let (mut probability, mut sum) = ((-mean).exp(), 0.0);
    for keys in 0..(mean + 12.0 * mean.sqrt() + 30.0) as u32 {
        sum += probability * full(f64::from(keys)).powi(BITS_PER_KEY as i32);
        probability *= mean / f64::from(keys + 1);
    }
    sum
}

/// Counts for any number of keys. The estimate for a key is never below the true count, if this count is below 2^32.
///
/// A key has a cell in each of four rows, and its estimate is the smallest of these cells. Only the cells that are too
/// low are raised (conservative update). Any number of threads can count, because a thread changes the cells of a key
/// only under a lock that the hash of the key chooses.
///
/// ```
/// use spillgate::KeyHasher;
/// use spillgate::sketch::CountMin;
///
/// let counts = CountMin::for_error(0.001, 0.01)?;
/// let keys = KeyHasher::random();
/// let ann = keys.start().key("ann").finish();
/// assert_eq!(counts.add(ann, 3), 3);
/// assert_eq!(counts.estimate(ann), 3);
/// # Ok::<(), spillgate::sketch::SketchError>(())
/// ```
///
/// Let `N` be the sum of all units that were added, `w` the number of cells in a row, and `e` any error above 0. The
/// probability that an estimate is more than `e * N` too high is at most `(1/(e * w))^4`, by Markov's inequality for
/// each row. Estimates stop at 2^32 - 1, so a higher count has an estimate that is too low.
///
/// Sources: Cormode and Muthukrishnan, 2005. Estan and Varghese, 2002 (conservative update).
pub struct CountMin {
    mixer: Mixer,
    locks: Locks,
    counts: Counts,
}

impl CountMin {
    /// Makes a sketch with cells of at most `bytes` bytes, but at least four cells.
    ///
    /// # Errors
    /// The operating system does not promise the program that much memory.
    pub fn with_bytes(bytes: usize) -> Result<CountMin, SketchError> {
        if !has_memory(bytes) {
            return Err(SketchError::Memory);
        }
        Ok(CountMin { mixer: Mixer::random(), locks: Locks::new(), counts: Counts::with_bytes(bytes) })
    }

    /// Makes the smallest sketch with this property: the probability that an estimate is more than `error * N` too high
    /// is at most `probability`. `N` is the sum of all units that were added. Both arguments are moved into the range
    /// from 10^-6 to 1. The cells have `32 / (error * probability^(1/4))` bytes, which is about a gigabyte at most.
    ///
    /// # Errors
    /// The operating system does not promise the program that much memory.
    pub fn for_error(error: f64, probability: f64) -> Result<CountMin, SketchError> {
        let bounded = |x: f64| if x.is_nan() { 1e-6 } else { x.clamp(1e-6, 1.0) };
        let width = (1.0 / (bounded(error) * bounded(probability).powf(1.0 / DEPTH as f64))).ceil();
        CountMin::with_bytes(width as usize * DEPTH * size_of::<u64>())
    }

    /// Adds `units` to the count of a key, and returns the new estimate.
    ///
    /// The key is a hash, as [`KeyHasher`](crate::KeyHasher) makes it.
    pub fn add(&self, key: u128, units: u32) -> u64 {
        let key = self.mixer.mix(key);
        let _lock = self.locks.lock(self.locks.index_of(key));
        let count = (self.counts.estimate(key, 0) + u64::from(units)).min(MAX_COUNT);
        self.counts.raise(key, 0, count, || true);
        count
    }

    /// Returns an estimate of the count of a key. The estimate is never too low while the count is below 2^32.
    #[must_use]
    pub fn estimate(&self, key: u128) -> u64 {
        self.counts.estimate(self.mixer.mix(key), 0)
    }

    /// Returns the number of cells in each of the four rows.
    #[must_use]
    pub fn width(&self) -> u64 {
        self.counts.width()
    }

    /// Returns the number of bytes of the cells and locks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.counts.bytes() + Locks::BYTES
    }
}

impl fmt::Debug for BloomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BloomFilter").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl fmt::Debug for CountMin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountMin").field("width", &self.width()).finish_non_exhaustive()
    }
}
