//! The store: who is asked, and what becomes of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use spillgate_core::{Decision, Hit, OpKind, Quota, Store, StoreError, Time, Verdict};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::cluster::cross_slot::{self, Decided, GiveBack};
use crate::command::request::Answer;
use crate::command::{Call, Forms, Seen};
use crate::connect::connector::Access;
use crate::connect::endpoint::{Location, Target};
use crate::connect::sentinel::Sentinels;
use crate::connect::tls::Secure;
use crate::connect::url::{Servers, Url};
use crate::deadline;
use crate::deny_cache::{CLUSTER_MAX_AGE, DenyCache};
use crate::error::{Failed, Failure};
use crate::node::Server;
use crate::node::breaker::Circuit;
use crate::node::send::Reply;
use crate::node::status::NodeStatus;
use crate::settings::LONGEST;
use crate::settings::{FixedWindow, Settings};

/// So long after it has sent a request elsewhere a server is one of a cluster: somebody may have mended that.
const OF_CLUSTER_FOR: Duration = Duration::from_secs(5);

/// Decides on Redis or Valkey: one server, the primary that sentinels name, or a cluster. Requests that are under way at
/// once share connections and their round trips; takes that come together, of one server, the call of their script as well.
///
/// It is made at once, with or without a server, and connects when it is first asked. Each request is answered within
/// [`Settings::timeout`]: decided, or failed. It is asked once: whether one that failed was charged,
/// [`Failure::is_in_doubt`] says. Requests need a tokio runtime with time and I/O.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store};
/// use spillgate_redis::RedisStore;
///
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// let quota = Quota::per_second(10).build()?;
/// let mut decisions = [Decision::default()];
/// let hits = [Hit::new(7, &quota, Op::take(4), Binding::Enforce)];
/// let verdict = store.decide(None, &hits, &mut decisions).await?;
/// assert!(verdict.allowed);
/// # Ok(())
/// # }
/// ```
///
/// # A request in several slots of a cluster
///
/// Each slot is asked by a script of its own, all at once, and the verdict is formed over all. Decisions and verdict are
/// those of the kernel; but not in one atomic step:
///
/// * If the request is refused, what slots took that did not know of it is given back by receipt, before the answer if the
///   deadline allows. Until then it may refuse somebody else. By twice the timeout, on the slot's own clock, it has been
///   given back or never is: a slot that reads it later does nothing, and the units come back as their algorithm says.
///   Windows, logs, counters and leases are never exceeded by it, whenever it comes; a bucket's take, given back d later,
///   widens its bound to that of s + d, so d is at most twice the timeout. A bucket whose debt was of another quota's T
///   keeps the T of the take that was given back.
/// * If a slot fails, the request fails once all have answered or the deadline has come, and what others took is given
///   back in the same way: whoever then lets the request pass counts it in a place of its own. A slot whose node is known
///   not to serve is asked before the others, and they are not asked at all if it fails. So an outage costs live slots
///   nothing, except what is under way when it begins.
/// * If the caller drops the request before its verdict, what has been written is done, and nothing is given back.
/// * Whatever stays taken for a request that was not admitted is [counted](RedisStore::give_backs_lost). A request in one
///   slot that fails in doubt, or is dropped, may have charged as well: [`Failure::is_in_doubt`] alone says that.
/// * Without [scripts](Settings::scripts) nothing is given back: what slots charge for a request that another one refuses
///   stays charged, as it would in one slot, and is not counted.
/// * A lease is renewed though another slot refuses the request.
///
/// # Failover
///
/// A replica takes over with what had reached it. The takes that had not are forgotten, and a limit is exceeded by that
/// many at most:
///
/// * of a primary that died, or was handed over by `SENTINEL FAILOVER`, those of its last replication lag;
/// * of a primary that is cut off from the others and lives, also all that it admits to those who still reach it. A
///   cluster's primary goes on for `cluster-node-timeout` at most; one of sentinels as long as the cut lasts, or for
///   `min-replicas-max-lag` where it has `min-replicas-to-write`. Meanwhile the two sides may each admit the limit.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
    timeout: Duration,
    connect_timeout: Duration,
}

