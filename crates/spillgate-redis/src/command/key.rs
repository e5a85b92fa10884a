//! The keys of states in Redis, and their slots in a cluster.
//!
//! Except for a few fixed characters, a key contains only bits of hashes. So no client can choose the text, the length
//! or the slot of a key.
//!
//! ```text
//! sg:{kP2d7}:Zx0aB3..     the state of a limit
//! sg:{kP2d7}/Zx0aB3..     a log in a sorted set
//! sg:{kP2d7}+Qm81c..      the counter of one window, in a store without scripts
//! sg:{kP2d7}@bT0w4..      what servers of other regions have told of a state in one span
//!     ^^^^^               the tag: the highest 30 bits of `Hit::key`, the same for all limits of one descriptor
//!            ^^^^^^..     the suffix: the lowest 108 bits of `Hit::state_key`; the window changes those of `+` keys, the span those of `@` keys
//! ```

use std::fmt;

use spillgate_core::{Algorithm, Hit, Span};

use crate::settings::LogForm;

/// The number of slots of a cluster.
pub(crate) const SLOTS: usize = 16384;

/// The 64 digits of base64url. Only `{` and `}` in a key have a meaning for a cluster, and they are not among these
/// digits.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// The number of digits of a tag.
const TAG: usize = (u128::BITS - Hit::SLOT_SHIFT) as usize / 6;
/// The number of digits of a suffix.
const SUFFIX: usize = 18;
/// The position of the byte after `}`. This byte is `:`, `/`, `+` or `@`, and says what kind of state the key has.
const TAG_END: usize = "sg:{}".len() + TAG;
/// The length of every key in bytes.
const LENGTH: usize = "sg:{}:".len() + TAG + SUFFIX;

/// The key of a state in Redis. A key has 29 bytes: `sg:{tag}:suffix`. The key of a log in a sorted set is
/// `sg:{tag}/suffix`. The key of a counter in a store without scripts is `sg:{tag}+suffix`. The key of what servers of
/// other regions have told is `sg:{tag}@suffix`.
///
/// The tag determines the slot in a cluster. It depends only on the key of the hit, which is the hash of the
/// descriptor. So the states of all limits of one descriptor are in one slot. The suffix depends on the key of the
/// state. Tag and suffix are bits of a keyed hash in base64url, so they contain no text of a client.
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
    /// Returns the key of the state of `hit`, if logs are stored as lists ([`LogForm::Packed`]).
    #[must_use]
    pub fn of(hit: &Hit<'_>) -> RedisKey {
        RedisKey::with(hit, LogForm::Packed)
    }

    /// Returns the key of the state of `hit`. Logs in lists and logs in sorted sets have different keys, so that one
    /// form is never read as the other.
    #[must_use]
    pub fn with(hit: &Hit<'_>, log: LogForm) -> RedisKey {
        let is_zset = hit.quota.algorithm() == Algorithm::SlidingWindowLog && log == LogForm::Zset;
        RedisKey::new(hit.key, hit.state_key(), if is_zset { b'/' } else { b':' })
    }

    /// Returns the key of the counter of one window, in a store without scripts. The `number` of the window changes the
    /// suffix, so each window has a key of its own.
    pub(crate) fn of_counter(hit: &Hit<'_>, number: u64) -> RedisKey {
        let window = u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        RedisKey::new(hit.key, hit.state_key() ^ window, b'+')
    }

    /// Returns the key of what servers of other regions have told of the state of `hit` in a span. Spans that differ in their
    /// beginning or length have different keys.
    pub(crate) fn of_span(hit: &Hit<'_>, span: Span) -> RedisKey {
        let number = (span.start_ns / span.length_ns.max(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let length = span.length_ns.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        RedisKey::new(hit.key, hit.state_key() ^ (u128::from(length) << 64 | u128::from(number)), b'@')
    }

    /// Returns the key whose tag comes from `key`, and whose suffix comes from `state_key`. `form` is `:`, `/`, `+` or `@`.
    fn new(key: u128, state_key: u128, form: u8) -> RedisKey {
        let mut name = *b"sg:{.....}:..................";
        name[TAG_END] = form;
        write(&mut name[4..4 + TAG], key >> Hit::SLOT_SHIFT);
        write(&mut name[LENGTH - SUFFIX..], state_key);
        RedisKey(name)
    }

    /// Returns the slot of the key in a cluster: a number below 16,384. Redis computes the same number from the tag.
    ///
    /// ```
    /// use spillgate_core::{Binding, Hit, Op, Quota};
    /// use spillgate_redis::RedisKey;
    ///
    /// // Two limits of one descriptor are in one slot, so one script decides both.
    /// let (second, day) = (Quota::per_second(1).build()?, Quota::per_day(150).build()?);
    /// let key = |quota| RedisKey::of(&Hit::new(7, quota, Op::take(1), Binding::Enforce));
    /// assert_ne!(key(&second), key(&day));
    /// assert_eq!(key(&second).slot(), key(&day).slot());
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn slot(&self) -> u16 {
        slot_of_tag(self.tag())
    }

    fn tag(&self) -> &[u8] {
        &self.0[4..4 + TAG]
    }

    /// Returns the bytes of the key. All of them are ASCII characters.
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

/// Returns the slot of all keys with this tag.
pub(crate) fn slot_of_tag(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS as u16
}

/// Fills `digits` with the lowest bits of `bits`. Each digit stores six bits.
fn write(digits: &mut [u8], mut bits: u128) {
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(bits & 63) as usize];
        bits >>= 6;
    }
}

/// Computes the CRC-16/XMODEM, as the cluster specification of Redis requires. The CRC of `123456789` is 0x31c3.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| crc << 8 ^ CRCS[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The CRC of each byte, computed when the crate is compiled.
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
