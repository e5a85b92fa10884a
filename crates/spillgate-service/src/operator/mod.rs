//! Blocks and shadow switches, which operators turn on for a time without a reload of the rules.
//!
//! A block refuses each request that has a given descriptor entry. A shadow switch lets a rule decide as with
//! `shadow_mode: true`. Both end by themselves, so that no forgotten change stays in force.
//!
//! A decision first reads one flag, which says whether a block or a switch is on, and reads the lists only then. The
//! lists are never changed in place: each change makes new lists, which replace the old ones. So decisions need no
//! lock.

mod change;
mod in_force;
mod shared;
mod stored;
mod version;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use spillgate::Time;
use std::sync::Arc;

use crate::shared_store::SharedLists;

pub use change::{ChangeError, LASTS_HELP, NewBlock, ShadowOf, parse_lasts};
pub(crate) use change::{REASON_BYTES, term};
pub(crate) use in_force::compared;
pub use in_force::{BLOCKED, Block, InForce, RefusedCount, Scope, Switch, Term};
pub(crate) use shared::{Known, Read, Shared};
pub(crate) use stored::{NAME_BYTES, PATH_BYTES, VALUE_BYTES};

/// The maximum number of blocks that can be on at the same time.
pub const BLOCKS_MAX: usize = 10_000;
/// The maximum number of shadow switches that can be on at the same time, without the switch for all rules.
pub const SWITCHES_MAX: usize = 1000;

/// The blocks and shadow switches of a server.
#[derive(Debug, Default)]
pub struct Operator {
    /// Whether the lists are not empty. Ended blocks and switches stay in the lists for about a second, so the flag can
    /// be true although nothing is on.
    on: AtomicBool,
    in_force: ArcSwap<InForce>,
    /// How many times the lists were replaced.
    changes: AtomicU64,
    /// Locked while new lists are made. Otherwise one of two changes at the same time could be lost.
    changing: Mutex<()>,
    /// The lists in the shared store. `None` if the store is memory.
    pub(crate) shared: Option<Shared>,
}

impl Operator {
    /// Returns whether a block or a shadow switch may be on. If the result is false, a decision need not read the
    /// lists.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Returns the current lists. Later changes do not change the lists that this function has returned.
    pub fn in_force(&self) -> Guard<Arc<InForce>> {
        self.in_force.load()
    }

    /// Returns the current lists, for a caller that waits while it uses them.
    pub(crate) fn in_force_full(&self) -> Arc<InForce> {
        self.in_force.load_full()
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns empty lists of a server that shares its lists with other servers in `store`.
    pub(crate) fn in_store(store: Box<dyn SharedLists>) -> Operator {
        Operator { shared: Some(Shared::new(store)), ..Operator::default() }
    }

    /// Returns how many milliseconds ago this server last compared its copy of the lists with the shared store. `None`
    /// before the first comparison, and if the store is memory.
    pub fn read_ms_ago(&self, now_ms: u64) -> Option<u64> {
        Some(now_ms.saturating_sub(self.shared.as_ref()?.read_at_ms()?))
    }

    /// Returns how many entries of the lists in the shared store were left out, because this server cannot read them as
    /// a block or a switch.
    pub fn unreadable(&self) -> usize {
        self.shared.as_ref().map_or(0, Shared::unreadable)
    }

    /// Returns how often the shared store has lost blocks or switches that this server has in its copy.
    pub fn losses(&self) -> u64 {
        self.shared.as_ref().map_or(0, Shared::losses)
    }

    /// Replaces this server's copy of the shared lists by what was read from the shared store.
    pub(crate) fn replace_fleet(&self, read: Read) {
        let replaced = self.change(|in_force| {
            in_force.replace_fleet(read.blocks, read.switches);
            Ok(())
        });
        debug_assert!(replaced.is_ok(), "replacing never fails");
    }

    /// Copies the lists, changes the copy with `change`, and replaces the lists by the copy. If `change` returns an
    /// error, the lists stay as they are.
    pub(crate) fn change<R>(
        &self,
        change: impl FnOnce(&mut InForce) -> Result<R, ChangeError>,
    ) -> Result<R, ChangeError> {
        let _changing = self.changing.lock();
        let mut in_force = InForce::clone(&self.in_force.load());
        let changed = change(&mut in_force)?;
        self.on.store(!in_force.is_empty(), Ordering::Relaxed);
        self.in_force.store(Arc::new(in_force));
        self.changes.fetch_add(1, Ordering::Relaxed);
        Ok(changed)
    }

    /// Removes the blocks and switches that have ended.
    pub(crate) fn remove_ended(&self, now_ms: u64) {
        if self.is_on() && self.in_force.load().has_ended(now_ms) {
            let removed = self.change(|in_force| {
                in_force.remove_ended(now_ms);
                Ok(())
            });
            debug_assert!(removed.is_ok(), "removing never fails");
        }
    }
}

/// Returns the time in whole milliseconds since 1970.
pub(crate) const fn millis(time: Time) -> u64 {
    time.as_nanos() / 1_000_000
}
