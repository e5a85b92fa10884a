//! Tells the other regions: one task for each of them.
//!
//! A task never waits for an answer before it sends more. With one call at a time, a unit would be told after one and a
//! half round trips. Each call is a task of its own, which hands its answer to the ledger. The number of calls is bounded.
//!
//! A region can be a cluster with a node that does not answer. So totals that are late may use a quarter of the calls only,
//! and the first call with a total gives up when the total is late. Then calls to the dead node do not fill all places.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_core::{Charge, Charged, ChargedStore, MAX_CHARGES, Quota, Regions, StoreError, StoreErrorKind, Time};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::about::{About, Differs};
use super::figures::{Figures, PeerStatus};
use super::ledger::{AGAIN, Due, Ledger, untold_at_most};
use super::pace::Pace;

/// How long a call may take. A hash at the other region lives 10 s longer than its entry, so it outlives the call.
const WITHIN: Duration = Duration::from_secs(5);

/// The most calls to one region at a time, and of these the most with totals that are late.
const MOST_CALLS: usize = 512;
const MOST_LATE_CALLS: usize = MOST_CALLS / 4;

/// How often a region is compared, and how often one that does not answer, does not agree or is cut off.
const COMPARE_EVERY: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long a drain may take.
const DRAIN: Duration = Duration::from_secs(1);

/// A pass over all entries takes about this time, or one round if that is longer.
const SWEEP: Duration = Duration::from_secs(3);

/// What a server has to know about its region.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the region, without spaces.
    pub region: String,
    /// The most servers that a region runs.
    pub nodes: NonZeroU32,
    /// The most entries that wait to be told. [`Peers::memory_bytes`] says how much memory they need.
    pub max_keys: u32,
    /// How often units are told.
    pub sync: Duration,
    /// A check value of the secret that keys are made with.
    pub secret: u64,
}

/// The other regions of shared limits. Each of them is told what this server admits.
///
/// The store of the own region admits, as if it were alone. After an answer, call [`record`](Peers::record). When this
/// value is dropped, nothing more is told; call [`drain`](Peers::drain) before.
pub struct Peers {
    shared: Arc<Shared>,
    /// One task for each region. They end when this is dropped.
    _tasks: JoinSet<()>,
}

struct Shared {
    ledger: Ledger,
    peers: Vec<Peer>,
    about: About,
    sync: Duration,
    /// The clock of the ledger begins here.
    start: Instant,
    drains: AtomicBool,
    /// A drain waits for answers.
    answered: Notify,
}

struct Peer {
    name: String,
    /// Something has changed, so the task must not wait for the next round.
    wake: Notify,
    view: Mutex<View>,
}

struct View {
    is_paused: bool,
    is_compared: bool,
    differs: Differs,
    was_cut_off: bool,
    /// A comparison is under way.
    compares: bool,
    compare_at: Instant,
    pace: Pace,
    figures: Figures,
}

impl Peers {
    /// Starts to tell regions, each with its name and store, in the runtime of the caller.
    ///
    /// # Panics
    /// Panics outside of a runtime of tokio, if there are no peers or more than seven, and if the operating system gives no
    /// random bytes.
    #[must_use]
    pub fn start<S: ChargedStore + 'static>(options: &Options, peers: Vec<(String, S)>) -> Peers {
        let regions = u8::try_from(peers.len() + 1).ok().and_then(Regions::new).expect("there are 1 to 7 peers");
        let tag = region_tag(&options.region);
        let ledger = Ledger::new(regions, options.nodes, options.max_keys, Box::new(move || fresh_id(tag)));
        let start = Instant::now();
        let (names, stores): (Vec<String>, Vec<S>) = peers.into_iter().unzip();
        let peer = |name| Peer { name, wake: Notify::new(), view: Mutex::new(View::new(start)) };
        let shared = Arc::new(Shared {
            ledger,
            peers: names.into_iter().map(peer).collect(),
            about: About::new(&options.region, regions, options.secret),
            sync: options.sync,
            start,
            drains: AtomicBool::new(false),
            answered: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        for (number, store) in stores.into_iter().enumerate() {
            tasks.spawn(tell(Arc::clone(&shared), number, Arc::new(store)));
        }
        Peers { shared, _tasks: tasks }
    }

    /// Returns the most bytes that the entries need, without one copy of each limit.
    #[must_use]
    pub const fn memory_bytes(max_keys: u32, regions: Regions) -> u64 {
        max_keys as u64 * Ledger::entry_bytes(regions) as u64
    }

    /// Returns how many units of a shared limit may stay untold in a span, by all servers of all regions together: at most 5 %
    /// of the capacity. `nodes` is the most servers that a region runs.
    #[must_use]
    pub fn untold_at_most(quota: &Quota, nodes: NonZeroU32) -> u64 {
        untold_at_most(quota, nodes)
    }

    /// Returns what the servers of this region have to write into their own store, so that others can compare it.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.shared.about
    }

