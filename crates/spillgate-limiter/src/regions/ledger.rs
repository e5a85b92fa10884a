//! The units that other regions have to be told: what this server admitted, and what each region knows of it.
//!
//! An entry is the total of one state in one span. A region is told totals, so what is lost, late or repeated is put
//! right by the next message. The ledger is pure: it reads no clock, sends nothing, and gets its ids from its owner.
//! So the tests can run random traces against it.
//!
//! One lock guards everything. A request holds it for a few steps whose number does not grow with the ledger. Memory for
//! all entries is reserved at the start, so no request waits for a copy. Times are nanoseconds of a clock of the process,
//! which is never set.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use spillgate_core::{AcrossRegions, Charge, Charged, MAX_CHARGES, MAX_UNITS, Quota, Regions, Span, Time};

use super::index::{Index, Name};
use super::order::Order;
use super::rules::{Rule, Rules};

/// What was sent and not acknowledged for this time is late, and is sent again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_NS: u64 = AGAIN.as_nanos() as u64;

const CUT_OFF_NS: u64 = Regions::CUT_OFF.as_nanos() as u64;

/// A part of a limit of 1 / this number may stay untold, by all servers of all regions together.
const UNTOLD_PART: u64 = 20;

/// The time of the oldest unit that a region does not know, if it knows all.
const NOTHING: u64 = u64::MAX;

/// The total of one state in one span.
struct Entry {
    name: Name,
    id: u64,
    total: u64,
    /// The quota that charged last, or `None` if the slot is free.
    quota: Option<Arc<Quota>>,
    made: u64,
}

/// What one region knows of an entry.
#[derive(Clone)]
struct Told {
    sent: u64,
    acked: u64,
    /// No unit that is not acknowledged is older. [`NOTHING`] if all are acknowledged.
    since: u64,
    /// Since when there are units to send, for figures: a rest below the step waits for more. [`NOTHING`] if there are none.
    due_since: u64,
    /// When the first of what is under way was sent, or the last of it was acknowledged.
    waits_since: u64,
    /// Whether the slot is in the queue of the region. A free slot can be in it, too.
    queued: bool,
    /// Something was under way for [`AGAIN`], and nothing is acknowledged since then.
    is_late: bool,
}

impl Told {
    const NOTHING: Told =
        Told { sent: 0, acked: 0, since: NOTHING, due_since: NOTHING, waits_since: 0, queued: false, is_late: false };
}

/// Another region.
struct Peer {
    /// The slots that can have something to send, with the time of their oldest units. Each slot is in it at most once.
    /// A time can be too early, because the slot had another entry. It is put right when the slot is taken.
    queue: BinaryHeap<Reverse<(u64, u32)>>,
    /// What was sent in the last second and is not acknowledged, by the time since when it waits.
    under_way: Order,
    /// The slots of what is late that can have something to send, in the order in which that was found.
    late: Order,
    told: Vec<Told>,
    /// Nothing is sent.
    is_held: bool,
    /// Since when the region was asked something and nothing was accepted.
    silent: Option<u64>,
    /// Totals were sent since then. So an answer to anything else is not enough.
    is_sent: bool,
    counts: Counts,
}

/// What became of the units that one region has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Entries with units that the region has not acknowledged.
    pub waiting: usize,
    /// Units that were sent, each once.
    pub units_sent: u64,
    /// Units that were never acknowledged, because their entries ended.
    pub units_dropped: u64,
}

/// A total that has to be sent to a region.
#[derive(Clone, Debug)]
pub(super) struct Due {
    slot: u32,
    pub(super) key: u128,
    pub(super) quota: Arc<Quota>,
    pub(super) span: Span,
    pub(super) id: u64,
    pub(super) total: u64,
    sent_at: u64,
}

impl Due {
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge { key: self.key, quota: &self.quota, span: self.span, id: self.id, total: self.total }
    }
}

struct List {
    room: usize,
    /// The part of a capacity that one server may leave untold to one region is 1 / this number.
    step_part: u64,
    entries: Vec<Entry>,
    free: Vec<u32>,
    index: Index,
    /// The entries that every region knows that has to. The one that is known for the longest time comes first.
    known: Order,
    peers: Vec<Peer>,
    /// The quotas of all entries, each once.
    quotas: HashSet<Arc<Quota>>,
    /// When there are so many quotas, those without an entry are forgotten.
    most_quotas: usize,
    /// Where the next sweep begins.
    swept: usize,
    drains: bool,
    id: u64,
    /// The latest end of any span whose entry was removed since the id was made.
    newest_end: u64,
    untold: u64,
    fresh_id: Box<dyn FnMut() -> u64 + Send>,
    rules: Rules,
}

