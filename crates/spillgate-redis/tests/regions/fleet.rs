//! Three regions with two servers each. Every server reaches the stores of the other regions through a line of its own.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillgate::regions::{Options, PeerStatus, Peers, RegionStore, region_tag};
use spillgate_core::{
    AcrossRegions, Algorithm, Binding, Charge, Charged, ChargedStore, Decision, Hit, Op, OpKind, Quota, QuotaBuilder,
    Regions, Span, Store, StoreError, StoreErrorKind, Time, Timing, Verdict,
};
use spillgate_redis::{RedisStore, Settings};
use spillgate_testkit::Random;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::regions::line::{Fault, Line, Weather};
use crate::regions::now_ns;
use crate::regions::requests::{Asked, rest};
use crate::support::cluster::Cluster;
use crate::support::common::{PATIENCE, until, with_long_timeouts};
use crate::support::server::Server;

pub(crate) const REGIONS: usize = 3;
pub(crate) const NODES: u32 = 2;

/// How a fleet is made.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) weather: Weather,
    pub(crate) sync: Duration,
    pub(crate) max_keys: u32,
    /// Whether a region may ask its guaranteed share.
    pub(crate) has_share: bool,
    /// The deadline of each request. No answer may come much later.
    pub(crate) deadline: Duration,
    /// By how many nanoseconds the clock of the first region's store is ahead.
    pub(crate) ahead: i64,
    /// The last region has a cluster, of primaries with or without replicas. Its servers are reached without lines.
    pub(crate) cluster: Option<bool>,
    /// The user of other regions at each Redis. It has to exist there.
    pub(crate) user: Option<&'static str>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            weather: Weather { round_trip: Duration::from_millis(40), is_rough: false },
            sync: Duration::from_millis(100),
            max_keys: 4096,
            has_share: true,
            deadline: PATIENCE,
            ahead: 0,
            cluster: None,
            user: None,
        }
    }
}

/// The Redis of a region.
pub(crate) enum Place {
    Single(Server),
    Cluster(Cluster),
}

impl Place {
    fn url(&self) -> String {
        match self {
            Place::Single(server) => server.url(),
            Place::Cluster(cluster) => cluster.url(),
        }
    }

    pub(crate) fn servers(&self) -> &[Server] {
        match self {
            Place::Single(server) => std::slice::from_ref(server),
            Place::Cluster(cluster) => &cluster.nodes,
        }
    }

    pub(crate) fn single(&mut self) -> &mut Server {
        match self {
            Place::Single(server) => server,
            Place::Cluster(_) => panic!("the region has a cluster"),
        }
    }

    pub(crate) fn cluster(&mut self) -> &mut Cluster {
        match self {
            Place::Cluster(cluster) => cluster,
            Place::Single(_) => panic!("the region has one Redis"),
        }
    }
}

/// By how many nanoseconds the clock of a region's store is ahead.
type Shift = Arc<AtomicI64>;

/// Returns the time of a store whose clock is shifted, or `None` if it is that of Redis.
fn shifted(shift: &Shift) -> Option<Time> {
    match shift.load(Ordering::Relaxed) {
        0 => None,
        shift => Some(Time::from_nanos(now_ns().saturating_add_signed(shift))),
    }
}

/// The store of the own region.
pub(crate) struct Own {
    store: RedisStore,
    shift: Shift,
    has_share: bool,
}

impl Store for Own {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.store.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        true
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        // Only the call that asks the share has a settlement.
        if !self.has_share && hits.iter().any(|hit| hit.op.kind() == OpKind::Settle) {
            return Err(StoreError::new(StoreErrorKind::NotSent, "the share is switched off"));
        }
        let mut timing = timing;
        timing.now = shifted(&self.shift);
        self.store.decide(timing, hits, decisions).await
    }
}

/// A total that a region has acknowledged.
struct Acknowledged {
    peer: usize,
    key: u128,
    span: Span,
    total: u64,
    at: u64,
}

/// The store of another region, with a note of each total that it has acknowledged.
struct Watched {
    store: RedisStore,
    peer: usize,
    shift: Shift,
    /// The round trip, if there is no line to the store.
    away: Duration,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
}

impl ChargedStore for Watched {
    fn charges_per_call(&self) -> usize {
        self.store.charges_per_call()
    }

