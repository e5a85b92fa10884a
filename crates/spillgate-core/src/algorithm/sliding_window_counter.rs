//! The sliding window counter: the window is divided into `n` segments, and each segment has a counter.
//!
//! `L` is the limit, `W` is the length of the window, and `w = W/n` is the length of a segment.
//!
//! The window moves with time, so only a part of the oldest segment lies in the window. The units of the oldest segment
//! count in proportion to this part. The window touches up to `n + 1` segments, so a key has `n + 1` counters. A log,
//! which stores each unit, would need up to `L` entries. With `n = 1`, this is the well-known algorithm that weights
//! the count of the previous window.
//!
//! In an interval of length `s`, at most this many units are admitted:
//!
//! * `n = 1`: `L + L*s/W`.
//! * `n > 1`: `L * (1 + floor(s/W) + max(0, (s mod W - W + w)/w))`.
//!
//! Let `e` be the time from the start of the newest segment until `now`. Let `oldest` be the units in the oldest
//! segment, and `rest` the units in all other segments. A cost is admitted exactly if
//! `oldest * (w - e) + (rest + cost) * w <= L * w`. All these numbers are integers, and none of them is rounded. If the
//! share of the oldest segment were rounded down instead, one unit too many could be admitted.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

use super::types::{Refusal, Usage};
use crate::packed::Packed;
use crate::quota::MAX_UNITS;
use crate::{Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    /// The start of the newest segment, in nanoseconds since the epoch.
    start: u64,
    counts: Counts,
}

/// The units in each segment, newest first. For `n` segments in a window there are `n + 1` counts: the last one is for
/// the oldest segment, which lies only partly in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Counts {
    /// For one segment in a window. This usual case owns no memory on the heap.
    Two([u64; 2]),
    Many(Box<[u64]>),
}

impl Deref for Counts {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Counts::Two(counts) => counts,
            Counts::Many(counts) => counts,
        }
    }
}

impl DerefMut for Counts {
    fn deref_mut(&mut self) -> &mut [u64] {
        match self {
            Counts::Two(counts) => counts,
            Counts::Many(counts) => counts,
        }
    }
}

/// The window at one instant.
struct View<'s> {
    counts: &'s [u64],
    /// The number of segments that began after the newest segment in `counts`.
    shift: usize,
    /// The start of the segment that contains the instant.
    start: u64,
    /// The time from `start` to the instant.
    elapsed: u64,
}

impl View<'_> {
    /// Returns the units in the oldest segment and in all other segments, as they are after `later` more segments have
    /// begun.
    #[inline]
    fn sums(&self, later: usize) -> (u128, u128) {
        let segments = self.counts.len() - 1;
        let shift = self.shift.saturating_add(later);
        let oldest = segments.checked_sub(shift).map_or(0, |i| self.counts[i]);
        let rest = self.counts.iter().take(segments.saturating_sub(shift)).map(|&c| u128::from(c)).sum();
        (u128::from(oldest), rest)
    }

    /// Returns the units that are used at the instant, multiplied by the length of a segment. The units of the oldest
    /// segment are weighted with the part of this segment that is in the window.
    #[inline]
    fn weighted(&self, segment_ns: u64) -> u128 {
        let (oldest, rest) = self.sums(0);
        oldest * u128::from(segment_ns - self.elapsed) + rest * u128::from(segment_ns)
    }
}

impl Segments {
    pub(crate) fn new(segments: u8) -> Segments {
        let counts = match segments {
            1 => Counts::Two([0; 2]),
            _ => Counts::Many(vec![0; usize::from(segments) + 1].into_boxed_slice()),
        };
        Segments { start: 0, counts }
    }

    /// Packs the state, or returns `None` if there are several segments. `expires_at` is computed as if the newest
    /// segment had units, even if it has none. So `unpack` can compute `start` from `expires_at`.
    #[inline]
    pub(crate) fn pack(&self, quota: &Quota) -> Option<Packed> {
        match self.counts {
            Counts::Two([0, 0]) => Some(Packed::default()),
            Counts::Two([first, second]) => {
                Some(Packed { expires_at: self.start + 2 * quota.window_ns(), first, second })
            }
            Counts::Many(_) => None,
        }
    }

    #[inline]
    pub(crate) fn unpack(packed: Packed, quota: &Quota) -> Segments {
        let counts = Counts::Two([packed.first, packed.second]);
        Segments { start: packed.expires_at.saturating_sub(2 * quota.window_ns()), counts }
    }

    pub(crate) fn segments(&self) -> u8 {
        u8::try_from(self.counts.len() - 1).unwrap_or(u8::MAX)
    }