pub(super) struct Ledger {
    list: Mutex<List>,
}

impl Ledger {
    /// The most entries that are looked at while the lock is held once.
    pub(super) const PIECE: usize = 1024;

    /// Makes an empty ledger of at most `max_keys` entries, for a region with `nodes` servers. `fresh_id` makes an id
    /// that no server ever had.
    pub(super) fn new(
        regions: Regions,
        nodes: NonZeroU32,
        max_keys: u32,
        mut fresh_id: Box<dyn FnMut() -> u64 + Send>,
    ) -> Ledger {
        let (room, peers) = (max_keys as usize, usize::from(regions.get()) - 1);
        let peer = || Peer {
            queue: BinaryHeap::with_capacity(room),
            under_way: Order::new(room),
            late: Order::new(room),
            told: Vec::with_capacity(room),
            is_held: false,
            silent: None,
            is_sent: false,
            counts: Counts::default(),
        };
        let list = List {
            room,
            step_part: step_part(peers as u64, nodes),
            entries: Vec::with_capacity(room),
            free: Vec::with_capacity(room),
            index: Index::new(room),
            known: Order::new(room),
            peers: (0..peers).map(|_| peer()).collect(),
            quotas: HashSet::new(),
            most_quotas: 64,
            swept: 0,
            drains: false,
            id: fresh_id(),
            newest_end: 0,
            untold: 0,
            fresh_id,
            rules: Rules::default(),
        };
        Ledger { list: Mutex::new(list) }
    }

    /// Returns the most bytes of one entry, without the quotas, which many entries share.
    pub(super) const fn entry_bytes(regions: Regions) -> usize {
        let peer = size_of::<Told>() + size_of::<Reverse<(u64, u32)>>() + 2 * Order::SLOT_BYTES;
        let own = size_of::<Entry>() + size_of::<u32>() + Index::SLOT_BYTES + Order::SLOT_BYTES;
        own + (regions.get() as usize - 1) * peer
    }

    /// Adds units that the own store has admitted at `at`, the time in the receipt. Returns whether they will be told. If
    /// not, the ledger is full.
    pub(super) fn record(&self, key: u128, quota: &Quota, at: Time, cost: u64, now: u64) -> bool {
        let name = Name { state: key ^ quota.identity(), span: quota.span(at) };
        if cost == 0 {
            return true;
        }
        let list = &mut *self.list.lock();
        let slot = match list.find(&name) {
            Some(slot) if list.is_over(slot, now) => {
                list.remove(slot);
                list.make(name, quota, now)
            }
            None => list.make(name, quota, now),
            found => found,
        };
        match slot {
            Some(slot) => list.add(slot, quota, cost, now),
            None => list.untold = list.untold.saturating_add(cost),
        }
        slot.is_some()
    }

    /// Takes back units of a take, if no region was told of them. Returns how many.
    pub(super) fn refund(&self, key: u128, quota: &Quota, at: Time, units: u64, now: u64) -> u64 {
        let name = Name { state: key ^ quota.identity(), span: quota.span(at) };
        let list = &mut *self.list.lock();
        let Some(slot) = list.find(&name).filter(|&slot| !list.is_over(slot, now)) else { return 0 };
        let sent = list.peers.iter().map(|peer| peer.told[slot as usize].sent).max().unwrap_or(0);
        let sent = if list.rules.hold(Rule::RefundNotBelowSent) { sent } else { 0 };
        let entry = &mut list.entries[slot as usize];
        let back = units.min(entry.total.saturating_sub(sent));
        entry.total -= back;
        list.settle(slot, now);
        back
    }

    /// Adds to `due` what has to be sent to this peer now, until it has `most` elements: what is late, or else what is not.
    /// Of this, the entry whose oldest unit has waited longest comes first, and of what is late the one that was sent
    /// longest ago. What is added counts as sent. Returns whether there may be more: a call looks at 1,024 entries at most.
    pub(super) fn due(&self, peer: usize, late: bool, now: u64, most: usize, due: &mut Vec<Due>) -> bool {
        let list = &mut *self.list.lock();
        if list.peers[peer].is_held {
            return false;
        }
        let before = due.len();
        let all = list.ask_again(peer, now)
            && if late { list.take_late(peer, now, most, due) } else { list.take_due(peer, now, most, due) };
        if due.len() > before {
            let peer = &mut list.peers[peer];
            peer.silent.get_or_insert(now);
            peer.is_sent = true;
        }
        !all
    }