    async fn charge(
        &self,
        within: Duration,
        charges: &[Charge<'_>],
        results: &mut [Charged],
    ) -> Result<(), StoreError> {
        sleep(self.away).await;
        let within = within.saturating_sub(self.away);
        self.store.charge_at(shifted(&self.shift), within, charges, results).await?;
        let at = now_ns();
        let is_known = |result: &Charged| matches!(result, Charged::New | Charged::Known | Charged::Ended);
        let known = charges.iter().zip(results).filter(|(_, result)| is_known(result));
        let noted = known.map(|(charge, _)| Acknowledged {
            peer: self.peer,
            key: charge.key,
            span: charge.span,
            total: charge.total,
            at,
        });
        self.acknowledged.lock().expect("no test panics").extend(noted);
        Ok(())
    }

    async fn about(&self, within: Duration) -> Result<Option<String>, StoreError> {
        self.store.about(within).await
    }
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) store: RegionStore<Own>,
    pub(crate) peers: Arc<Peers>,
}

/// A server of a region. It can be killed.
pub(crate) struct Node {
    running: Mutex<Option<Arc<Running>>>,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
    shift: Shift,
    deadline: Duration,
}

/// What came of one request.
pub(crate) enum Answer {
    /// Whether it was admitted, the time of the store, and the time by a clock that all regions share.
    Decided(bool, Time, u64),
    /// The store failed.
    Failed,
    /// The server is dead.
    Dead,
}

impl Node {
    pub(crate) fn running(&self) -> Option<Arc<Running>> {
        self.running.lock().expect("no test panics").clone()
    }

    /// Ends the server without telling anybody.
    pub(crate) fn kill(&self) {
        *self.running.lock().expect("no test panics") = None;
    }

    /// Takes units. The answer has to come before a timer of twice its deadline does.
    pub(crate) async fn take(&self, key: u128, quota: &Quota, cost: u64) -> Answer {
        let Some(running) = self.running() else { return Answer::Dead };
        let hits = [Hit::new(key, quota, Op::take(cost), Binding::Enforce)];
        let mut decisions = [Decision::default()];
        let late = Instant::now() + 2 * self.deadline;
        let shift = self.shift.load(Ordering::Relaxed);
        let verdict = tokio::select! {
            biased;
            verdict = running.store.decide(Timing::BY_STORE.within(self.deadline), &hits, &mut decisions) => verdict,
            () = sleep_until(late) => panic!("an answer came after twice its deadline"),
        };
        match verdict {
            Ok(verdict) => {
                let at = decisions[0].receipt.map_or(verdict.now, |receipt| receipt.at);
                Answer::Decided(verdict.allowed, at, at.as_nanos().saturating_add_signed(-shift))
            }
            Err(_) => Answer::Failed,
        }
    }
}

/// When the servers of a region ask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each server asks once in this time.
    Even(Duration),
    /// As `Even`, but only in one region, which changes after the second time.
    Sticky(Duration, Duration),
    /// All servers ask so many times at once, every time the clock reaches a multiple of the time.
    Together(Duration, u32),
    /// At random instants, on average once in this time.
    Random(Duration),
}

/// The requests for one key.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) key: u128,
    /// The quota of each region. A region without one does not ask.
    pub(crate) quotas: [Option<Quota>; REGIONS],
    /// The smallest and the largest cost in each region.
    pub(crate) costs: [(u64, u64); REGIONS],
    pub(crate) paces: [Pace; REGIONS],
}

impl Stream {
    pub(crate) fn new(key: u128, quota: &Quota, cost: (u64, u64), pace: Pace) -> Stream {
        Stream {
            key,
            quotas: [0; REGIONS].map(|_| Some(quota.clone())),
            costs: [cost; REGIONS],
            paces: [pace; REGIONS],
        }
    }

    /// Only these regions ask.
    pub(crate) fn only(mut self, regions: &[usize]) -> Stream {
        for region in (0..REGIONS).filter(|region| !regions.contains(region)) {
            self.quotas[region] = None;
        }
        self
    }
}

/// A load that runs.
pub(crate) struct Load {
    tasks: JoinSet<Vec<Asked>>,
    stop: Arc<AtomicBool>,
    admitted: Arc<[AtomicU64; REGIONS]>,
    failed: Arc<AtomicU64>,
}

