//! The store: who is asked, and what becomes of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use spillgate_core::{
    Binding, Circuit, Decision, Hit, Op, OpKind, Quota, Store, StoreError, StoreHealth, Time, Timing, Verdict,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::cluster::cross_slot::{self, Decided, Refunds};
use crate::command::request::Decoded;
use crate::command::{Command, Encoder, ObservedStates};
use crate::connect::connector::Connector;
use crate::connect::endpoint::{Endpoint, Location};
use crate::connect::sentinel::Sentinels;
use crate::connect::tls::TlsClient;
use crate::connect::url::{Servers, Url};
use crate::deadline;
use crate::deny_cache::{CLUSTER_MAX_AGE, DenyCache};
use crate::error::{Error, ErrorKind};
use crate::node::Node;
use crate::node::send::NodeReply;
use crate::node::status::NodeStatus;
use crate::settings::LONGEST;
use crate::settings::Settings;

/// So long after it has sent a request elsewhere a server is one of a cluster: somebody may have mended that.
const OF_CLUSTER_FOR: Duration = Duration::from_secs(5);

/// Decides on Redis or Valkey: one server, the primary that sentinels name, or a cluster. Requests that are under way at
/// once share connections and their round trips; takes that come together, of one server, the call of their script as well.
///
/// It is made at once, with or without a server, and connects when it is first asked. Each request is answered within
/// [`Settings::timeout`]: decided, or failed. It is asked once: whether one that failed was charged,
/// [`ErrorKind::may_have_been_applied`] says. Requests need a tokio runtime with time and I/O.
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
/// let verdict = store.decide(Timing::BY_STORE, &hits, &mut decisions).await?;
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
/// * Whatever stays taken for a request that was not admitted is [counted](RedisStore::refunds_lost). A request in one
///   slot that fails in doubt, or is dropped, may have charged as well: [`ErrorKind::may_have_been_applied`] alone says that.
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
    inner: Arc<Inner>,
    timeout: Duration,
    connect_timeout: Duration,
}

/// What all clones of a store share.
struct Inner {
    topology: Topology,
    deny_cache: DenyCache,
    encoder: Encoder,
    max_in_flight: usize,
    in_flight: AtomicUsize,
    circuit_opened: Arc<Notify>,
    /// The quota of probes, whose keys last for a millisecond.
    probe: Quota,
    failures: [Failures; ErrorKind::ALL.len()],
}

/// The requests that failed with one kind of error.
#[derive(Default)]
struct Failures {
    requests: AtomicU64,
    /// The first error since it was last read.
    first: ArcSwapOption<Error>,
}

impl Failures {
    fn count(&self, error: &Error) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.first.load().is_none() {
            self.first.store(Some(Arc::new(error.clone())));
        }
    }
}