    /// Notes that a peer has accepted a call, and what became of each total. Returns how long the oldest unit of each
    /// entry waited that is acknowledged now, in nanoseconds.
    pub(super) fn answered(
        &self,
        peer: usize,
        due: &[Due],
        results: &[Charged],
        now: u64,
    ) -> SmallVec<[u64; MAX_CHARGES]> {
        let list = &mut *self.list.lock();
        (list.peers[peer].silent, list.peers[peer].is_sent) = (None, false);
        let answers = due.iter().zip(results);
        answers.filter_map(|(due, result)| list.acknowledge(peer, due, *result, now)).collect()
    }

    /// Notes that a peer is asked something that charges nothing.
    pub(super) fn asks(&self, peer: usize, now: u64) {
        self.list.lock().peers[peer].silent.get_or_insert(now);
    }

    /// Notes that a peer has answered it. A region that answers and takes no total is still cut off, as long as something
    /// waits for it: its store may be full, or only read.
    pub(super) fn hears(&self, peer: usize) {
        let peer = &mut self.list.lock().peers[peer];
        if !peer.is_sent || peer.counts.waiting == 0 {
            (peer.silent, peer.is_sent) = (None, false);
        }
    }

    /// Returns for how long a peer has been cut off, in nanoseconds, or `None` if it is not: something was sent, and nothing
    /// was accepted for [`Regions::CUT_OFF`].
    pub(super) fn cut_off(&self, peer: usize, now: u64) -> Option<u64> {
        self.list.lock().peers[peer].cut_off(now)
    }

    /// From now on, nothing is sent to a peer, or everything that waits for it.
    pub(super) fn hold(&self, peer: usize, is_held: bool) {
        let peer = &mut self.list.lock().peers[peer];
        (peer.is_held, peer.silent, peer.is_sent) = (is_held, None, false);
    }

    /// From now on, the smallest rest is sent too. Call [`sweep`](Ledger::sweep) until a pass is complete: it finds the rests.
    pub(super) fn drain(&self) {
        let list = &mut *self.list.lock();
        (list.drains, list.swept) = (true, 0);
    }

    /// Looks at the next 1,024 entries. Removes those that are over, and finds those that have become free to go or, if small
    /// rests have to be sent, due. Returns whether a pass over all entries is complete.
    pub(super) fn sweep(&self, now: u64) -> bool {
        let list = &mut *self.list.lock();
        let end = (list.swept + Ledger::PIECE).min(list.entries.len());
        for slot in (list.swept..end).map(|slot| slot as u32) {
            if list.entries[slot as usize].quota.is_none() {
                continue;
            }
            if list.is_over(slot, now) {
                list.remove(slot);
                continue;
            }
            list.settle(slot, now);
            if list.sends_rests() {
                (0..list.peers.len()).for_each(|peer| list.queue(peer, slot));
            }
        }
        let is_complete = end == list.entries.len();
        list.swept = if is_complete { 0 } else { end };
        is_complete
    }

    /// Returns how many entries there are.
    pub(super) fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Returns how many units nobody will be told, because the ledger was full.
    pub(super) fn untold(&self) -> u64 {
        self.list.lock().untold
    }

    pub(super) fn counts(&self, peer: usize) -> Counts {
        self.list.lock().peers[peer].counts
    }
}

#[cfg(test)]
impl Ledger {
    pub(super) fn break_rule(&self, rule: Rule) {
        self.list.lock().rules.broken = Some(rule);
    }

    /// Returns the id and the total of an entry, also of one that is over.
    pub(super) fn entry(&self, key: u128, quota: &Quota, at: Time) -> Option<(u64, u64)> {
        let list = self.list.lock();
        let slot = list.find(&Name { state: key ^ quota.identity(), span: quota.span(at) })?;
        let entry = &list.entries[slot as usize];
        Some((entry.id, entry.total))
    }

