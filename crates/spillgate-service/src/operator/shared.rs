//! The lists of blocks and shadow switches in the shared store, and this server's copy of them.
//!
//! Each server asks once a second whether the lists have changed, and reads them only if they have. While the store
//! fails, the copy stays in use, and its blocks and switches still end at their times.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use crate::shared_store::{ListEntry, SharedError, SharedLists};

use super::change::{ChangeError, LONGEST, ShadowOf};
use super::in_force::{Block, Term};
use super::stored::{self, SwitchName};
use super::{BLOCKS_MAX, SWITCHES_MAX};

/// How long each command may take, except a reading of a list. No request waits for these commands.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How long the reading of one list may take. Changes by operators wait until the reading ends.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// How long the store keeps a list after a write: a day longer than any block or switch can last.
const LIFE: Duration = LONGEST.saturating_add(Duration::from_secs(86_400));
/// The names of the lists, and how many entries each can have.
const BLOCKS: (&str, usize) = ("blocks", BLOCKS_MAX);
const SHADOWS: (&str, usize) = ("shadows", SWITCHES_MAX);
/// A list is still read if it exceeds its maximum by at most this many entries. It can exceed its maximum because
/// several servers have added the last entry at the same moment, or because other programs have written into it.
const MORE_ENTRIES: usize = 1000;
/// A reading removes the ended entries of a list only if there are more than this many.
const ENDED_MAX: usize = 100;
/// One command removes at most this many entries, so that no command takes long.
const REMOVED_AT_ONCE: usize = 100;
/// At most this many ended entries are removed at one time, so that no change by an operator waits for long.
const REMOVED_MAX: usize = 1000;
/// A reading removes an entry only if it ended at least this long ago, because the clocks of two servers can differ.
const ENDED_FOR_MS: u64 = 60_000;

/// The lists in the shared store.
#[derive(Debug)]
pub(crate) struct Shared {
    /// A store with connections of its own. So a command for a list cannot delay a decision, and if such a command
    /// fails, the connections of decisions stay open.
    store: Box<dyn SharedLists>,
    /// Locked while the lists are read or written. Otherwise a reading that began before a write of this server could
    /// replace the copy after that write.
    version: Mutex<Version>,
    /// When the copy was last compared with the store, in milliseconds since 1970. 0 if it never was.
    read_at_ms: AtomicU64,
    /// How many entries the last reading left out, because they are neither a block nor a switch.
    unreadable: AtomicUsize,
}

/// The version of the lists in this server's copy. `None` means that the lists were never read, or must be read again.
/// `Some(None)` means that the store has no version, because no server has written into the lists yet.
pub(crate) type Version = Option<Option<Vec<u8>>>;

/// The content of the lists in the store.
pub(crate) struct Read {
    pub(crate) blocks: Vec<Block>,
    pub(crate) switches: HashMap<SwitchName, Term>,
}

impl Shared {
    pub(crate) fn new(store: Box<dyn SharedLists>) -> Shared {
        Shared { store, version: Mutex::default(), read_at_ms: AtomicU64::new(0), unreadable: AtomicUsize::new(0) }
    }