    /// Adds units that the own store has admitted under a shared quota. `at` is the time in the receipt. Returns whether
    /// they will be told: if not, the list of what has to be told is full, and they are counted as untold.
    pub fn record(&self, key: u128, quota: &Quota, at: Time, cost: u64) -> bool {
        self.shared.ledger.record(key, quota, at, cost, self.shared.now())
    }

    /// Takes units back that the own store has given back, if no region was told of them. Returns how many. What was told
    /// stays charged in the other regions, until time gives it back.
    pub fn refund(&self, key: u128, quota: &Quota, at: Time, units: u64) -> u64 {
        self.shared.ledger.refund(key, quota, at, units, self.shared.now())
    }

    /// Sends nothing to a region until [`resume`](Peers::resume). Returns whether there is a region of this name.
    pub fn pause(&self, name: &str) -> bool {
        self.set_paused(name, true)
    }

    /// Sends to a region again, with everything that still waits for it. Returns whether there is a region of this name.
    pub fn resume(&self, name: &str) -> bool {
        self.set_paused(name, false)
    }

    fn set_paused(&self, name: &str, is_paused: bool) -> bool {
        let Some(number) = self.shared.peers.iter().position(|peer| peer.name == name) else { return false };
        let peer = &self.shared.peers[number];
        let mut view = peer.view.lock();
        if view.is_paused != is_paused {
            // The region may have changed meanwhile, so it is compared before anything is sent.
            (view.is_paused, view.is_compared, view.compare_at) = (is_paused, false, Instant::now());
            self.shared.ledger.hold(number, is_paused || view.differs.stops());
            peer.wake.notify_one();
        }
        true
    }

    /// Tells every unit, also rests, for at most a second. Call it when no request is decided any more. Returns how many
    /// entries are not acknowledged, each counted once for each region.
    pub async fn drain(&self) -> usize {
        let (shared, until) = (&self.shared, Instant::now() + DRAIN);
        shared.ledger.drain();
        while !shared.ledger.sweep(shared.now()) {
            tokio::task::yield_now().await;
        }
        shared.drains.store(true, Ordering::Relaxed);
        shared.peers.iter().for_each(|peer| peer.wake.notify_one());
        while shared.expects_answers() && timeout_at(until, shared.answered.notified()).await.is_ok() {}
        (0..shared.peers.len()).map(|number| shared.ledger.counts(number).waiting).sum()
    }

    /// Returns how many entries are in the list of what has to be told, also those that all regions know.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shared.ledger.len()
    }

    /// Returns how many units nobody will be told, because the list was full.
    #[must_use]
    pub fn untold_units(&self) -> u64 {
        self.shared.ledger.untold()
    }

    /// Returns the names of the other regions, in the order of the start.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.shared.peers.iter().map(|peer| peer.name.as_str())
    }

    /// Returns what this server sees of each region, in the order of the start.
    #[must_use]
    pub fn status(&self) -> Vec<PeerStatus> {
        (0..self.shared.peers.len()).map(|number| self.shared.status(number)).collect()
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        f.debug_struct("Peers").field("names", &names).field("ledger", &self.shared.ledger).finish_non_exhaustive()
    }
}

impl View {
    fn new(now: Instant) -> View {
        View {
            is_paused: false,
            is_compared: false,
            differs: Differs::default(),
            was_cut_off: false,
            compares: false,
            compare_at: now,
            pace: Pace::new(MOST_CALLS * MAX_CHARGES, 0),
            figures: Figures::default(),
        }
    }
}

