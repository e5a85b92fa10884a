//! The lists of blocks and shadow switches in the shared store, and this server's copy of them.
//!
//! Each server asks once a second whether the lists have changed, and reads them only if they have. While the store
//! fails, the copy stays in use, and its blocks and switches still end at their times.
//!
//! The store can also lose the lists, or the last writes to them. A server sees this because the store then has no
//! version, or for two seconds an earlier one than the copy. The server keeps its copy, and writes it back:
//!
//! | an entry | after the loss |
//! |---|---|
//! | in the copy, not in the store | is written back |
//! | in the store, not in the copy, and it began before the server last saw its version in the store | is removed: it was removed before, and an earlier copy brought it back |
//! | in the store, not in the copy, and it began later | stays: an operator has added it since |
//! | in both | the one that began later stays |

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use crate::shared_store::{ListEntry, SharedError, SharedLists};

use super::change::{ChangeError, LONGEST, ShadowOf};
use super::in_force::{Block, InForce, Term};
use super::stored::{self, SwitchName};
use super::version::Order;
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
/// One command writes or removes at most this many entries, so that no command takes long.
const CHANGED_AT_ONCE: usize = 100;
/// At most this many ended entries are removed at one time, so that no change by an operator waits for long.
const REMOVED_MAX: usize = 1000;
/// A reading removes an entry only if it ended at least this long ago, because the clocks of two servers can differ.
const ENDED_FOR_MS: u64 = 60_000;
/// How long an earlier version has to stay in the store before it counts as a loss. Two servers that write at the same
/// moment can bring an earlier version into the store, and the later of the two corrects it with its next command.
const EARLIER_FOR: Duration = Duration::from_secs(2);
/// How long a change by an operator waits before it looks again whether an earlier version is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The name of no block and no switch.
const NO_ENTRY: &[u8] = b"";
/// How long the other servers wait for a server that restores the lists. If it has died, another one begins then.
const RESTORES_FOR: Duration = Duration::from_secs(10);

/// The lists in the shared store.
#[derive(Debug)]
pub(crate) struct Shared {
    /// A store with connections of its own. So a command for a list cannot delay a decision, and if such a command
    /// fails, the connections of decisions stay open.
    store: Box<dyn SharedLists>,
    /// Locked while the lists are read or written. Otherwise a reading that began before a write of this server could
    /// replace the copy after that write.
    known: Mutex<Known>,
    /// When the copy was last compared with the store, in milliseconds since 1970. 0 if it never was.
    read_at_ms: AtomicU64,
    /// How many entries the last reading left out, because they are neither a block nor a switch.
    unreadable: AtomicUsize,
    /// How often the store has lost entries of the copy.
    losses: AtomicU64,
}

/// What a server knows about the lists in the store.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The version of this server's copy. `None` if nothing was read yet, or if the store had no version.
    version: Option<Vec<u8>>,
    /// Whether the copy has all of that version. If not, the lists have to be read again.
    is_whole: bool,
    /// The latest version that this server has seen. Its own writes are later.
    latest: Order,
    /// When the store last had `version`, in milliseconds since 1970.
    seen_ms: u64,
    /// Whether a loss was counted that is not repaired yet.
    is_lost: bool,
    /// The earlier version that the store has, and since when this server has seen it.
    earlier: Option<(Vec<u8>, Instant)>,
}

impl Known {
    /// Returns whether this earlier version has been in the store for long enough to be a loss.
    fn stays_earlier(&mut self, version: &[u8]) -> bool {
        match &self.earlier {
            Some((seen, since)) if seen == version => since.elapsed() >= EARLIER_FOR,
            _ => {
                self.earlier = Some((version.to_vec(), Instant::now()));
                false
            }
        }
    }

    /// Returns the order of the copy. `None` if the copy cannot be restored, because nothing was written yet, or because
    /// another program wrote the version.
    fn order(&self) -> Option<Order> {
        Order::of(self.version.as_deref()?).filter(|order| *order > Order::NOTHING)
    }

    fn next_write(&mut self, found: Option<&[u8]>) -> Order {
        self.latest = self.latest.max(found.and_then(Order::of).unwrap_or_default());
        self.latest.next_write()
    }
}

/// The content of the lists in the store.
pub(crate) struct Read {
    pub(crate) blocks: Vec<Block>,
    pub(crate) switches: HashMap<SwitchName, Term>,
}

impl Shared {
    pub(crate) fn new(store: Box<dyn SharedLists>) -> Shared {
        Shared {
            store,
            known: Mutex::default(),
            read_at_ms: AtomicU64::new(0),
            unreadable: AtomicUsize::new(0),
            losses: AtomicU64::new(0),
        }
    }

