//! Regions with two servers each. Every server reaches the stores of the other regions through a proxy that delays replies.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillgate::regions::{Options, Peers, RegionStore};
use spillgate::{Clock, SystemClock};
use spillgate_core::{
    AcrossRegions, Binding, Charge, Charged, ChargedStore, Decision, Hit, Op, Quota, QuotaBuilder, Regions, Span,
    Store, StoreError, Time, Timing,
};
use spillgate_redis::RedisStore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::common::{PATIENCE, until, with_long_timeouts};
use crate::support::server::Server;
use crate::transport::proxy::{Delay, delayed};

pub(crate) const NODES: u32 = 2;

/// The units that a request of a region takes, by the number of the request.
pub(crate) type Cost = fn(usize, u64) -> u64;
/// How long a task of a region waits after a refusal.
pub(crate) type Pause = fn(usize) -> Duration;

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The time in the receipt, or for a refusal that of the verdict, in nanoseconds.
    pub(crate) at: u64,
    pub(crate) region: usize,
    node: usize,
    pub(crate) cost: u64,
    span: Span,
    pub(crate) is_admitted: bool,
}

/// Returns the requests that were admitted.
pub(crate) fn admitted(asked: &[Asked]) -> Vec<Asked> {
    asked.iter().filter(|one| one.is_admitted).copied().collect()
}

/// Returns the requests that a bucket of each region alone would have admitted, with this time between two units.
pub(crate) fn admitted_alone(asked: &[Asked], burst: u64, interval_ns: u64) -> Vec<Asked> {
    let mut paid_at: HashMap<usize, u64> = HashMap::new();
    let fits = |one: &&Asked| {
        let paid_at = paid_at.entry(one.region).or_default();
        let debt = paid_at.saturating_sub(one.at);
        let fits = one.cost <= burst && debt <= (burst - one.cost) * interval_ns;
        if fits {
            *paid_at = one.at + debt + one.cost * interval_ns;
        }
        fits
    };
    asked.iter().filter(fits).copied().collect()
}

/// A total that a region has acknowledged: when, and to whom it was told.
struct Acknowledged {
    at: u64,
    peer: usize,
    span: Span,
    total: u64,
}

/// The store of another region, with a note of each total that it has acknowledged.
#[derive(Clone)]
struct Watched {
    store: RedisStore,
    peer: usize,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
    /// A region that is cut off answers nothing.
    is_cut: Arc<AtomicBool>,
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
        if self.is_cut.load(Ordering::Relaxed) {
            sleep(within).await;
        }
        self.store.charge(within, charges, results).await?;
        let at = now_ns();
        let known = charges.iter().zip(results).filter(|(_, result)| **result != Charged::NotBegun);
        let noted =
            known.map(|(charge, _)| Acknowledged { at, peer: self.peer, span: charge.span, total: charge.total });
        self.acknowledged.lock().expect("no test panics").extend(noted);
        Ok(())
    }

    async fn about(&self, within: Duration) -> Result<Option<String>, StoreError> {
        self.store.about(within).await
    }
}

pub(crate) struct Node {
    pub(crate) store: RegionStore<RedisStore>,
    pub(crate) peers: Arc<Peers>,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
}

impl Node {
    /// Takes units. Returns whether they were admitted, and when.
    pub(crate) async fn take(&self, key: u128, quota: &Quota, cost: u64) -> (bool, Time) {
        let hits = [Hit::new(key, quota, Op::take(cost), Binding::Enforce)];
        let mut decisions = [Decision::default()];
        let verdict = self.store.decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut decisions).await;
        let verdict = verdict.expect("Redis answers");
        (verdict.allowed, decisions[0].receipt.map_or(verdict.now, |receipt| receipt.at))
    }
}

pub(crate) struct Fleet {
    _servers: Vec<Server>,
    /// The nodes of each region.
    pub(crate) nodes: Vec<Vec<Arc<Node>>>,
    is_cut: Vec<Arc<AtomicBool>>,
}

impl Fleet {
    /// Starts regions whose stores answer each other after `round_trip`.
    pub(crate) async fn start(regions: usize, round_trip: Duration) -> Fleet {
        let servers: Vec<Server> = (0..regions).map(|_| Server::start()).collect();
        let is_cut: Vec<_> = (0..regions).map(|_| Arc::new(AtomicBool::new(false))).collect();
        let mut nodes = Vec::new();
        for region in 0..regions {
            let mut own = Vec::new();
            for _ in 0..NODES {
                let acknowledged = Arc::new(Mutex::new(Vec::new()));
                let mut peers = Vec::new();
                for peer in (0..regions).filter(|peer| *peer != region) {
                    let port = delayed(servers[peer].port(), Delay::of(round_trip), 1).await;
                    let store = RedisStore::new(&with_long_timeouts(&format!("redis://127.0.0.1:{port}/")));
                    let store = store.expect("the URL is valid");
                    let (acknowledged, is_cut) = (Arc::clone(&acknowledged), Arc::clone(&is_cut[peer]));
                    peers.push((format!("r{peer}"), Watched { store, peer, acknowledged, is_cut }));
                }
                let options = Options {
                    region: format!("r{region}"),
                    nodes: NonZeroU32::new(NODES).expect("not 0"),
                    max_keys: 1024,
                    sync: Duration::from_millis(20),
                    secret: 7,
                };
                let peers = Arc::new(Peers::start(&options, peers));
                let store = RedisStore::new(&with_long_timeouts(&servers[region].url())).expect("the URL is valid");
                store.wait_connected().await.expect("Redis runs");
                let store = RegionStore::new(store, Arc::clone(&peers), PATIENCE);
                own.push(Arc::new(Node { store, peers, acknowledged }));
            }
            nodes.push(own);
        }
        let fleet = Fleet { _servers: servers, nodes, is_cut };
        let all = || fleet.nodes.iter().flatten();
        until("all regions are compared", || all().all(|node| node.peers.status().iter().all(|peer| peer.is_compared)))
            .await;
        fleet
    }

