//! A fair sample of the callers of a limit: those with the smallest hashes (bottom-k).
//!
//! The hashes are secret, so no caller can choose whether it is in the sample. While the limit has at most `k` callers
//! (the number that the sample keeps), the sample has all of them. The number of all callers is estimated as in Cohen
//! and Kaplan, "Summarizing data using bottom-k sketches" (2007).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::caller::Caller;
use super::model::Model;
use super::positions::Positions;
use super::reading::Sampled;
use super::{LONGEST_SPAN_NS, MINUTE_NS, SPANS_NS, Take};

/// One more than the minutes of the longest span, because a span can begin within a minute.
const MINUTES: usize = (LONGEST_SPAN_NS / MINUTE_NS) as usize + 1;

/// A sample that threads share. If a limit has many callers, few of them are in the sample. For the others, a thread
/// only reads `known`, without a lock.
#[derive(Debug)]
pub(super) struct SharedSample {
    known: Known,
    sample: Mutex<Sample>,
}

/// What a thread can check without the lock of the sample. It has a cache line of its own, which seldom changes.
#[derive(Debug)]
#[repr(align(128))]
struct Known {
    /// Callers with this hash or a higher one are not in the sample.
    threshold: AtomicU64,
    /// The minute of the newest take, counted from the epoch.
    minute: AtomicU64,
}

impl SharedSample {
    /// Makes a sample that keeps at least `kept` callers, if the limit has that many.
    pub(super) fn new(kept: usize) -> SharedSample {
        let known = Known { threshold: AtomicU64::new(u64::MAX), minute: AtomicU64::new(0) };
        SharedSample { known, sample: Mutex::new(Sample::new(kept)) }
    }

    /// Counts a take of the caller with the hash `hash`, if the caller is in the sample.
    #[inline]
    pub(super) fn count(&self, model: &Model, now_ns: u64, hash: u64, take: &Take) {
        // The threshold rises only when a minute begins, and a thread that sees a minute also sees its threshold. So a
        // caller at or above the threshold can be skipped here.
        let same_minute = self.known.minute.load(Ordering::Acquire) == now_ns / MINUTE_NS;
        if same_minute && hash >= self.known.threshold.load(Ordering::Relaxed) {
            return;
        }
        let mut sample = self.sample.lock();
        sample.count(model, now_ns, hash, take);
        let (threshold, minute) = (sample.threshold, sample.minute);
        if self.known.threshold.load(Ordering::Relaxed) != threshold {
            self.known.threshold.store(threshold, Ordering::Relaxed);
        }
        if self.known.minute.load(Ordering::Relaxed) != minute {
            self.known.minute.store(minute, Ordering::Release);
        }
    }

    pub(super) fn clear(&self) {
        let mut sample = self.sample.lock();
        sample.clear();
        self.known.threshold.store(u64::MAX, Ordering::Relaxed);
        self.known.minute.store(0, Ordering::Release);
    }

    /// Adds the callers of the span `SPANS_NS[span]`, which ends at `now_ns`, to `sampled`.
    pub(super) fn read(&self, model: &Model, now_ns: u64, span: usize, sampled: &mut Sampled) {
        self.sample.lock().read(model, now_ns, span, sampled);
    }
}

/// The callers with the smallest hashes.
#[derive(Debug)]
struct Sample {
    /// The callers of the longest span whose hashes are below the threshold.
    callers: Vec<Caller>,
    positions: Positions,
    /// The number of callers that stay if the list is full.
    kept: usize,
    threshold: u64,
    /// The lowest threshold of each minute. The index is the number of the minute since the epoch, modulo the length.
    thresholds: [u64; MINUTES],
    minute: u64,
    /// Memory for the hashes of all callers. `shrink` uses it to find the new threshold.
    hashes: Vec<u64>,
}

impl Sample {
    fn new(kept: usize) -> Sample {
        // The list is a quarter longer than `kept`, so that a new threshold is needed only after a quarter of `kept`
        // new callers.
        let capacity = kept + kept.div_ceil(4);
        Sample {
            callers: Vec::with_capacity(capacity),
            positions: Positions::new(capacity),
            kept,
            threshold: u64::MAX,
            thresholds: [u64::MAX; MINUTES],
            minute: 0,
            hashes: Vec::with_capacity(capacity),
        }
    }

