//! Packs two numbers in the state of a bucket or a queue. Both numbers come from the quota that charged the state last.
//!
//! One is `T`, the time between two units at the full rate. The other is an upper bound of the debt, which is the time
//! that the bucket needs to refill. A store that keeps millions of buckets has only 38 bits for both numbers together
//! ([`Quota::packs`]).

use super::{Algorithm, Quota};

/// The greatest lateness of a request, in nanoseconds. A request is late by a time `d` if another request, whose time
/// is later by `d`, was decided first.
///
/// If `d` is greater than this constant, the kernel assumes that the clock was set back.
pub const MAX_LATE_NS: u64 = 1_000_000_000;

/// The largest bound of a debt is 2 to this power, in nanoseconds.
pub(crate) const MAX_DEBT_BITS: u8 = 63;

/// The number of bits of a packed `T`.
const INTERVAL_BITS: u32 = 32;
/// If this bit of a packed `T` is set, the other bits are a limit `L`, and `T` is computed from `L` and the window. If
/// the bit is not set, the other bits are `T` in nanoseconds.
const BY_UNITS: u64 = 1 << (INTERVAL_BITS - 1);
/// This number marks a quota whose `T` has no packed form. No packed bucket has this number.
const UNPACKED: u64 = u64::MAX;

impl Quota {
    /// Returns the greatest debt that this quota can cause, in nanoseconds: 2 * hard capacity * `T`, or that of a
    /// [shared](Quota::across) bucket. Takes that are allowed raise the debt at most to hard capacity * `T`. Forces and
    /// charged refusals, which are counted without a check, can raise it to the whole value. 0 if there is no debt.
    #[must_use]
    #[inline]
    pub const fn max_debt_ns(&self) -> u64 {
        self.max_debt_ns
    }

    /// Returns the smallest exponent `b` such that no debt under this quota is above `2^b` ns. Only buckets and queues
    /// have a debt, so this method returns 0 for all other algorithms.
    ///
    /// The debt is the time that a bucket needs to refill. `2^b` ns is at least the [greatest debt](Quota::max_debt_ns)
    /// of this quota plus [`MAX_LATE_NS`], because a request that is late by a time `d` sees a debt that is longer by
    /// `d`.
    ///
    /// A state keeps the `b` of the quota that charged it last. If the debt of the state is above `2^b` ns, the clock
    /// was set back.
    #[must_use]
    #[inline]
    pub const fn debt_bits(&self) -> u8 {
        self.debt_bits
    }

    /// Returns whether a bucket that this quota charged last can be [packed](crate::State::pack).
    ///
    /// Almost every bucket can be packed. The exceptions are some [shares](Quota::share): the time `T` between two
    /// units is longer than two seconds, and no limit in the same window has the same `T`.
    #[must_use]
    pub const fn packs(&self) -> bool {
        self.bucket_word != UNPACKED
    }

    /// Returns the number into which `T` and the bound of the debt are packed if this quota charged the bucket last.
    #[inline]
    pub(crate) const fn bucket_word(&self) -> u64 {
        self.bucket_word
    }

    /// Packs `T` and the bound of the debt into one number below 2^38. Returns `None` if `T` does not fit.
    ///
    /// A `T` below 2^31 ns (about two seconds) is stored unchanged. For a longer `T`, a limit `L` is stored instead:
    /// `L` is below 2^31, and `ceil(W/L) = T`, where `W` is the window. If there is no such limit, `T` does not fit.
    /// `unpack_bucket` can compute `T` from `L`, because all quotas that share a state have the same window.
    pub(crate) fn pack_bucket(&self, interval_ns: u64, debt_bits: u8) -> Option<u64> {
        if interval_ns == self.interval_ns && debt_bits == self.debt_bits {
            return self.packs().then_some(self.bucket_word);
        }
        packed_interval(interval_ns, self.named_window_ns).map(|packed| u64::from(debt_bits) << INTERVAL_BITS | packed)
    }

    /// Returns the longest `T` up to `interval_ns` that can be packed in a state of this quota.
    pub(crate) fn packable_interval(&self, interval_ns: u64) -> u64 {
        if interval_ns == self.interval_ns || interval_ns < BY_UNITS {
            return interval_ns.max(1);
        }
        match self.named_window_ns.div_ceil(interval_ns) {
            units if units < BY_UNITS => interval_of(units, self.named_window_ns).max(1),
            _ => BY_UNITS - 1,
        }
    }

    /// Returns the smallest exponent `b` such that `2^b` ns is at least this debt plus [`MAX_LATE_NS`].
    pub(crate) const fn bits_of_debt(debt_ns: u64) -> u8 {
        let bits = (debt_ns.saturating_add(MAX_LATE_NS) - 1).ilog2() as u8 + 1;
        if bits > MAX_DEBT_BITS { MAX_DEBT_BITS } else { bits }
    }

    /// Returns `T` and the bound of the debt from a number that [`pack_bucket`](Quota::pack_bucket) has made. Any other
    /// number gives some `T` and some bound, but never a panic.
    #[inline]
    pub(crate) fn unpack_bucket(&self, word: u64) -> (u64, u8) {
        if word == self.bucket_word {
            return (self.interval_ns, self.debt_bits);
        }
        let debt_bits = (word >> INTERVAL_BITS) as u8 & MAX_DEBT_BITS;
        let packed = word & ((1 << INTERVAL_BITS) - 1);
        let interval_ns = if packed < BY_UNITS { packed } else { interval_of(packed - BY_UNITS, self.named_window_ns) };
        (interval_ns.max(1), debt_bits)
    }

    /// Computes the bound of the debt and the packed number, which follow from `T` and the hard capacity.
    pub(super) const fn with_bucket(self) -> Quota {
        if !matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            return self;
        }
        let max_debt_ns = self.greatest_debt_ns();
        self.with_debt(max_debt_ns)
    }

    /// Computes the bound of the debt and the packed number of a bucket that can owe this much.
    pub(super) const fn with_debt(mut self, max_debt_ns: u64) -> Quota {
        self.max_debt_ns = max_debt_ns;
        self.debt_bits = Quota::bits_of_debt(max_debt_ns);
        self.bucket_word = match packed_interval(self.interval_ns, self.named_window_ns) {
            Some(packed) => (self.debt_bits as u64) << INTERVAL_BITS | packed,
            None => UNPACKED,
        };
        self
    }
}

const fn packed_interval(interval_ns: u64, window_ns: u64) -> Option<u64> {
    if interval_ns < BY_UNITS {
        return Some(interval_ns);
    }
    // `units` is the smallest `L` with `ceil(W/L) <= T`. If some `L` has `ceil(W/L) = T`, then `units` is such an `L`.
    let units = window_ns.div_ceil(interval_ns);
    let packs = units < BY_UNITS && interval_of(units, window_ns) == interval_ns;
    if packs { Some(BY_UNITS | units) } else { None }
}

const fn interval_of(units: u64, window_ns: u64) -> u64 {
    window_ns.div_ceil(if units > 0 { units } else { 1 })
}
