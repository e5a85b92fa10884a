//! The generic cell rate algorithm (GCRA). It decides for token buckets and for queues.
//!
//! One file serves `token_bucket` and `leaky_bucket` (the queue), because their states are the same. Only their answers
//! differ. A token of a token bucket is available at once. A turn in the queue comes after a delay.
//!
//! `T` is the time between two units at the full rate, `B` is the burst, and `Q` is the length of the queue. In an
//! interval of length `s`, a token bucket admits at most `B + s/T` units. A queue admits at most `Q + 1 + s/T` units.
//!
//! The debt of a bucket is the time that it needs to refill completely. A take of `n` units adds `n * T` to the debt.
//! The state stores one time, the theoretical arrival time (TAT), at which all debt is paid. So the debt is
//! `TAT - now`, and this is also the delay of the next turn in a queue.
//!
//! The state also stores two numbers of the quota that charged it last. One is `T`, which says how much debt one unit
//! is. The other is the bound of the debt. If a debt is above this bound, the clock was set back.
//!
//! The algorithm comes from ITU-T I.371, annex A (virtual scheduling). There, the tolerance of bursts can be any time.
//! Here, this tolerance is a multiple of `T`.
//!
//! Token buckets with different `T` may share a state, for example after the limit was changed:
//!
//! * Every hit is judged with the `T` of the state. Under a quota with the burst `B'`, a take of `n` units fits if
//!   `debt <= (B' - n) * T`.
//! * So `ceil(debt/T)` units are used, whichever quota asks.
//! * A charge or a force converts the debt to the `T` of its own quota. No other operation converts the debt.
//! * A hit under one quota never lowers what was counted under another quota, unless the hit is a refund or a reset.

use alloc::vec::Vec;

use super::types::{LATEST_NS, Refusal, Usage};
use crate::packed::Packed;
use crate::quota::{MAX_DEBT_BITS, MAX_SPAN_NS};
use crate::{Algorithm, Quota, Reason, Receipt, Time, Wait};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The theoretical arrival time: when all debt is paid, in nanoseconds since the epoch.
    tat: u64,
    /// The `T` in which the debt is counted, in nanoseconds. It is never 0.
    interval_ns: u64,
    /// Under the quota that charged last, no debt is above 2 to this power, in nanoseconds ([`Quota::debt_bits`]). If a
    /// debt is larger, the clock was set back.
    debt_bits: u8,
}

impl Bucket {
    #[inline]
    pub(crate) fn new(quota: &Quota) -> Bucket {
        Bucket::owing_until(0, quota)
    }

    /// Returns a bucket that `quota` charged last, and whose debt is paid at `tat`.
    #[inline]
    pub(crate) fn owing_until(tat: u64, quota: &Quota) -> Bucket {
        Bucket { tat, interval_ns: quota.interval_ns(), debt_bits: quota.debt_bits() }
    }

    /// Returns a bucket whose debt is paid at `tat`, and is counted in at most this `T`.
    pub(crate) fn owing_in(quota: &Quota, tat: u64, interval_ns: u64, now: u64) -> Bucket {
        let debt_bits = Quota::bits_of_debt(tat.saturating_sub(now)).max(quota.debt_bits());
        Bucket { tat, interval_ns: quota.packable_interval(interval_ns), debt_bits }
    }

    /// Returns the time at which all debt is paid, and the `T` in which the debt is counted, in nanoseconds.
    pub(crate) fn debt_and_interval(&self) -> (u64, u64) {
        (self.tat, self.interval_ns)
    }

    /// Packs the state, or returns `None` if its `T` has no packed form: see [`Quota::packs`].
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

    /// Returns the debt at `now`, in nanoseconds, counted in the `T` of the state.
    #[inline]
    fn debt(&self, now: u64) -> u64 {
        self.tat.saturating_sub(now)
    }

    /// Returns the debt at `now` in nanoseconds, converted to the `T` of `quota` and rounded up.
    ///
    /// The request is late by `late_ns`: another request was already decided at `now + late_ns`. Only the debt that is
    /// left at that newer time is converted. [`decide_late`](crate::decide_late) explains why.
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

