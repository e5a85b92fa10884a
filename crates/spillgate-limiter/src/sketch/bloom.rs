//! A Bloom filter in which each word stores the number of its window.
//!
//! All bits of a key are in one cache line, so that a look-up waits for memory only once (a blocked Bloom filter). A
//! cache line has eight words of 64 bits. Of each word, 48 bits belong to the filter. The other 16 bits store the
//! lowest 16 bits of a number: the number of the window in which the word was written. If they differ from those of the
//! current window, the word counts as empty.
//!
//! The 16 bits repeat after 2^16 windows. A word that was not written since then looks as if it belonged to the current
//! window. So the filter can report a key that was not inserted in the current window, but it never misses a key that
//! was.
//!
//! Source of the blocks: Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters", 2007.

use super::mixer::Mixed;
use super::rows::PAGE_BYTES;
use crate::sync::{AtomicU64, Ordering};

/// The number of bits that a key sets.
pub(super) const BITS_PER_KEY: usize = 4;
const WORDS: usize = 8;
/// The number of bits of a word that belong to the filter. The bits above them store the number of the window.
const BITS: u32 = 48;
const BIT_MASK: u64 = (1 << BITS) - 1;
pub(super) const LINE_BYTES: usize = size_of::<Line>();
/// The number of bits of a line that belong to the filter.
pub(super) const LINE_BITS: u32 = BITS * WORDS as u32;

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

pub(super) struct Filter(Box<[Line]>);

/// Returns an empty word of the window: only the number of the window is set.
const fn tag(window: u64) -> u64 {
    window << BITS
}

impl Filter {
    /// Makes an empty filter in at most `bytes` bytes, but at least one line.
    pub(super) fn with_bytes(bytes: usize) -> Filter {
        let lines: Box<[Line]> = (0..Filter::lines_of(bytes)).map(|_| Line::default()).collect();
        // Writes to each page once. The operating system can delay giving the process a page of zeros until the first
        // write to it. Without these writes, the memory of the process would grow later.
        lines.iter().step_by(PAGE_BYTES / LINE_BYTES).for_each(|line| line.0[0].store(0, Ordering::Relaxed));
        Filter(lines)
    }

    pub(super) fn lines_of(bytes: usize) -> usize {
        (bytes / LINE_BYTES).clamp(1, u32::MAX as usize)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Returns the share of keys that were not inserted in the window, but for which `contains` returns true.
    pub(super) fn wrong_hits(&self, window: u64) -> f64 {
        let is_here = |word: &u64| *word & !BIT_MASK == tag(window);
        let share = |line: &Line| {
            let words = line.0.iter().map(|word| word.load(Ordering::Relaxed)).filter(is_here);
            let set: u32 = words.map(|word| (word & BIT_MASK).count_ones()).sum();
            (f64::from(set) / f64::from(LINE_BITS)).powi(BITS_PER_KEY as i32)
        };
        self.0.iter().map(share).sum::<f64>() / self.0.len() as f64
    }

    #[inline]
    fn line(&self, key: Mixed) -> &Line {
        &self.0[key.below(4, self.0.len() as u32)]
    }

    /// Returns the bits of the key. Each bit is given as the index of its word and a mask.
    #[inline]
    fn bits(key: Mixed) -> [(usize, u64); BITS_PER_KEY] {
        let mut number = key.below(5, LINE_BITS.pow(3)) as u32;
        let last = key.below(6, LINE_BITS) as u32;
        std::array::from_fn(|i| {
            let bit = if i == BITS_PER_KEY - 1 { last } else { number % LINE_BITS };
            number /= LINE_BITS;
            ((bit / BITS) as usize, 1 << (bit % BITS))
        })
    }

    /// Returns whether `key` was inserted in the window. Also returns true for a few keys that were not inserted.
    #[inline]
    pub(super) fn contains(&self, key: Mixed, window: u64) -> bool {
        let line = self.line(key);
        Filter::bits(key).into_iter().all(|(word, bit)| {
            let word = line.0[word].load(Ordering::Acquire);
            word & !BIT_MASK == tag(window) && word & bit != 0
        })
    }

    /// Inserts `key` in the window with the number `window`.
    ///
    /// If a word has the number of another window, this function calls `is_older`, after it has read the word. True
    /// means that the other window is older, so the word is emptied before the bit of the key is set. False means that
    /// the other window can be newer, so the word stays as it is.
    #[inline]
    pub(super) fn insert(&self, key: Mixed, window: u64, is_older: impl Fn() -> bool) {
        let line = self.line(key);
        for (word, bit) in Filter::bits(key) {
            let word = &line.0[word];
            let mut old = word.load(Ordering::Acquire);
            loop {
                let same = old & !BIT_MASK == tag(window);
                let kept = if same { old } else { tag(window) };
                if kept | bit == old || (!same && !is_older()) {
                    break;
                }
                match word.compare_exchange_weak(old, kept | bit, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(changed) => old = changed,
                }
            }
        }
    }
}