    /// Cuts a region off, or connects it again: its store answers no other region.
    pub(crate) fn cut(&self, region: usize, is_cut: bool) {
        self.is_cut[region].store(is_cut, Ordering::Relaxed);
    }

    /// Has no region told anything: the mutation that each bound has to catch.
    pub(crate) fn tell_nothing(&self) {
        for node in self.nodes.iter().flatten() {
            for region in 0..self.nodes.len() {
                node.peers.pause(&format!("r{region}"));
            }
        }
    }

    /// Has each region take units of one key in tasks until the end: each task waits for the time that `pause` returns
    /// after a refusal, and takes units of the cost that `cost` returns. Returns all requests, by time.
    pub(crate) async fn load(
        &self,
        key: u128,
        quotas: &[Quota],
        time: Duration,
        tasks: usize,
        (cost, pause): (Cost, Pause),
    ) -> Vec<Asked> {
        let (ends_at, mut running) = (Instant::now() + time, JoinSet::new());
        for (region, quota) in quotas.iter().enumerate() {
            for task in 0..tasks {
                let node = task % self.nodes[region].len();
                let (own, quota) = (Arc::clone(&self.nodes[region][node]), quota.clone());
                running.spawn(async move {
                    let (mut asked, mut request) = (Vec::new(), task as u64);
                    while Instant::now() < ends_at {
                        request += tasks as u64;
                        let cost = cost(region, request);
                        let (is_admitted, at) = own.take(key, &quota, cost).await;
                        let span = quota.span(at);
                        asked.push(Asked { at: at.as_nanos(), region, node, cost, span, is_admitted });
                        if !is_admitted {
                            sleep(pause(region)).await;
                        }
                    }
                    asked
                });
            }
        }
        let mut all: Vec<Asked> = running.join_all().await.into_iter().flatten().collect();
        all.sort_by_key(|one| one.at);
        all
    }

    /// Has each region ask for one unit after another, with this time between two of them.
    pub(crate) async fn load_evenly(&self, key: u128, quotas: &[Quota], time: Duration, every: Duration) -> Vec<Asked> {
        let (ends_at, mut running) = (Instant::now() + time, JoinSet::new());
        for (region, quota) in quotas.iter().enumerate() {
            for (node, own) in self.nodes[region].iter().enumerate() {
                let (own, quota) = (Arc::clone(own), quota.clone());
                running.spawn(async move {
                    let mut asked = Vec::new();
                    while Instant::now() < ends_at {
                        let (is_admitted, at) = own.take(key, &quota, 1).await;
                        let span = quota.span(at);
                        asked.push(Asked { at: at.as_nanos(), region, node, cost: 1, span, is_admitted });
                        sleep(every).await;
                    }
                    asked
                });
            }
        }
        let mut all: Vec<Asked> = running.join_all().await.into_iter().flatten().collect();
        all.sort_by_key(|one| one.at);
        all
    }

    /// Waits until every unit has been told that has to be, and returns the longest time from an admission until another
    /// region had charged it. Of each state and span, a server may keep the last `rest` units.
    pub(crate) async fn longest_delay(&self, admitted: &[Asked], rest: u64) -> Duration {
        let mut longest = 0;
        for (region, nodes) in self.nodes.iter().enumerate() {
            for (number, node) in nodes.iter().enumerate() {
                let mut totals: HashMap<Span, Vec<(u64, u64)>> = HashMap::new();
                for admitted in admitted.iter().filter(|one| (one.region, one.node) == (region, number)) {
                    let units = totals.entry(admitted.span).or_default();
                    let before = units.last().map_or(0, |(total, _)| *total);
                    units.push((before + admitted.cost, admitted.at));
                }
                for (span, units) in &totals {
                    let last = units.last().map_or(0, |(total, _)| *total);
                    for peer in (0..self.nodes.len()).filter(|peer| *peer != region) {
                        for (total, at) in units.iter().filter(|(total, _)| *total + rest <= last) {
                            let told = || {
                                let acknowledged = node.acknowledged.lock().expect("no test panics");
                                let own = acknowledged.iter().filter(|one| (one.peer, one.span) == (peer, *span));
                                own.filter(|one| one.total >= *total).map(|one| one.at).min()
                            };
                            until("the unit is told", || told().is_some()).await;
                            longest = longest.max(told().unwrap_or(0).saturating_sub(*at));
                        }
                    }
                }
            }
        }
        Duration::from_nanos(longest)
    }
}

/// Returns the quota that each of so many regions uses.
pub(crate) fn shared(builder: QuotaBuilder, regions: usize) -> Quota {
    let regions = u8::try_from(regions).ok().and_then(Regions::new).expect("2 to 8");
    let quota = builder.build().expect("the quota is valid");
    quota.across(AcrossRegions::Shared(regions)).expect("it can be shared")
}

/// Returns the most units that one region admitted within `time`.
pub(crate) fn most_within(admitted: &[Asked], region: usize, time: Duration) -> u64 {
    let own: Vec<&Asked> = admitted.iter().filter(|one| one.region == region).collect();
    let time_ns = u64::try_from(time.as_nanos()).expect("a short time");
    let (mut first, mut units, mut most) = (0, 0, 0);
    for one in &own {
        units += one.cost;
        while own[first].at + time_ns < one.at {
            units -= own[first].cost;
            first += 1;
        }
        most = most.max(units);
    }
    most
}

fn now_ns() -> u64 {
    SystemClock::start().now().as_nanos()
}