    /// Sets the debt at `now`, in nanoseconds, counted in the `T` of `quota`.
    #[inline]
    fn owe(&mut self, quota: &Quota, now: u64, debt: u64) {
        *self = Bucket::owing_until(now + debt, quota);
    }

    /// Reduces a debt above the bound to the bound. Such a debt exists only if the clock was set back.
    ///
    /// The caller has to store the reduced debt. If it did not, each later call would reduce the old debt to the bound
    /// again, and the debt would not shrink with time.
    #[inline]
    pub(crate) fn adopt(&mut self, _: &Quota, now: u64) -> bool {
        let debt = self.debt(now).min(1 << self.debt_bits);
        self.tat = now + debt;
        debt > 0
    }

    /// Returns why a take does not fit, or `None` if it fits. A take fits if `debt <= (B - cost) * T`, with the burst
    /// `B` of `quota` and the `T` of the state. In a queue, the turn also has to come within `max_wait_ns`.
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

    #[inline]
    pub(crate) fn charge_late(&mut self, quota: &Quota, cost: u64, now: u64, late_ns: u64) -> Receipt {
        let debt = self.converted(quota, now, late_ns);
        self.owe(quota, now, debt + cost * quota.interval_ns());
        Receipt { at: Time::from_nanos(now), mark: self.tat }
    }

    /// Adds debt, but at most up to the greatest debt of `quota`.
    ///
    /// If the debt is already as large as the greatest debt, nothing is added, and the `T` of the state must not change
    /// either.
    pub(crate) fn force(&mut self, quota: &Quota, cost: u64, now: u64) {
        self.force_late(quota, cost, now, 0);
    }

    pub(crate) fn force_late(&mut self, quota: &Quota, cost: u64, now: u64, late_ns: u64) {
        let debt = self.converted(quota, now, late_ns);
        let more = cost.saturating_mul(quota.interval_ns()).min(quota.max_debt_ns().saturating_sub(debt));
        if more > 0 {
            self.owe(quota, now, debt + more);
        }
    }

    /// Returns how much of the debt until the mark of a receipt time has not paid yet, counted in the `T` of the state.
    /// `quota` is the quota of the take.
    ///
    /// The mark is a time in the `T` of the take. If the state has another `T` now, the debt was converted at some time
    /// between the take and now. The state does not know when, so the smaller one of both results counts: if `T` became
    /// shorter, this is the result for a conversion right after the take, and otherwise for a conversion right now.
    #[inline]
    fn not_paid_yet(&self, quota: &Quota, receipt: Receipt, now: u64) -> u64 {
        let (own_ns, taken_ns) = (self.interval_ns, quota.interval_ns());
        if own_ns == taken_ns {
            return receipt.mark.saturating_sub(now);
        }
        let converted = |ns: u64| {
            let product = u128::from(ns) * u128::from(own_ns) / u128::from(taken_ns.max(1));
            u64::try_from(product).unwrap_or(u64::MAX)
        };
        if own_ns > taken_ns {
            return converted(receipt.mark.saturating_sub(now));
        }
        let at = receipt.at.as_nanos();
        converted(receipt.mark.saturating_sub(at)).saturating_sub(now.saturating_sub(at))
    }

    /// Gives units back. The units are counted in the `T` of the state, which does not change.
    ///
    /// The mark of a receipt is the time at which the debt of this take, and all debt from before it, is paid. A refund
    /// gives back at most the time that is left until the mark. The rest of the take's debt is paid already, and must
    /// not be given back a second time.
    ///
    /// A queue gives back only its last turn, and only with the receipt of that turn. An earlier turn cannot be given
    /// back, because callers with later turns already wait for exact times.
    pub(crate) fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: u64) -> bool {
        let mark = receipt.map_or(0, |receipt| receipt.mark);
        let most = match mark {
            mark if quota.algorithm() == Algorithm::LeakyBucket && mark != self.tat => 0,
            0 => u64::MAX,
            _ => receipt.map_or(u64::MAX, |receipt| self.not_paid_yet(quota, receipt, now)),
        };
        let debt = self.debt(now).saturating_sub(cost.saturating_mul(self.interval_ns).min(most));
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
