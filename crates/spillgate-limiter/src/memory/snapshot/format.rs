//! The bytes of a snapshot: a header, a record for each entry, and a checksum. In this file, a record is the saved form
//! of one entry, and has nothing to do with reservations.
//!
//! All numbers have 8 bytes, little-endian. The parts of the file, in order:
//!
//! | part | bytes |
//! |---|---|
//! | header | the magic bytes, the format, the time, the secret of the key hasher, the numbers of narrow and of wide entries |
//! | record | its kind (1 byte), the fingerprint of the key, the time when the state expires, the numbers or words of the state |
//! | end | kind 0, the number of records |
//! | checksum | SipHash-1-3 of all bytes before it, 16 bytes |
//!
//! A narrow entry was in a narrow slot of the hash table, and a wide entry was in a wide slot.
//!
//! A caller can pass any file as a snapshot. For a file that is not a snapshot, the reader has to return an error. A
//! large number in the file must not make the reader allocate much memory.

use std::fmt;
use std::hash::Hasher as _;
use std::io::{self, ErrorKind, Read};

use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use spillgate_core::{Packed, State, Time};

use super::restore::SavedState;
use crate::memory::shards::{Content, Fingerprint, Slab, Width};

/// The first bytes of a snapshot.
const MAGIC: [u8; 16] = *b"spillgate state\n";
/// The number of this format. Snapshots of other formats are not converted, because most states of an old file expire
/// soon anyway.
const FORMAT: u64 = 2;

/// The kind (the first byte of a record) that ends the list of records.
const END: u8 = 0;
/// The kind of a state in a narrow slot.
const NARROW_INLINE: u8 = 1;
/// The kind of a state in the slab (a list of states that do not fit a slot), with its index in a narrow slot.
const NARROW_IN_SLAB: u8 = 2;
/// The kind of a state in a wide slot.
const WIDE_INLINE: u8 = 3;
/// The kind of a state in the slab, with its index in a wide slot.
const WIDE_IN_SLAB: u8 = 4;

/// The size of the smallest record: 1 byte for its kind, and 8 bytes each for two words of fingerprint, a time and a
/// number.
pub(super) const LEAST_RECORD_BYTES: u64 = 33;
/// The highest number of words in a state. The largest state has 65,536 leases, with four words for each lease, and at
/// most eight more words.
const MAX_STATE_WORDS: u64 = 4 * 65_536 + 8;

/// Why a snapshot was rejected. Nothing of a rejected snapshot is used.
///
/// ```
/// use spillgate::{MemoryOptions, MemoryStore, SnapshotError, Time};
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("state");
/// std::fs::write(&path, "something else")?;
/// let error = MemoryStore::restored(MemoryOptions::default(), Time::EPOCH, &path).unwrap_err();
/// assert!(matches!(error, SnapshotError::NotASnapshot));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The system cannot read the file. The kind is [`NotFound`](io::ErrorKind::NotFound) if the file does not exist.
    Io(io::Error),
    /// The file does not begin as every snapshot does, or it is a folder or a device.
    NotASnapshot,
    /// Another version of this program wrote the snapshot. The number is the format of the snapshot.
    Format(u64),
    /// The snapshot was cut or altered. The text says what is wrong.
    Damaged(&'static str),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Io(error) => write!(f, "the snapshot cannot be read: {error}"),
            SnapshotError::NotASnapshot => f.write_str("the file is not a snapshot"),
            SnapshotError::Format(format) => {
                write!(f, "the snapshot has format {format}, and this version reads format {FORMAT}")
            }
            SnapshotError::Damaged(what) => write!(f, "the snapshot is damaged: {what}"),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SnapshotError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> SnapshotError {
        SnapshotError::Io(error)
    }
}

pub(super) struct Header {
    /// The time at which the save began.
    pub(super) taken_at: Time,
    /// The secret of the hasher that made the keys in the snapshot.
    pub(super) secret: [u8; 16],
    /// The approximate numbers of narrow and of wide entries. A reader uses them to allocate tables of the right size
    /// at the beginning.
    pub(super) entries: [u64; 2],
}

pub(super) fn write_header(buffer: &mut Vec<u8>, taken_at: Time, secret: [u8; 16], entries: [usize; 2]) {
    buffer.extend(MAGIC);
    write_words(buffer, &[FORMAT, taken_at.as_nanos()]);
    buffer.extend(secret);
    write_words(buffer, &entries.map(|entries| entries as u64));
}

