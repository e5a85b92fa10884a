//! A model of every algorithm, without the shortcuts of the kernel.
//!
//! The model is slow but simple, so that a reader can check it. For each answer, the model adds up again what was used.
//! It finds a wait by trying every instant, and what is left by trying every cost. So the model is only for small
//! numbers, and for requests with one hit. It has one state, so all quotas must have the same algorithm and the same
//! window.

use std::collections::BTreeMap;

use spillgate_core::{Algorithm, Anchor, Decision, Denied, MAX_UNITS, Op, OpKind, Quota, Reason, Receipt, Time, Wait};

/// How far the time of a request can be behind the newest time, in nanoseconds. A larger difference means that the
/// clock was set back.
const MAX_LATE_NS: u64 = 1_000_000_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    used: Used,
    penalty_until: u64,
    penalty_ns: u64,
}

#[derive(Clone, Debug, Default)]
enum Used {
    #[default]
    Nothing,
    /// The debt of a bucket. `paid_at` is when all debt is paid. Each unit of the debt takes `interval_ns`, the time
    /// between two units of the quota that charged the bucket last. If a debt is above `most_ns`, the clock was set
    /// back.
    Debt { paid_at: u64, interval_ns: u64, most_ns: u64 },
    /// The start of the window, and the units in it.
    Window { start: u64, count: u64 },
    /// The units in each segment, by the number of the segment since the epoch. `newest` is the number of the newest
    /// segment that an operation has opened, even if no unit counts in this segment.
    Segments { counts: BTreeMap<u64, u64>, newest: u64 },
    /// The time of each unit, oldest first.
    Log(Vec<u64>),
    /// The leases in the order in which they were taken, and the newest id.
    Leases { leases: Vec<Lease>, last_id: u64 },
}

#[derive(Clone, Debug)]
struct Lease {
    id: u64,
    permits: u64,
    expires_at: u64,
    lease_ns: u64,
}

impl Used {
    /// Prepares the state for a decision at `now`: cuts a debt or a lease that is too long because the clock was set
    /// back. Returns false if the state must be forgotten. This is the case if nothing is used, or if units were
    /// counted too far in the future.
    fn adopt(&mut self, quota: &Quota, now: u64) -> bool {
        let horizon = now + quota.window_ns();
        match self {
            Used::Nothing => false,
            Used::Debt { paid_at, most_ns, .. } => {
                *paid_at = (*paid_at).min(now + *most_ns);
                *paid_at > now
            }
            Used::Window { start, count } => *count > 0 && *start <= horizon,
            Used::Segments { counts, newest } => {
                counts.values().any(|units| *units > 0) && *newest * quota.interval_ns() <= horizon
            }
            Used::Log(units) => units.last().is_some_and(|newest| *newest <= horizon),
            Used::Leases { leases, last_id } => {
                for lease in leases.iter_mut() {
                    lease.expires_at = lease.expires_at.min(now + lease.lease_ns);
                }
                now <= *last_id || leases.iter().any(|lease| lease.expires_at > now)
            }
        }
    }

    /// Returns whether `cost` more units stay within `capacity` at `now`.
    fn fits(&self, quota: &Quota, cost: u64, capacity: u64, now: u64) -> bool {
        let t = quota.interval_ns();
        match self {
            Used::Nothing => cost <= capacity,
            Used::Debt { paid_at, interval_ns, .. } => {
                let units = paid_at.saturating_sub(now).div_ceil(*interval_ns);
                units + cost <= capacity
            }
            Used::Window { start, count } if now < start + quota.window_ns() => count + cost <= capacity,
            Used::Window { .. } => cost <= capacity,
            Used::Segments { counts, newest } => {
                // The newest segments count in full, as many as a window has. The segment before them counts by the
                // part of it that is still in the window.
                let now = now.max(newest * t);
                let oldest = (now / t).checked_sub(quota.window_ns() / t);
                let rest: u64 = counts.iter().filter(|(i, _)| Some(**i) > oldest).map(|(_, units)| units).sum();
                let oldest = oldest.and_then(|i| counts.get(&i)).unwrap_or(&0);
                oldest * (t - now % t) + (rest + cost) * t <= capacity * t
            }
            Used::Log(_) => self.log_at(quota, now).len() as u64 + cost <= capacity,
            Used::Leases { leases, .. } => {
                let alive = leases.iter().filter(|lease| lease.expires_at > now);
                alive.map(|lease| lease.permits).sum::<u64>() + cost <= capacity
            }
        }
    }

    /// Returns the times of those units of a log that still count at `now`.
    fn log_at(&self, quota: &Quota, now: u64) -> Vec<u64> {
        let Used::Log(units) = self else { return Vec::new() };
        let now = units.last().map_or(now, |newest| now.max(*newest));
        units.iter().copied().filter(|at| now - at < quota.window_ns()).collect()
    }

