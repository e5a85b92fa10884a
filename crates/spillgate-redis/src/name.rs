//! What a state's key is called in Redis.

use std::fmt;

use spillgate_core::{Algorithm, Hit};

use crate::LogForm;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const TAG: usize = 5;
const SUFFIX: usize = 18;
const TAG_END: usize = "sg:{}".len() + TAG;
const LENGTH: usize = "sg:{}:".len() + TAG + SUFFIX;

/// The name of a state's key: `sg:{tag}:suffix`, 29 bytes; `sg:{tag}/suffix` of a log in a sorted set.
///
/// The tag, which chooses the slot, is made of the hit's key alone, so that the limits of one descriptor are in one
/// slot; the suffix of the state's key. Together they have all the bits of both but 20 of the suffix's, which the tag
/// tells too. Both are bits of a keyed hash in base64url: no text of a client is in them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name([u8; LENGTH]);

impl Name {
    /// The name of the state that `hit` counts in, where logs are packed.
    #[must_use]
    pub fn of(hit: &Hit<'_>) -> Name {
        Name::with(hit, LogForm::Packed)
    }

    /// The name of the state that `hit` counts in. The two forms of a log have two names, so that neither is ever taken
    /// for the other.
    #[must_use]
    pub fn with(hit: &Hit<'_>, log: LogForm) -> Name {
        let mut name = *b"sg:{.....}:..................";
        if hit.quota.algorithm() == Algorithm::SlidingWindowLog && log == LogForm::Zset {
            name[TAG_END] = b'/';
        }
        write(&mut name[4..4 + TAG], hit.key >> 98);
        write(&mut name[LENGTH - SUFFIX..], hit.state_key());
        Name(name)
    }

    /// Its slot in a cluster.
    #[must_use]
    pub fn slot(&self) -> u16 {
        crate::slots::slot(self)
    }

    /// What a cluster chooses the slot by.
    pub(crate) fn tag(&self) -> &[u8] {
        &self.0[4..4 + TAG]
    }

    /// The name's bytes, all of them ASCII.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Fills `place` with the lowest bits, six a digit.
fn write(place: &mut [u8], mut bits: u128) {
    for digit in place.iter_mut().rev() {
        *digit = ALPHABET[(bits & 63) as usize];
        bits >>= 6;
    }
}