    pub(crate) fn read_at_ms(&self) -> Option<u64> {
        Some(self.read_at_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }

    pub(crate) fn unreadable(&self) -> usize {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Begins a change or a reading. Other changes and readings of this server wait until the guard is dropped.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, Version> {
        self.version.lock().await
    }

    /// Reads the lists, or returns `None` if `version` is their current version.
    pub(crate) async fn read(&self, version: &mut Version, now_ms: u64) -> Result<Option<Read>, SharedError> {
        // The version is read before the lists. If the lists change while they are read, the next call finds another
        // version than `found`, and reads them again.
        let found = self.store.list_version(ANSWER_WITHIN).await?;
        if version.as_ref() == Some(&found) {
            self.read_at_ms.store(now_ms, Ordering::Relaxed);
            return Ok(None);
        }
        let [blocks, shadows] = [self.entries(BLOCKS).await?, self.entries(SHADOWS).await?];
        let entries = blocks.len() + shadows.len();
        let read = Read {
            blocks: blocks.iter().filter_map(|(name, text)| stored::block(name, text, now_ms)).collect(),
            switches: shadows.iter().filter_map(|(name, text)| stored::switch(name, text, now_ms)).collect(),
        };
        self.unreadable.store(entries - read.blocks.len() - read.switches.len(), Ordering::Relaxed);
        for ((name, _), entries) in [(BLOCKS, &blocks), (SHADOWS, &shadows)] {
            let ended = ended(entries, now_ms.saturating_sub(ENDED_FOR_MS), now_ms);
            if ended.len() > ENDED_MAX {
                // An error is ignored: ended entries decide nothing, and the next reading tries to remove them again.
                let _ = self.remove_ended(name, &ended, now_ms).await;
            }
        }
        *version = Some(found);
        self.read_at_ms.store(now_ms, Ordering::Relaxed);
        Ok(Some(read))
    }

    async fn entries(&self, (name, max): (&str, usize)) -> Result<Vec<ListEntry>, SharedError> {
        self.store.read_list(name, max + MORE_ENTRIES, READ_WITHIN).await
    }

    /// Adds a block to the list, or replaces it.
    pub(crate) async fn put_block(&self, version: &mut Version, block: &Block, now_ms: u64) -> Result<(), ChangeError> {
        let name = stored::block_name(&block.key, &block.value, block.domain.as_deref());
        let entry = (name, stored::text(block.term, block.reason.as_deref()));
        match self.put(version, BLOCKS, &entry, now_ms).await? {
            true => Ok(()),
            false => Err(ChangeError::too_many_blocks()),
        }
    }

    /// Adds a shadow switch to the list, or replaces it.
    pub(crate) async fn put_switch(
        &self,
        version: &mut Version,
        (of, term): (ShadowOf<'_>, Term),
        now_ms: u64,
    ) -> Result<(), ChangeError> {
        let entry = (stored::switch_name(of), stored::text(term, None));
        // The switch for all rules must fit even into a full list, because an operator needs it in an emergency. A list
        // has only one such entry.
        let more = if of == ShadowOf::All { MORE_ENTRIES } else { 0 };
        match self.put(version, (SHADOWS.0, SHADOWS.1 + more), &entry, now_ms).await? {
            true => Ok(()),
            false => Err(ChangeError::too_many_switches()),
        }
    }

    /// Adds or replaces an entry. If the list is full, removes ended entries and tries once more. Returns false if the
    /// list is still full.
    async fn put(
        &self,
        version: &mut Version,
        list: (&str, usize),
        (name, text): &ListEntry,
        now_ms: u64,
    ) -> Result<bool, SharedError> {
        for is_last in [false, true] {
            let new = new_version();
            let written = self.store.put_in_list(list, (name, text), (&new, LIFE), ANSWER_WITHIN).await?;
            if written.is_done {
                wrote(version, written.before, new);
                return Ok(true);
            }
            if !is_last {
                let entries = self.entries(list).await?;
                self.remove_ended(list.0, &ended(&entries, now_ms, now_ms), now_ms).await?;
            }
        }
        // Other programs can have filled the list without changing its version. Without a known version, the lists are
        // read again, and this reading counts the entries that are neither a block nor a switch.
        *version = None;
        Ok(false)
    }

    pub(crate) async fn remove_blocks(&self, version: &mut Version, blocks: &[Arc<Block>]) -> Result<(), SharedError> {
        let names = blocks.iter().map(|block| stored::block_name(&block.key, &block.value, block.domain.as_deref()));
        self.remove(version, BLOCKS.0, &names.collect::<Vec<_>>()).await
    }

    pub(crate) async fn remove_switch(&self, version: &mut Version, of: ShadowOf<'_>) -> Result<(), SharedError> {
        self.remove(version, SHADOWS.0, &[stored::switch_name(of)]).await
    }

    async fn remove(&self, version: &mut Version, list: &str, names: &[Vec<u8>]) -> Result<(), SharedError> {
        // If one of the commands fails, `version` stays `None`, and the lists are read again.
        let mut known = version.take();
        for names in names.chunks(REMOVED_AT_ONCE) {
            let (new, names) = (new_version(), names.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let before = self.store.remove_from_list(list, &names, (&new, LIFE), ANSWER_WITHIN).await?;
            wrote(&mut known, before, new);
        }
        *version = known;
        Ok(())
    }

    /// Removes entries that have ended. The command returns the removed entries. If one of them has not ended, because
    /// another server has just renewed it, a second command puts this entry back.
    ///
    /// Between the two commands, the renewed entry is missing from the list. If another server reads the list in this
    /// moment, it lacks the entry until its next reading, a second later. If another server changes the entry in this
    /// moment, the change is lost. If the store fails in this moment, the entry is lost.
    async fn remove_ended(&self, list: &str, names: &[&[u8]], now_ms: u64) -> Result<(), SharedError> {
        for names in names[..names.len().min(REMOVED_MAX)].chunks(REMOVED_AT_ONCE) {
            let taken = self.store.take_from_list(list, names, ANSWER_WITHIN).await?;
            for (name, text) in names.iter().zip(taken) {
                let Some(text) = text else { continue };
                if stored::until_ms(&text, now_ms).is_some_and(|until_ms| until_ms > now_ms) {
                    let new = new_version();
                    self.store.put_in_list((list, usize::MAX), (name, &text), (&new, LIFE), ANSWER_WITHIN).await?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the names of the entries that had ended at the time `ended_ms`.
fn ended(entries: &[ListEntry], ended_ms: u64, now_ms: u64) -> Vec<&[u8]> {
    let has_ended = |text: &[u8]| stored::until_ms(text, now_ms).is_some_and(|until_ms| until_ms <= ended_ms);
    entries.iter().filter(|(_, text)| has_ended(text)).map(|(name, _)| &name[..]).collect()
}

/// Updates the version of the copy after a write by this server. `before` is the version that the write replaced. If it
/// is the version of the copy, no other server has written since the copy was read, and the copy gets the version
/// `new`. Otherwise the lists have to be read again.
fn wrote(version: &mut Version, before: Option<Vec<u8>>, new: Vec<u8>) {
    *version = if *version == Some(before) { Some(Some(new)) } else { None };
}

/// Returns 128 random bits as text, so that no two writes make the same version.
fn new_version() -> Vec<u8> {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random()).into_bytes()
}
