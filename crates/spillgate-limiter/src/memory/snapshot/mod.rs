//! Saves the memory store in a file, and restores a store from a file. So a restart of the program forgets no states.
//!
//! A snapshot is written under a temporary name and then renamed. The file at the final path is therefore always the
//! last snapshot that was written completely. A checksum over the whole file detects a file that was cut or altered.
//! The file contains hashes of keys and the secret of the hash function, so on Unix only its owner may read it.

mod file;
mod format;
mod restore;

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;

use spillgate_core::Time;

use super::options::MemoryOptions;
use super::shards::{Shards, Width};
use super::store::MemoryStore;
use crate::KeyHasher;
use file::{Draft, Writer};
use format::{LEAST_RECORD_BYTES, Reader, write_end, write_header, write_record};
use restore::Outcome;

pub use format::SnapshotError;

/// The approximate number of bytes that one system call reads or writes. With 64 KiB, few system calls are needed, and
/// the buffer is small compared with a store.
const BUFFER_BYTES: usize = 1 << 16;

/// The report about a snapshot that was written. [`MemoryStore::save`] returns it and has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The number of states in the snapshot.
    pub entries: usize,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// The report about a snapshot that was read. [`MemoryStore::restored`] returns it, and the example of
/// [`MemoryStore::save`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The time at which the save began.
    pub taken_at: Time,
    /// The number of states that were restored.
    pub entries: usize,
    /// The number of states that had expired before the restore. They were dropped.
    pub expired: usize,
    /// The number of states for which the new store had no capacity. Their keys start again with an empty state.
    pub left_out: usize,
}

impl MemoryStore {
    /// Writes all states that have not expired to a file at `path`. On Unix, only the owner of the file may read it.
    /// `keys` is the hasher that made the keys in the store.
    ///
    /// Decisions continue during the call. A decision waits at most while a few buckets are copied. The file has each
    /// state as it was at some instant of the call. So if one request charges two states during the call, the file can
    /// have one of them with the charge and the other without it. Decisions after the call are not in the file.
    ///
    /// At any time, the file at `path` is the last complete snapshot, even if the machine stops. If the call fails, the
    /// file at `path` is still the previous snapshot, with one exception. The last step of the call makes the new name
    /// of the file permanent. If only this step fails, the file at `path` is already the new snapshot. Only one call at
    /// a time may write to a path, because all calls for one path use the same temporary file.
    ///
    /// ```
    /// use spillgate::{KeyHasher, MemoryOptions, MemoryStore, Time};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("state");
    /// let (store, keys) = (MemoryStore::new(MemoryOptions::default()), KeyHasher::random());
    /// let now = Time::from_nanos(1_000_000_000);
    /// assert_eq!(store.save(&keys, now, &path)?.entries, 0);
    /// let (store, keys, report) = MemoryStore::restored(MemoryOptions::default(), now, &path)?;
    /// assert_eq!((store.len(), report.entries, report.taken_at), (0, 0, now));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The file cannot be written, for example because its folder does not exist, or because the disk is full.
    pub fn save(&self, keys: &KeyHasher, now: Time, path: &Path) -> io::Result<Saved> {
        let draft = Draft::new(path)?;
        let mut out = Writer::new(draft.file());
        write_header(&mut out.buffer, now, keys.secret(), [self.narrow.entries(), self.wide.entries()]);
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

    /// Reads a store that was [saved](MemoryStore::save), and the hasher of its keys. Expired states are dropped.
    ///
    /// The whole file is read and checked before a store is returned. If any part of the file is wrong, nothing is
    /// restored. `options` can have other bounds than the saved store had. States for which the new store has no
    /// capacity are left out.
    ///
    /// Times in the file are wall-clock times. If the clock was set back after the save, the restored store behaves
    /// like a store that was running when the clock was set back. [`MemoryStore::save`] has an example.
    ///
    /// # Errors
    /// The file cannot be read, for example because it does not exist, or it is not a whole snapshot of this format.
    pub fn restored(
        options: MemoryOptions,
        now: Time,
        path: &Path,
    ) -> Result<(MemoryStore, KeyHasher, Restored), SnapshotError> {
        // A pipe is rejected before it is opened, because opening it could block until another process writes to it.
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(SnapshotError::NotASnapshot);
        }
        let mut reader = Reader::new(BufReader::with_capacity(BUFFER_BYTES, File::open(path)?));
        let header = reader.header(metadata.len())?;
        let store = MemoryStore::new(options);
        // The file cannot have more entries than this, whatever its header says.
        let most = usize::try_from(metadata.len() / LEAST_RECORD_BYTES).unwrap_or(usize::MAX);
        for (shards, entries) in [&store.narrow, &store.wide].into_iter().zip(header.entries) {
            let entries = usize::try_from(entries).unwrap_or(usize::MAX);
            shards.reserve(entries.min(most).min(options.max_keys));
        }
        let mut restored = Restored { taken_at: header.taken_at, entries: 0, expired: 0, left_out: 0 };
        while let Some(record) = reader.record()? {
            let shards = if record.width == Width::Wide { &store.wide } else { &store.narrow };
            if record.state.expires_at() <= now.as_nanos() {
                restored.expired += 1;
                continue;
            }
            match store.restore_state(shards, record.key, &record.state, now) {
                Outcome::Restored => restored.entries += 1,
                Outcome::NoCapacity => restored.left_out += 1,
                Outcome::Invalid => {
                    return Err(SnapshotError::Damaged("two records have the same key, or a state is invalid"));
                }
            }
        }
        reader.end((restored.entries + restored.expired + restored.left_out) as u64)?;
        Ok((store, KeyHasher::with_secret(header.secret), restored))
    }
}

/// Writes the entries of a shard that have not expired, and returns their number.
fn write_shard(out: &mut Writer<'_>, shards: &Shards, shard: usize, now: Time) -> io::Result<usize> {
    let (mut entries, mut rank) = (0, Some(0));
    while let Some(from) = rank {
        rank = shards.scan(shard, from, |key, content| {
            if !content.has_expired(now.as_nanos()) {
                write_record(&mut out.buffer, shards.width(), key, content, shards.slab(shard));
                entries += 1;
            }
        });
        // The file is written here, where no bucket is locked.
        if out.buffer.len() >= BUFFER_BYTES {
            out.flush()?;
        }
    }
    Ok(entries)
}
