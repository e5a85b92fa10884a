//! The keys of states in Redis, and their slots in a cluster.
//!
//! A key is made of hashes only, so that no client can choose its text, its length or its slot.

use std::fmt;

use spillgate_core::{Algorithm, Hit};

use crate::settings::LogForm;

/// The number of slots of a cluster.
pub(crate) const SLOTS: usize = 16384;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const TAG: usize = (u128::BITS - Hit::SLOT_SHIFT) as usize / 6;
const SUFFIX: usize = 18;
const TAG_END: usize = "sg:{}".len() + TAG;
const LENGTH: usize = "sg:{}:".len() + TAG + SUFFIX;

/// The key of a state. It has 29 bytes: `sg:{tag}:suffix`. A log in a sorted set has `sg:{tag}/suffix`, and a counter
/// without scripts `sg:{tag}+suffix`.
///
/// The tag determines the slot. It depends on the hit's key only, so all limits of one descriptor are in one slot. The
/// suffix depends on the key of the state. Tag and suffix together hold all bits of both, except 20 bits of the suffix
/// that are in the tag too. Both are bits of a keyed hash in base64url, so they contain no text of a client.
///
/// ```
/// use spillgate_core::{Binding, Hit, Op, Quota};
/// use spillgate_redis::RedisKey;
///
/// let quota = Quota::per_minute(5).build()?;
/// let key = RedisKey::of(&Hit::new(7, &quota, Op::Peek, Binding::Enforce));
/// assert!(key.to_string().starts_with("sg:{"));
/// assert_eq!(key.as_bytes().len(), 29);
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RedisKey([u8; LENGTH]);

impl RedisKey {
    /// The key of the state that `hit` counts in, if logs are packed.
    #[must_use]
    pub fn of(hit: &Hit<'_>) -> RedisKey {
        RedisKey::with(hit, LogForm::Packed)
    }

    /// The key of the state that `hit` counts in. The two forms of a log have different keys, so that neither is read
    /// as the other.
    #[must_use]
    pub fn with(hit: &Hit<'_>, log: LogForm) -> RedisKey {
        let is_zset = hit.quota.algorithm() == Algorithm::SlidingWindowLog && log == LogForm::Zset;
        RedisKey::new(hit.key, hit.state_key(), if is_zset { b'/' } else { b':' })
    }

    /// The key of the counter of this window, in a store without scripts.
    pub(crate) fn of_counter(hit: &Hit<'_>, number: u64) -> RedisKey {
        // Each window has another suffix.
        let window = u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        RedisKey::new(hit.key, hit.state_key() ^ window, b'+')
    }

    fn new(key: u128, state_key: u128, form: u8) -> RedisKey {
        let mut name = *b"sg:{.....}:..................";
        name[TAG_END] = form;
        write(&mut name[4..4 + TAG], key >> Hit::SLOT_SHIFT);
        write(&mut name[LENGTH - SUFFIX..], state_key);
        RedisKey(name)
    }

    /// The slot of the key in a cluster.
    #[must_use]
    pub fn slot(&self) -> u16 {
        crc16(self.tag()) % SLOTS as u16
    }

    /// The part of the key that determines the slot.
    fn tag(&self) -> &[u8] {
        &self.0[4..4 + TAG]
    }

    /// The bytes of the key. All of them are ASCII.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for RedisKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for RedisKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Fills `digits` with the lowest bits, six for each digit.
fn write(digits: &mut [u8], mut bits: u128) {
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(bits & 63) as usize];
        bits >>= 6;
    }
}

/// CRC-16/XMODEM, as the cluster specification requires.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| crc << 8 ^ CRCS[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRCS: [u16; 256] = {
    let (mut crcs, mut byte) = ([0; 256], 0);
    while byte < crcs.len() {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        crcs[byte] = crc;
        byte += 1;
    }
    crcs
};

#[cfg(test)]
mod tests {
    use super::crc16;

    #[test]
    fn slots_are_by_the_crc_that_the_specification_names() {
        assert_eq!((crc16(b"123456789"), crc16(b"")), (0x31c3, 0));
    }
}
