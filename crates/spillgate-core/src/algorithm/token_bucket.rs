//! The generic cell rate algorithm (GCRA): the token bucket, the leaky bucket as a meter, and the queue.
//!
//! One file serves `token_bucket` and `leaky_bucket`, because their states are the same. They differ only in the
//! answer: a token is there at once, and a turn in the queue comes after a delay of TAT - now.
//!
//! The state is one time, the theoretical arrival time (TAT), at which all debt is paid. The state also keeps two
//! numbers of the quota that charged it last: T, in which the debt is counted, and a bound. A debt above the bound was
//! left by a clock that was set back. Source: ITU-T I.371, annex A (virtual scheduling), with the burst as a multiple
//! of T.
//!
//! The bound of what is admitted in an interval of length s: B + s/T. A queue admits Q + 1 + s/T.
//!
//! Quotas with different T may share a state:
//!
//! * Every hit is judged in the state's T. Under a quota with the burst B', a take of n units fits if
//!   debt <= (B' - n) * T.
//! * The units used are therefore ceil(debt/T), whatever the quota is.
//! * Only a charge converts the debt to its own T'.
//! * No hit under one quota lowers what was counted under another, except a refund or a reset.

use alloc::vec::Vec;

use super::types::{LATEST_NS, Refusal, Usage};
use crate::packed::Packed;
use crate::quota::{MAX_DEBT_BITS, MAX_SPAN_NS};
use crate::{Algorithm, Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// When all debt is paid, in nanoseconds since the epoch.
    tat: u64,
    /// The T that the debt is counted in, in nanoseconds. Never 0.
    interval_ns: u64,
    /// A debt above 2 to this power, in nanoseconds, was left by a clock that was set back. The number is the
    /// [`Quota::debt_bits`] of the quota that charged last.
    debt_bits: u8,
}

impl Bucket {
    #[inline]
    pub(crate) fn new(quota: &Quota) -> Bucket {
        Bucket::owing_until(0, quota)
    }

    /// A bucket that this quota charged last, and whose debt is paid at `tat`.
    #[inline]
    pub(crate) fn owing_until(tat: u64, quota: &Quota) -> Bucket {
        Bucket { tat, interval_ns: quota.interval_ns(), debt_bits: quota.debt_bits() }
    }

    /// `None` if T has no packed form.
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

    /// The debt at `now`, in nanoseconds of the state's T.
    #[inline]
    fn debt(&self, now: u64) -> u64 {
        self.tat.saturating_sub(now)
    }

    /// The debt at `now`, in nanoseconds of `quota`'s T, rounded up.
    ///
    /// The state's newest time is `late_ns` after `now`. The debt that drains until then is not converted, because it
    /// is paid at the state's own T. To convert it to a shorter T would forgive units. To convert it to a longer T
    /// would count units twice.
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

    /// Sets the debt at `now`, in nanoseconds of `quota`'s T.
    #[inline]
    fn owe(&mut self, quota: &Quota, now: u64, debt: u64) {
        *self = Bucket::owing_until(now + debt, quota);
    }

    /// Reduces a debt above the bound to the bound: a clock that was set back has left it.
    ///
    /// The reduced debt has to be stored. Otherwise it would not shrink with time.
    #[inline]
    pub(crate) fn adopt(&mut self, _: &Quota, now: u64) -> bool {
        let debt = self.debt(now).min(1 << self.debt_bits);
        self.tat = now + debt;
        debt > 0
    }

    /// A take fits if debt <= (B - cost) * T, in the state's T. In a queue, the turn also has to come within
    /// `max_wait_ns`.
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

    /// Adds debt up to the quota's own greatest debt.
    ///
    /// If the debt is that large already, the state does not change. A quota that adds nothing must not change T
    /// either.
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

    /// Units are given back at the state's T, and T does not change.
    ///
    /// A queue gives a turn back only by its receipt and only while it is the last turn. Callers with later turns
    /// already wait for exact times.
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
