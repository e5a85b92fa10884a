//! Places that are held until they are released, or their lease runs out.
//!
//! Admission bound: unexpired leases hold at most N places at any time.

use alloc::vec::Vec;

use crate::state::{Refusal, Usage};
use crate::{Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Leases {
    /// Oldest first; at most one for each of the N places.
    leases: Vec<Lease>,
    /// The newest id that was given out: ids are never given out twice.
    last_id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    id: u64,
    places: u64,
    /// In nanoseconds since the epoch.
    expires_at: u64,
    /// What it was promised; a clock that is set back does not make it longer.
    life_ns: u64,
}

impl Leases {
    fn held(&self, now: u64) -> u64 {
        self.leases.iter().filter(|l| l.expires_at > now).map(|l| l.places).sum()
    }

    pub(crate) fn adopt(&mut self, _: &Quota, now: u64) -> bool {
        for lease in &mut self.leases {
            lease.expires_at = lease.expires_at.min(now + lease.life_ns);
        }
        now <= self.last_id || self.leases.iter().any(|l| l.expires_at > now)
    }

    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, _: u64, now: u64) -> Option<Refusal> {
        let fits = self.held(now) + cost <= quota.hard_capacity();
        (!fits).then_some((Reason::Exceeded, Wait::Unknown))
    }

    /// The id is the time in nanoseconds, or the next free number after it.
    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        self.leases.retain(|l| l.expires_at > now);
        self.last_id = now.max(self.last_id.saturating_add(1));
        let life_ns = quota.lease_ns();
        self.leases.push(Lease { id: self.last_id, places: cost, expires_at: now + life_ns, life_ns });
        Receipt { at: Time::from_nanos(now), mark: self.last_id }
    }

    /// No such operation: a place that is held has a lease ([`Quota::supports`]).
    pub(crate) fn force(&mut self, _: &Quota, _: u64, _: u64) {}

    pub(crate) fn refund(&mut self, _: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        if let Some(i) = receipt.and_then(|r| self.leases.iter().position(|l| l.id == r.mark)) {
            self.leases[i].places = self.leases[i].places.saturating_sub(cost);
            if self.leases[i].places == 0 {
                self.leases.remove(i);
            }
        }
        // Empty states are kept until their last id is in the past and cannot come again.
        now <= self.last_id || !self.leases.is_empty()
    }

    pub(crate) fn is_alive(&self, receipt: Receipt, now: u64) -> bool {
        self.leases.iter().any(|l| l.id == receipt.mark && l.expires_at > now)
    }

    pub(crate) fn renew(&mut self, quota: &Quota, receipt: Receipt, now: u64) {
        if let Some(lease) = self.leases.iter_mut().find(|l| l.id == receipt.mark) {
            lease.life_ns = lease.life_ns.max(quota.lease_ns());
            lease.expires_at = lease.expires_at.max(now + quota.lease_ns());
        }
    }

    pub(crate) fn usage(&self, quota: &Quota, now: u64) -> Usage {
        let held = self.held(now);
        let last = self.leases.iter().map(|l| l.expires_at).max().unwrap_or(0);
        Usage {
            remaining: quota.capacity().saturating_sub(held),
            reset_after_ns: last.saturating_sub(now),
            over: held > quota.capacity(),
        }
    }

    pub(crate) fn expires_at(&self, _: &Quota) -> u64 {
        let last = self.leases.iter().map(|l| l.expires_at).max().unwrap_or(0);
        last.max(self.last_id + 1)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.leases.capacity() * size_of::<Lease>()
    }
}