impl Load {
    /// Returns how many units a region has admitted so far.
    pub(crate) fn admitted(&self, region: usize) -> u64 {
        self.admitted[region].load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Waits until each of these regions has admitted more units.
    pub(crate) async fn until_more(&self, regions: &[usize], more: u64) {
        let before = [0, 1, 2].map(|region| self.admitted(region));
        let has_more = |region: &usize| self.admitted(*region) >= before[*region] + more;
        until("the regions admit more", || regions.iter().all(has_more)).await;
    }

    /// Ends the load. Returns all requests that were answered, by time.
    pub(crate) async fn end(self) -> Vec<Asked> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all: Vec<Asked> = self.tasks.join_all().await.into_iter().flatten().collect();
        all.sort_by_key(|one| one.at);
        all
    }

    pub(crate) async fn end_after(self, time: Duration) -> Vec<Asked> {
        sleep(time).await;
        self.end().await
    }
}

pub(crate) struct Fleet {
    pub(crate) places: Vec<Place>,
    /// The nodes of each region.
    pub(crate) nodes: Vec<Vec<Arc<Node>>>,
    /// The line from a region's node to another region.
    lines: HashMap<(usize, usize, usize), Line>,
    shifts: Vec<Shift>,
    plan: Plan,
}

/// As the server reaches the store of another region, but it connects again after half a second at most.
fn peer_settings(url: &str) -> Settings {
    let five = Duration::from_secs(5);
    Settings {
        timeout: five,
        connect_timeout: five,
        connections: 1,
        probe_every: five / 10,
        max_failures: u32::MAX,
        deny_cache_entries: 0,
        ..Settings::new(url)
    }
}

impl Fleet {
    pub(crate) async fn start(plan: Plan) -> Fleet {
        Fleet::start_after(plan, |_| ()).await
    }

    /// Does the same as `start`. `prepare` is called when the Redis servers run, and before the servers of the regions do.
    pub(crate) async fn start_after(plan: Plan, prepare: impl FnOnce(&[Place])) -> Fleet {
        let place = |region| match plan.cluster {
            Some(replicas) if region == REGIONS - 1 => {
                Place::Cluster(Cluster::start(replicas, &["--cluster-require-full-coverage", "no"]))
            }
            _ => Place::Single(Server::start()),
        };
        let places: Vec<Place> = (0..REGIONS).map(place).collect();
        prepare(&places);
        let shifts = (0..REGIONS).map(|_| Shift::default()).collect();
        let mut fleet = Fleet { places, nodes: Vec::new(), lines: HashMap::new(), shifts, plan };
        fleet.shift(0, plan.ahead);
        for region in 0..REGIONS {
            let mut nodes = Vec::new();
            for node in 0..NODES as usize {
                nodes.push(Arc::new(fleet.start_node(region, node).await));
            }
            fleet.nodes.push(nodes);
        }
        fleet
    }

    async fn start_node(&mut self, region: usize, node: usize) -> Node {
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let mut peers = Vec::new();
        for peer in (0..REGIONS).filter(|peer| *peer != region) {
            let url = self.url_of_peer((region, node, peer)).await;
            let store = RedisStore::new(&peer_settings(&url)).expect("the URL is valid");
            let (shift, acknowledged) = (Arc::clone(&self.shifts[peer]), Arc::clone(&acknowledged));
            let away = match self.places[peer] {
                Place::Single(_) => Duration::ZERO,
                Place::Cluster(_) => self.plan.weather.round_trip,
            };
            peers.push((name(peer), Watched { store, peer, shift, away, acknowledged }));
        }
        let options = Options {
            region: name(region),
            nodes: NonZeroU32::new(NODES).expect("not 0"),
            max_keys: self.plan.max_keys,
            sync: self.plan.sync,
            secret: SECRET,
        };
        let peers = Arc::new(Peers::start(&options, peers));
        let settings = Settings {
            timeout: self.plan.deadline,
            probe_every: self.plan.deadline,
            ..with_long_timeouts(&self.places[region].url())
        };
        let store = RedisStore::new(&settings).expect("the URL is valid");
        store.wait_connected().await.expect("Redis runs");
        let shift = Arc::clone(&self.shifts[region]);
        let own = Own { store, shift: Arc::clone(&shift), has_share: self.plan.has_share };
        let store = RegionStore::new(own, Arc::clone(&peers), self.plan.deadline);
        let running = Mutex::new(Some(Arc::new(Running { store, peers })));
        Node { running, acknowledged, shift, deadline: self.plan.deadline }
    }