    fn clear(&mut self) {
        self.callers.clear();
        self.positions.rebuild(std::iter::empty());
        (self.threshold, self.minute) = (u64::MAX, 0);
        self.thresholds.fill(u64::MAX);
    }

    fn count(&mut self, model: &Model, now_ns: u64, hash: u64, take: &Take) {
        if now_ns / MINUTE_NS > self.minute {
            self.next_minute(now_ns);
        }
        if hash >= self.threshold {
            return;
        }
        let position = match self.positions.find(hash, |position| self.callers[position].hash) {
            Some(position) => position,
            None => match self.add(hash, now_ns) {
                Some(position) => position,
                None => return,
            },
        };
        self.callers[position].count(model, now_ns, take);
    }

    /// Adds a caller. Returns `None` if its hash is not among the smallest.
    #[cold]
    fn add(&mut self, hash: u64, now_ns: u64) -> Option<usize> {
        if self.callers.len() == self.callers.capacity() {
            self.shrink(now_ns);
            if hash >= self.threshold {
                return None;
            }
        }
        self.callers.push(Caller::new(hash));
        self.positions.add(hash, self.callers.len() - 1);
        Some(self.callers.len() - 1)
    }

    /// Removes callers that did not ask within the longest span. If there are still too many, also removes those with
    /// the largest hashes.
    fn shrink(&mut self, now_ns: u64) {
        self.forget(now_ns);
        if self.callers.len() > self.kept {
            self.hashes.clear();
            self.hashes.extend(self.callers.iter().map(|caller| caller.hash));
            let threshold = *self.hashes.select_nth_unstable(self.kept).1;
            self.lower_threshold(threshold);
            self.callers.retain(|caller| caller.hash < threshold);
        }
        self.positions.rebuild(self.callers.iter().map(|caller| caller.hash));
    }

    fn forget(&mut self, now_ns: u64) {
        let begin_ns = now_ns.saturating_sub(LONGEST_SPAN_NS);
        self.callers.retain(|caller| caller.last_asked_ns >= begin_ns);
    }

    fn lower_threshold(&mut self, threshold: u64) {
        self.threshold = threshold;
        let minute = self.minute as usize % MINUTES;
        self.thresholds[minute] = self.thresholds[minute].min(threshold);
    }

    /// Begins a minute. If fewer than half of `kept` callers are left, the threshold rises, so that others can join.
    #[cold]
    fn next_minute(&mut self, now_ns: u64) {
        let minute = now_ns / MINUTE_NS;
        self.forget(now_ns);
        self.positions.rebuild(self.callers.iter().map(|caller| caller.hash));
        let missed = (minute - self.minute).min(MINUTES as u64);
        if self.callers.len() < self.kept.div_ceil(2) {
            self.threshold = if self.threshold > u64::MAX / 2 { u64::MAX } else { 2 * self.threshold };
        }
        for passed in 0..missed {
            self.thresholds[(minute - passed) as usize % MINUTES] = self.threshold;
        }
        self.minute = minute;
    }

    fn read(&self, model: &Model, now_ns: u64, span: usize, sampled: &mut Sampled) {
        let threshold = self.threshold_of(now_ns, SPANS_NS[span]);
        let below = self.callers.iter().filter(|caller| caller.hash < threshold);
        sampled.add(threshold, below.filter_map(|caller| caller.read(model, now_ns, span)));
    }

    /// Returns the lowest threshold in the span that ends at `now_ns`. Every caller with a hash below this threshold
    /// was counted from its first request in the span.
    fn threshold_of(&self, now_ns: u64, span_ns: u64) -> u64 {
        let first = now_ns.saturating_add(1).saturating_sub(span_ns) / MINUTE_NS;
        let known = self.minute.saturating_sub(MINUTES as u64 - 1);
        let minutes = first.max(known)..=self.minute;
        minutes.map(|minute| self.thresholds[minute as usize % MINUTES]).min().unwrap_or(u64::MAX).min(self.threshold)
    }
}
