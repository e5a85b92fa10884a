//! What stands for a key in a slot.

use spillgate_core::Hit;

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
    pub(super) fn of(hit: &Hit<'_>) -> Fingerprint {
        let key = hit.state_key();
        let low = key as u64;
        // Keys are hashes already. Those of a caller who numbers them instead may differ in the low bits only;
        // times an odd number (2^64 over the golden ratio) these reach the high ones, and nothing is lost.
        let high = (key >> 64) as u64 ^ low.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Fingerprint { high: high.max(1), low }
    }

    /// Which of `2^bits` shards.
    #[inline]
    pub(super) fn shard(self, bits: u32) -> usize {
        self.high.checked_shr(64 - bits).map_or(0, |shard| shard as usize)
    }

    /// Which of `homes` buckets of its shard, one of `2^bits`: in the order of the high bits, so
    /// that a larger table has all entries in the same order.
    #[inline]
    pub(super) fn home(self, bits: u32, homes: usize) -> usize {
        ((u128::from(self.high << bits) * homes as u128) >> 64) as usize
    }
}