    async fn url_of_peer(&mut self, (region, node, peer): (usize, usize, usize)) -> String {
        let Place::Single(server) = &self.places[peer] else { return self.places[peer].url() };
        let seed = (region * 100 + node * 10 + peer + 1) as u64;
        let line = Line::start(server.port(), self.plan.weather, seed).await;
        let user = self.plan.user.map_or(String::new(), |user| format!("{user}@"));
        let url = format!("redis://{user}127.0.0.1:{}/", line.port());
        self.lines.insert((region, node, peer), line);
        url
    }

    /// Waits until every server has compared every other region that it may tell something.
    pub(crate) async fn until_compared(&self) {
        let all =
            || self.running().all(|node| node.peers.status().iter().all(|peer| peer.is_compared || peer.is_paused));
        until("all regions are compared", all).await;
    }

    fn running(&self) -> impl Iterator<Item = Arc<Running>> {
        self.nodes.iter().flatten().filter_map(|node| node.running())
    }

    pub(crate) fn server(&mut self, region: usize) -> &mut Server {
        self.places[region].single()
    }

    /// Sets the fault of the lines whose sender, its node, and receiver are chosen.
    pub(crate) fn set(&self, fault: Fault, is_chosen: impl Fn(usize, usize, usize) -> bool) {
        for ((region, node, peer), line) in &self.lines {
            if is_chosen(*region, *node, *peer) {
                line.set(fault);
            }
        }
    }

    pub(crate) fn shift(&self, region: usize, by: i64) {
        self.shifts[region].store(by, Ordering::Relaxed);
    }

    /// Has no region told anything: the mutation that each bound has to catch.
    pub(crate) fn tell_nothing(&self) {
        for node in self.running() {
            (0..REGIONS).for_each(|region| {
                node.peers.pause(&name(region));
            });
        }
    }

    /// Starts to send the requests of all streams, each server of each region in a task of its own.
    pub(crate) fn load(&self, streams: &[Stream]) -> Load {
        let (stop, admitted, failed) = (Arc::default(), Arc::default(), Arc::default());
        let mut load = Load { tasks: JoinSet::new(), stop, admitted, failed };
        for (number, stream) in streams.iter().enumerate() {
            for region in 0..REGIONS {
                let Some(quota) = &stream.quotas[region] else { continue };
                for (node, own) in self.nodes[region].iter().enumerate() {
                    let seed = (number * 100 + region * 10 + node + 1) as u64;
                    let task = Task {
                        own: Arc::clone(own),
                        place: (region, node),
                        key: stream.key,
                        quota: quota.clone(),
                        costs: stream.costs[region],
                        stop: Arc::clone(&load.stop),
                        admitted: Arc::clone(&load.admitted),
                        failed: Arc::clone(&load.failed),
                    };
                    load.tasks.spawn(task.run(stream.paces[region], Random(seed)));
                }
            }
        }
        load
    }

    /// Runs streams for this time.
    pub(crate) async fn run(&self, streams: &[Stream], time: Duration) -> Vec<Asked> {
        self.load(streams).end_after(time).await
    }

    /// Waits until every unit of a key has been told that has to be, and returns the longest time from an admission until
    /// another region had charged it, or until the unit counted no longer. A dead server tells nothing.
    pub(crate) async fn delay_of(&self, admitted: &[Asked], quota: &Quota) -> Duration {
        let (key, rest) = (admitted.first().map_or(0, |one| one.key), rest(quota));
        let mut longest = 0;
        for (region, nodes) in self.nodes.iter().enumerate() {
            for (number, node) in nodes.iter().enumerate().filter(|(_, node)| node.running().is_some()) {
                let mut totals: HashMap<Span, Vec<(u64, u64)>> = HashMap::new();
                let own = admitted.iter().filter(|one| (one.region, one.node) == (region, number));
                for one in own {
                    let units = totals.entry(one.span).or_default();
                    let before = units.last().map_or(0, |(total, _)| *total);
                    units.push((before + one.cost, one.at));
                }
                for (span, units) in &totals {
                    let last = units.last().map_or(0, |(total, _)| *total);
                    for peer in (0..REGIONS).filter(|peer| *peer != region) {
                        let counts_until = match quota.algorithm() {
                            Algorithm::TokenBucket => u64::MAX,
                            Algorithm::FixedWindow(_) => span.end_ns(),
                            _ => span.end_ns() + span.length_ns,
                        };
                        let told = node.told_to((peer, key, *span), last - rest.min(last), counts_until).await;
                        for (total, at) in units.iter().filter(|(total, _)| *total > rest) {
                            // The last units before it may stay untold.
                            let told = &told[told.partition_point(|(known, _)| *known < total - rest)..];
                            let first = told.iter().map(|(_, at)| *at).min().unwrap_or(u64::MAX).min(counts_until);
                            longest = longest.max(first.saturating_sub(*at));
                        }
                    }
                }
            }
        }
        Duration::from_nanos(longest)
    }

