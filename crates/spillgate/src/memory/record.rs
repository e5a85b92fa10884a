//! The lines of a snapshot: numbers of 8 bytes, little-endian, and a sum over all of them.

use std::hash::Hasher as _;
use std::io::{self, ErrorKind, Read};

use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use spillgate_core::{Packed, State, Time};

use super::bucket::{Content, Width};
use super::fingerprint::Fingerprint;
use super::place::Kept;
use super::slab::Slab;
use super::snapshot::SnapshotError;

/// What a record is; in front of each.
const END: u8 = 0;
const NARROW_INLINE: u8 = 1;
const NARROW_BOXED: u8 = 2;
const WIDE_INLINE: u8 = 3;
const WIDE_BOXED: u8 = 4;

/// The least that an entry takes: what it is, two words of fingerprint, a time, a number.
pub(super) const LEAST_RECORD_BYTES: u64 = 33;
/// The words of the largest state: as many leases as there can be, of four words each, and a few more.
const MAX_STATE_WORDS: u64 = 4 * 65_536 + 8;

/// Appends the entry of one slot.
pub(super) fn write_entry(buffer: &mut Vec<u8>, width: Width, key: Fingerprint, content: Content, slab: &Mutex<Slab>) {
    let (kind, numbers, state) = match (content, width) {
        (Content::Inline { expires_at, first, .. }, Width::Narrow) => (NARROW_INLINE, [expires_at, first], None),
        (Content::Inline { expires_at, first, .. }, Width::Wide) => (WIDE_INLINE, [expires_at, first], None),
        (Content::Boxed { expires_at, index }, _) => {
            let kind = if width == Width::Narrow { NARROW_BOXED } else { WIDE_BOXED };
            let mut words = Vec::new();
            slab.lock().get(index).encode(&mut words);
            (kind, [expires_at, words.len() as u64], Some(words))
        }
    };
    buffer.push(kind);
    write_words(buffer, &[key.high, key.low]);
    write_words(buffer, &numbers);
    if let (Content::Inline { second, .. }, Width::Wide) = (content, width) {
        write_words(buffer, &[second]);
    }
    write_words(buffer, &state.unwrap_or_default());
}

/// Appends what stands after the last entry.
pub(super) fn write_end(buffer: &mut Vec<u8>, entries: u64) {
    buffer.push(END);
    write_words(buffer, &[entries]);
}

pub(super) fn write_words(buffer: &mut Vec<u8>, words: &[u64]) {
    buffer.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// An entry that was read: where it belongs, and what it is.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) width: Width,
    pub(super) key: Fingerprint,
    pub(super) kept: Kept,
}

impl Kept {
    pub(super) const fn expires_at(&self) -> u64 {
        match self {
            Kept::Inline(packed) => packed.expires_at,
            Kept::Boxed { expires_at, .. } => *expires_at,
        }
    }
}

/// Reads numbers and adds them to the sum.
pub(super) struct Reader<R> {
    source: R,
    sum: SipHasher13,
    words: Vec<u64>,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(source: R) -> Reader<R> {
        Reader { source, sum: SipHasher13::new(), words: Vec::new() }
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(torn)?;
        self.sum.write(&bytes);
        Ok(bytes)
    }

    pub(super) fn word(&mut self) -> Result<u64, SnapshotError> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// The next entry; `None` after the last.
    pub(super) fn entry(&mut self) -> Result<Option<Entry>, SnapshotError> {
        let [kind] = self.bytes()?;
        let width = match kind {
            END => return Ok(None),
            NARROW_INLINE | NARROW_BOXED => Width::Narrow,
            WIDE_INLINE | WIDE_BOXED => Width::Wide,
            _ => return Err(SnapshotError::Damaged("a record is of no known kind")),
        };
        let key = Fingerprint { high: self.word()?, low: self.word()? };
        let expires_at = self.word()?;
        let kept = match kind {
            NARROW_INLINE => Kept::Inline(Packed { expires_at, first: self.word()?, second: 0 }),
            WIDE_INLINE => Kept::Inline(Packed { expires_at, first: self.word()?, second: self.word()? }),
            _ => Kept::Boxed { expires_at, state: self.state()? },
        };
        let sound = match &kept {
            Kept::Inline(packed) => packed.is_sound(),
            Kept::Boxed { expires_at, .. } => (1..=Time::MAX.as_nanos()).contains(expires_at),
        };
        if !sound || !key.fits(width) {
            return Err(SnapshotError::Damaged("a record is of no key or of no state"));
        }
        Ok(Some(Entry { width, key, kept }))
    }

    fn state(&mut self) -> Result<State, SnapshotError> {
        let len = self.word()?;
        if len > MAX_STATE_WORDS {
            return Err(SnapshotError::Damaged("a record is too long"));
        }
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        for _ in 0..len {
            words.push(self.word()?);
        }
        let state = State::decode(&words).ok_or(SnapshotError::Damaged("a record is of no state"))?;
        self.words = words;
        Ok(state)
    }

    /// Checks that `entries` are as many as there were, that their sum is as written, and that nothing follows.
    pub(super) fn end(mut self, entries: u64) -> Result<(), SnapshotError> {
        let complete = self.word()? == entries;
        let sum = self.sum.finish128().as_bytes();
        if !complete || self.bytes::<16>()? != sum {
            return Err(SnapshotError::Damaged("its sum is not that of its contents"));
        }
        match self.source.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(SnapshotError::Damaged("something follows its end")),
        }
    }
}

impl Fingerprint {
    /// Whether a slot of this width could have kept it.
    fn fits(self, width: Width) -> bool {
        let kept = match width {
            Width::Narrow => self.low << Fingerprint::LOW_BITS == 0,
            Width::Wide => true,
        };
        self.high != 0 && kept
    }
}

fn torn(error: io::Error) -> SnapshotError {
    match error.kind() {
        ErrorKind::UnexpectedEof => SnapshotError::Damaged("it ends too early"),
        _ => SnapshotError::Io(error),
    }
}
