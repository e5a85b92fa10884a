//! Counts of windows, for any number of keys: a Bloom filter and a Count-Min sketch for each of two windows.
//!
//! The Bloom filter says whether a key has a unit in the window at all. The Count-Min sketch counts all units of a key
//! except the first one. So a key that comes once uses a few bits of the filter, and no cell of the Count-Min sketch.
//! If the filter does not find a key, the estimate of the key is 0. If the filter finds it, the estimate is 1 plus the
//! count of the Count-Min sketch. The estimate is never below the true count.
//!
//! The first request in a new window begins this window, so no background task is needed. There are two sets of cells,
//! which the windows use in turn. Each cell stores the number of its window, and counts as empty in any other window.
//! So a new window begins with empty cells, while the previous window still has its cells.
//!
//! Sources: Bloom, "Space/time trade-offs in hash coding with allowable errors", 1970. Cormode and Muthukrishnan, "An
//! improved data stream summary: the count-min sketch and its applications", 2005. Estan and Varghese, "New directions
//! in traffic measurement and accounting", 2002 (conservative update).

use std::hint::black_box;

use spillgate_core::{Algorithm, MAX_LATE_NS, Packed, Quota, Time};

use super::bloom::Filter;
use super::counts::Counts;
use super::mixer::{Mixed, Mixer};
use crate::sync::{AtomicU64, Ordering};

/// The memory of a window has this many equal parts. The filter gets one part, and the counts get the others.
pub(super) const FILTER_PART: usize = 4;

/// The cells of one window: a Bloom filter, and counts for the keys that it finds.
struct Generation {
    seen: Filter,
    counts: Counts,
}

impl Generation {
    fn with_bytes(bytes: usize) -> Generation {
        let filter = bytes / FILTER_PART;
        Generation { seen: Filter::with_bytes(filter), counts: Counts::with_bytes(bytes - filter) }
    }

    /// Returns an estimate of the units of `key` in the window. The estimate is never too low.
    #[inline]
    fn estimate(&self, key: Mixed, window: u64) -> u64 {
        // The counts are read even if the filter has not seen the key, so that the processor fetches all memory of the
        // key at the same time.
        let count = self.counts.estimate(key, window);
        if self.seen.contains(key, window) { 1 + count } else { 0 }
    }

    /// Returns the estimates that new keys can have, from low to high. Each estimate comes with the share of new keys
    /// that have at least this estimate.
    fn shares(&self, window: u64) -> Vec<(u64, f64)> {
        let seen = self.seen.wrong_hits(window);
        let counted = self.counts.shares(window).into_iter().map(|(count, share)| (1 + count, seen * share));
        [(0, 1.0), (1, seen)].into_iter().chain(counted).collect()
    }

    /// Sets the units of `key` to at least `units`, which must not be 0.
    #[inline]
    fn raise(&self, key: Mixed, window: u64, units: u64, is_older: impl Fn() -> bool) {
        self.seen.insert(key, window, &is_older);
        self.counts.raise(key, window, units - 1, &is_older);
    }
}

/// The counts of the current window and of the window before it.
pub(super) struct Windows {
    /// The window with the number `n` uses the generation `n` mod 2.
    generations: [Generation; 2],
    /// The number of the newest window in which a request was decided. This number is written before any cell of its
    /// window. The number falls only if the clock was set back by more than a window.
    newest: AtomicU64,
    window_ns: u64,
    /// Whether units of the previous window count (`sliding_window_counter`).
    slides: bool,
}

/// The counts of a key in the window of a decision, in the form of a state.
pub(super) struct Counted {
    /// The time of the decision. It is later than the time of the request if a later window has begun.
    pub(super) now: Time,
    pub(super) state: Packed,
    pub(super) window: u64,
}