impl Shared {
    /// The time of the ledger: nanoseconds since the start.
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn may_send(&self, number: usize) -> bool {
        let view = self.peers[number].view.lock();
        view.is_compared && !view.is_paused && !view.differs.stops()
    }

    fn is_cut_off(&self, number: usize) -> bool {
        self.ledger.cut_off(number, self.now()).is_some()
    }

    fn expects_answers(&self) -> bool {
        let may_answer = |number| self.may_send(number) && !self.is_cut_off(number);
        (0..self.peers.len()).any(|number| may_answer(number) && self.ledger.counts(number).waiting > 0)
    }

    /// Returns how many entries may be sent now, while so many calls of so many entries each are under way.
    fn room(&self, number: usize, calls: usize, per_call: usize) -> usize {
        if !self.may_send(number) {
            return 0;
        }
        if self.is_cut_off(number) {
            // It answers questions, and one call at a time finds out whether it takes totals again.
            return if calls == 0 { per_call } else { 0 };
        }
        let free = MOST_CALLS.saturating_sub(calls) * per_call;
        if self.drains.load(Ordering::Relaxed) {
            return free;
        }
        self.peers[number].view.lock().pace.may_send(self.now()).min(free)
    }

    /// Returns how many pieces of the ledger are swept in each round.
    fn pieces_a_round(&self) -> usize {
        let rounds = (SWEEP.as_nanos() / self.sync.as_nanos().max(1)).max(1);
        let pieces = self.ledger.len().div_ceil(Ledger::PIECE);
        pieces.div_ceil(usize::try_from(rounds).unwrap_or(usize::MAX))
    }

    /// Returns whether the region has to be compared now.
    fn begins_to_compare(&self, number: usize) -> bool {
        let (now, is_cut_off) = (Instant::now(), self.is_cut_off(number));
        let view = &mut *self.peers[number].view.lock();
        if is_cut_off && !view.was_cut_off {
            (view.is_compared, view.compare_at) = (false, now);
        }
        view.was_cut_off = is_cut_off;
        if view.is_paused || view.compares || now < view.compare_at {
            return false;
        }
        (view.compares, view.compare_at) = (true, now + ASK_AGAIN);
        true
    }

    async fn compare<S: ChargedStore>(self: Arc<Shared>, number: usize, store: Arc<S>) {
        self.ledger.asks(number, self.now());
        let read = store.about(WITHIN).await;
        let peer = &self.peers[number];
        let mut view = peer.view.lock();
        view.compares = false;
        match read {
            // A pause while the call was under way has reset the rest.
            Ok(_) if view.is_paused => {}
            Ok(text) => {
                self.ledger.hears(number);
                let differs = self.about.compared(&peer.name, text.as_deref());
                if differs.stops() != view.differs.stops() {
                    self.ledger.hold(number, differs.stops());
                }
                (view.differs, view.is_compared) = (differs, true);
                // Somebody may be repairing it.
                let is_wrong = differs != Differs::default() || view.was_cut_off;
                view.compare_at = Instant::now() + if is_wrong { ASK_AGAIN } else { COMPARE_EVERY };
                peer.wake.notify_one();
            }
            Err(error) => {
                // When it answers again, it may be another store.
                view.is_compared &= !view.was_cut_off;
                view.figures.failed(error, self.now());
            }
        }
    }

    async fn charge<S: ChargedStore>(self: Arc<Shared>, number: usize, store: Arc<S>, within: Duration, due: Vec<Due>) {
        let sent_at = self.now();
        let charges: Vec<Charge<'_>> = due.iter().map(Due::charge).collect();
        let mut results = vec![Charged::Failed; charges.len()];
        let answer = store.charge(within, &charges, &mut results).await;
        let now = self.now();
        let peer = &self.peers[number];
        match answer {
            Ok(()) => {
                let delays = self.ledger.answered(number, &due, &results, now);
                let view = &mut *peer.view.lock();
                view.pace.answered(Some(now.saturating_sub(sent_at)), now);
                view.figures.count(&results, &delays, now);
                if results.contains(&Charged::Failed) {
                    view.figures.failed(unreadable(), now);
                }
            }
            Err(error) => self.failed(number, error, now),
        }
        if self.drains.load(Ordering::Relaxed) {
            peer.wake.notify_one();
            self.answered.notify_one();
        }
    }

