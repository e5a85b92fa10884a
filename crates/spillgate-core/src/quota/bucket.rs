//! What a token bucket or a queue keeps of the quota that charged it last: T, and the bound of its debt.
//!
//! A store that keeps millions of buckets has 38 bits for both, so they need a packed form ([`Quota::packs`]).

use super::{Algorithm, Quota};

/// A request may be late by this many nanoseconds: it read the clock, and other requests were decided before it.
///
/// If a request is later than that, the clock was set back.
pub const MAX_LATE_NS: u64 = 1_000_000_000;

/// No bound of a debt is above 2 to this power in nanoseconds.
pub(crate) const MAX_DEBT_BITS: u8 = 63;

/// The bits of a packed T.
const INTERVAL_BITS: u32 = 32;
/// This bit is set if a packed T holds the number of units in W. Else it holds T in nanoseconds.
const BY_UNITS: u64 = 1 << (INTERVAL_BITS - 1);
/// The word of a quota whose T has no packed form. No packed bucket has this word.
const UNPACKED: u64 = u64::MAX;

impl Quota {
    /// The greatest debt under this quota: the depth of the bucket, and once more that for forced takes.
    pub(crate) const fn max_debt_ns(&self) -> u64 {
        2 * self.hard_capacity * self.interval_ns
    }

    /// For a bucket or a queue, the least b for which 2^b ns is at least the greatest debt under this quota.
    ///
    /// The greatest debt includes what a late request sees on top of it. A state keeps the b of the quota that charged
    /// it last. A debt above that bound was left by a clock that was set back.
    #[must_use]
    #[inline]
    pub const fn debt_bits(&self) -> u8 {
        self.debt_bits
    }

    /// Whether a bucket that this quota charged last [packs](crate::State::pack).
    ///
    /// Almost every bucket does. The exceptions are shares with a T of more than two seconds that no limit in the same
    /// window has.
    #[must_use]
    pub const fn packs(&self) -> bool {
        self.bucket_word != UNPACKED
    }

    /// The packed form of a bucket that this quota charged last.
    #[inline]
    pub(crate) const fn bucket_word(&self) -> u64 {
        self.bucket_word
    }

    /// T and the bound of the debt as one number below 2^38; `None` if T does not fit.
    ///
    /// A T below 2^31 ns (two seconds) is stored as it is. A longer T is ceil(W/L) for some L below 2^31, and that L is
    /// stored instead. This works because quotas that share a state have the same W.
    pub(crate) fn pack_bucket(&self, interval_ns: u64, debt_bits: u8) -> Option<u64> {
        if interval_ns == self.interval_ns && debt_bits == self.debt_bits {
            return self.packs().then_some(self.bucket_word);
        }
        packed_interval(interval_ns, self.named_window_ns).map(|packed| u64::from(debt_bits) << INTERVAL_BITS | packed)
    }

    /// T and the bound of the debt from a number that [`pack_bucket`](Quota::pack_bucket) made. Every number has a T
    /// and a bound.
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

    /// Computes what follows from T and the depth.
    pub(super) fn with_bucket(mut self) -> Quota {
        if !matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            return self;
        }
        let greatest_ns = (self.max_debt_ns() + MAX_LATE_NS).next_power_of_two();
        self.debt_bits = greatest_ns.trailing_zeros() as u8;
        let packed = packed_interval(self.interval_ns, self.named_window_ns);
        self.bucket_word = packed.map_or(UNPACKED, |packed| u64::from(self.debt_bits) << INTERVAL_BITS | packed);
        self
    }
}

fn packed_interval(interval_ns: u64, window_ns: u64) -> Option<u64> {
    if interval_ns < BY_UNITS {
        return Some(interval_ns);
    }
    // The least L with ceil(W/L) <= T. If any L has this T, this one has.
    let units = window_ns.div_ceil(interval_ns);
    (units < BY_UNITS && interval_of(units, window_ns) == interval_ns).then_some(BY_UNITS | units)
}

fn interval_of(units: u64, window_ns: u64) -> u64 {
    window_ns.div_ceil(units.max(1))
}