/// What all clones of a store share.
struct Shared {
    topology: Topology,
    deny_cache: DenyCache,
    forms: Forms,
    max_in_flight: usize,
    in_flight: AtomicUsize,
    circuit_opened: Arc<Notify>,
    failures: [AtomicU64; Failure::ALL.len()],
}

/// Who is asked.
enum Topology {
    /// One server, which may be the one that sentinels name.
    Server {
        server: Server,
        /// When it said last that it is one of several.
        sent_on_at: ArcSwapOption<Instant>,
    },
    Cluster(Arc<Cluster>),
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_flight = self.in_flight();
        f.debug_struct("RedisStore").field("circuit", &self.circuit()).field("in_flight", &in_flight).finish()
    }
}

impl RedisStore {
    /// A store that is not connected yet. What it asks, [`Settings::url`] says.
    ///
    /// # Errors
    /// The address or a certificate is none.
    pub fn new(settings: &Settings) -> Result<RedisStore, Failed> {
        let settings = &settings.within_bounds();
        let url = Url::parse(&settings.url)?;
        let tls = if url.is_secure { Some(Secure::new(&settings.tls)?) } else { None };
        let has_all_slots = !matches!(url.servers, Servers::Cluster(_));
        let access = Access { has_all_slots, ..Access::new(url.user, tls, settings) };
        let circuit_opened = Arc::clone(&access.circuit_opened);
        let server = |access, location| Topology::Server {
            server: Server::new(Target { access: Arc::new(access), location }, settings),
            sent_on_at: ArcSwapOption::empty(),
        };
        let topology = match url.servers {
            Servers::One(address) => server(access, Location::At(address)),
            Servers::Sentinels(sentinels, name) => server(access, Location::ToldBy(Sentinels::new(sentinels, name))),
            Servers::Cluster(seeds) => Topology::Cluster(Arc::new(Cluster::new(access, seeds, settings))),
        };
        let (max_age, has_one_clock) = match &topology {
            Topology::Server { .. } => (settings.deny_cache_max_age, true),
            Topology::Cluster(_) => (settings.deny_cache_max_age.min(CLUSTER_MAX_AGE), false),
        };
        let shared = Shared {
            topology,
            deny_cache: DenyCache::new(settings.deny_cache_entries, max_age, has_one_clock),
            forms: Forms::new(settings),
            max_in_flight: settings.max_in_flight,
            in_flight: AtomicUsize::new(0),
            circuit_opened,
            failures: Default::default(),
        };
        let (timeout, connect_timeout) = (settings.timeout, settings.connect_timeout);
        Ok(RedisStore { shared: Arc::new(shared), timeout, connect_timeout })
    }

    /// A store with the settings that are usual, once it is connected.
    ///
    /// # Errors
    /// The address is none, or the server does not answer.
    pub async fn connect(url: &str) -> Result<RedisStore, Failed> {
        let store = RedisStore::new(&Settings::new(url))?;
        store.connected().await?;
        Ok(store)
    }

    /// Waits until there is a connection (to each node of a cluster that has slots), [`Settings::connect_timeout`] at
    /// most.
    ///
    /// # Errors
    /// Why there is none; or that the one server is a node of a cluster, if it has sent a request elsewhere just now.
    pub async fn connected(&self) -> Result<(), Failed> {
        let deadline = Instant::now() + self.connect_timeout;
        match &self.shared.topology {
            Topology::Server { sent_on_at, .. }
                if sent_on_at.load().as_ref().is_some_and(|at| at.elapsed() < OF_CLUSTER_FOR) =>
            {
                Err(one_of_cluster())
            }
            Topology::Server { server, .. } => server.connected(deadline).await,
            Topology::Cluster(cluster) => cluster.connected(deadline).await,
        }
    }

