//! The sliding window log: every admitted unit is stored until it is as old as the window is long.
//!
//! The log is the only algorithm that admits at most `L` units in every window of length `W`, wherever the window
//! starts. `L` is the limit. To do this, the log stores up to `L` entries for each key. Units that are taken at the
//! same instant share an entry.
//!
//! There are two ways to state the bound:
//!
//! * A window that includes its start but not its end (half-open) admits at most `L` units.
//! * An interval of length `s` that includes both its ends (closed) admits at most `L * (floor(s/W) + 1)` units.
//!
//! Each entry stores a running total. So a decision finds what it needs by a search, and never visits all entries. A
//! refund with a receipt is the exception: it changes the entry of the take and every newer entry.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::types::{Refusal, Usage};
use crate::quota::MAX_RECORDS;
use crate::{Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Log {
    /// The oldest entry is first, and the times strictly increase. The log is never empty outside this module.
    entries: VecDeque<Entry>,
    /// The running total just before the oldest entry.
    dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    /// The running total: the units of this entry and of all older entries. Only differences between totals are used,
    /// so a total may wrap around after 2^64 units.
    total: u64,
}

impl Log {
    /// Returns the time at which a request is counted. A request is late if its time is before that of the newest
    /// entry. A late request is counted as if it came at the time of the newest entry.
    fn effective(&self, now: u64) -> u64 {
        self.entries.back().map_or(now, |newest| newest.at.max(now))
    }

    /// Returns the number of units in the oldest `entries` entries.
    fn units(&self, entries: usize) -> u64 {
        let total = entries.checked_sub(1).map_or(self.dropped, |last| self.entries[last].total);
        total.wrapping_sub(self.dropped)
    }

    /// Returns the index of the first entry for which `holds` is false. `holds` must be true for all entries before
    /// `from`. Once it is false for an entry, it must be false for all later entries.
    ///
    /// The index is usually close to `from`. So the search starts with a small step and doubles it while `holds` is
    /// true. Then it halves the step until the index is found.
    fn first_not(&self, from: usize, holds: impl Fn(&Entry) -> bool) -> usize {
        let all_hold = |end: usize| end <= self.entries.len() && holds(&self.entries[end - 1]);
        let (mut index, mut step) = (from, 1);
        while all_hold(index + step) {
            index += step;
            step *= 2;
        }
        while step > 1 {
            step /= 2;
            if all_hold(index + step) {
                index += step;
            }
        }
        index
    }

    /// Returns the number of entries that are at least as old as the window is long.
    fn expired(&self, quota: &Quota, now: u64) -> usize {
        let effective = self.effective(now);
        self.first_not(0, |e| effective - e.at >= quota.window_ns())
    }

    /// Returns the number of units that still count at `now`.
    fn count(&self, quota: &Quota, now: u64) -> u64 {
        self.units(self.entries.len()) - self.units(self.expired(quota, now))
    }

    fn add(&mut self, quota: &Quota, cost: u64, now: u64) -> u64 {
        let at = self.effective(now);
        self.drop_oldest(self.units(self.expired(quota, now)));
        let total = self.entries.back().map_or(self.dropped, |newest| newest.total).wrapping_add(cost);
        match self.entries.back_mut() {
            Some(newest) if newest.at == at => newest.total = total,
            _ => self.entries.push_back(Entry { at, total }),
        }
        at
    }

    fn drop_oldest(&mut self, units: u64) {
        let gone = self.first_not(0, |e| e.total.wrapping_sub(self.dropped) <= units);
        self.dropped = self.dropped.wrapping_add(units.min(self.units(self.entries.len())));
        self.entries.drain(..gone);
    }

    pub(crate) fn adopt(&mut self, quota: &Quota, now: u64) -> bool {
        self.entries.back().is_some_and(|newest| newest.at <= now + quota.window_ns())
    }

    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, _: u64, now: u64) -> Option<Refusal> {
        let entries = self.expired(quota, now);
        let expired = self.units(entries);
        let count = self.units(self.entries.len()) - expired;
        let over = (count + cost).checked_sub(quota.hard_capacity() + 1)? + 1;
        // With the cost, `over` units too many would be used. The cost fits as soon as `over` more units have expired.
        // The next line finds the entry with which the last of these units expires.
        let freeing = self.first_not(entries, |e| e.total.wrapping_sub(self.dropped) < expired + over);
        let freeing = self.entries.get(freeing)?;
        Some((Reason::Exceeded, Wait::After(freeing.at + quota.window_ns() - now)))
    }

    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        let at = self.add(quota, cost, now);
        Receipt { at: Time::from_nanos(at), mark: 0 }
    }

    /// Counts the units, and then keeps only the newest (hard capacity + 1) units. This many units are enough to refuse
    /// every take and every peek, and they bound the size of the log. If a quota with a larger limit has counted more
    /// units before, the log keeps as many units as it had.
    pub(crate) fn force(&mut self, quota: &Quota, cost: u64, now: u64) {
        let own = quota.hard_capacity() + 1;
        let most = own.max(self.count(quota, now));
        self.add(quota, cost.min(own), now);
        self.drop_oldest(self.units(self.entries.len()).saturating_sub(most));
    }

    pub(crate) fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        match receipt {
            Some(receipt) => {
                if let Ok(i) = self.entries.binary_search_by_key(&receipt.at.as_nanos(), |e| e.at) {
                    let units = self.units(i + 1) - self.units(i);
                    let given = units.min(cost);
                    for entry in self.entries.range_mut(i..) {
                        entry.total = entry.total.wrapping_sub(given);
                    }
                    if given == units {
                        self.entries.remove(i);
                    }
                }
            }
            None => self.drop_oldest(self.units(self.expired(quota, now)).saturating_add(cost)),
        }
        !self.entries.is_empty()
    }

    pub(crate) fn usage(&self, quota: &Quota, now: u64) -> Usage {
        let count = self.count(quota, now);
        let newest = self.entries.back().map_or(0, |newest| newest.at);
        Usage {
            remaining: quota.capacity().saturating_sub(count),
            reset_after_ns: (newest + quota.window_ns()).saturating_sub(now),
            over: count > quota.capacity(),
        }
    }

    pub(crate) fn expires_at(&self, quota: &Quota) -> u64 {
        self.entries.back().map_or(0, |newest| newest.at + quota.window_ns())
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Writes the time and the units of each entry, oldest first.
    pub(crate) fn encode(&self, words: &mut Vec<u64>) {
        words.extend((0..self.entries.len()).flat_map(|i| [self.entries[i].at, self.units(i + 1) - self.units(i)]));
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Log> {
        let (pairs, []) = words.as_chunks::<2>() else { return None };
        let mut log = Log::default();
        for &[at, units] in pairs {
            let newest = log.entries.back();
            let total = newest.map_or(0, |newest| newest.total);
            let later = newest.is_none_or(|newest| newest.at < at) && at <= Time::MAX.as_nanos();
            // A force can leave one unit more than the largest limit, which is `MAX_RECORDS`.
            if !later || units == 0 || units > MAX_RECORDS + 1 - total {
                return None;
            }
            log.entries.push_back(Entry { at, total: total + units });
        }
        (!log.entries.is_empty()).then_some(log)
    }
}
