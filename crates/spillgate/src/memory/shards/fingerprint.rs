//! The fingerprint of a key: the bits that a slot stores to recognize it.
//!
//! A key has 128 bits, and a narrow slot has no space for all of them. This module decides which bits a slot stores
//! and which bits choose the shard and the home bucket.

use super::slot::Width;

/// The 128 bits that identify an entry; a narrow slot stores 88 of them.
///
/// Two keys share one entry only if all stored bits agree. With n live keys the probability of that is below
/// n^2 / 2^89: about one in 10^12 for twenty million keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// Never 0, because 0 marks a free slot. The top bits choose the shard and the home bucket.
    pub(crate) high: u64,
    /// The rest. In a narrow table only the top [`LOW_BITS`](Fingerprint::LOW_BITS) bits are used. The other bits are
    /// 0.
    pub(crate) low: u64,
}

impl Fingerprint {
    /// The number of bits of `low` that a narrow slot stores. They are its highest bits.
    pub(crate) const LOW_BITS: u32 = 24;

    /// The fingerprint of a state's key in a table of this width.
    #[inline]
    pub(crate) fn of(state_key: u128, width: Width) -> Fingerprint {
        let low = state_key as u64;
        // Most keys are hashes already. A caller may number its keys instead, and then they differ in a few bits only.
        // Mixing spreads these bits and loses none of them. Both factors are odd: 2^64 over the golden ratio, and a
        // factor of SplitMix64.
        let high = (state_key >> 64) as u64 ^ low.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let high = (high ^ (high >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // Bits that a slot does not store must not matter anywhere: keys that agree in all other bits are one key.
        let low = if width == Width::Narrow {
            low >> (64 - Fingerprint::LOW_BITS) << (64 - Fingerprint::LOW_BITS)
        } else {
            low
        };
        Fingerprint { high: high.max(1), low }
    }

    /// The index of the shard, of `2^bits` shards.
    #[inline]
    pub(crate) fn shard(self, bits: u32) -> usize {
        self.high.checked_shr(64 - bits).map_or(0, |shard| shard as usize)
    }

    /// The number of the key in the order of all keys of its shard, where there are `2^bits` shards.
    ///
    /// The rank does not depend on the size of the table.
    #[inline]
    pub(crate) fn rank(self, bits: u32) -> u64 {
        self.high << bits
    }

    /// The index of the home bucket, of `home_buckets` in the shard.
    ///
    /// Home buckets are in the order of ranks: a larger table has all entries in the same order.
    #[inline]
    pub(crate) fn home_bucket(self, bits: u32, home_buckets: usize) -> usize {
        home_bucket_of_rank(self.rank(bits), home_buckets)
    }
}

/// The home bucket of all keys with this rank, of `home_buckets`.
#[inline]
pub(super) fn home_bucket_of_rank(rank: u64, home_buckets: usize) -> usize {
    ((u128::from(rank) * home_buckets as u128) >> 64) as usize
}

/// The lowest rank whose home bucket is `bucket`; `None` if `bucket` is not below `home_buckets`.
pub(super) fn first_rank_of_bucket(bucket: usize, home_buckets: usize) -> Option<u64> {
    u64::try_from(((bucket as u128) << 64).div_ceil(home_buckets as u128)).ok()
}
