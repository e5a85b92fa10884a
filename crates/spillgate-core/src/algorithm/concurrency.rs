//! Places that are held until they are released, or their lease runs out.
//!
//! Admission bound: unexpired leases hold at most N places at any time.
//!
//! Every operation takes time in proportion to the logarithm of the number of leases, times the
//! number of different lives that they were promised (one, but while the quota's has changed).
//! On top of that each lease is removed once after it has run out, and a clock that steps back
//! pays for the leases that were granted, or have run out, in the time it goes through again.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Bound::{Excluded, Included};

use super::types::{LATEST_NS, Refusal, Usage};
use crate::quota::{MAX_RECORDS, MAX_SPAN_NS};
use crate::{Quota, Reason, Receipt, Time, Wait};

/// Boxed: every key pays for the size of the largest state, and few are concurrency limits.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Leases(Box<Table>);

#[derive(Clone, Debug, Default)]
struct Table {
    /// By id.
    terms: BTreeMap<u64, Term>,
    /// The same leases by their lives, shortest first; at most one for each of the N places.
    groups: Vec<Group>,
    /// The newest id that was given out: ids are never given out twice.
    last_id: u64,
    /// Places of the leases that are alive at `counted_at`, so that nobody has to add them up.
    held: u64,
    counted_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Term {
    /// What the holder was promised; a clock that is set back does not make it longer.
    life_ns: u64,
    /// In nanoseconds since the epoch.
    expires_at: u64,
}

/// Leases of one life: the order in which they end is that in which they were granted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    life_ns: u64,
    /// Places by end and id; never empty.
    places: BTreeMap<(u64, u64), u64>,
}

impl Group {
    /// Places that become free after `from`, but not after `to`.
    fn freed(&self, from: u64, to: u64) -> u64 {
        self.places.range((Excluded((from, u64::MAX)), Included((to, u64::MAX)))).map(|(_, places)| places).sum()
    }
}

/// When places were counted last is no part of what a state means.
impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        self.groups == other.groups && self.last_id == other.last_id
    }
}

impl Eq for Table {}

impl Table {
    fn held(&self, now: u64) -> u64 {
        let freed = |from, to| self.groups.iter().map(|group| group.freed(from, to)).sum::<u64>();
        match now.cmp(&self.counted_at) {
            Ordering::Less => self.held + freed(now, self.counted_at),
            Ordering::Equal => self.held,
            Ordering::Greater => self.held - freed(self.counted_at, now),
        }
    }

    /// When the last lease ends; 0 if there is none.
    fn last_end(&self) -> u64 {
        let last_ends = self.groups.iter().filter_map(|group| group.places.last_key_value());
        last_ends.map(|((end, _), _)| *end).max().unwrap_or(0)
    }

    fn insert(&mut self, id: u64, term: Term, places: u64) {
        self.terms.insert(id, term);
        let group = self.groups.binary_search_by_key(&term.life_ns, |group| group.life_ns).unwrap_or_else(|index| {
            self.groups.insert(index, Group { life_ns: term.life_ns, places: BTreeMap::new() });
            index
        });
        self.groups[group].places.insert((term.expires_at, id), places);
        if term.expires_at > self.counted_at {
            self.held += places;
        }
    }

    fn remove(&mut self, id: u64) -> Option<(Term, u64)> {
        let term = self.terms.remove(&id)?;
        let group = self.groups.binary_search_by_key(&term.life_ns, |group| group.life_ns).ok()?;
        let places = self.groups[group].places.remove(&(term.expires_at, id))?;
        if self.groups[group].places.is_empty() {
            self.groups.remove(group);
        }
        if term.expires_at > self.counted_at {
            self.held -= places;
        }
        Some((term, places))
    }

    /// Ends at `now` + their life what would last longer, as the clock has been set back.
    fn clamp(&mut self, now: u64) {
        let last_of = |group: &Group| {
            let ((end, id), _) = group.places.last_key_value()?;
            (*end > now + group.life_ns).then_some(*id)
        };
        while let Some(id) = self.groups.iter().find_map(last_of) {
            let Some((term, places)) = self.remove(id) else { return };
            self.insert(id, Term { expires_at: now + term.life_ns, ..term }, places);
        }
    }

    fn remove_expired(&mut self, now: u64) {
        let first_of = |group: &Group| {
            let ((end, id), _) = group.places.first_key_value()?;
            (*end <= now).then_some(*id)
        };
        while let Some(id) = self.groups.iter().find_map(first_of) {
            self.remove(id);
        }
    }
}