    /// Opens the window or the segment at `now`. If it is already open, it stays as it is.
    fn open(&mut self, quota: &Quota, now: u64) {
        let t = quota.interval_ns();
        match (&mut *self, quota.algorithm()) {
            (Used::Window { start, count }, _) if *count > 0 && now < *start + quota.window_ns() => {}
            (_, Algorithm::FixedWindow(Anchor::Epoch)) => *self = Used::Window { start: now / t * t, count: 0 },
            (_, Algorithm::FixedWindow(Anchor::FirstHit)) => *self = Used::Window { start: now, count: 0 },
            (Used::Segments { counts, newest }, _) => {
                *newest = (*newest).max(now / t);
                counts.retain(|segment, _| segment + quota.window_ns() / t >= *newest);
            }
            (Used::Nothing, Algorithm::SlidingWindowCounter { .. }) => {
                *self = Used::Segments { counts: BTreeMap::new(), newest: now / t };
            }
            (Used::Nothing, Algorithm::SlidingWindowLog) => *self = Used::Log(Vec::new()),
            (Used::Nothing, Algorithm::Concurrency) => *self = Used::Leases { leases: Vec::new(), last_id: 0 },
            (Used::Nothing, Algorithm::TokenBucket | Algorithm::LeakyBucket) => {
                *self = Used::Debt { paid_at: now, interval_ns: t, most_ns: 0 };
            }
            _ => {}
        }
    }

    /// Counts `cost` units. If they are `forced`, they count even if they do not fit.
    fn add(&mut self, quota: &Quota, cost: u64, now: u64, forced: bool) -> Receipt {
        self.open(quota, now);
        let (t, mut receipt) = (quota.interval_ns(), Receipt::new(Time::from_nanos(now), 0));
        let log = self.log_at(quota, now);
        match self {
            Used::Nothing => {}
            Used::Debt { paid_at, interval_ns, most_ns } => {
                let debt = (paid_at.saturating_sub(now) * t).div_ceil(*interval_ns);
                let greatest = 2 * quota.hard_capacity() * t;
                let missing = if forced { greatest.saturating_sub(debt) } else { u64::MAX };
                let more = cost.saturating_mul(t).min(missing);
                if more > 0 {
                    (*paid_at, *interval_ns) = (now + debt + more, t);
                    *most_ns = (0..64)
                        .map(|bits| 1 << bits)
                        .find(|ns| *ns >= greatest + MAX_LATE_NS)
                        .expect("the search ends");
                }
                receipt.mark = *paid_at;
            }
            Used::Window { start, count } => {
                *count = count.saturating_add(cost).min(MAX_UNITS);
                receipt.at = Time::from_nanos(now.max(*start));
            }
            Used::Segments { counts, newest } => {
                let count = counts.entry(*newest).or_default();
                *count = count.saturating_add(cost).min(MAX_UNITS);
                receipt.at = Time::from_nanos(now.max(*newest * t));
            }
            Used::Log(units) => {
                let at = units.last().map_or(now, |newest| now.max(*newest));
                *units = log;
                let own = quota.hard_capacity() + 1;
                let most = own.max(units.len() as u64);
                units.extend((0..cost.min(own)).map(|_| at));
                if forced {
                    units.drain(..units.len().saturating_sub(most as usize));
                }
                receipt.at = Time::from_nanos(at);
            }
            Used::Leases { leases, last_id } => {
                leases.retain(|lease| lease.expires_at > now);
                *last_id = now.max(*last_id + 1);
                let (id, lease_ns) = (*last_id, quota.lease_ns());
                leases.push(Lease { id, permits: cost, expires_at: now + lease_ns, lease_ns });
                receipt.mark = id;
            }
        }
        receipt
    }

