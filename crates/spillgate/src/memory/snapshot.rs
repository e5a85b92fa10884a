//! The store in a file, so that a restart forgets nothing.
//!
//! The file is written beside its name and then renamed: at that name there is always a whole
//! snapshot, the last one that was finished. A sum over all of it tells a file that was torn or altered.
//! It holds hashes of keys and the secret they were hashed with, so only its owner may read it.

use std::fs::{self, File, OpenOptions};
use std::hash::Hasher as _;
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128 as _, SipHasher13};
use spillgate_core::Time;

use super::bucket::Width;
use super::place::PutBack;
use super::record::{LEAST_RECORD_BYTES, Reader, write_end, write_entry, write_words};
use super::shards::Shards;
use super::{MemoryOptions, MemoryStore};
use crate::KeyHasher;

const MAGIC: [u8; 16] = *b"spillgate state\n";
/// Other formats get other numbers; none is converted: what an old file holds is soon stale anyway.
const FORMAT: u64 = 2;
/// Written at once: large enough for the system, small beside a store.
const BUFFER_BYTES: usize = 1 << 16;

/// A snapshot that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// States in it.
    pub entries: usize,
    /// Its size.
    pub bytes: u64,
}

/// A snapshot that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// When it was begun.
    pub taken_at: Time,
    /// States that count again.
    pub entries: usize,
    /// States that expired since, and were dropped.
    pub stale: usize,
    /// States that the store's bounds had no room for: their keys count anew.
    pub left_out: usize,
}

/// Why a snapshot was not taken over. Nothing of it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The system does not give it out; of kind [`NotFound`](io::ErrorKind::NotFound) where there is none.
    #[error("the snapshot cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is something else.
    #[error("the file is no snapshot")]
    Foreign,
    /// Another version of this program wrote it.
    #[error("the snapshot has format {0}, and this version reads format {FORMAT}")]
    Format(u64),
    /// It was torn or altered.
    #[error("the snapshot is damaged: {0}")]
    Damaged(&'static str),
}

impl MemoryStore {
    /// Writes all states to `path`, which only its owner may read; `keys` is what they are found by.
    ///
    /// Decisions go on meanwhile, and wait at most while one bucket is copied. Each state is as it was at
    /// some instant during the call; what is decided later is not in the file, and two states that one
    /// request charged may be from before and after it. `path` has the last whole snapshot at any time,
    /// even if the machine stops: a failed call leaves it alone. One call at a time for each path.
    ///
    /// # Errors
    /// The folder is missing or not ours to write to, or the disk is full.
    pub fn save(&self, keys: &KeyHasher, now: Time, path: &Path) -> io::Result<Saved> {
        let draft = Draft::new(path)?;
        let mut out = Writer { file: &draft.file, buffer: Vec::new(), sum: SipHasher13::new(), bytes: 0 };
        out.buffer.extend(MAGIC);
        write_words(&mut out.buffer, &[FORMAT, now.as_nanos()]);
        out.buffer.extend(keys.secret());
        // Roughly how many there are, so that room for them is made at once when they are read.
        write_words(&mut out.buffer, &[self.narrow.entries() as u64, self.wide.entries() as u64]);
        let mut entries = 0;
        for shards in [&self.narrow, &self.wide] {
            for shard in 0..shards.count() {
                entries += write_shard(&mut out, shards, shard, now)?;
            }
        }
        write_end(&mut out.buffer, entries as u64);
        let bytes = out.finish()?;
        draft.publish()?;
        Ok(Saved { entries, bytes })
    }