impl Windows {
    pub(super) fn new(quota: &Quota, bytes: usize) -> Windows {
        Windows {
            generations: [0, 1].map(|_| Generation::with_bytes(bytes / 2)),
            newest: AtomicU64::new(0),
            window_ns: quota.window_ns(),
            slides: matches!(quota.algorithm(), Algorithm::SlidingWindowCounter { .. }),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.generations.iter().map(|generation| generation.seen.bytes() + generation.counts.bytes()).sum()
    }

    /// Returns the share of new keys that seem to have more than `free` units at `now`, although they have used
    /// nothing.
    pub(super) fn wrong_refusals(&self, now: Time, free: u64) -> f64 {
        let (window, elapsed_ns) = (now.as_nanos() / self.window_ns, now.as_nanos() % self.window_ns);
        let current = self.generation(window).shares(window);
        let previous = match window.checked_sub(1) {
            Some(previous) if self.slides => self.generation(previous).shares(previous),
            _ => vec![(0, 1.0)],
        };
        // A unit of the current window counts as a whole, and a unit of the previous window in part.
        let (whole, part) = (u128::from(self.window_ns), u128::from(self.window_ns - elapsed_ns));
        let above = |units: u64| {
            let fits = |before: u64| u128::from(units) * whole + u128::from(before) * part <= u128::from(free) * whole;
            previous.get(previous.partition_point(|(before, _)| fits(*before))).map_or(0.0, |(_, share)| *share)
        };
        let next = current.iter().skip(1).map(|(_, share)| *share).chain([0.0]);
        current.iter().zip(next).map(|((units, at_least), more)| (at_least - more) * above(*units)).sum()
    }

    fn generation(&self, window: u64) -> &Generation {
        &self.generations[(window % 2) as usize]
    }

    /// Reads the cells of a key in the newest window and ignores them, so that the processor fetches their memory.
    #[inline]
    pub(super) fn fetch(&self, mixer: &Mixer, key: Mixed) {
        let newest = self.newest.load(Ordering::Relaxed);
        black_box(self.count(mixer, key, Time::EPOCH, newest).state);
    }

    /// Returns the counts of `key` at `now`. The caller has the lock of the key.
    ///
    /// A request can be late, so that another request has begun a later window already. The late request is then
    /// decided at the start of the newest window, because the cells of its own window may already have units of a newer
    /// one. But if this start is later than `now` by more than a window plus [`MAX_LATE_NS`], the clock was set back.
    /// The window of `now` then becomes the newest window again.
    #[inline]
    pub(super) fn load(&self, mixer: &Mixer, key: Mixed, now: Time) -> Counted {
        loop {
            let window = self.window_at(now);
            let counted = self.count(mixer, key, now, window);
            // If the next window began meanwhile, its units may have replaced those of the previous window, because
            // both have the same cells. Then the counts are read again.
            if self.newest.load(Ordering::Acquire) == window {
                return counted;
            }
        }
    }

    /// Returns the window in which a request at `now` is decided, and makes it the newest window.
    #[inline]
    fn window_at(&self, now: Time) -> u64 {
        let (window, newest) = (now.as_nanos() / self.window_ns, self.newest.load(Ordering::Acquire));
        if window > newest {
            self.newest.fetch_max(window, Ordering::AcqRel);
        } else if newest * self.window_ns <= now.as_nanos() + self.window_ns + MAX_LATE_NS {
            return newest;
        } else {
            // If another thread has changed `newest`, the caller tries again.
            let _ = self.newest.compare_exchange(newest, window, Ordering::AcqRel, Ordering::Acquire);
        }
        window
    }

    /// Returns the counts of a key in `window`.
    #[inline]
    fn count(&self, mixer: &Mixer, key: Mixed, now: Time, window: u64) -> Counted {
        let start = window * self.window_ns;
        let estimate = |window| self.generation(window).estimate(mixer.in_window(key, window), window);
        let first = estimate(window);
        let second = match window.checked_sub(1) {
            Some(previous) if self.slides => estimate(previous),
            _ => 0,
        };
        let ends = if self.slides { 2 } else { 1 };
        let state = match (first, second) {
            (0, 0) => Packed::default(),
            _ => Packed { expires_at: start + ends * self.window_ns, first, second },
        };
        Counted { now: now.max(Time::from_nanos(start)), state, window }
    }

    /// Raises the units of `key` to at least `units`, in the window for which `counted` was read. The caller has had
    /// the lock of the key since then.
    #[inline]
    pub(super) fn raise(&self, mixer: &Mixer, key: Mixed, counted: &Counted, units: u64) {
        // If the newest window is this window or the next one, a cell with another number is older. Two windows later,
        // the same cells can have units of a newer window, and the units of this window no longer count. They do not
        // count either if the clock was set back in the meantime.
        let newest = || self.newest.load(Ordering::Acquire);
        let is_older = || (counted.window..counted.window + 2).contains(&newest());
        let key = mixer.in_window(key, counted.window);
        self.generation(counted.window).raise(key, counted.window, units, is_older);
    }
}

#[cfg(all(test, loom))]
impl Windows {
    /// Returns the estimate of `key` in a window.
    pub(super) fn estimate(&self, mixer: &Mixer, key: Mixed, window: u64) -> u64 {
        self.generation(window).estimate(mixer.in_window(key, window), window)
    }
}
