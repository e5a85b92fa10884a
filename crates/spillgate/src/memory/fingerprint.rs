//! What stands for a key in a slot.

use spillgate_core::Hit;

use super::bucket::Width;

/// 128 bits of a state's key, of which a narrow slot keeps 88.
///
/// Two keys share a state only if all bits that are kept agree: with n keys alive, that happens with
/// probability below n^2 / 2^89, for twenty million keys one in 10^12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Never 0, which marks a free slot. Its top bits choose the shard and the home bucket.
    pub(super) high: u64,
    pub(super) low: u64,
}

impl Fingerprint {
    /// The bits of `low` that a narrow slot keeps: the highest.
    pub(super) const LOW_BITS: u32 = 24;

    #[inline]
    pub(super) fn of(hit: &Hit<'_>, width: Width) -> Fingerprint {
        let key = hit.state_key();
        let low = key as u64;
        // Keys are hashes already. Those of a caller who numbers them instead differ in a few bits only,
        // wherever those are: mixing, of which nothing is lost, spreads them too. The factors are odd: 2^64
        // over the golden ratio, and one of SplitMix64's.
        let high = (key >> 64) as u64 ^ low.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let high = (high ^ (high >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // What a slot does not keep is no part of it: keys that agree in the rest are one key all the way.
        let low = if width == Width::Narrow {
            low >> (64 - Fingerprint::LOW_BITS) << (64 - Fingerprint::LOW_BITS)
        } else {
            low
        };
        Fingerprint { high: high.max(1), low }
    }

    /// Which of `2^bits` shards.
    #[inline]
    pub(super) fn shard(self, bits: u32) -> usize {
        self.high.checked_shr(64 - bits).map_or(0, |shard| shard as usize)
    }

    /// Where it stands among the keys of its shard, one of `2^bits`.
    #[inline]
    pub(super) fn rank(self, bits: u32) -> u64 {
        self.high << bits
    }

    /// Which of `homes` buckets of its shard: in the order of ranks, so that a larger table has
    /// all entries in the same order.
    #[inline]
    pub(super) fn home(self, bits: u32, homes: usize) -> usize {
        home_of_rank(self.rank(bits), homes)
    }
}

#[inline]
pub(super) fn home_of_rank(rank: u64, homes: usize) -> usize {
    ((u128::from(rank) * homes as u128) >> 64) as usize
}

/// The lowest rank whose home is `home`; `None` if there are not so many homes.
pub(super) fn first_rank(home: usize, homes: usize) -> Option<u64> {
    u64::try_from(((home as u128) << 64).div_ceil(homes as u128)).ok()
}
