//! The generic cell rate algorithm: token bucket, leaky bucket as a meter, and the queue.
//!
//! One time is the whole state: the theoretical arrival time TAT, at which all debt is paid.
//! `token_bucket` and `leaky_bucket` differ only in what a caller is told: a token is there
//! at once, a place in the queue comes after a delay of TAT - now.
//! Source: ITU-T I.371, annex A (virtual scheduling), with the burst as a multiple of T.
//!
//! Admission bound: B + s/T; the queue lets enter Q + 1 + s/T.

use alloc::vec::Vec;

use crate::packed::Packed;
use crate::quota::MAX_SPAN_NS;
use crate::state::{LATEST_NS, Refusal, Usage};
use crate::{Algorithm, Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// When all debt is paid, in nanoseconds since the epoch.
    tat: u64,
    /// The T that the debt is counted in.
    interval_ns: u64,
}

impl Bucket {
    #[inline]
    pub(crate) fn new(quota: &Quota) -> Bucket {
        Bucket::from_raw(0, quota.interval_ns())
    }

    #[inline]
    pub(crate) fn from_raw(tat: u64, interval_ns: u64) -> Bucket {
        Bucket { tat, interval_ns }
    }

    #[inline]
    pub(crate) fn pack(&self) -> Packed {
        Packed { expires_at: self.tat, first: self.interval_ns, second: 0 }
    }

    #[inline]
    pub(crate) fn unpack(packed: Packed) -> Bucket {
        Bucket::from_raw(packed.expires_at, packed.first)
    }

    /// What is owed at `now` in nanoseconds of `quota`'s T: converted (rounded up) when T has
    /// changed, and clamped to what a clock that steps back can have left: twice the depth.
    #[inline]
    fn debt(&self, quota: &Quota, now: u64) -> u64 {
        let debt = self.tat.saturating_sub(now);
        let max = max_debt(quota);
        if self.interval_ns == quota.interval_ns() || debt == 0 {
            return debt.min(max);
        }
        let units = u128::from(debt) * u128::from(quota.interval_ns());
        let converted = units.div_ceil(u128::from(self.interval_ns.max(1)));
        u64::try_from(converted).unwrap_or(u64::MAX).min(max)
    }

    #[inline]
    fn set(&mut self, quota: &Quota, tat: u64) {
        *self = Bucket { tat, interval_ns: quota.interval_ns() };
    }

    #[inline]
    pub(crate) fn adopt(&mut self, quota: &Quota, now: u64) -> bool {
        let debt = self.debt(quota, now);
        self.set(quota, now + debt);
        debt > 0
    }

    #[inline]
    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, max_wait_ns: u64, now: u64) -> Option<Refusal> {
        let (debt, depth) = (self.debt(quota, now), quota.hard_capacity() * quota.interval_ns());
        let over_ns = (debt + cost * quota.interval_ns()).saturating_sub(depth);
        let queue = quota.algorithm() == Algorithm::LeakyBucket && cost > 0;
        let late_ns = if queue { debt.saturating_sub(max_wait_ns) } else { 0 };
        let reason = if over_ns > 0 { Reason::Exceeded } else { Reason::WaitTooLong };
        match over_ns.max(late_ns) {
            0 => None,
            wait_ns => Some((reason, Wait::After(wait_ns))),
        }
    }

    #[inline]
    pub(crate) fn delay_ns(&self, quota: &Quota, now: u64) -> u64 {
        if quota.algorithm() == Algorithm::LeakyBucket { self.debt(quota, now) } else { 0 }
    }

    #[inline]
    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        let debt = self.debt(quota, now);
        let tat = now + debt + cost * quota.interval_ns();
        self.set(quota, tat);
        Receipt { at: Time::from_nanos(now), mark: tat }
    }

    pub(crate) fn force(&mut self, quota: &Quota, cost: u64, now: u64) {
        let debt = self.debt(quota, now);
        let more = cost.saturating_mul(quota.interval_ns());
        self.set(quota, now + debt.saturating_add(more).min(max_debt(quota)).max(debt));
    }

    pub(crate) fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        // A place in the middle of a queue cannot be given to those who already know their turn.
        let gone = quota.algorithm() == Algorithm::LeakyBucket && receipt.is_some_and(|r| r.mark != self.tat);
        let debt = self.debt(quota, now);
        let less = if gone { 0 } else { cost.saturating_mul(quota.interval_ns()) };
        self.set(quota, now + debt.saturating_sub(less));
        debt > less
    }

    #[inline]
    pub(crate) fn usage(&self, quota: &Quota, now: u64) -> Usage {
        let (debt, depth) = (self.debt(quota, now), quota.capacity() * quota.interval_ns());
        Usage { remaining: depth.saturating_sub(debt) / quota.interval_ns(), reset_after_ns: debt, over: debt > depth }
    }

    pub(crate) fn expires_at(&self, _: &Quota) -> u64 {
        self.tat
    }

    pub(crate) fn encode(&self, words: &mut Vec<u64>) {
        words.extend([self.tat, self.interval_ns]);
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Bucket> {
        let &[tat, interval_ns] = words else { return None };
        (tat <= LATEST_NS && interval_ns <= MAX_SPAN_NS).then_some(Bucket { tat, interval_ns })
    }
}

/// The most that can be owed: the depth of the bucket, and as much again by forced takes.
#[inline]
fn max_debt(quota: &Quota) -> u64 {
    2 * quota.hard_capacity() * quota.interval_ns()
}
