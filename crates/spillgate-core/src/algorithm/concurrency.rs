//! The concurrency limit: a caller holds permits until it releases them, or until their lease expires.
//!
//! Without leases, a caller that crashes would hold its permits for ever.
//!
//! The limit of the quota is the number `N` of permits. At any time, the leases that have not expired hold at most `N`
//! permits together.
//!
//! An operation takes time in proportion to `d * log(n)`, where `n` is the number of leases and `d` is the number of
//! different lease durations. `d` is 1, unless the lease duration of the quota was changed. Three events cost
//! additional time:
//!
//! * After the end of a lease, the next operation visits this lease once.
//! * A take removes all expired leases, and visits each of them once more.
//! * If the clock steps back from a time `t2` to an earlier time `t1`, the next operation visits each lease that was
//!   granted or expires between `t1` and `t2`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Bound::{Excluded, Included};

use super::types::{LATEST_NS, Refusal, Usage};
use crate::quota::{MAX_RECORDS, MAX_SPAN_NS};
use crate::{Quota, Reason, Receipt, Time, Wait};

/// The states of all algorithms are variants of one enum, so every state takes as much memory as the largest variant.
/// Few keys have a concurrency limit, so its table is in a box and makes the other states no larger.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Leases(Box<Table>);

#[derive(Clone, Debug, Default)]
struct Table {
    /// The leases, by their id.
    terms: BTreeMap<u64, Term>,
    /// The same leases, grouped by their duration, shortest first. There are at most as many groups as permits, because
    /// each group holds at least one permit.
    groups: Vec<Group>,
    /// The newest id of a lease. An id is never used twice.
    last_id: u64,
    /// The sum of the permits of all leases that have not expired at `counted_at`. Every insertion and every removal
    /// updates this sum.
    held: u64,
    counted_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Term {
    /// The duration of the lease. Even if the clock is set back, the lease does not last longer than this duration.
    life_ns: u64,
    /// When the lease ends, in nanoseconds since the epoch.
    expires_at: u64,
}

/// The leases of one duration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    life_ns: u64,
    /// Maps the end and the id of each lease to its number of permits. The map is never empty.
    permits: BTreeMap<(u64, u64), u64>,
}

impl Group {
    /// Sums the permits that expire after `from` and not after `to`.
    fn expiring(&self, from: u64, to: u64) -> u64 {
        self.permits.range((Excluded((from, u64::MAX)), Included((to, u64::MAX)))).map(|(_, permits)| permits).sum()
    }
}

/// Two tables are equal if they make the same decisions. `held` and `counted_at` are not compared, because they depend
/// only on when the permits were last counted.
impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        self.groups == other.groups && self.last_id == other.last_id
    }
}

impl Eq for Table {}

impl Table {
    fn held(&self, now: u64) -> u64 {
        let expiring = |from, to| self.groups.iter().map(|group| group.expiring(from, to)).sum::<u64>();
        match now.cmp(&self.counted_at) {
            Ordering::Less => self.held + expiring(now, self.counted_at),
            Ordering::Equal => self.held,
            Ordering::Greater => self.held - expiring(self.counted_at, now),
        }
    }

    /// Returns when the last lease ends, or 0 if there is no lease.
    fn last_end(&self) -> u64 {
        let last_ends = self.groups.iter().filter_map(|group| group.permits.last_key_value());
        last_ends.map(|((end, _), _)| *end).max().unwrap_or(0)
    }

    fn insert(&mut self, id: u64, term: Term, permits: u64) {
        self.terms.insert(id, term);
        let group = self.groups.binary_search_by_key(&term.life_ns, |group| group.life_ns).unwrap_or_else(|index| {
            self.groups.insert(index, Group { life_ns: term.life_ns, permits: BTreeMap::new() });
            index
        });
        self.groups[group].permits.insert((term.expires_at, id), permits);
        if term.expires_at > self.counted_at {
            self.held += permits;
        }
    }

    fn remove(&mut self, id: u64) -> Option<(Term, u64)> {
        let term = self.terms.remove(&id)?;
        let group = self.groups.binary_search_by_key(&term.life_ns, |group| group.life_ns).ok()?;
        let permits = self.groups[group].permits.remove(&(term.expires_at, id))?;
        if self.groups[group].permits.is_empty() {
            self.groups.remove(group);
        }
        if term.expires_at > self.counted_at {
            self.held -= permits;
        }
        Some((term, permits))
    }