    fn give_back(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) {
        if !matches!(self, Used::Nothing) {
            self.open(quota, now);
        }
        let (t, at) = (quota.interval_ns(), receipt.map(|r| r.at.as_nanos()));
        let log = self.log_at(quota, now);
        match self {
            Used::Nothing => {}
            Used::Debt { paid_at, interval_ns, .. } => {
                let last = receipt.is_some_and(|r| r.mark == *paid_at);
                if quota.algorithm() == Algorithm::TokenBucket || last {
                    // The debt was converted to another `T` once, at some time from the take to now. The units that time
                    // has not given back are the fewest of all these times.
                    let receipt = receipt.filter(|r| r.mark > 0);
                    let not_back_by_time = receipt.map_or(u64::MAX, |r| {
                        let left = |changed: u64| {
                            let owed = r.mark.saturating_sub(changed) * *interval_ns / t;
                            owed.saturating_sub(now.saturating_sub(changed))
                        };
                        let at = r.at.as_nanos();
                        // A request that is late has no such times.
                        let one = if *interval_ns < t { at } else { now };
                        (at..=now).map(left).min().unwrap_or_else(|| left(one))
                    });
                    let back = cost.saturating_mul(*interval_ns).min(not_back_by_time);
                    *paid_at = paid_at.saturating_sub(back).max(now);
                }
            }
            Used::Window { start, count } => {
                if at.is_none_or(|at| (*start..*start + quota.window_ns()).contains(&at)) {
                    *count = count.saturating_sub(cost);
                }
            }
            Used::Segments { counts, newest } => {
                let segment = at.map_or(*newest, |at| at / t);
                counts.entry(segment).and_modify(|units| *units = units.saturating_sub(cost));
            }
            Used::Log(units) => {
                if at.is_none() {
                    *units = log;
                }
                for _ in 0..cost.min(units.len() as u64) {
                    let at = at.or(units.first().copied());
                    let Some(unit) = units.iter().position(|unit| Some(*unit) == at) else { break };
                    units.remove(unit);
                }
            }
            Used::Leases { leases, .. } => {
                for lease in leases.iter_mut().filter(|lease| receipt.is_some_and(|r| r.mark == lease.id)) {
                    lease.permits = lease.permits.saturating_sub(cost);
                }
                leases.retain(|lease| lease.permits > 0);
            }
        }
    }

    fn is_alive(&self, receipt: Receipt, now: u64) -> bool {
        let Used::Leases { leases, .. } = self else { return false };
        leases.iter().any(|lease| lease.id == receipt.mark && lease.expires_at > now)
    }

    /// Restarts a lease. Returns false if the lease has expired or is unknown.
    fn renew(&mut self, quota: &Quota, receipt: Receipt, now: u64) -> bool {
        let Used::Leases { leases, .. } = self else { return false };
        let alive = |lease: &&mut Lease| lease.id == receipt.mark && lease.expires_at > now;
        let Some(lease) = leases.iter_mut().find(alive) else { return false };
        lease.lease_ns = lease.lease_ns.max(quota.lease_ns());
        lease.expires_at = lease.expires_at.max(now + quota.lease_ns());
        true
    }

    /// Returns whether the state makes no difference to any later decision.
    fn is_forgotten(&self, now: u64) -> bool {
        match self {
            Used::Nothing => true,
            Used::Debt { paid_at, .. } => *paid_at <= now,
            Used::Window { count, .. } => *count == 0,
            Used::Segments { counts, .. } => counts.values().all(|units| *units == 0),
            Used::Log(units) => units.is_empty(),
            Used::Leases { leases, last_id } => *last_id < now && leases.is_empty(),
        }
    }
}

impl Model {
    /// Returns the answer that the kernel has to give.
    pub(crate) fn ask(&mut self, quota: &Quota, op: Op, now: u64) -> Decision {
        if self.penalty_until > now + self.penalty_ns + MAX_LATE_NS {
            self.penalty_until = now + self.penalty_ns;
        }
        if !self.used.adopt(quota, now) {
            self.used = Used::Nothing;
        }
        let mut answer = Decision::allow(quota.capacity(), 0);
        match op {
            Op::Take { cost: 0, .. } => self.take(quota, 0, u64::MAX, now, &mut answer),
            Op::Take { cost, max_wait_ns } => self.take(quota, cost, max_wait_ns, now, &mut answer),
            Op::Peek => self.refuse(quota, 0, u64::MAX, now, &mut answer),
            Op::Force { .. } if !quota.supports(OpKind::Force) => answer.refuse(Reason::Unsupported, Wait::Never),
            Op::Force { cost: 0 } | Op::Refund { cost: 0, .. } => {}
            Op::Force { cost } => {
                self.used.add(quota, cost, now, true);
            }
            Op::Refund { cost, receipt } => self.used.give_back(quota, cost, receipt, now),
            Op::Renew { .. } if !quota.supports(OpKind::Renew) => answer.refuse(Reason::Unsupported, Wait::Never),
            Op::Renew { receipt } => {
                if !self.used.renew(quota, receipt, now) {
                    answer.refuse(Reason::LeaseExpired, Wait::Never);
                }
            }
            Op::Settle { receipt, .. } if quota.supports(OpKind::Renew) && !self.used.is_alive(receipt, now) => {
                answer.refuse(Reason::LeaseExpired, Wait::Never);
            }
            Op::Settle { change: 1.., .. } if !quota.supports(OpKind::Force) => {}
            Op::Settle { change: change @ 1.., .. } => {
                self.used.add(quota, change.unsigned_abs(), now, true);
            }
            Op::Settle { change: 0, .. } => {}
            Op::Settle { change, receipt } => self.used.give_back(quota, change.unsigned_abs(), Some(receipt), now),
            Op::Reset => *self = Model::default(),
        }
        if self.used.is_forgotten(now) {
            self.used = Used::Nothing;
        }
        let over = quota.hard_capacity() > quota.capacity() && !self.used.fits(quota, 0, quota.capacity(), now);
        answer.soft_over = answer.allowed && over;
        answer.remaining = self.remaining(quota, now);
        answer.reset_after_ns = self.reset_after_ns(quota, now);
        answer
    }