    /// This store, with a time of the caller's own for each request.
    ///
    /// ```no_run
    /// # async fn example(store: &spillgate_redis::RedisStore) -> Result<(), spillgate_core::StoreError> {
    /// use std::time::Duration;
    /// use spillgate_core::Store;
    ///
    /// store.within(Duration::from_millis(3)).decide(None, &[], &mut []).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn within(&self, timeout: Duration) -> impl Store {
        Within { store: self, timeout }
    }

    /// Like [`Store::decide`], within a time of the caller's own (of a day at most), and with the class of what failed.
    ///
    /// # Errors
    /// There is no decision.
    pub async fn decide_within(
        &self,
        timeout: Duration,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, Failed> {
        let decided = self.decide_or_repeat(timeout, now, hits, decisions).await;
        if let Err(failed) = &decided {
            self.shared.failures[failed.class as usize].fetch_add(1, Ordering::Relaxed);
        }
        decided
    }

    /// The store's decision, or the refusal that it would repeat.
    async fn decide_or_repeat(
        &self,
        timeout: Duration,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, Failed> {
        if hits.len() != decisions.len() {
            return Err(Failed::new(Failure::Malformed, "as many decisions as hits"));
        }
        let sent = Instant::now();
        let deny_cache = &self.shared.deny_cache;
        // Of times that a test passes its clock knows nothing.
        let known = if now.is_none() { deny_cache.answer(hits, decisions, sent) } else { None };
        if let Some(verdict) = known {
            return Ok(verdict);
        }
        let mut question = deny_cache.question(hits, sent);
        let place =
            Place::take(&self.shared).ok_or_else(|| Failed::new(Failure::Overloaded, "too many requests in flight"))?;
        let (verdict, seen) = self.decide_admitted(timeout, now, hits, decisions, place).await?;
        if now.is_none() && !verdict.allowed {
            question.learn(decisions, seen);
        }
        Ok(verdict)
    }

    /// The verdict; and if it is a refusal, the states that refuse.
    async fn decide_admitted(
        &self,
        timeout: Duration,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
        place: Place,
    ) -> Result<(Verdict, Vec<Seen>), Failed> {
        let timeout = timeout.min(LONGEST);
        let deadline = deadline::of(timeout);
        match &self.shared.topology {
            Topology::Cluster(cluster) if !cross_slot::is_one(hits) => {
                let Shared { forms, deny_cache, .. } = &*self.shared;
                let decided = cross_slot::decide(cluster, forms, deny_cache, now, hits, decisions, deadline).await?;
                let Decided { verdict, give_back, seen } = decided;
                if !give_back.is_empty() {
                    // It goes on if nobody waits for it any more, and keeps the request's place.
                    let given_back = tokio::spawn(place.give_back(Arc::clone(cluster), give_back, deadline + timeout));
                    let _ = deadline::by(deadline, given_back).await;
                }
                Ok((verdict?, seen))
            }
            topology => {
                let mut call = self.shared.forms.call(now, hits)?;
                // The general script is not asked again.
                loop {
                    let reply = topology.ask(&call, deadline).await.map_err(|failed| call.failed(failed))?;
                    let answer = call.answer(&reply, decisions).map_err(|error| call.failed(error.into()))?;
                    if let Answer::Verdict(verdict) = answer {
                        let is_refused = !verdict.allowed && self.shared.deny_cache.is_on();
                        let seen = if is_refused { call.seen(&reply, Instant::now()) } else { None };
                        return Ok((verdict, seen.into_iter().collect()));
                    }
                }
            }
        }
    }

    /// What becomes of requests now. A cluster's circuit is half open while some of its nodes that have slots serve and
    /// others do not, so that requests pass or fail by their slots; it is open when all of them do not serve.
    #[must_use]
    pub fn circuit(&self) -> Circuit {
        match &self.shared.topology {
            Topology::Server { server, .. } => server.circuit(),
            Topology::Cluster(cluster) => cluster.circuit(),
        }
    }

    /// Whether nobody serves, so that requests fail without being asked, apart from those that try whether it still is so.
    #[must_use]
    pub fn is_down(&self) -> bool {
        match &self.shared.topology {
            Topology::Server { server, .. } => server.circuit() != Circuit::Closed,
            Topology::Cluster(cluster) => cluster.circuit() == Circuit::Open,
        }
    }

    /// Waits until the circuit of a server has opened, if none has since this was waited for last: for the one task that looks
    /// after the store.
    pub async fn circuit_opened(&self) {
        self.shared.circuit_opened.notified().await;
    }

    /// Why the server does not serve, if so: the last attempt to connect failed, or what opened the circuit. Of a cluster,
    /// why one of its nodes does not, and which.
    #[must_use]
    pub fn trouble(&self) -> Option<Failed> {
        match &self.shared.topology {
            Topology::Server { server, .. } => server.trouble(),
            Topology::Cluster(cluster) => cluster.trouble(),
        }
    }

    /// The servers that are known now. It allocates: for those who look into a store, not for each request.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        match &self.shared.topology {
            Topology::Server { server, .. } => vec![server.node()],
            Topology::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Requests that wait for their answers.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Requests that were refused without asking the server, since a refusal of its was still true.
    #[must_use]
    pub fn denied_by_cache(&self) -> u64 {
        self.shared.deny_cache.answered()
    }

    /// How fixed windows are taken from: as [`Settings::fixed_window`] says, until a server has no INCREX.
    #[must_use]
    pub fn fixed_window(&self) -> FixedWindow {
        self.shared.forms.fixed_window()
    }

    /// Requests that failed so.
    #[must_use]
    pub fn failures(&self, class: Failure) -> u64 {
        self.shared.failures[class as usize].load(Ordering::Relaxed)
    }

    /// How often a slot of a cluster may have kept what it took for a request in several slots that was not admitted: it did
    /// not answer, it did not give back in time, or the caller did not wait for the verdict. What refusals charge without
    /// [scripts](Settings::scripts) is not among it.
    #[must_use]
    pub fn give_backs_lost(&self) -> u64 {
        match &self.shared.topology {
            Topology::Server { .. } => 0,
            Topology::Cluster(cluster) => cluster.give_backs_lost.load(Ordering::Relaxed),
        }
    }
}

impl Topology {
    async fn ask(&self, call: &Call<'_, '_, '_>, deadline: Instant) -> Result<Vec<u8>, Failed> {
        match self {
            Topology::Cluster(cluster) => cluster.ask(call, deadline).await,
            Topology::Server { server, sent_on_at } => match server.ask(call, false, deadline).await? {
                Reply::Bytes(reply) => Ok(reply),
                Reply::Elsewhere(_) => {
                    sent_on_at.store(Some(Arc::new(Instant::now())));
                    Err(one_of_cluster())
                }
            },
        }
    }
}

fn one_of_cluster() -> Failed {
    Failed::new(Failure::Moved, "the server is one of a cluster, whose URL begins with redis-cluster://")
}

/// A place among the requests in flight.
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Option<Place> {
        let place = Place(Arc::clone(shared));
        let taken = shared.in_flight.fetch_add(1, Ordering::Relaxed);
        (taken < shared.max_in_flight).then_some(place)
    }

    async fn give_back(self, cluster: Arc<Cluster>, give_back: GiveBack, deadline: Instant) {
        let lost = give_back.run(&cluster, &self.0.forms, &self.0.deny_cache, deadline).await;
        cluster.give_backs_lost.fetch_add(lost, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Store for RedisStore {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.shared.forms.support(quota, op)
    }

    fn has_clock(&self) -> bool {
        true
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        Ok(self.decide_within(self.timeout, now, hits, decisions).await?)
    }
}

/// A store whose requests have another time than its settings say.
struct Within<'s> {
    store: &'s RedisStore,
    timeout: Duration,
}

impl Store for Within<'_> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.store.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        self.store.has_clock()
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        Ok(self.store.decide_within(self.timeout, now, hits, decisions).await?)
    }
}