/// Who is asked.
enum Topology {
    /// One server, which may be the one that sentinels name.
    Single {
        node: Node,
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
    pub fn new(settings: &Settings) -> Result<RedisStore, Error> {
        let settings = &settings.within_bounds();
        let url = Url::parse(&settings.url)?;
        let tls = if url.is_secure { Some(TlsClient::new(&settings.tls)?) } else { None };
        let has_all_slots = !matches!(url.servers, Servers::Cluster(_));
        let connector = Connector { has_all_slots, ..Connector::new(url.user, tls, settings) };
        let circuit_opened = Arc::clone(&connector.circuit_opened);
        let single = |connector, location| Topology::Single {
            node: Node::new(Endpoint { connector: Arc::new(connector), location }, settings),
            sent_on_at: ArcSwapOption::empty(),
        };
        let topology = match url.servers {
            Servers::One(address) => single(connector, Location::Address(address)),
            Servers::Sentinels(sentinels, name) => {
                single(connector, Location::Sentinels(Sentinels::new(sentinels, name)))
            }
            Servers::Cluster(seeds) => Topology::Cluster(Arc::new(Cluster::new(connector, seeds, settings))),
        };
        let (max_age, has_one_clock) = match &topology {
            Topology::Single { .. } => (settings.deny_cache_max_age, true),
            Topology::Cluster(_) => (settings.deny_cache_max_age.min(CLUSTER_MAX_AGE), false),
        };
        let inner = Inner {
            topology,
            deny_cache: DenyCache::new(settings.deny_cache_entries, max_age, has_one_clock),
            encoder: Encoder::new(settings),
            max_in_flight: settings.max_in_flight,
            in_flight: AtomicUsize::new(0),
            circuit_opened,
            probe: probe_quota(),
            failures: Default::default(),
        };
        let (timeout, connect_timeout) = (settings.timeout, settings.connect_timeout);
        Ok(RedisStore { inner: Arc::new(inner), timeout, connect_timeout })
    }

    /// A store with the settings that are usual, once it is connected.
    ///
    /// # Errors
    /// The address is none, or the server does not answer.
    pub async fn connect(url: &str) -> Result<RedisStore, Error> {
        let store = RedisStore::new(&Settings::new(url))?;
        store.wait_connected().await?;
        Ok(store)
    }

    /// Waits until there is a connection (to each node of a cluster that has slots), [`Settings::connect_timeout`] at
    /// most.
    ///
    /// # Errors
    /// Why there is none; or that the one server is a node of a cluster, if it has sent a request elsewhere just now.
    pub async fn wait_connected(&self) -> Result<(), Error> {
        let deadline = Instant::now() + self.connect_timeout;
        match &self.inner.topology {
            Topology::Single { sent_on_at, .. }
                if sent_on_at.load().as_ref().is_some_and(|at| at.elapsed() < OF_CLUSTER_FOR) =>
            {
                Err(one_of_cluster())
            }
            Topology::Single { node, .. } => node.wait_connected(deadline).await,
            Topology::Cluster(cluster) => cluster.wait_connected(deadline).await,
        }
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
    ) -> Result<Verdict, Error> {
        let decided = self.decide_or_repeat(timeout, now, hits, decisions).await;
        if let Err(error) = &decided {
            self.inner.failures[error.kind as usize].count(error);
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
    ) -> Result<Verdict, Error> {
        if hits.len() != decisions.len() {
            return Err(Error::new(ErrorKind::Malformed, "as many decisions as hits"));
        }
        let sent = Instant::now();
        let deny_cache = &self.inner.deny_cache;
        // Of times that a test passes its clock knows nothing.
        let known = if now.is_none() { deny_cache.refuse(hits, decisions, sent) } else { None };
        if let Some(verdict) = known {
            return Ok(verdict);
        }
        let mut guard = deny_cache.guard(hits, sent);
        let place = InFlight::take(&self.inner)
            .ok_or_else(|| Error::new(ErrorKind::Overloaded, "too many requests in flight"))?;
        let (verdict, seen) = self.decide_admitted(timeout, now, hits, decisions, place).await?;
        if now.is_none() && !verdict.allowed {
            guard.learn(decisions, seen);
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
        place: InFlight,
    ) -> Result<(Verdict, Vec<ObservedStates>), Error> {
        let timeout = timeout.min(LONGEST);
        let deadline = deadline::after(timeout);
        match &self.inner.topology {
            Topology::Cluster(cluster) if !cross_slot::is_in_one_slot(hits) => {
                let Inner { encoder, deny_cache, .. } = &*self.inner;
                let decided = cross_slot::decide(cluster, encoder, deny_cache, now, hits, decisions, deadline).await?;
                let Decided { verdict, refunds, seen } = decided;
                if !refunds.is_empty() {
                    // It goes on if nobody waits for it any more, and keeps the request's place.
                    let given_back = tokio::spawn(place.refunds(Arc::clone(cluster), refunds, deadline + timeout));
                    let _ = deadline::wait_until(deadline, given_back).await;
                }
                Ok((verdict?, seen))
            }
            topology => {
                let mut call = self.inner.encoder.encode(now, hits)?;
                // The general script is not asked again.
                loop {
                    let reply = topology.send(&call, deadline).await.map_err(|error| call.name_keys(error))?;
                    let answer = call.decode(&reply, decisions).map_err(|error| call.name_keys(error.into()))?;
                    if let Decoded::Verdict(verdict) = answer {
                        let is_refused = !verdict.allowed && self.inner.deny_cache.is_on();
                        let seen = if is_refused { call.observed(&reply, Instant::now()) } else { None };
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
        match &self.inner.topology {
            Topology::Single { node, .. } => node.circuit(),
            Topology::Cluster(cluster) => cluster.circuit(),
        }
    }

    /// Whether nobody serves, so that requests fail without being asked, apart from those that try whether it still is so.
    #[must_use]
    pub fn is_down(&self) -> bool {
        match &self.inner.topology {
            Topology::Single { node, .. } => node.circuit() != Circuit::Closed,
            Topology::Cluster(cluster) => cluster.circuit() == Circuit::Open,
        }
    }

    /// Waits until the circuit of a server has opened, if none has since this was waited for last: for the one task that looks
    /// after the store.
    pub async fn circuit_opened(&self) {
        self.inner.circuit_opened.notified().await;
    }

    /// Why the server does not serve, if so: the last attempt to connect failed, or what opened the circuit. Of a cluster,
    /// why one of its nodes does not, and which.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        match &self.inner.topology {
            Topology::Single { node, .. } => node.last_error(),
            Topology::Cluster(cluster) => cluster.last_error(),
        }
    }

    /// The servers that are known now. It allocates: for those who look into a store, not for each request.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        match &self.inner.topology {
            Topology::Single { node, .. } => vec![node.node()],
            Topology::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Requests that wait for their answers.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.inner.in_flight.load(Ordering::Relaxed)
    }

    /// Requests that were refused without asking the server, since a refusal of its was still true.
    #[must_use]
    pub fn denied_by_cache(&self) -> u64 {
        self.inner.deny_cache.refusals()
    }

    /// Requests that failed with this kind of error. Probes are not among them.
    #[must_use]
    pub fn failures(&self, kind: ErrorKind) -> u64 {
        self.inner.failures[kind as usize].requests.load(Ordering::Relaxed)
    }

    /// The first error of this kind since the last call, for the log. Probes are not among them.
    #[must_use]
    pub fn take_first_error(&self, kind: ErrorKind) -> Option<Error> {
        self.inner.failures[kind as usize].first.swap(None).map(|error| Error::clone(&error))
    }

    /// How long a request waits if its caller sets no timeout.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes a unit from a key that no request uses, to find out whether the store decides. Each `number` is in another slot.
    ///
    /// All servers of a fleet probe the same keys. So a refusal is a good answer too.
    ///
    /// # Errors
    /// The store does not decide.
    pub async fn probe(&self, number: u32, timeout: Duration) -> Result<Verdict, Error> {
        let key = u128::from(number) << Hit::SLOT_SHIFT;
        let hits = [Hit::new(key, &self.inner.probe, Op::take(1), Binding::Enforce)];
        self.decide_or_repeat(timeout.min(self.timeout), None, &hits, &mut [Decision::default()]).await
    }

    /// The health of the store now. It allocates, so it is for metrics and readiness and not for each request.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        let nodes = self.nodes();
        let mut health = StoreHealth::new(self.circuit());
        health.is_down = self.is_down();
        health.error = self.last_error().map(StoreError::from);
        health.nodes = nodes.len();
        health.nodes_connected = nodes.iter().filter(|node| node.is_connected).count();
        health.in_flight = self.in_flight();
        health.failures = ErrorKind::ALL.map(|kind| (kind, self.failures(kind))).to_vec();
        health.refunds_lost = self.refunds_lost();
        health
    }

    /// How often a slot of a cluster may have kept what it took for a request in several slots that was not admitted: it did
    /// not answer, it did not give back in time, or the caller did not wait for the verdict. What refusals charge without
    /// [scripts](Settings::scripts) is not among it.
    #[must_use]
    pub fn refunds_lost(&self) -> u64 {
        match &self.inner.topology {
            Topology::Single { .. } => 0,
            Topology::Cluster(cluster) => cluster.refunds_lost.load(Ordering::Relaxed),
        }
    }
}

impl Topology {
    async fn send(&self, call: &Command<'_, '_, '_>, deadline: Instant) -> Result<Vec<u8>, Error> {
        match self {
            Topology::Cluster(cluster) => cluster.send(call, deadline).await,
            Topology::Single { node, sent_on_at } => match node.send(call, false, deadline).await? {
                NodeReply::Bytes(reply) => Ok(reply),
                NodeReply::Elsewhere(_) => {
                    sent_on_at.store(Some(Arc::new(Instant::now())));
                    Err(one_of_cluster())
                }
            },
        }
    }
}

fn probe_quota() -> Quota {
    let quota = Quota::fixed_window(1, Duration::from_millis(1)).build();
    quota.expect("invariant: a millisecond is a valid window")
}

fn one_of_cluster() -> Error {
    Error::new(ErrorKind::Moved, "the server is one of a cluster, whose URL begins with redis-cluster://")
}

/// A place among the requests in flight.
struct InFlight(Arc<Inner>);

impl InFlight {
    fn take(inner: &Arc<Inner>) -> Option<InFlight> {
        let place = InFlight(Arc::clone(inner));
        let taken = inner.in_flight.fetch_add(1, Ordering::Relaxed);
        (taken < inner.max_in_flight).then_some(place)
    }

    async fn refunds(self, cluster: Arc<Cluster>, refunds: Refunds, deadline: Instant) {
        let lost = refunds.run(&cluster, &self.0.encoder, &self.0.deny_cache, deadline).await;
        cluster.refunds_lost.fetch_add(lost, Ordering::Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Store for RedisStore {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.inner.encoder.support(quota, op)
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
        let timeout = timing.timeout.unwrap_or(self.timeout);
        Ok(self.decide_within(timeout, timing.now, hits, decisions).await?)
    }
}