    /// Waits until nothing waits to be told.
    pub(crate) async fn until_told(&self) {
        let waits = |node: Arc<Running>| node.peers.status().iter().any(|peer| peer.counts.waiting > 0);
        until("everything is told", || !self.running().any(waits)).await;
    }

    fn status(&self, region: usize, node: usize, peer: usize) -> Option<PeerStatus> {
        let all = self.nodes[region][node].running()?.peers.status();
        all.into_iter().find(|status| status.name == name(peer))
    }

    /// Waits until the chosen senders see that a region is cut off, or that it is not.
    pub(crate) async fn until_cut_off(&self, is_cut_off: bool, is_chosen: impl Fn(usize, usize, usize) -> bool) {
        for region in 0..REGIONS {
            for node in 0..NODES as usize {
                for peer in (0..REGIONS).filter(|peer| *peer != region && is_chosen(region, node, *peer)) {
                    let sees =
                        || self.status(region, node, peer).is_none_or(|seen| seen.cut_off.is_some() == is_cut_off);
                    until("the region is cut off, or heard again", sees).await;
                }
            }
        }
    }

    /// Returns how many entries of a region's first server had each result at a peer.
    pub(crate) fn results(&self, region: usize, peer: usize) -> [u64; Charged::ALL.len()] {
        self.status(region, 0, peer).expect("it runs").results
    }

    /// Returns the units that a region's Redis has charged for another region.
    pub(crate) fn charged(&self, at: usize, of: usize) -> u64 {
        self.places[at].servers().iter().map(|server| charged(server, of)).sum()
    }
}

impl Node {
    /// Waits until the region knows this total of the key and span, or until this time. Returns all totals that it knows, in
    /// their order, each with the time when it was acknowledged.
    async fn told_to(&self, (peer, key, span): (usize, u128, Span), total: u64, ends: u64) -> Vec<(u64, u64)> {
        let told = || {
            let acknowledged = self.acknowledged.lock().expect("no test panics");
            let own = acknowledged.iter().filter(|one| (one.peer, one.key, one.span) == (peer, key, span));
            own.map(|one| (one.total, one.at)).collect::<Vec<_>>()
        };
        let deadline = Instant::now() + PATIENCE;
        while total > 0 && now_ns() <= ends && !told().iter().any(|(known, _)| *known >= total) {
            let status = self.running().map(|running| running.peers.status());
            assert!(Instant::now() < deadline, "region {peer} was told {:?} of {total} units: {status:?}", told());
            sleep(Duration::from_millis(1)).await;
        }
        let mut told = told();
        told.sort_unstable();
        told
    }
}

impl Node {
    /// Returns how long each of these units, each of a key and a time that is not before `since`, waited until a region had
    /// acknowledged its key, and of how many that is unknown. All units of a key have to be in one span.
    pub(crate) fn delays(&self, peer: usize, units: &[(u128, u64)], since: u64) -> (Vec<Duration>, usize) {
        let mut told: HashMap<u128, Vec<(u64, u64)>> = HashMap::new();
        for one in self.acknowledged.lock().expect("no test panics").iter().filter(|one| one.peer == peer) {
            told.entry(one.key).or_default().push((one.at, one.total));
        }
        let (mut totals, mut delays, mut number): (HashMap<u128, u64>, _, _) = (HashMap::new(), Vec::new(), 0);
        for (key, at) in units {
            let total = totals.entry(*key).or_default();
            *total += 1;
            if *at < since {
                continue;
            }
            number += 1;
            let after =
                told.get(key).into_iter().flatten().filter(|(known_at, known)| known_at > at && *known >= *total);
            delays.extend(after.map(|(known_at, _)| Duration::from_nanos(known_at - at)).min());
        }
        let unknown = number - delays.len();
        (delays, unknown)
    }
}

