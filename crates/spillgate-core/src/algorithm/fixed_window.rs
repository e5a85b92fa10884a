//! The fixed window: one counter for each window.
//!
//! The state has only two numbers, the start of the window and a count, so it needs little memory.
//!
//! `L` is the limit, and `W` is the length of the window. The [`Anchor`](crate::Anchor) of the quota says when windows
//! start. In an interval of length `s`, at most this many units are admitted:
//!
//! * If windows start at multiples of `W` since the epoch: `L * (ceil(s/W) + 1)`. So `2 * L` units can be admitted in a
//!   short time around the edge between two windows.
//! * If a window starts at the key's first hit: `L * (floor(s/W) + 1)` if `s` is a multiple of `W`. For any other `s`,
//!   `L - 1` units more.

use alloc::vec::Vec;

use super::types::{Refusal, Usage};
use crate::packed::Packed;
use crate::quota::MAX_UNITS;
use crate::{Algorithm, Anchor, Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Window {
    /// The start of the window, in nanoseconds since the epoch.
    start: u64,
    count: u64,
}

impl Window {
    #[inline]
    pub(crate) fn pack(&self, quota: &Quota) -> Packed {
        Packed { expires_at: self.expires_at(quota), first: self.count, second: 0 }
    }

    #[inline]
    pub(crate) fn unpack(packed: Packed, quota: &Quota) -> Window {
        Window { start: packed.expires_at.saturating_sub(quota.window_ns()), count: packed.first }
    }

    /// Returns the window that counts at `now`: this window if it has not ended, or else a new and empty window. If
    /// `now` is before the start of this window, the request is late: a request with a newer time was decided first. A
    /// late request is counted in this window too.
    #[inline]
    fn at(&self, quota: &Quota, now: u64) -> Window {
        let window_ns = quota.window_ns();
        if self.count > 0 && now < self.start + window_ns {
            return self.clone();
        }
        let from_first_hit = quota.algorithm() == Algorithm::FixedWindow(Anchor::FirstHit);
        let start = if from_first_hit { now } else { now - now % window_ns };
        Window { start, count: 0 }
    }

    #[inline]
    fn add(&mut self, quota: &Quota, cost: u64, now: u64) {
        *self = self.at(quota, now);
        self.count = self.count.saturating_add(cost).min(MAX_UNITS);
    }

    #[inline]
    pub(crate) fn adopt(&mut self, quota: &Quota, now: u64) -> bool {
        self.count > 0 && self.start <= now + quota.window_ns()
    }

    #[inline]
    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, _: u64, now: u64) -> Option<Refusal> {
        let window = self.at(quota, now);
        if window.count + cost <= quota.hard_capacity() {
            return None;
        }
        Some((Reason::Exceeded, Wait::After(window.start + quota.window_ns() - now)))
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
        *self = self.at(quota, now);
        let end = self.start + quota.window_ns();
        let here = receipt.is_none_or(|r| (self.start..end).contains(&r.at.as_nanos()));
        if here {
            self.count = self.count.saturating_sub(cost);
        }
        self.count > 0
    }

    #[inline]
    pub(crate) fn usage(&self, quota: &Quota, now: u64) -> Usage {
        let window = self.at(quota, now);
        let end = window.start + quota.window_ns();
        Usage {
            remaining: quota.capacity().saturating_sub(window.count),
            reset_after_ns: if window.count > 0 { end - now } else { 0 },
            over: window.count > quota.capacity(),
        }
    }

    #[inline]
    pub(crate) fn expires_at(&self, quota: &Quota) -> u64 {
        if self.count > 0 { self.start + quota.window_ns() } else { 0 }
    }

    pub(crate) fn encode(&self, words: &mut Vec<u64>) {
        words.extend([self.start, self.count]);
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Window> {
        let &[start, count] = words else { return None };
        (start <= Time::MAX.as_nanos() && count <= MAX_UNITS).then_some(Window { start, count })
    }
}