    fn failed(&self, number: usize, error: StoreError, now: u64) {
        let view = &mut *self.peers[number].view.lock();
        view.pace.answered(None, now);
        view.figures.failed(error, now);
    }

    fn status(&self, number: usize) -> PeerStatus {
        let (now, peer) = (self.now(), &self.peers[number]);
        let (cut_off, counts) = (self.ledger.cut_off(number, now), self.ledger.counts(number));
        let view = &mut *peer.view.lock();
        let percentiles = view.figures.percentiles(now);
        let ago = |(error, at): &(StoreError, u64)| (error.clone(), Duration::from_nanos(now.saturating_sub(*at)));
        PeerStatus {
            name: peer.name.clone(),
            is_paused: view.is_paused,
            cut_off: cut_off.map(Duration::from_nanos),
            is_compared: view.is_compared,
            differs: view.differs,
            delay_p50: percentiles.map(|(half, _)| half),
            delay_p99: percentiles.map(|(_, most)| most),
            entries_per_second: view.figures.entries_per_second(now),
            last_failure: view.figures.failure.as_ref().map(ago),
            results: view.figures.results,
            counts,
            delays: view.figures.delays,
            delay_sum_ns: view.figures.delay_sum_ns,
        }
    }
}

/// The task of one region.
async fn tell<S: ChargedStore + 'static>(shared: Arc<Shared>, number: usize, store: Arc<S>) {
    let (mut calls, mut late_calls) = (JoinSet::new(), JoinSet::new());
    let mut round = Instant::now();
    loop {
        while calls.try_join_next().is_some() || late_calls.try_join_next().is_some() {}
        if shared.begins_to_compare(number) {
            calls.spawn(Arc::clone(&shared).compare(number, Arc::clone(&store)));
        }
        let per_call = store.charges_per_call();
        let room = shared.room(number, calls.len() + late_calls.len(), per_call);
        let late_room = MOST_LATE_CALLS.saturating_sub(late_calls.len()) * per_call;
        let late_room = room.div_ceil(4).max(per_call).min(late_room).min(room);
        let lanes = [(true, late_room, WITHIN, &mut late_calls), (false, room, AGAIN, &mut calls)];
        let mut sent = 0;
        for (is_late, room, within, calls) in lanes {
            while sent < room {
                let (mut due, most) = (Vec::new(), per_call.min(room - sent));
                let more = shared.ledger.due(number, is_late, shared.now(), most, &mut due);
                if !due.is_empty() {
                    sent += due.len();
                    shared.peers[number].view.lock().pace.called(shared.now());
                    calls.spawn(Arc::clone(&shared).charge(number, Arc::clone(&store), within, due));
                } else if more {
                    tokio::task::yield_now().await;
                } else {
                    break;
                }
            }
        }
        shared.peers[number].view.lock().pace.sent(sent);
        if timeout_at(round, shared.peers[number].wake.notified()).await.is_err() {
            round = Instant::now() + shared.sync;
            // One of the tasks keeps the ledger tidy.
            if number == 0 {
                for _ in 0..shared.pieces_a_round() {
                    shared.ledger.sweep(shared.now());
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// Returns the error of a call with a total that the other store could not charge.
fn unreadable() -> StoreError {
    StoreError::new(
        StoreErrorKind::Garbled,
        "another program has written at a key of a limit, or at what is charged of it",
    )
}

/// The first 16 bits of every id of a region's servers. So whoever sees an id can tell its region.
#[must_use]
pub fn region_tag(region: &str) -> u16 {
    // FNV-1a, because every version and every region has to get the same bits.
    let hash = region
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) as u16
}

fn fresh_id(tag: u16) -> u64 {
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("the operating system gives random bytes");
    u64::from(tag) << 48 | u64::from_le_bytes(random) >> 16
}