/// Appends the record of the entry in one slot. The caller has the lock of the slot's bucket.
pub(super) fn write_record(buffer: &mut Vec<u8>, width: Width, key: Fingerprint, content: Content, slab: &Mutex<Slab>) {
    let (kind, numbers, state) = match (content, width) {
        (Content::Inline { expires_at, first, .. }, Width::Narrow) => (NARROW_INLINE, [expires_at, first], None),
        (Content::Inline { expires_at, first, .. }, Width::Wide) => (WIDE_INLINE, [expires_at, first], None),
        (Content::InSlab { expires_at, index }, _) => {
            let kind = if width == Width::Narrow { NARROW_IN_SLAB } else { WIDE_IN_SLAB };
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

/// Appends the mark of the end, and the number of records.
pub(super) fn write_end(buffer: &mut Vec<u8>, records: u64) {
    buffer.push(END);
    write_words(buffer, &[records]);
}

fn write_words(buffer: &mut Vec<u8>, words: &[u64]) {
    buffer.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// A record that was read.
#[derive(Debug)]
pub(super) struct Record {
    /// The width of the slot that had the entry.
    pub(super) width: Width,
    pub(super) key: Fingerprint,
    pub(super) state: SavedState,
}

/// Reads a snapshot and adds all its bytes to the checksum.
pub(super) struct Reader<R> {
    source: R,
    checksum: SipHasher13,
    /// The words of the last state. They are kept only to reuse their memory.
    words: Vec<u64>,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(source: R) -> Reader<R> {
        Reader { source, checksum: SipHasher13::new(), words: Vec::new() }
    }

    /// Reads the header of a file of `len` bytes.
    pub(super) fn header(&mut self, len: u64) -> Result<Header, SnapshotError> {
        if len < MAGIC.len() as u64 || self.bytes()? != MAGIC {
            return Err(SnapshotError::NotASnapshot);
        }
        match self.word()? {
            FORMAT => {}
            other => return Err(SnapshotError::Format(other)),
        }
        let taken_at = Time::from_nanos(self.word()?);
        let secret = self.bytes()?;
        Ok(Header { taken_at, secret, entries: [self.word()?, self.word()?] })
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(read_error)?;
        self.checksum.write(&bytes);
        Ok(bytes)
    }

    fn word(&mut self) -> Result<u64, SnapshotError> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads the next record. Returns `None` after the last record.
    pub(super) fn record(&mut self) -> Result<Option<Record>, SnapshotError> {
        let [kind] = self.bytes()?;
        let width = match kind {
            END => return Ok(None),
            NARROW_INLINE | NARROW_IN_SLAB => Width::Narrow,
            WIDE_INLINE | WIDE_IN_SLAB => Width::Wide,
            _ => return Err(SnapshotError::Damaged("the kind of a record is unknown")),
        };
        let key = Fingerprint { high: self.word()?, low: self.word()? };
        let expires_at = self.word()?;
        let state = match kind {
            NARROW_INLINE => SavedState::Inline(Packed { expires_at, first: self.word()?, second: 0 }),
            WIDE_INLINE => SavedState::Inline(Packed { expires_at, first: self.word()?, second: self.word()? }),
            _ => SavedState::InSlab { expires_at, state: self.state()? },
        };
        let valid = match &state {
            SavedState::Inline(packed) => packed.is_sound(),
            SavedState::InSlab { expires_at, .. } => (1..=Time::MAX.as_nanos()).contains(expires_at),
        };
        if !valid || !key.fits(width) {
            return Err(SnapshotError::Damaged("the key or the state of a record is invalid"));
        }
        Ok(Some(Record { width, key, state }))
    }

    /// Reads a state that was in the slab: the number of its words, and the words.
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
        let state = State::decode(&words).ok_or(SnapshotError::Damaged("the state of a record is invalid"))?;
        self.words = words;
        Ok(state)
    }

    /// Checks the number of records and the checksum, and that the file ends after the checksum.
    pub(super) fn end(mut self, records: u64) -> Result<(), SnapshotError> {
        let complete = self.word()? == records;
        let checksum = self.checksum.finish128().as_bytes();
        if !complete || self.bytes::<16>()? != checksum {
            return Err(SnapshotError::Damaged("its checksum does not match its contents"));
        }
        match self.source.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(SnapshotError::Damaged("there are bytes after its end")),
        }
    }
}

impl Fingerprint {
    /// Returns whether a slot of this width can store the fingerprint.
    fn fits(self, width: Width) -> bool {
        let stored = match width {
            Width::Narrow => self.low << Fingerprint::LOW_BITS == 0,
            Width::Wide => true,
        };
        self.high != 0 && stored
    }
}

/// Returns the error for a file that cannot be read to its end.
fn read_error(error: io::Error) -> SnapshotError {
    match error.kind() {
        ErrorKind::UnexpectedEof => SnapshotError::Damaged("it ends too early"),
        _ => SnapshotError::Io(error),
    }
}