    pub(crate) fn read_at_ms(&self) -> Option<u64> {
        Some(self.read_at_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }

    pub(crate) fn unreadable(&self) -> usize {
        self.unreadable.load(Ordering::Relaxed)
    }

    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Begins a change or a reading. Other changes and readings of this server wait until the guard is dropped.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().await
    }

    /// Reads the lists, or returns `None` if the copy `in_force` is the current one. If the store has lost entries of the
    /// copy, writes them back first.
    pub(crate) async fn read(
        &self,
        known: &mut Known,
        in_force: &InForce,
        now_ms: u64,
    ) -> Result<Option<Read>, SharedError> {
        let Some(found) = self.repaired(known, in_force, now_ms).await? else { return Ok(None) };
        // The version is read before the lists. If the lists change while they are read, the next call finds another
        // version than `found`, and reads them again.
        if known.is_whole && known.version == found {
            self.compared(known, now_ms);
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
                let _ = self.remove_ended(known, name, &ended, now_ms).await;
            }
        }
        known.latest = known.latest.max(found.as_deref().and_then(Order::of).unwrap_or_default());
        (known.version, known.is_whole) = (found, true);
        self.compared(known, now_ms);
        Ok(Some(read))
    }

    fn compared(&self, known: &mut Known, now_ms: u64) {
        (known.seen_ms, known.is_lost) = (now_ms, false);
        self.read_at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Returns the version of the lists in the store. If the store has lost entries of the copy, writes them back first.
    /// The result is `None` while another server does this, and while it is not certain yet that an earlier version is a
    /// loss.
    async fn repaired(
        &self,
        known: &mut Known,
        in_force: &InForce,
        now_ms: u64,
    ) -> Result<Option<Option<Vec<u8>>>, SharedError> {
        let found = self.store.list_version(ANSWER_WITHIN).await?;
        let Some(order) = known.order() else { return Ok(Some(found)) };
        let has = [in_force.blocks(now_ms).next().is_some(), !switches_of(in_force, now_ms).is_empty()];
        let is_lost = match found.as_deref() {
            None => true,
            Some(version) if known.version.as_deref() == Some(version) => self.lacks_a_list(known, has).await?,
            Some(version) if Order::of(version).is_some_and(|found| found < order) => {
                if !known.stays_earlier(version) {
                    return Ok(None);
                }
                true
            }
            Some(_) => false,
        };
        known.earlier = None;
        if !is_lost {
            return Ok(Some(found));
        }
        if !known.is_lost && has.contains(&true) {
            known.is_lost = true;
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        if found.as_deref().and_then(Order::of) == Some(Order::NOTHING) {
            return Ok(None);
        }
        // Nothing is written if one of the lists cannot be read.
        let [blocks, switches] = [blocks_of(in_force, now_ms), switches_of(in_force, now_ms)];
        let stored = [self.entries(BLOCKS).await?, self.entries(SHADOWS).await?];
        if !self.begins_restoring(found.as_deref()).await? {
            return Ok(None);
        }
        known.is_whole = false;
        for ((name, _), copy, stored) in [(BLOCKS, &blocks, &stored[0]), (SHADOWS, &switches, &stored[1])] {
            self.restore(name, copy, stored, (known.seen_ms, now_ms)).await?;
        }
        let restored = order.next_restored();
        self.store.set_list_version((&restored.version(), LIFE), false, ANSWER_WITHIN).await?;
        known.latest = known.latest.max(restored);
        self.store.list_version(ANSWER_WITHIN).await.map(Some)
    }

    /// Gives the lists the version that they have while one server restores them, and that the others leave alone. It
    /// expires if that server dies. Returns false if another server was first, or if the lists no longer have the version
    /// `found`.
    async fn begins_restoring(&self, found: Option<&[u8]>) -> Result<bool, SharedError> {
        let restoring = (&Order::NOTHING.version()[..], RESTORES_FOR);
        if found.is_none() {
            return self.store.set_list_version(restoring, true, ANSWER_WITHIN).await;
        }
        // This removes no block, and shows in one step which version it replaces.
        let before = self.store.remove_from_list(BLOCKS.0, &[NO_ENTRY], restoring, ANSWER_WITHIN).await?;
        let Some(other) = before.as_deref().filter(|before| Some(*before) != found) else { return Ok(true) };
        if Order::of(other) != Some(Order::NOTHING) {
            // Another server has written or restored the lists since the version was read.
            self.store.set_list_version((other, LIFE), false, ANSWER_WITHIN).await?;
        }
        Ok(false)
    }

    /// Returns whether the store no longer has one of the lists, blocks and shadow switches, although its version is that
    /// of the copy. The store can have evicted a list alone. `has` says whether the copy has entries of each list.
    async fn lacks_a_list(&self, known: &Known, has: [bool; 2]) -> Result<bool, SharedError> {
        for ((name, _), _) in [BLOCKS, SHADOWS].into_iter().zip(has).filter(|(_, has)| *has && known.is_whole) {
            if self.store.list_length(name, ANSWER_WITHIN).await? == 0 {
                // Another server may have emptied the list since the version was read. It has then changed the version.
                return Ok(self.store.list_version(ANSWER_WITHIN).await? == known.version);
            }
        }
        Ok(false)
    }

    /// Changes a list as the table at the top of this file says. `stored` are its entries in the store.
    async fn restore(
        &self,
        name: &str,
        copy: &[ListEntry],
        stored: &[ListEntry],
        (seen_ms, now_ms): (u64, u64),
    ) -> Result<(), SharedError> {
        let since_ms = |text: &[u8]| stored::since_ms(text, now_ms);
        let begun: HashMap<&[u8], _> = stored.iter().map(|(name, text)| (&name[..], since_ms(text))).collect();
        let put = copy.iter().filter(|(name, text)| begun.get(&name[..]).is_none_or(|begun| *begun < since_ms(text)));
        let put: Vec<(&[u8], &[u8])> = put.map(|(name, text)| (&name[..], &text[..])).collect();
        let names: HashSet<&[u8]> = copy.iter().map(|(name, _)| &name[..]).collect();
        // An entry that cannot be read stays, because another program wrote it.
        let is_removed = |text: &[u8]| since_ms(text).is_some_and(|since_ms| since_ms < seen_ms);
        let removed = stored.iter().filter(|(name, text)| !names.contains(&name[..]) && is_removed(text));
        let removed: Vec<&[u8]> = removed.map(|(name, _)| &name[..]).collect();
        for put in put.chunks(CHANGED_AT_ONCE) {
            self.store.change_list(name, put, &[], LIFE, ANSWER_WITHIN).await?;
        }
        for removed in removed.chunks(CHANGED_AT_ONCE) {
            self.store.change_list(name, &[], removed, LIFE, ANSWER_WITHIN).await?;
        }
        Ok(())
    }

    async fn entries(&self, (name, max): (&str, usize)) -> Result<Vec<ListEntry>, SharedError> {
        self.store.read_list(name, max + MORE_ENTRIES, READ_WITHIN).await
    }

    /// Adds a block to the list, or replaces it.
    pub(crate) async fn put_block(
        &self,
        known: &mut Known,
        in_force: &InForce,
        block: &Block,
        now_ms: u64,
    ) -> Result<(), ChangeError> {
        let name = stored::block_name(&block.key, &block.value, block.domain.as_deref());
        let entry = (name, stored::text(block.term, block.reason.as_deref()));
        match self.put((known, in_force), BLOCKS, &entry, now_ms).await? {
            true => Ok(()),
            false => Err(ChangeError::too_many_blocks()),
        }
    }

    /// Adds a shadow switch to the list, or replaces it.
    pub(crate) async fn put_switch(
        &self,
        known: &mut Known,
        in_force: &InForce,
        (of, term): (ShadowOf<'_>, Term),
        now_ms: u64,
    ) -> Result<(), ChangeError> {
        let entry = (stored::switch_name(of), stored::text(term, None));
        // The switch for all rules must fit even into a full list, because an operator needs it in an emergency. A list
        // has only one such entry.
        let more = if of == ShadowOf::All { MORE_ENTRIES } else { 0 };
        match self.put((known, in_force), (SHADOWS.0, SHADOWS.1 + more), &entry, now_ms).await? {
            true => Ok(()),
            false => Err(ChangeError::too_many_switches()),
        }
    }

    /// Adds or replaces an entry. If the list is full, removes ended entries and tries once more. Returns false if the
    /// list is still full.
    async fn put(
        &self,
        (known, in_force): (&mut Known, &InForce),
        list: (&str, usize),
        (name, text): &ListEntry,
        now_ms: u64,
    ) -> Result<bool, ChangeError> {
        // What the store has lost is written back first. Otherwise this write would look as if nothing was lost.
        let found = loop {
            match self.repaired(known, in_force, now_ms).await? {
                None if known.earlier.is_some() => sleep(LOOK_AGAIN).await,
                found => break found.flatten(),
            }
        };
        for is_last in [false, true] {
            let order = known.next_write(found.as_deref());
            let version = order.version();
            let written = self.store.put_in_list(list, (name, text), (&version, LIFE), ANSWER_WITHIN).await;
            let written = written.map_err(ChangeError::of_change)?;
            if written.is_done {
                let wrote = self.wrote(known, written.before, (order, version)).await;
                wrote.map_err(ChangeError::MayBeStored)?;
                return Ok(true);
            }
            if !is_last {
                let entries = self.entries(list).await?;
                self.remove_ended(known, list.0, &ended(&entries, now_ms, now_ms), now_ms).await?;
            }
        }
        // Other programs can have filled the list without changing its version. So the lists are read again, and this
        // reading counts the entries that are neither a block nor a switch.
        known.is_whole = false;
        Ok(false)
    }

    /// Updates what is known after a write by this server. `before` is the version that the write replaced. If it is the
    /// version of the copy, no other server has written since the copy was read. Otherwise the lists have to be read
    /// again.
    async fn wrote(
        &self,
        known: &mut Known,
        before: Option<Vec<u8>>,
        (order, version): (Order, Vec<u8>),
    ) -> Result<(), SharedError> {
        let replaced = before.as_deref().and_then(Order::of).unwrap_or_default();
        known.latest = known.latest.max(order).max(replaced);
        if known.is_whole && known.version == before {
            known.version = Some(version);
            return Ok(());
        }
        known.is_whole = false;
        // Another server has written since this one read the version. A version that goes back would look like a loss.
        if replaced >= order {
            let version = known.latest.next_write().version();
            self.store.set_list_version((&version, LIFE), false, ANSWER_WITHIN).await?;
        }
        Ok(())
    }

    pub(crate) async fn remove_blocks(&self, known: &mut Known, blocks: &[Arc<Block>]) -> Result<(), ChangeError> {
        let names = blocks.iter().map(|block| stored::block_name(&block.key, &block.value, block.domain.as_deref()));
        self.remove(known, BLOCKS.0, &names.collect::<Vec<_>>()).await
    }

    pub(crate) async fn remove_switch(&self, known: &mut Known, of: ShadowOf<'_>) -> Result<(), ChangeError> {
        self.remove(known, SHADOWS.0, &[stored::switch_name(of)]).await
    }

    /// Removes entries. The caller has just read the lists.
    async fn remove(&self, known: &mut Known, list: &str, names: &[Vec<u8>]) -> Result<(), ChangeError> {
        let mut failed: fn(SharedError) -> ChangeError = ChangeError::of_change;
        for names in names.chunks(CHANGED_AT_ONCE) {
            let names: Vec<_> = names.iter().map(Vec::as_slice).collect();
            let order = known.latest.next_write();
            let version = order.version();
            // If the command fails, it may have removed the entries, and the lists are read again.
            let was_whole = std::mem::replace(&mut known.is_whole, false);
            let removed = self.store.remove_from_list(list, &names, (&version, LIFE), ANSWER_WITHIN).await;
            let before = removed.map_err(failed)?;
            failed = ChangeError::MayBeStored;
            known.is_whole = was_whole;
            self.wrote(known, before, (order, version)).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Removes entries that have ended. The command returns the removed entries. If one of them has not ended, because
    /// another server has just renewed it, a second command puts this entry back.
    ///
    /// Between the two commands, the renewed entry is missing from the list. If another server reads the list in this
    /// moment, it lacks the entry until its next reading, a second later. If another server changes the entry in this
    /// moment, the change is lost. If the store fails in this moment, the entry is lost.
    async fn remove_ended(
        &self,
        known: &mut Known,
        list: &str,
        names: &[&[u8]],
        now_ms: u64,
    ) -> Result<(), SharedError> {
        for names in names[..names.len().min(REMOVED_MAX)].chunks(CHANGED_AT_ONCE) {
            let taken = self.store.take_from_list(list, names, ANSWER_WITHIN).await?;
            for (name, text) in names.iter().zip(taken) {
                let Some(text) = text else { continue };
                if stored::until_ms(&text, now_ms).is_some_and(|until_ms| until_ms > now_ms) {
                    let order = known.latest.next_write();
                    let version = order.version();
                    let (list, entry) = ((list, usize::MAX), (*name, &text[..]));
                    let written = self.store.put_in_list(list, entry, (&version, LIFE), ANSWER_WITHIN).await?;
                    self.wrote(known, written.before, (order, version)).await?;
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

/// Returns the blocks of the copy that are on, as entries of the list.
fn blocks_of(in_force: &InForce, now_ms: u64) -> Vec<ListEntry> {
    let entry = |block: &Arc<Block>| {
        let name = stored::block_name(&block.key, &block.value, block.domain.as_deref());
        (name, stored::text(block.term, block.reason.as_deref()))
    };
    in_force.blocks(now_ms).map(entry).collect()
}

/// Returns the shadow switches of the fleet that are on, as entries of the list.
fn switches_of(in_force: &InForce, now_ms: u64) -> Vec<ListEntry> {
    let rules = in_force.switches().map(|(domain, path, switch)| (ShadowOf::Rule { domain, path }, switch));
    let all = rules.chain([(ShadowOf::All, in_force.switch_of_all())]);
    let on = all.filter_map(|(of, switch)| Some((of, switch.fleet.filter(|term| term.is_on(now_ms))?)));
    on.map(|(of, term)| (stored::switch_name(of), stored::text(term, None))).collect()
}