/// One server that asks for one key.
struct Task {
    own: Arc<Node>,
    place: (usize, usize),
    key: u128,
    quota: Quota,
    costs: (u64, u64),
    stop: Arc<AtomicBool>,
    admitted: Arc<[AtomicU64; REGIONS]>,
    failed: Arc<AtomicU64>,
}

impl Task {
    async fn run(self, pace: Pace, mut random: Random) -> Vec<Asked> {
        let mut asked = Vec::new();
        let mut ticks = interval(match pace {
            Pace::Even(every) | Pace::Sticky(every, _) => every,
            Pace::Together(..) | Pace::Random(_) => Duration::from_secs(1),
        });
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.load(Ordering::Relaxed) {
            match pace {
                Pace::Even(_) => {
                    ticks.tick().await;
                    asked.extend(self.ask(&mut random).await);
                }
                Pace::Sticky(_, turn) => {
                    ticks.tick().await;
                    if self.has_turn(turn) {
                        asked.extend(self.ask(&mut random).await);
                    }
                }
                Pace::Together(every, times) => {
                    sleep(until_multiple(every)).await;
                    let costs: Vec<u64> = (0..times).map(|_| self.cost(&mut random)).collect();
                    let all = costs.iter().map(|cost| self.ask_for(*cost));
                    asked.extend(futures_util::future::join_all(all).await.into_iter().flatten());
                }
                Pace::Random(every) => {
                    let luck = (random.below(1_000_000) + 1) as f64 / 1_000_000.0;
                    sleep(every.mul_f64(-luck.ln())).await;
                    asked.extend(self.ask(&mut random).await);
                }
            }
        }
        asked
    }

    fn has_turn(&self, turn: Duration) -> bool {
        let turn = u64::try_from(turn.as_nanos()).expect("a short time");
        now_ns() / turn % REGIONS as u64 == self.place.0 as u64
    }

    fn cost(&self, random: &mut Random) -> u64 {
        let (least, most) = self.costs;
        least + random.below(most - least + 1)
    }

    async fn ask(&self, random: &mut Random) -> Option<Asked> {
        self.ask_for(self.cost(random)).await
    }

    async fn ask_for(&self, cost: u64) -> Option<Asked> {
        let (region, node) = self.place;
        match self.own.take(self.key, &self.quota, cost).await {
            Answer::Decided(is_admitted, of_store, at) => {
                self.admitted[region].fetch_add(if is_admitted { cost } else { 0 }, Ordering::Relaxed);
                let span = self.quota.span(of_store);
                Some(Asked { at, key: self.key, region, node, cost, span, is_admitted })
            }
            Answer::Failed => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(5)).await;
                None
            }
            Answer::Dead => {
                sleep(Duration::from_millis(5)).await;
                None
            }
        }
    }
}

/// Returns the time until the clock reaches the next multiple of this time.
fn until_multiple(every: Duration) -> Duration {
    let every = u64::try_from(every.as_nanos()).expect("a short time");
    Duration::from_nanos(every - now_ns() % every)
}

/// Returns the quota that each of the regions uses.
pub(crate) fn shared(builder: QuotaBuilder) -> Quota {
    let regions = u8::try_from(REGIONS).ok().and_then(Regions::new).expect("2 to 8");
    let quota = builder.build().expect("the quota is valid");
    quota.across(AcrossRegions::Shared(regions)).expect("it can be shared")
}

pub(crate) const SECRET: u64 = 7;

pub(crate) fn name(region: usize) -> String {
    format!("r{region}")
}

/// Adds up what the hashes of a Redis have seen of the servers of a region.
const SUM: &str = "local sum = 0
for _, key in ipairs(redis.call('KEYS', 'sg:*@*')) do
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == ARGV[1] then sum = sum + tonumber(all[i + 1]) end
  end
end
return sum";

/// Returns the units of the servers of a region that a Redis has charged.
pub(crate) fn charged(server: &Server, of: usize) -> u64 {
    let client = redis::Client::open(("127.0.0.1", server.port())).expect("the address is valid");
    let mut connection = client.get_connection().expect("Redis runs");
    let tag = region_tag(&name(of)).to_be_bytes();
    let sum = redis::cmd("EVAL").arg(SUM).arg(0).arg(&tag[..]).query(&mut connection);
    sum.expect("Redis adds up")
}