    fn take(&mut self, quota: &Quota, cost: u64, max_wait_ns: u64, now: u64, answer: &mut Decision) {
        self.refuse(quota, cost, max_wait_ns, now, answer);
        if answer.allowed {
            if cost > 0 {
                answer.delay_ns = self.delay_ns(quota, now);
                answer.receipt = Some(self.used.add(quota, cost, now, false));
            }
            return;
        }
        let charged = quota.denied() == Denied::Charged;
        if charged && cost > 0 {
            self.used.add(quota, cost.min(quota.capacity()), now, true);
        }
        let until = now + quota.penalty_ns();
        if quota.penalty_ns() > 0 && (charged || self.penalty_until <= now) && until > self.penalty_until {
            (self.penalty_until, self.penalty_ns) = (until, quota.penalty_ns());
        }
        // The wait and the reason are computed again after the charge. But if this refusal itself has started the
        // penalty, the earlier reason stays.
        let (reason, shut_out) = (answer.reason, answer.reason == Reason::Penalty);
        self.refuse(quota, cost, max_wait_ns, now, answer);
        if answer.reason == Reason::Penalty && !shut_out {
            answer.reason = reason;
        }
    }

    /// Returns whether `cost` units fit now, and whether the turn in a queue comes within the accepted wait.
    fn fits(&self, quota: &Quota, cost: u64, max_wait_ns: u64, now: u64) -> bool {
        let in_time = cost == 0 || self.delay_ns(quota, now) <= max_wait_ns;
        in_time && self.used.fits(quota, cost, quota.hard_capacity(), now)
    }

    fn refuse(&self, quota: &Quota, cost: u64, max_wait_ns: u64, now: u64, answer: &mut Decision) {
        let penalty_ns = self.penalty_left_ns(quota, now);
        let own = if cost > quota.hard_capacity() {
            Some((Reason::CostAboveCapacity, Wait::Never))
        } else if self.fits(quota, cost, max_wait_ns, now) {
            None
        } else if quota.algorithm() == Algorithm::Concurrency {
            Some((Reason::Exceeded, Wait::Unknown))
        } else {
            let full = !self.used.fits(quota, cost, quota.hard_capacity(), now);
            let wait = (1..).find(|ns| self.fits(quota, cost, max_wait_ns, now + ns)).expect("the search ends");
            Some((if full { Reason::Exceeded } else { Reason::WaitTooLong }, Wait::After(wait)))
        };
        match own {
            Some((reason, wait)) if wait > Wait::After(penalty_ns) => answer.refuse(reason, wait),
            _ if penalty_ns > 0 => answer.refuse(Reason::Penalty, Wait::After(penalty_ns)),
            _ => {}
        }
    }

    /// Returns how long the penalty still lasts. A quota without a penalty ignores the penalties of other quotas.
    fn penalty_left_ns(&self, quota: &Quota, now: u64) -> u64 {
        if quota.penalty_ns() == 0 { 0 } else { self.penalty_until.saturating_sub(now) }
    }

    fn delay_ns(&self, quota: &Quota, now: u64) -> u64 {
        match &self.used {
            Used::Debt { paid_at, .. } if quota.algorithm() == Algorithm::LeakyBucket => paid_at.saturating_sub(now),
            _ => 0,
        }
    }

    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        let fits = |cost: &u64| self.used.fits(quota, *cost, quota.capacity(), now);
        if self.penalty_left_ns(quota, now) > 0 {
            0
        } else {
            (1..=quota.capacity()).take_while(fits).last().unwrap_or(0)
        }
    }

    /// Returns the time until all used units are free again and no penalty lasts.
    fn reset_after_ns(&self, quota: &Quota, now: u64) -> u64 {
        let empty = |ns: &u64| self.used.fits(quota, 0, 0, now + ns) && self.penalty_left_ns(quota, now + ns) == 0;
        (0..).find(empty).expect("the search ends")
    }
}

trait Refuse {
    fn refuse(&mut self, reason: Reason, wait: Wait);
}

impl Refuse for Decision {
    fn refuse(&mut self, reason: Reason, wait: Wait) {
        (self.allowed, self.reason, self.retry_after) = (false, reason, wait);
    }
}