    /// Returns the window at `now`. If `now` is before the start of the newest segment, the request is late. A late
    /// request is counted as if it came at the start of the newest segment.
    #[inline]
    fn view(&self, quota: &Quota, now: u64) -> View<'_> {
        let (now, segment_ns) = (now.max(self.start), quota.interval_ns());
        let start = now - now % segment_ns;
        // Another quota may have stored a start that is not a multiple of the segment length of this quota. So
        // `self.start` can be later than `start`.
        let shift = usize::try_from(start.saturating_sub(self.start) / segment_ns).unwrap_or(usize::MAX);
        View { counts: &self.counts, shift, start, elapsed: now - start }
    }

    #[inline]
    fn add(&mut self, quota: &Quota, cost: u64, now: u64) {
        self.advance(quota, now);
        self.counts[0] = self.counts[0].saturating_add(cost).min(MAX_UNITS);
    }

    #[inline]
    fn advance(&mut self, quota: &Quota, now: u64) {
        let View { shift, start, .. } = self.view(quota, now);
        let shift = shift.min(self.counts.len());
        self.counts.rotate_right(shift);
        self.counts[..shift].fill(0);
        self.start = start;
    }

    #[inline]
    pub(crate) fn adopt(&mut self, quota: &Quota, now: u64) -> bool {
        self.start <= now + quota.window_ns() && self.counts.iter().any(|&c| c > 0)
    }

    #[inline]
    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, _: u64, now: u64) -> Option<Refusal> {
        let segment_ns = quota.interval_ns();
        let view = self.view(quota, now);
        let most = u128::from(quota.hard_capacity()) * u128::from(segment_ns);
        if view.weighted(segment_ns) + u128::from(cost) * u128::from(segment_ns) <= most {
            return None;
        }
        // Finds the earliest instant at which the cost fits, segment by segment. In the last step all segments have
        // expired, so every cost up to the capacity fits then.
        for later in 0..=self.counts.len() {
            let (oldest, rest) = view.sums(later);
            let Some(free) = u128::from(quota.hard_capacity()).checked_sub(rest + u128::from(cost)) else { continue };
            let from = if later == 0 { view.elapsed } else { 0 };
            let free_ns = free * u128::from(segment_ns);
            let fits_at_ns = if oldest * u128::from(segment_ns - from) <= free_ns {
                from
            } else {
                segment_ns - u64::try_from(free_ns / oldest).unwrap_or(segment_ns)
            };
            let at = view.start + later as u64 * segment_ns + fits_at_ns;
            return Some((Reason::Exceeded, Wait::After(at - now)));
        }
        None
    }

    #[inline]
    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        self.add(quota, cost, now);
        Receipt { at: Time::from_nanos(now.max(self.start)), mark: 0 }
    }

    pub(crate) fn force(&mut self, quota: &Quota, cost: u64, now: u64) {
        self.add(quota, cost, now);
    }

    pub(crate) fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        self.advance(quota, now);
        let segment_ns = quota.interval_ns();
        let age = receipt.map_or(Some(0), |r| {
            let at = r.at.as_nanos();
            self.start.checked_sub(at - at % segment_ns).map(|ns| ns / segment_ns)
        });
        let index = age.and_then(|age| usize::try_from(age).ok());
        if let Some(count) = index.and_then(|i| self.counts.get_mut(i)) {
            *count = count.saturating_sub(cost);
        }
        self.counts.iter().any(|&c| c > 0)
    }

    #[inline]
    pub(crate) fn usage(&self, quota: &Quota, now: u64) -> Usage {
        let segment_ns = u128::from(quota.interval_ns());
        let used = self.view(quota, now).weighted(quota.interval_ns());
        let capacity = u128::from(quota.capacity()) * segment_ns;
        let remaining = capacity.saturating_sub(used) / segment_ns;
        Usage {
            remaining: u64::try_from(remaining).unwrap_or(u64::MAX),
            reset_after_ns: self.expires_at(quota).saturating_sub(now),
            over: used > capacity,
        }
    }

    #[inline]
    pub(crate) fn expires_at(&self, quota: &Quota) -> u64 {
        let Some(newest) = self.counts.iter().position(|&c| c > 0) else { return 0 };
        // A start before the epoch cannot be represented, so such a segment counts as if it began at the epoch.
        let start = self.start.saturating_sub(newest as u64 * quota.interval_ns());
        start + quota.window_ns() + quota.interval_ns()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.counts {
            Counts::Two(_) => 0,
            Counts::Many(counts) => size_of_val(&**counts),
        }
    }

    pub(crate) fn encode(&self, words: &mut Vec<u64>) {
        words.push(self.start);
        words.extend(&*self.counts);
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Segments> {
        let (&start, counts) = words.split_first()?;
        let segments = counts.len().checked_sub(1).filter(|n| (1..=128).contains(n))?;
        let mut decoded = Segments::new(u8::try_from(segments).ok()?);
        decoded.start = start;
        decoded.counts.copy_from_slice(counts);
        (start <= Time::MAX.as_nanos() && counts.iter().all(|&c| c <= MAX_UNITS)).then_some(decoded)
    }
}
