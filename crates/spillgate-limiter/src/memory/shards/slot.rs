//! One slot: its width, its contents, and how a large number fits 40 bits.
//!
//! A bucket must fit two cache lines, so a slot has only a few words of 64 bits. A state that does not fit a slot is
//! stored in the slab (a list of states). This table shows how many bits of each word are used for what:
//!
//! ```text
//!             word 0            word 1                           word 2      word 3        word 4
//! narrow      fingerprint 64    fingerprint 24 | payload 40      time 64
//! wide        fingerprint 64    fingerprint 64                   time 64     payload 64    payload 64
//! ```
//!
//! Word 0 is 0 in a free slot. If the highest bit of the time is 1, the payload is an index in the slab.

use spillgate_core::Time;

/// The width of the slots of a table: a bucket has five narrow or three wide slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// Three words: 88 bits of fingerprint, 40 bits of payload, and a time.
    Narrow,
    /// Five words: 128 bits of fingerprint, a time, and two payloads.
    Wide,
}

impl Width {
    pub(crate) const fn slots(self) -> usize {
        match self {
            Width::Narrow => 5,
            Width::Wide => 3,
        }
    }

    pub(super) const fn words(self) -> usize {
        match self {
            Width::Narrow => 3,
            Width::Wide => 5,
        }
    }
}

/// What a slot stores in addition to the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The state itself, in the numbers of [`Packed`](spillgate_core::Packed).
    Inline {
        /// The time when the state expires, in nanoseconds: not 0, and below 2^63.
        expires_at: u64,
        /// The first number of the packed state.
        first: u64,
        /// The second number of the packed state. It is 0 in a narrow slot.
        second: u64,
    },
    /// A state in the slab of the shard.
    InSlab {
        /// The time when the state expires, in nanoseconds, below 2^63.
        expires_at: u64,
        /// The index of the state in the slab.
        index: u32,
    },
}

impl Content {
    /// Returns whether the state has expired at `now_ns`. A hit on an expired state is decided as on an empty state.
    pub(crate) fn has_expired(self, now_ns: u64) -> bool {
        has_expired(self.expires_at(), now_ns)
    }

    /// Returns the time when the state expires, in nanoseconds.
    pub(super) fn expires_at(self) -> u64 {
        let (Content::Inline { expires_at, .. } | Content::InSlab { expires_at, .. }) = self;
        expires_at
    }
}

/// This bit of a slot's time is 1 if the state is in the slab.
pub(super) const IN_SLAB: u64 = 1 << 63;
/// The number of bits for the payload of a narrow slot.
pub(super) const PAYLOAD_BITS: u32 = 40;
/// The payload of a narrow slot has a number in its low 38 bits, and a scale from 0 to 3 in its two high bits. The
/// stored value is the number times 1000^scale.
const SCALE_SHIFT: u32 = PAYLOAD_BITS - 2;
const SCALES: [u64; 4] = [1, 1_000, 1_000_000, 1_000_000_000];

/// Returns whether a state that expires at `time_ns` has expired at `now_ns`.
///
/// A slot cannot store a time after [`Time::MAX`], so it stores [`Time::MAX`] instead. A state with this time never
/// expires.
pub(super) fn has_expired(time_ns: u64, now_ns: u64) -> bool {
    time_ns <= now_ns && time_ns < Time::MAX.as_nanos()
}

/// Packs `value` into the payload of a narrow slot. Returns `None` if the value does not fit.
///
/// Every number below 2^38 fits. A larger number fits if it is a multiple of a thousand, a million or a billion, and
/// the number of thousands, millions or billions is below 2^38.
#[inline]
pub(super) fn scaled(value: u64) -> Option<u64> {
    if value >> SCALE_SHIFT == 0 {
        return Some(value);
    }
    (1..SCALES.len()).find_map(|scale| {
        let whole = value.is_multiple_of(SCALES[scale]).then(|| value / SCALES[scale])?;
        (whole >> SCALE_SHIFT == 0).then_some((scale as u64) << SCALE_SHIFT | whole)
    })
}

/// Returns the value that [`scaled`] packed into `payload`.
#[inline]
pub(super) fn unscaled(payload: u64) -> u64 {
    (payload & ((1 << SCALE_SHIFT) - 1)) * SCALES[(payload >> SCALE_SHIFT) as usize & 3]
}