    /// Returns the numbers of slots, of slots in queues, and of quotas.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let list = self.list.lock();
        (list.entries.len(), list.peers.iter().map(|peer| peer.queue.len()).sum(), list.quotas.len())
    }

    /// Returns how many entries each state has.
    pub(super) fn spans(&self) -> std::collections::HashMap<u128, usize> {
        let list = self.list.lock();
        let mut spans = std::collections::HashMap::new();
        for entry in list.entries.iter().filter(|entry| entry.quota.is_some()) {
            *spans.entry(entry.name.state).or_default() += 1;
        }
        spans
    }
}

/// The part of a capacity that one server may leave untold to one region is 1 / this number.
const fn step_part(peers: u64, nodes: NonZeroU32) -> u64 {
    UNTOLD_PART * peers * nodes.get() as u64
}

fn step(quota: &Quota, part: u64) -> u64 {
    (quota.capacity() / part).max(1)
}

/// Returns how many units of a span all servers of all regions together may leave untold.
pub(super) fn untold_at_most(quota: &Quota, nodes: NonZeroU32) -> u64 {
    let AcrossRegions::Shared(regions) = quota.across_regions() else { return 0 };
    let peers = u64::from(regions.get()) - 1;
    (step(quota, step_part(peers, nodes)) - 1) * peers * u64::from(nodes.get())
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("entries", &self.len()).finish_non_exhaustive()
    }
}

impl List {
    fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    fn find(&self, name: &Name) -> Option<u32> {
        self.index.get(name, |slot| self.entries[slot as usize].name)
    }

    /// Returns whether an entry has ended. It ends by the clock of the process: if the clock of a store decided, a step back
    /// would let an entry outlive what another store knows of it, and its whole total would be charged again.
    fn is_over(&self, slot: u32, now: u64) -> bool {
        let entry = &self.entries[slot as usize];
        // A slot without a quota is free.
        let life = entry.quota.as_ref().map_or(0, |quota| quota.span_life_ns(entry.name.span));
        now >= entry.made.saturating_add(life) && self.rules.hold(Rule::EntriesEnd)
    }

    /// From three quarters on, small rests are sent too, so that their entries become known.
    fn sends_rests(&self) -> bool {
        self.drains || self.len() * 4 >= self.room * 3 && self.rules.hold(Rule::FullSendsRests)
    }

    /// Returns the units of this quota from which on a region is told.
    fn step(&self, quota: &Quota) -> u64 {
        step(quota, if self.rules.hold(Rule::StepIsDivided) { self.step_part } else { UNTOLD_PART / 4 })
    }

    fn is_due(&self, peer: usize, slot: u32, now: u64) -> bool {
        let (entry, told) = (&self.entries[slot as usize], &self.peers[peer].told[slot as usize]);
        let Some(quota) = &entry.quota else { return false };
        if self.is_over(slot, now) && self.rules.hold(Rule::NotSentAfterItsEnd) {
            return false;
        }
        let step = if self.sends_rests() { 1 } else { self.step(quota) };
        entry.total.saturating_sub(told.sent) >= step || told.sent > told.acked && !self.peers[peer].under_way.has(slot)
    }

    /// Puts a slot into the queue of a region, if something of it is not acknowledged.
    fn queue(&mut self, peer: usize, slot: u32) {
        let peer = &mut self.peers[peer];
        let told = &mut peer.told[slot as usize];
        if told.is_late {
            peer.late.push(slot);
        } else if !told.queued && told.since != NOTHING {
            told.queued = true;
            peer.queue.push(Reverse((told.since, slot)));
        }
    }

    /// Queues what was sent a second ago and is not acknowledged. Returns whether that is all.
    fn ask_again(&mut self, peer: usize, now: u64) -> bool {
        for _ in 0..Ledger::PIECE {
            let Some(slot) = self.peers[peer].under_way.first() else { return true };
            let told = &mut self.peers[peer].told[slot as usize];
            if told.waits_since.saturating_add(AGAIN_NS) > now {
                return true;
            }
            told.is_late = true;
            self.peers[peer].under_way.remove(slot);
            self.queue(peer, slot);
        }
        false
    }

    /// Takes what is due of what is late. Returns whether that is all.
    fn take_late(&mut self, peer: usize, now: u64, most: usize, due: &mut Vec<Due>) -> bool {
        for _ in 0..Ledger::PIECE {
            if due.len() >= most {
                return false;
            }
            let Some(slot) = self.peers[peer].late.first() else { return true };
            self.peers[peer].late.remove(slot);
            if self.is_due(peer, slot, now) {
                due.extend(self.send(peer, slot, now));
            }
        }
        false
    }

