//! The generic cell rate algorithm: token bucket, leaky bucket as a meter, and the queue.
//!
//! One time is the state: the theoretical arrival time TAT, at which all debt is paid. Beside it stands the
//! T that the debt is counted in, and a bound above which a debt can only come from a clock that was set back.
//! `token_bucket` and `leaky_bucket` differ only in what a caller is told: a token is there
//! at once, a place in the queue comes after a delay of TAT - now.
//! Source: ITU-T I.371, annex A (virtual scheduling), with the burst as a multiple of T.
//!
//! Admission bound: B + s/T; the queue lets enter Q + 1 + s/T.
//!
//! Quotas of several T may share a state. Every question is judged in the state's T: under B' a take of n fits if
//! debt <= (B' - n) * T, so ceil(debt/T) units are used whatever the quota is. Only a charge converts the debt to
//! its own T'. So no question under one quota lowers what was counted under another.

use alloc::vec::Vec;

use super::types::{LATEST_NS, Refusal, Usage};
use crate::packed::Packed;
use crate::quota::{MAX_DEBT_BITS, MAX_SPAN_NS};
use crate::{Algorithm, Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// When all debt is paid, in nanoseconds since the epoch.
    tat: u64,
    /// The T that the debt is counted in, in nanoseconds; not 0.
    interval_ns: u64,
    /// A debt above 2 to this power, in nanoseconds, is what a clock that was set back has left
    /// ([`Quota::debt_bits`] of the quota that charged last).
    debt_bits: u8,
}

impl Bucket {
    #[inline]
    pub(crate) fn new(quota: &Quota) -> Bucket {
        Bucket::owing_until(0, quota)
    }

    /// What this quota charged last, and what is paid at that time.
    #[inline]
    pub(crate) fn owing_until(tat: u64, quota: &Quota) -> Bucket {
        Bucket { tat, interval_ns: quota.interval_ns(), debt_bits: quota.debt_bits() }
    }

    /// `None` if the T fits no packed form.
    #[inline]
    pub(crate) fn pack(&self, quota: &Quota) -> Option<Packed> {
        let first = quota.pack_bucket(self.interval_ns, self.debt_bits)?;
        Some(Packed { expires_at: self.tat, first, second: 0 })
    }

    #[inline]
    pub(crate) fn unpack(packed: Packed, quota: &Quota) -> Bucket {
        let (interval_ns, debt_bits) = quota.unpack_bucket(packed.first);
        Bucket { tat: packed.expires_at, interval_ns, debt_bits }
    }

    /// What is owed at `now` in nanoseconds of the state's T.
    #[inline]
    fn debt(&self, now: u64) -> u64 {
        self.tat.saturating_sub(now)
    }

    /// What is owed at `now` in nanoseconds of `quota`'s T, rounded up.
    ///
    /// What drains before the state's newest time, `late_ns` after `now`, is not converted: it has been paid at the
    /// state's own T. A faster T would forgive units here, a slower one would count units twice.
    #[inline]
    fn converted(&self, quota: &Quota, now: u64, late_ns: u64) -> u64 {
        let debt = self.debt(now);
        if self.interval_ns == quota.interval_ns() || debt == 0 {
            return debt;
        }
        let paid = debt.min(late_ns);
        let units = u128::from(debt - paid) * u128::from(quota.interval_ns());
        u64::try_from(units.div_ceil(u128::from(self.interval_ns)) + u128::from(paid)).unwrap_or(u64::MAX)
    }

    /// Owes that much, in nanoseconds of `quota`'s T.
    #[inline]
    fn owe(&mut self, quota: &Quota, now: u64, debt: u64) {
        *self = Bucket::owing_until(now + debt, quota);
    }

    /// Cuts the debt that a clock that was set back has left: unless that is kept, it would not shrink with time. All
    /// that follows at this time goes by it.
    #[inline]
    pub(crate) fn adopt(&mut self, _: &Quota, now: u64) -> bool {
        let debt = self.debt(now).min(1 << self.debt_bits);
        self.tat = now + debt;
        debt > 0
    }

    /// A take fits if debt <= (B - cost) * T, in the state's T; a queue's turn also has to come within `max_wait_ns`.
    #[inline]
    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, max_wait_ns: u64, now: u64) -> Option<Refusal> {
        let debt = self.debt(now);
        let over_ns = debt.saturating_sub((quota.hard_capacity() - cost).saturating_mul(self.interval_ns));
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
        if quota.algorithm() == Algorithm::LeakyBucket { self.debt(now) } else { 0 }
    }

    #[inline]
    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: u64) -> Receipt {
        self.charge_late(quota, cost, now, 0)
    }

    /// Charges for a request that is late by `late_ns`.
    #[inline]
    pub(crate) fn charge_late(&mut self, quota: &Quota, cost: u64, now: u64, late_ns: u64) -> Receipt {
        let debt = self.converted(quota, now, late_ns);
        self.owe(quota, now, debt + cost * quota.interval_ns());
        Receipt { at: Time::from_nanos(now), mark: self.tat }
    }

    /// Adds what is missing to the quota's own greatest debt at most. Where nothing is missing the state stays as it
    /// is: a quota that adds nothing must not change the T either.
    pub(crate) fn force(&mut self, quota: &Quota, cost: u64, now: u64) {
        self.force_late(quota, cost, now, 0);
    }

    /// Forces for a request that is late by `late_ns`.
    pub(crate) fn force_late(&mut self, quota: &Quota, cost: u64, now: u64, late_ns: u64) {
        let debt = self.converted(quota, now, late_ns);
        let more = cost.saturating_mul(quota.interval_ns()).min(quota.max_debt_ns().saturating_sub(debt));
        if more > 0 {
            self.owe(quota, now, debt + more);
        }
    }

    /// Units count at the state's T, which stays. A queue gives a place back only by its receipt and only while it
    /// is the last: those behind know their turns already.
    pub(crate) fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        let queue = quota.algorithm() == Algorithm::LeakyBucket;
        let stays = queue && receipt.is_none_or(|receipt| receipt.mark != self.tat);
        let less = if stays { 0 } else { cost.saturating_mul(self.interval_ns) };
        let debt = self.debt(now).saturating_sub(less);
        self.tat = now + debt;
        debt > 0
    }

    #[inline]
    pub(crate) fn usage(&self, quota: &Quota, now: u64) -> Usage {
        let debt = self.debt(now);
        let used = debt.div_ceil(self.interval_ns);
        let remaining = quota.capacity().saturating_sub(used);
        Usage { remaining, reset_after_ns: debt, over: used > quota.capacity() }
    }

    #[inline]
    pub(crate) fn expires_at(&self, _: &Quota) -> u64 {
        self.tat
    }

    pub(crate) fn encode(&self, words: &mut Vec<u64>) {
        words.extend([self.tat, self.interval_ns, self.debt_bits.into()]);
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Bucket> {
        let &[tat, interval_ns @ 1..=MAX_SPAN_NS, debt_bits] = words else { return None };
        let debt_bits = u8::try_from(debt_bits).ok().filter(|bits| *bits <= MAX_DEBT_BITS)?;
        (tat <= LATEST_NS).then_some(Bucket { tat, interval_ns, debt_bits })
    }
}
