//! Every admitted unit is remembered until it is a window old: exact, at up to L entries a key.
//!
//! Admission bound: L * (floor(s/W) + 1), which is L in every half-open window of length W.
//! Units taken at one instant share an entry with a count.

use alloc::collections::VecDeque;

use crate::state::{Refusal, Usage};
use crate::{Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Log {
    /// Oldest first, times strictly increasing; never empty outside this module.
    entries: VecDeque<Entry>,
    /// Units in all entries, at most the hard capacity + 1.
    units: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    units: u64,
}

impl Log {
    /// The time that counts: a late request counts as of the newest entry.
    fn effective(&self, now: u64) -> u64 {
        self.entries.back().map_or(now, |newest| newest.at.max(now))
    }

    /// The entries that still count, oldest first.
    fn counting(&self, quota: &Quota, now: u64) -> impl Iterator<Item = &Entry> {
        let effective = self.effective(now);
        self.entries.iter().skip_while(move |e| effective - e.at >= quota.window_ns())
    }

    fn count(&self, quota: &Quota, now: u64) -> u64 {
        let effective = self.effective(now);
        let expired = self.entries.iter().take_while(|e| effective - e.at >= quota.window_ns());
        self.units - expired.map(|e| e.units).sum::<u64>()
    }

    fn add(&mut self, quota: &Quota, cost: u64, now: u64) -> u64 {
        let at = self.effective(now);
        while let Some(oldest) = self.entries.front().filter(|e| at - e.at >= quota.window_ns()) {
            self.units -= oldest.units;
            self.entries.pop_front();
        }
        match self.entries.back_mut() {
            Some(newest) if newest.at == at => newest.units += cost,
            _ => self.entries.push_back(Entry { at, units: cost }),
        }
        self.units += cost;
        at
    }

    /// Removes the `units` oldest units.
    fn drop_oldest(&mut self, mut units: u64) {
        while units > 0 {
            let Some(oldest) = self.entries.front_mut() else { return };
            let dropped = oldest.units.min(units);
            oldest.units -= dropped;
            self.units -= dropped;
            units -= dropped;
            if oldest.units == 0 {
                self.entries.pop_front();
            }
        }
    }

    pub(crate) fn adopt(&mut self, quota: &Quota, now: u64) -> bool {
        self.entries.back().is_some_and(|newest| newest.at <= now + quota.window_ns())
    }

    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, _: u64, now: u64) -> Option<Refusal> {
        let over = (self.count(quota, now) + cost).checked_sub(quota.hard_capacity() + 1)? + 1;
        let mut units = 0;
        let freeing = self.counting(quota, now).find(|e| {
            units += e.units;
            units >= over
        })?;
        Some((Reason::Exceeded, Wait::After(freeing.at + quota.window_ns() - now)))
    }

    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        let at = self.add(quota, cost, now);
        Receipt { at: Time::from_nanos(at), mark: 0 }
    }

    /// Keeps the newest (hard capacity + 1) units: enough to refuse, and bounded.
    pub(crate) fn force(&mut self, quota: &Quota, cost: u64, now: u64) {
        let most = quota.hard_capacity() + 1;
        self.add(quota, cost.min(most), now);
        self.drop_oldest(self.units.saturating_sub(most));
    }

    pub(crate) fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        match receipt {
            Some(receipt) => {
                if let Ok(i) = self.entries.binary_search_by_key(&receipt.at.as_nanos(), |e| e.at) {
                    let given = self.entries[i].units.min(cost);
                    self.entries[i].units -= given;
                    self.units -= given;
                    if self.entries[i].units == 0 {
                        self.entries.remove(i);
                    }
                }
            }
            None => {
                let expired = self.units - self.count(quota, now);
                self.drop_oldest(expired.saturating_add(cost));
            }
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
}
