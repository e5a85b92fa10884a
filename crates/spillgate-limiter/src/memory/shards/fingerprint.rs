//! The fingerprint of a key: the bits that a slot stores to recognize the key.
//!
//! A key has 128 bits, and a narrow slot has no space for all of them. This module decides which bits a slot stores
//! and which bits choose the shard and the home bucket.

use super::slot::Width;

/// The 128 bits that identify an entry; a narrow slot stores 88 of them.
///
/// Two keys share one entry only if all stored bits agree. With `n` keys in the store and 88 stored bits, the
/// probability that any two of them share an entry is below `n^2 / 2^89`. For 20 million keys, this is less than one in
/// 10^12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// Never 0, because 0 marks a free slot. The top bits choose the shard and the home bucket.
    pub(crate) high: u64,
    /// The other 64 bits. In a narrow table, only the top [`LOW_BITS`](Fingerprint::LOW_BITS) of them are used, and the
    /// rest are 0.
    pub(crate) low: u64,
}

impl Fingerprint {
    /// The number of bits of `low` that a narrow slot stores. They are its highest bits.
    pub(crate) const LOW_BITS: u32 = 24;

    /// Returns the fingerprint of a state's key in a table of this width.
    #[inline]
    pub(crate) fn of(state_key: u128, width: Width) -> Fingerprint {
        let low = state_key as u64;
        // Most keys are hashes already. If a caller numbers its keys instead, they differ only in a few bits. The two
        // multiplications below spread these differences. No difference is lost, because both factors are odd: a
        // multiplication by an odd factor modulo 2^64 can be undone. The first factor is 2^64 divided by the golden
        // ratio, and the second is a factor of SplitMix64.
        let high = (state_key >> 64) as u64 ^ low.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let high = (high ^ (high >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // A narrow slot does not store the lowest 40 bits, so they are set to 0 here. Two keys whose other bits agree
        // are then one key.
        let low = if width == Width::Narrow {
            low >> (64 - Fingerprint::LOW_BITS) << (64 - Fingerprint::LOW_BITS)
        } else {
            low
        };
        Fingerprint { high: high.max(1), low }
    }

    /// Returns the index of the key's shard. There are `2^bits` shards.
    #[inline]
    pub(crate) fn shard(self, bits: u32) -> usize {
        self.high.checked_shr(64 - bits).map_or(0, |shard| shard as usize)
    }

    /// Returns the rank of the key, a number that sorts the keys of one shard. There are `2^bits` shards.
    ///
    /// The rank does not depend on the size of the table.
    #[inline]
    pub(crate) fn rank(self, bits: u32) -> u64 {
        self.high << bits
    }

    /// Returns the index of the home bucket in a table with this many home buckets.
    ///
    /// In every table of the shard, a key with a higher rank never has a lower home bucket.
    #[inline]
    pub(crate) fn home_bucket(self, bits: u32, home_buckets: usize) -> usize {
        home_bucket_of_rank(self.rank(bits), home_buckets)
    }
}

/// Returns the home bucket of all keys with this rank, in a table with this many home buckets.
#[inline]
pub(super) fn home_bucket_of_rank(rank: u64, home_buckets: usize) -> usize {
    ((u128::from(rank) * home_buckets as u128) >> 64) as usize
}

/// Returns the lowest rank whose home bucket is `bucket`, or `None` if `bucket` is not below `home_buckets`.
pub(super) fn first_rank_of_bucket(bucket: usize, home_buckets: usize) -> Option<u64> {
    u64::try_from(((bucket as u128) << 64).div_ceil(home_buckets as u128)).ok()
}