    /// A store as it was [saved](MemoryStore::save), but for what expired since, and what keys are to be hashed with.
    ///
    /// All of the file is read and checked before there is a store: it is taken over as a whole or not at
    /// all. The bounds may be others than then; states that they have no room for are left out. Times in
    /// the file are wall times: after a clock was set back, states are cut as those of a store that runs.
    ///
    /// # Errors
    /// There is no file, or it is not a whole snapshot of this format.
    pub fn restored(
        options: MemoryOptions,
        now: Time,
        path: &Path,
    ) -> Result<(MemoryStore, KeyHasher, Restored), SnapshotError> {
        // Opening a pipe would wait for somebody to write.
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(SnapshotError::Foreign);
        }
        let mut reader = Reader::new(BufReader::with_capacity(BUFFER_BYTES, File::open(path)?));
        if metadata.len() < MAGIC.len() as u64 || reader.bytes()? != MAGIC {
            return Err(SnapshotError::Foreign);
        }
        match reader.word()? {
            FORMAT => {}
            other => return Err(SnapshotError::Format(other)),
        }
        let taken_at = Time::from_nanos(reader.word()?);
        let keys = KeyHasher::with_secret(reader.bytes()?);
        let store = MemoryStore::new(options);
        // Whatever its numbers say, there are no more entries than fit the file.
        let most = usize::try_from(metadata.len() / LEAST_RECORD_BYTES).unwrap_or(usize::MAX);
        for shards in [&store.narrow, &store.wide] {
            let told = usize::try_from(reader.word()?).unwrap_or(usize::MAX);
            shards.reserve(told.min(most).min(options.max_keys));
        }
        let mut restored = Restored { taken_at, entries: 0, stale: 0, left_out: 0 };
        while let Some(entry) = reader.entry()? {
            let shards = if entry.width == Width::Wide { &store.wide } else { &store.narrow };
            if entry.kept.expires_at() <= now.as_nanos() {
                restored.stale += 1;
                continue;
            }
            match store.put_back(shards, entry.key, &entry.kept, now) {
                PutBack::Done => restored.entries += 1,
                PutBack::NoRoom => restored.left_out += 1,
                PutBack::Unfit => return Err(SnapshotError::Damaged("records are of one key, or of no state")),
            }
        }
        reader.end((restored.entries + restored.stale + restored.left_out) as u64)?;
        Ok((store, keys, restored))
    }
}

/// Writes what has not expired; says how many entries that were.
fn write_shard(out: &mut Writer<'_>, shards: &Shards, shard: usize, now: Time) -> io::Result<usize> {
    let (mut entries, mut rank) = (0, Some(0));
    while let Some(from) = rank {
        rank = shards.scan(shard, from, |key, content| {
            if !content.has_expired(now.as_nanos()) {
                write_entry(&mut out.buffer, shards.width(), key, content, shards.slab(shard));
                entries += 1;
            }
        });
        // Only here, where nothing is locked.
        if out.buffer.len() >= BUFFER_BYTES {
            out.flush()?;
        }
    }
    Ok(entries)
}

/// Adds to the sum what goes to the file.
struct Writer<'f> {
    file: &'f File,
    buffer: Vec<u8>,
    sum: SipHasher13,
    bytes: u64,
}

impl Writer<'_> {
    fn flush(&mut self) -> io::Result<()> {
        self.sum.write(&self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Ends with the sum; says how many bytes it all was.
    fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        self.buffer.extend(self.sum.finish128().as_bytes());
        self.flush()?;
        Ok(self.bytes)
    }
}

/// A file that is not yet where it belongs; removed unless it gets there.
struct Draft<'p> {
    path: &'p Path,
    file: File,
    draft: PathBuf,
}

impl<'p> Draft<'p> {
    fn new(path: &'p Path) -> io::Result<Draft<'p>> {
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(".draft");
        let draft = path.with_file_name(name);
        // Left by a process that was killed. A new file is nobody's link and has our mode.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok(Draft { path, file: options.open(&draft)?, draft })
    }

    /// Takes the place of the file before, for good.
    fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.draft, self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // Elsewhere folders cannot be opened, and renames last by themselves.
        if cfg!(unix) { File::open(folder.unwrap_or(Path::new(".")))?.sync_all() } else { Ok(()) }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // After a rename nothing is there.
        let _ = fs::remove_file(&self.draft);
    }
}
