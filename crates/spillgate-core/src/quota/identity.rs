//! The identity of a quota: quotas with the same identity count in the same state of a key.
//!
//! Quotas that count in different ways need different identities. `Quota::identity` says what an identity depends on.

use super::algorithm::{Algorithm, Anchor};

/// Returns the identity, 128 well mixed bits. Only the identity of a queue (`leaky_bucket`) depends on `interval_ns`,
/// the time between two units.
pub(super) const fn identity(algorithm: Algorithm, window_ns: u64, interval_ns: u64) -> u128 {
    let tag = match algorithm {
        Algorithm::TokenBucket => 1,
        Algorithm::FixedWindow(Anchor::Epoch) => 2,
        Algorithm::FixedWindow(Anchor::FirstHit) => 3,
        Algorithm::SlidingWindowLog => 4,
        Algorithm::SlidingWindowCounter { segments } => 0x100 + segments as u64,
        Algorithm::LeakyBucket => 5,
        Algorithm::Concurrency => 6,
    };
    let turns = if matches!(algorithm, Algorithm::LeakyBucket) { mix(interval_ns) } else { 0 };
    let high = mix(mix(window_ns ^ turns).wrapping_add(tag));
    let low = mix(high ^ mix(tag));
    ((high as u128) << 64) | low as u128
}

/// Returns the identity of the share that a region always has of a shared bucket. It does not depend on the number of
/// regions, so a new region does not make all shares start anew.
pub(super) const fn guaranteed_identity(shared: u128) -> u128 {
    let high = mix((shared >> 64) as u64 ^ mix(7));
    ((high as u128) << 64) | mix(high ^ shared as u64) as u128
}

/// The finaliser of `SplitMix64` (Steele, Lea and Flood, 2014): a bijection on 64 bits.
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