    /// Takes what is due from the queue. Returns whether that is all.
    fn take_due(&mut self, peer: usize, now: u64, most: usize, due: &mut Vec<Due>) -> bool {
        for _ in 0..Ledger::PIECE {
            if due.len() >= most {
                return false;
            }
            let Some(Reverse((since, slot))) = self.peers[peer].queue.pop() else { return true };
            let told = &mut self.peers[peer].told[slot as usize];
            told.queued = false;
            let (is_early, is_late) = (since < told.since, told.is_late);
            if is_late || !self.is_due(peer, slot, now) {
                continue;
            }
            if is_early {
                self.queue(peer, slot);
            } else {
                due.extend(self.send(peer, slot, now));
            }
        }
        false
    }

    fn send(&mut self, peer: usize, slot: u32, now: u64) -> Option<Due> {
        let (entry, peer) = (&self.entries[slot as usize], &mut self.peers[peer]);
        let (told, quota) = (&mut peer.told[slot as usize], entry.quota.as_ref()?);
        peer.counts.units_sent = peer.counts.units_sent.saturating_add(entry.total.saturating_sub(told.sent));
        if told.is_late || !peer.under_way.has(slot) {
            told.waits_since = now;
            peer.under_way.remove(slot);
            peer.under_way.push(slot);
        }
        told.sent = entry.total;
        Some(Due {
            slot,
            key: entry.name.state ^ quota.identity(),
            quota: Arc::clone(quota),
            span: entry.name.span,
            id: entry.id,
            total: entry.total,
            sent_at: now,
        })
    }

    /// Returns how long it took since there was something to send, if more is acknowledged now.
    fn acknowledge(&mut self, peer: usize, due: &Due, result: Charged, now: u64) -> Option<u64> {
        let entry = &self.entries[due.slot as usize];
        let quota = entry.quota.as_ref()?;
        let is_it = (entry.id, entry.name.span, entry.name.state ^ quota.identity()) == (due.id, due.span, due.key);
        if !is_it {
            return None;
        }
        let step = self.step(quota);
        let told = &mut self.peers[peer].told[due.slot as usize];
        match result {
            Charged::New | Charged::Known | Charged::Ended if due.total > told.acked => {
                let waited = now.saturating_sub(told.due_since.min(due.sent_at));
                told.acked = due.total;
                // All units that had been admitted when this total was sent are acknowledged.
                told.since = told.since.max(due.sent_at);
                let waits = told.sent > told.acked;
                (told.waits_since, told.is_late) = (now, false);
                let is_due = waits || entry.total.saturating_sub(told.sent) >= step;
                told.due_since = if is_due { told.due_since.max(due.sent_at) } else { NOTHING };
                let answered = &mut self.peers[peer];
                answered.under_way.remove(due.slot);
                if waits {
                    answered.under_way.push(due.slot);
                }
                if answered.late.has(due.slot) {
                    answered.late.remove(due.slot);
                    self.queue(peer, due.slot);
                }
                self.settle(due.slot, now);
                Some(waited)
            }
            Charged::NotBegun => {
                told.is_late = false;
                self.peers[peer].under_way.remove(due.slot);
                self.peers[peer].late.remove(due.slot);
                self.queue(peer, due.slot);
                None
            }
            // A total that failed is sent again after a second, as one whose answer was lost.
            Charged::New | Charged::Known | Charged::Ended | Charged::Failed => None,
        }
    }

    /// Brings up to date what follows from the total and what is acknowledged of it.
    fn settle(&mut self, slot: u32, now: u64) {
        let total = self.entries[slot as usize].total;
        for peer in &mut self.peers {
            let told = &mut peer.told[slot as usize];
            if told.acked >= total && told.since != NOTHING {
                told.since = NOTHING;
                peer.under_way.remove(slot);
                peer.counts.waiting -= 1;
            }
        }
        if self.is_known(slot, now) {
            self.known.push(slot);
        } else {
            self.known.remove(slot);
        }
    }