    /// Shortens each lease that has more time left at `now` than its whole duration. Such a lease exists only if the
    /// clock was set back.
    fn clamp(&mut self, now: u64) {
        let last_of = |group: &Group| {
            let ((end, id), _) = group.permits.last_key_value()?;
            (*end > now + group.life_ns).then_some(*id)
        };
        while let Some(id) = self.groups.iter().find_map(last_of) {
            let Some((term, permits)) = self.remove(id) else { return };
            self.insert(id, Term { expires_at: now + term.life_ns, ..term }, permits);
        }
    }

    fn remove_expired(&mut self, now: u64) {
        let first_of = |group: &Group| {
            let ((end, id), _) = group.permits.first_key_value()?;
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

    /// Grants a new lease. Its id is the time in nanoseconds. If the last lease has this id or a higher one, the new id
    /// is the last id plus 1.
    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        let table = &mut *self.0;
        table.remove_expired(now);
        table.last_id = now.max(table.last_id.saturating_add(1));
        let life_ns = quota.lease_ns();
        table.insert(table.last_id, Term { life_ns, expires_at: now + life_ns }, cost);
        Receipt { at: Time::from_nanos(now), mark: table.last_id }
    }

    /// Does nothing. A concurrency limit does not support a force, because every permit needs a lease
    /// ([`Quota::supports`]).
    pub(crate) fn force(&mut self, _: &Quota, _: u64, _: u64) {}

    pub(crate) fn refund(&mut self, _: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        let table = &mut *self.0;
        if let Some(receipt) = receipt
            && let Some((term, permits)) = table.remove(receipt.mark)
            && permits > cost
        {
            table.insert(receipt.mark, term, permits - cost);
        }
        // Ids are times. A state without leases is kept until its last id is in the past. If the state were dropped
        // earlier, a new lease could get the same id.
        now <= table.last_id || !table.terms.is_empty()
    }

    pub(crate) fn is_alive(&self, receipt: Receipt, now: u64) -> bool {
        self.0.terms.get(&receipt.mark).is_some_and(|term| term.expires_at > now)
    }

    pub(crate) fn renew(&mut self, quota: &Quota, receipt: Receipt, now: u64) {
        let table = &mut *self.0;
        if let Some((term, permits)) = table.remove(receipt.mark) {
            let life_ns = term.life_ns.max(quota.lease_ns());
            let expires_at = term.expires_at.max(now + quota.lease_ns());
            table.insert(receipt.mark, Term { life_ns, expires_at }, permits);
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
        let permits = table.groups.iter().map(|group| tree_bytes(group.permits.len(), size_of::<((u64, u64), u64)>()));
        size_of::<Table>()
            + tree_bytes(table.terms.len(), size_of::<(u64, Term)>())
            + table.groups.capacity() * size_of::<Group>()
            + permits.sum::<usize>()
    }

    /// Writes the last id, and then the id, duration, end and permits of each lease.
    pub(crate) fn encode(&self, words: &mut Vec<u64>) {
        words.push(self.0.last_id);
        for group in &self.0.groups {
            words.extend(group.permits.iter().flat_map(|(&(end, id), &permits)| [id, group.life_ns, end, permits]));
        }
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Leases> {
        let (&last_id, leases) = words.split_first()?;
        let (leases, []) = leases.as_chunks::<4>() else { return None };
        // `counted_at` is the epoch here. No lease has expired at that time, so `held` becomes the sum of all permits.
        let mut table = Table { last_id, ..Table::default() };
        for &[id, life_ns, expires_at, permits] in leases {
            let known = id > last_id || table.terms.contains_key(&id);
            let times = (1..=MAX_SPAN_NS).contains(&life_ns) && (1..=LATEST_NS).contains(&expires_at);
            if known || !times || permits == 0 || permits > MAX_RECORDS - table.held {
                return None;
            }
            table.insert(id, Term { life_ns, expires_at }, permits);
        }
        (last_id <= LATEST_NS).then(|| Leases(Box::new(table)))
    }
}

/// Returns an upper bound of the bytes of a `BTreeMap` with `len` entries.
///
/// A node of the tree has space for 11 entries, and every node except the root holds at least 5. On average, the links
/// to parents and children take at most 32 bytes for each node.
fn tree_bytes(len: usize, entry_bytes: usize) -> usize {
    len.div_ceil(5) * (11 * entry_bytes + 32) + 96
}