impl Leases {
    pub(crate) fn adopt(&mut self, _: &Quota, now: u64) -> bool {
        let table = &mut *self.0;
        table.held = table.held(now);
        table.counted_at = now;
        table.clamp(now);
        now <= table.last_id || table.held > 0
    }

    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, _: u64, now: u64) -> Option<Refusal> {
        let fits = self.0.held(now) + cost <= quota.hard_capacity();
        (!fits).then_some((Reason::Exceeded, Wait::Unknown))
    }

    /// The id is the time in nanoseconds, or the next free number after it.
    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        let table = &mut *self.0;
        table.remove_expired(now);
        table.last_id = now.max(table.last_id.saturating_add(1));
        let life_ns = quota.lease_ns();
        table.insert(table.last_id, Term { life_ns, expires_at: now + life_ns }, cost);
        Receipt { at: Time::from_nanos(now), mark: table.last_id }
    }

    /// No such operation: a place that is held has a lease ([`Quota::supports`]).
    pub(crate) fn force(&mut self, _: &Quota, _: u64, _: u64) {}

    pub(crate) fn refund(&mut self, _: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        let table = &mut *self.0;
        if let Some(receipt) = receipt
            && let Some((term, places)) = table.remove(receipt.mark)
            && places > cost
        {
            table.insert(receipt.mark, term, places - cost);
        }
        // Empty states are kept until their last id is in the past and cannot come again.
        now <= table.last_id || !table.terms.is_empty()
    }

    pub(crate) fn is_alive(&self, receipt: Receipt, now: u64) -> bool {
        self.0.terms.get(&receipt.mark).is_some_and(|term| term.expires_at > now)
    }

    pub(crate) fn renew(&mut self, quota: &Quota, receipt: Receipt, now: u64) {
        let table = &mut *self.0;
        if let Some((term, places)) = table.remove(receipt.mark) {
            let life_ns = term.life_ns.max(quota.lease_ns());
            let expires_at = term.expires_at.max(now + quota.lease_ns());
            table.insert(receipt.mark, Term { life_ns, expires_at }, places);
        }
    }

    pub(crate) fn usage(&self, quota: &Quota, now: u64) -> Usage {
        let held = self.0.held(now);
        Usage {
            remaining: quota.capacity().saturating_sub(held),
            reset_after_ns: self.0.last_end().saturating_sub(now),
            over: held > quota.capacity(),
        }
    }

    pub(crate) fn expires_at(&self, _: &Quota) -> u64 {
        self.0.last_end().max(self.0.last_id + 1)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let table = &*self.0;
        let places = table.groups.iter().map(|group| tree_bytes(group.places.len(), size_of::<((u64, u64), u64)>()));
        size_of::<Table>()
            + tree_bytes(table.terms.len(), size_of::<(u64, Term)>())
            + table.groups.capacity() * size_of::<Group>()
            + places.sum::<usize>()
    }

    /// The last id, then id, life, end and places of each lease.
    pub(crate) fn encode(&self, words: &mut Vec<u64>) {
        words.push(self.0.last_id);
        for group in &self.0.groups {
            words.extend(group.places.iter().flat_map(|(&(end, id), &places)| [id, group.life_ns, end, places]));
        }
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Leases> {
        let (&last_id, leases) = words.split_first()?;
        let (leases, []) = leases.as_chunks::<4>() else { return None };
        // Counted at the epoch, all of them are alive.
        let mut table = Table { last_id, ..Table::default() };
        for &[id, life_ns, expires_at, places] in leases {
            let known = id > last_id || table.terms.contains_key(&id);
            let times = (1..=MAX_SPAN_NS).contains(&life_ns) && (1..=LATEST_NS).contains(&expires_at);
            if known || !times || places == 0 || places > MAX_RECORDS - table.held {
                return None;
            }
            table.insert(id, Term { life_ns, expires_at }, places);
        }
        (last_id <= LATEST_NS).then(|| Leases(Box::new(table)))
    }
}

/// At most what a `BTreeMap` of `len` entries takes: nodes have room for 11, and all but the root
/// hold at least 5; links to parents and children come to 32 bytes a node.
fn tree_bytes(len: usize, entry_bytes: usize) -> usize {
    len.div_ceil(5) * (11 * entry_bytes + 32) + 96
}