    /// Returns whether every region knows the whole total, except those that are cut off or held: else one lost region would
    /// fill the ledger, and end the sharing of the others.
    fn is_known(&self, slot: u32, now: u64) -> bool {
        let total = self.entries[slot as usize].total;
        self.peers.iter().all(|peer| {
            let is_away = peer.is_held || peer.cut_off(now).is_some();
            peer.told[slot as usize].acked >= total || is_away && self.rules.hold(Rule::LostRegionsDoNotCount)
        })
    }

    fn add(&mut self, slot: u32, quota: &Quota, cost: u64, now: u64) {
        if self.entries[slot as usize].quota.as_deref() != Some(quota) {
            self.entries[slot as usize].quota = Some(self.shared(quota));
        }
        let (rests, step) = (self.sends_rests(), self.step(quota));
        let entry = &mut self.entries[slot as usize];
        let total = entry.total.saturating_add(cost).min(MAX_UNITS);
        if total == entry.total {
            return;
        }
        entry.total = total;
        for peer in 0..self.peers.len() {
            let known_by = &mut self.peers[peer];
            let told = &mut known_by.told[slot as usize];
            if told.since == NOTHING {
                told.since = now;
                known_by.counts.waiting += 1;
            }
            if rests || total.saturating_sub(told.sent) >= step {
                told.due_since = told.due_since.min(now);
                self.queue(peer, slot);
            }
        }
        // Without a region that has to know it, the entry that was not used for the longest time goes first.
        self.known.remove(slot);
        if self.is_known(slot, now) {
            self.known.push(slot);
        }
    }

    /// Makes an entry, or returns `None` if none may go for it.
    fn make(&mut self, name: Name, quota: &Quota, now: u64) -> Option<u32> {
        if self.len() >= self.room {
            self.make_room(now)?;
        }
        // An id never counts a name from zero twice, since the others would take new units for known ones.
        if name.span.end_ns() <= self.newest_end {
            (self.id, self.newest_end) = ((self.fresh_id)(), 0);
        }
        let entry = Entry { name, id: self.id, total: 0, quota: Some(self.shared(quota)), made: now };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                self.known.add_slot();
                for peer in &mut self.peers {
                    peer.under_way.add_slot();
                    peer.late.add_slot();
                    peer.told.push(Told::NOTHING);
                }
                u32::try_from(self.entries.len() - 1).ok()?
            }
        };
        self.index.insert(&name, slot);
        Some(slot)
    }

    /// Removes the entry that all regions know for the longest time. Looks at 1,024 entries at most.
    fn make_room(&mut self, now: u64) -> Option<()> {
        for _ in 0..Ledger::PIECE {
            let Some(slot) = self.known.first() else { break };
            // A region that was away when the entry was listed counts again when it is back.
            if self.is_known(slot, now) {
                self.remove(slot);
                return Some(());
            }
            self.known.remove(slot);
        }
        if !self.rules.hold(Rule::FullKeepsWhatWaits) {
            self.remove(0);
            return Some(());
        }
        None
    }

    fn remove(&mut self, slot: u32) {
        let Entry { name, total, .. } = self.entries[slot as usize];
        self.newest_end = self.newest_end.max(name.span.end_ns());
        self.index.remove(&name, slot, |slot| self.entries[slot as usize].name);
        self.known.remove(slot);
        for peer in &mut self.peers {
            peer.under_way.remove(slot);
            peer.late.remove(slot);
            let told = &mut peer.told[slot as usize];
            if told.since != NOTHING {
                peer.counts.waiting -= 1;
                let dropped = total.saturating_sub(told.acked);
                peer.counts.units_dropped = peer.counts.units_dropped.saturating_add(dropped);
            }
            *told = Told { queued: told.queued, ..Told::NOTHING };
        }
        self.entries[slot as usize].quota = None;
        self.free.push(slot);
    }

    /// Returns the quota as all entries share it.
    fn shared(&mut self, quota: &Quota) -> Arc<Quota> {
        if let Some(shared) = self.quotas.get(quota) {
            return Arc::clone(shared);
        }
        if self.quotas.len() >= self.most_quotas {
            self.quotas.retain(|quota| Arc::strong_count(quota) > 1);
            self.most_quotas = 64 + 2 * self.quotas.len();
        }
        let shared = Arc::new(quota.clone());
        self.quotas.insert(Arc::clone(&shared));
        shared
    }
}

impl Peer {
    fn cut_off(&self, now: u64) -> Option<u64> {
        let silent = now.saturating_sub(self.silent?);
        (silent > CUT_OFF_NS).then_some(silent)
    }
}
