//! The store: sends each request to the right server, and reads the decision from the reply.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::try_join_all;
use spillgate_core::{
    Binding, Circuit, Decision, Hit, Op, OpKind, Quota, Store, StoreError, StoreErrorKind, StoreHealth, Time, Timing,
    Verdict,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::cluster::cross_slot::{self, Decided};
use crate::command::plain::{self, PlainCommands, PlainReply};
use crate::command::request;
use crate::command::{Command, Encoder, ObservedStates};
use crate::connect::connector::Connector;
use crate::connect::endpoint::{Endpoint, Location};
use crate::connect::sentinel::Sentinels;
use crate::connect::tls::TlsClient;
use crate::connect::url::{Servers, Url};
use crate::connection::reply::{Caller, ReplySlot};
use crate::connection::{CallCounters, Connection};
use crate::deadline;
use crate::deny_cache::{CLUSTER_MAX_AGE, DenyCache};
use crate::error::Error;
use crate::failures::Failures;
use crate::give_back::{GiveBack, Pending, Unclaimed};
use crate::new_keys::{self, NewKeys};
use crate::node::send::NodeReply;
use crate::node::status::NodeStatus;
use crate::node::{Node, probe_quota};
use crate::settings::LONGEST;
use crate::settings::Settings;

/// After a MOVED or ASK reply, the store treats the Redis server as a node of a cluster for this long. Then the store
/// checks again, because another server may be at the address now.
const CLUSTER_NODE_FOR: Duration = Duration::from_secs(5);

/// Decides on Redis or Valkey: one Redis server, the primary that sentinels name, or a cluster.
///
/// Requests that are in flight at the same time share connections and round trips. Takes that are sent to one Redis
/// server at the same time can also share one call of their script.
///
/// Creating a store does not connect it, so no Redis has to run yet. The store connects when it is first used. Each
/// request is sent once, and is decided, or fails, within [`Settings::timeout`]. After a failure,
/// [`StoreErrorKind::may_have_been_applied`] says whether the request may have been charged. Requests need a tokio
/// runtime with time and I/O.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store, Timing};
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
/// Each slot decides its part of the request by a script call of its own. Unless a node is known to be down, all parts
/// are sent at the same time. The verdict is computed from all replies. Decisions and verdict are those of the kernel,
/// but they are not made in one atomic step:
///
/// * If the request is refused, the slots that took units are asked to refund them, by receipt. If the deadline allows,
///   the refunds come before the answer. Until they come, these units can cause the refusal of another request.
/// * A slot executes a refund only until `d` after it took the units, by its own clock, where `d` is twice the sum of
///   [`timeout`](Settings::timeout) and [`connect_timeout`](Settings::connect_timeout). A later refund has no effect. In
///   that case the units become free with time, as the algorithm of the quota says.
/// * A late refund never lets a window, log, counter or lease exceed its limit. A bucket can admit more after a late
///   refund: the bound for any time `s` becomes the bound for `s + d`.
/// * Several quotas can share a bucket, which stores `T`, the time in which one unit drains, of only one of them. If
///   the take changed this `T`, the refund does not change it back.
/// * If a slot fails, the request fails as soon as all slots have replied or the deadline has come. The caller
///   may then let another store decide the request. So the units that the other slots took are refunded as above.
/// * If a slot's node is known to be down, that slot is asked first. If the slot fails, the others are not asked. So an
///   outage costs the slots of live nodes only the units of requests that are in flight when the outage begins.
/// * Without [scripts](Settings::scripts) nothing is refunded. If one slot refuses the request, the units that the
///   other slots charged stay charged. A refused request in one slot stays charged as well.
///   [`refunds_lost`](RedisStore::refunds_lost) does not count these units.
/// * A lease is renewed, and an estimate is settled, even if another slot refuses the request.
///
/// # Replies that nobody waits for
///
/// A command that is written is executed, even if its reply comes after the deadline, or after the caller has dropped the
/// request. The units that such a reply shows as taken are given back by receipt, within the time `d` above.
/// [`given_back`](RedisStore::given_back) counts these refunds.
///
/// * A [`StoreError`] owns the charge of its request: the store gives it back when the error is dropped. If the request
///   passes nevertheless, as with the policy `allow`, [`StoreError::keep_charge`] lets the units of that policy stay.
/// * If the connection ends before the reply, there is no receipt. [`refunds_lost`](RedisStore::refunds_lost) counts such
///   a request. At most the requests that were in flight on this connection can be lost. Their permits come back with
///   the lease.
/// * An open circuit is tried with a take from a key that no request uses, so a server that is still too slow keeps
///   nothing of the request that tried it.
/// * A queue takes back only its last turn. If others are behind it, the turn passes unused, and counts as lost.
/// * A request in several slots that fails is given back in all slots, also if a policy then lets it pass.
///
/// # New keys
///
/// A client that makes many keys can fill Redis, and then Redis refuses writes or evicts the states of other callers.
/// [`Settings::new_keys_per_second`] bounds the keys. A take that finds no key left costs a second round trip. The
/// first waits at most half of the timeout, and the second has what is left of it.
///
/// # Failover
///
/// A replica takes over with the writes that it has received from the primary. All other takes of the primary are lost.
/// So a limit can be exceeded by the units of these lost takes, but not by more:
///
/// * If the primary died, or `SENTINEL FAILOVER` replaced it, the lost takes are those that the primary had not sent to
///   the replica yet.
/// * If the primary is alive but cut off from the other Redis servers, it still admits takes of clients that reach it.
///   These takes are lost too. During that time the old and the new primary can each admit the whole limit.
/// * In a cluster, a primary that is cut off admits takes for at most `cluster-node-timeout`. A primary with sentinels
///   admits takes until it is no longer cut off. With `min-replicas-to-write`, such a primary stops after
///   `min-replicas-max-lag`.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
    timeout: Duration,
    connect_timeout: Duration,
}

/// The parts that all clones of a store share.
pub(crate) struct Inner {
    pub(crate) topology: Topology,
    pub(crate) deny_cache: DenyCache,
    pub(crate) encoder: Encoder,
    pub(crate) give_back: GiveBack,
    /// `None` if the store makes any number of new keys.
    pub(crate) new_keys: Option<NewKeys>,
    /// A late refund is executed only until this long after the decision, by the clock of Redis.
    pub(crate) refund_within: Duration,
    max_in_flight: usize,
    in_flight: AtomicUsize,
    circuit_opened: Arc<Notify>,
    calls: Arc<CallCounters>,
    /// The quota of [probes](RedisStore::probe): one unit in each millisecond, so that a state soon expires.
    pub(crate) probe: Quota,
    /// One element for each kind of error, in the order of [`StoreErrorKind::ALL`].
    failures: [Failures; StoreErrorKind::ALL.len()],
}

/// Where requests are sent.
pub(crate) enum Topology {
    /// One Redis server, which may be the primary that sentinels name.
    Single {
        node: Node,
        /// When Redis last redirected a request to another node. Only a node of a cluster does this.
        redirected_at: ArcSwapOption<Instant>,
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
    /// Creates a store that is not connected yet. [`Settings::url`] says where the Redis server is.
    ///
    /// # Errors
    /// The URL, a certificate or a key is invalid.
    pub fn new(settings: &Settings) -> Result<RedisStore, Error> {
        let settings = &settings.within_bounds();
        let url = Url::parse(&settings.url)?;
        let tls = if url.is_secure { Some(TlsClient::new(&settings.tls)?) } else { None };
        let has_all_slots = !matches!(url.servers, Servers::Cluster(_));
        let connector = Connector { has_all_slots, ..Connector::new(url.user, tls, settings) };
        let circuit_opened = Arc::clone(&connector.circuit_opened);
        let calls = Arc::clone(&connector.calls);
        let single = |connector, location| Topology::Single {
            node: Node::new(Endpoint { connector: Arc::new(connector), location }, settings),
            redirected_at: ArcSwapOption::empty(),
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
            give_back: GiveBack::default(),
            new_keys: settings.new_keys_per_second.map(NewKeys::new),
            refund_within: 2 * (settings.timeout + settings.connect_timeout),
            max_in_flight: settings.max_in_flight,
            in_flight: AtomicUsize::new(0),
            circuit_opened,
            calls,
            probe: probe_quota(),
            failures: Default::default(),
        };
        let (timeout, connect_timeout) = (settings.timeout, settings.connect_timeout);
        Ok(RedisStore { inner: Arc::new(inner), timeout, connect_timeout })
    }

    /// Creates a store with the default settings, and returns it as soon as it is connected.
    ///
    /// # Errors
    /// The URL is invalid, or Redis does not reply.
    pub async fn connect(url: &str) -> Result<RedisStore, Error> {
        let store = RedisStore::new(&Settings::new(url))?;
        store.wait_connected().await?;
        Ok(store)
    }

    /// Waits until there is a connection, but not longer than [`Settings::connect_timeout`]. A cluster needs one
    /// connection to each node that owns slots.
    ///
    /// # Errors
    /// The reason why there is no connection. Also an error if the URL is that of a single Redis server, but Redis has
    /// just replied as a node of a cluster.
    pub async fn wait_connected(&self) -> Result<(), Error> {
        let deadline = Instant::now() + self.connect_timeout;
        match &self.inner.topology {
            Topology::Single { redirected_at, .. }
                if redirected_at.load().as_ref().is_some_and(|at| at.elapsed() < CLUSTER_NODE_FOR) =>
            {
                Err(cluster_node_error())
            }
            Topology::Single { node, .. } => node.wait_connected(deadline).await,
            Topology::Cluster(cluster) => cluster.wait_connected(deadline).await,
        }
    }

    /// Returns the deny cache's refusal if there is one, otherwise the decision of Redis. If `may_create` is false, the
    /// keys of hits whose limits have no new keys left must exist.
    async fn decide_or_repeat(
        &self,
        (timeout, may_create): (Duration, bool),
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
        unclaimed: &mut Option<Unclaimed>,
    ) -> Result<Verdict, Error> {
        if hits.len() != decisions.len() {
            return Err(Error::new(
                StoreErrorKind::Malformed,
                "the number of decisions differs from the number of hits",
            ));
        }
        request::check_number(hits)?;
        let (mut sent, mut timeout) = (Instant::now(), timeout);
        let deny_cache = &self.inner.deny_cache;
        // If a caller passes a time, as a test does, the cache is not used, because it works with the time of Redis.
        let known = if now.is_none() { deny_cache.refuse(hits, decisions, sent) } else { None };
        if let Some(verdict) = known {
            return Ok(verdict);
        }
        if let Some(new_keys) = &self.inner.new_keys
            && !may_create
            && new_keys.is_any_short(hits, sent)
        {
            // Only requests during an attack get here, so the future of all others stays small.
            Box::pin(self.find_keys(new_keys, timeout / 2, now, hits, decisions)).await?;
            timeout = timeout.saturating_sub(sent.elapsed());
            sent = Instant::now();
        }
        let mut guard = deny_cache.guard(hits, sent);
        let in_flight = InFlight::enter(&self.inner)?;
        let (verdict, observed) = self.decide_admitted(timeout, now, hits, decisions, (in_flight, unclaimed)).await?;
        if now.is_none() && !verdict.allowed {
            guard.learn(decisions, observed);
        }
        Ok(verdict)
    }

    /// Counts a request that was not decided, and makes its error the owner of what it may have charged.
    fn failed(&self, error: Error, unclaimed: Option<Unclaimed>) -> StoreError {
        self.inner.failures[error.kind as usize].count(&error);
        let error = StoreError::from(error);
        match unclaimed {
            Some(unclaimed) => error.with_unclaimed(Box::new(unclaimed)),
            None => error,
        }
    }

    /// Looks for the keys of hits whose limits have no new keys left.
    ///
    /// # Errors
    /// [`NewKeys`](StoreErrorKind::NewKeys) if a key does not exist, and the errors of Redis. Nothing was charged.
    async fn find_keys(
        &self,
        new_keys: &NewKeys,
        timeout: Duration,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<(), Error> {
        let in_flight = InFlight::enter(&self.inner)?;
        let deadline = deadline::after(timeout.min(LONGEST));
        let positions = new_keys.short(hits, Instant::now());
        let looks: Option<Vec<_>> = positions.iter().map(|&i| self.inner.encoder.look(&hits[i])).collect();
        let exist = match looks {
            Some(looks) => try_join_all(looks.iter().map(|look| self.is_state(look, deadline))).await?,
            None => {
                // Shadow hits are decided independently of each other.
                let peek = |i: &usize| hits[*i].with_op(Op::Peek).with_binding(Binding::Shadow);
                let peeks: Vec<_> = positions.iter().map(peek).collect();
                let mut found = vec![Decision::default(); peeks.len()];
                self.decide_admitted(timeout, now, &peeks, &mut found, (in_flight, &mut None)).await?;
                // A counter that counts anything needs time until it counts nothing.
                found.iter().map(|found| found.reset_after_ns > 0).collect()
            }
        };
        new_keys::check(hits, &positions, &exist, decisions)
    }

    async fn is_state(&self, look: &PlainCommands, deadline: Instant) -> Result<bool, Error> {
        let call = Command::Plain(look);
        let sent = self.inner.topology.send(&call, &Caller::default().0, deadline).await;
        sent.map(|reply| plain::is_state(&plain::texts(&reply))).map_err(|error| call.name_keys(error))
    }

    /// Returns the verdict, and after a refusal also the states that the Redis servers showed. If the request fails,
    /// `unclaimed` gets what it may have charged.
    async fn decide_admitted(
        &self,
        timeout: Duration,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
        (in_flight, unclaimed): (InFlight, &mut Option<Unclaimed>),
    ) -> Result<(Verdict, Vec<ObservedStates>), Error> {
        let timeout = timeout.min(LONGEST);
        let deadline = deadline::after(timeout);
        match &self.inner.topology {
            Topology::Cluster(cluster) if !cross_slot::is_in_one_slot(hits) => {
                let sent = (in_flight, deadline);
                // The box keeps this large future out of the futures of all other requests.
                let decided = Box::pin(cross_slot::decide(&self.inner, cluster, now, hits, decisions, sent)).await?;
                let Decided { verdict, refunded, observed } = decided;
                if let Some(refunded) = refunded {
                    // The refunds continue even if the caller no longer waits. The request counts as in flight until
                    // the refunds end.
                    let _ = deadline::wait_until(deadline, pin!(refunded)).await;
                }
                Ok((verdict?, observed))
            }
            _ => {
                let call = self.inner.encoder.encode(now, hits)?;
                let mut pending = Pending::new(&self.inner, now, hits, call);
                match pending.send(decisions, deadline).await {
                    Ok((verdict, reply)) => {
                        let is_refused = !verdict.allowed && self.inner.deny_cache.is_on();
                        let observed = if is_refused { pending.call.observed(&reply, Instant::now()) } else { None };
                        Ok((verdict, observed.into_iter().collect()))
                    }
                    Err(error) => {
                        *unclaimed = pending.unclaimed(&error);
                        Err(error)
                    }
                }
            }
        }
    }

    /// Sends plain commands, and returns the texts in the reply to the last command.
    pub(crate) async fn send_plain(&self, plain: &PlainCommands, timeout: Duration) -> Result<PlainReply, Error> {
        let call = Command::Plain(plain);
        let deadline = deadline::after(timeout.min(LONGEST));
        let sent = self.inner.topology.send(&call, &Caller::default().0, deadline).await;
        sent.map(|reply| plain::texts(&reply)).map_err(|error| call.name_keys(error))
    }

    /// Returns whether these hits are decided in one atomic step. In a cluster, this is the case only if all states of
    /// the hits are in one slot.
    #[must_use]
    pub fn is_atomic(&self, hits: &[Hit<'_>]) -> bool {
        matches!(self.inner.topology, Topology::Single { .. }) || cross_slot::is_in_one_slot(hits)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.inner.topology, Topology::Cluster(_))
    }

    /// Returns the state of the circuit breaker, which says whether requests are sent to Redis now.
    ///
    /// The circuit of a cluster is half open while some of the nodes that own slots are down and others are not.
    /// Whether a request succeeds then depends on its slots. The circuit is open while all of these nodes are down.
    #[must_use]
    pub fn circuit(&self) -> Circuit {
        match &self.inner.topology {
            Topology::Single { node, .. } => node.circuit(),
            Topology::Cluster(cluster) => cluster.circuit(),
        }
    }

    /// Returns whether all Redis servers are down. Requests then fail without being sent, except the probes that try
    /// the Redis servers again.
    #[must_use]
    pub fn is_down(&self) -> bool {
        match &self.inner.topology {
            Topology::Single { node, .. } => node.circuit() != Circuit::Closed,
            Topology::Cluster(cluster) => cluster.circuit() == Circuit::Open,
        }
    }

    /// Waits until the circuit of a Redis server opens. Returns at once if a circuit has opened since the last call
    /// returned. Call this function in one task only: the task that watches the store.
    pub async fn circuit_opened(&self) {
        self.inner.circuit_opened.notified().await;
    }

    /// Returns the error of the last attempt to connect, or the error that opened the circuit. Other connections to
    /// Redis can still work. `None` if there was no such error, or if the store has connected or closed the circuit
    /// since then. For a cluster, returns such an error of one node, with the address of the node.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        match &self.inner.topology {
            Topology::Single { node, .. } => node.last_error(),
            Topology::Cluster(cluster) => cluster.last_error(),
        }
    }

    /// Returns the Redis servers that are known now. This allocates, so call it for metrics and health checks, not for
    /// each request.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        match &self.inner.topology {
            Topology::Single { node, .. } => vec![node.node()],
            Topology::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns a connection to each known server that has one, with the address of the server.
    pub(crate) fn connections(&self) -> Vec<(String, Connection)> {
        match &self.inner.topology {
            Topology::Single { node, .. } => node.with_address().into_iter().collect(),
            Topology::Cluster(cluster) => cluster.connections(),
        }
    }

    /// Returns the number of requests that wait for their replies.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.inner.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that the deny cache refused without a call to Redis.
    #[must_use]
    pub fn denied_by_cache(&self) -> u64 {
        self.inner.deny_cache.refusals()
    }

    /// Returns the number of requests that failed with this kind of error. Probes are not included.
    #[must_use]
    pub fn failures(&self, kind: StoreErrorKind) -> u64 {
        self.inner.failures[kind as usize].requests()
    }

    /// Returns the first error of this kind since the last call, for the log. Errors of probes are not included.
    #[must_use]
    pub fn take_first_error(&self, kind: StoreErrorKind) -> Option<StoreError> {
        self.inner.failures[kind as usize].take_first().map(StoreError::from)
    }

    /// Returns how long a request waits if its caller sets no timeout.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes a unit from a key that no request uses, to find out whether the store decides. `number` selects the key.
    /// Different numbers mostly select keys in different slots.
    ///
    /// All servers of a fleet that shares the store probe the same keys, so the probe can be refused. A refusal also
    /// shows that the store decides.
    ///
    /// # Errors
    /// The reason why the store does not decide.
    pub async fn probe(&self, number: u32, timeout: Duration) -> Result<Verdict, Error> {
        let key = u128::from(number) << Hit::SLOT_SHIFT;
        let hits = [Hit::new(key, &self.inner.probe, Op::take(1), Binding::Enforce)];
        let timeout = timeout.min(self.timeout);
        let probed = self.decide_or_repeat((timeout, true), None, &hits, &mut [Decision::default()], &mut None).await;
        probed.map_err(|error| match &self.inner.topology {
            // These kinds come from a request. All other errors of a primary have its address, or its own words.
            Topology::Single { node, .. } if error.kind.is_consequence() || error.kind.may_have_been_applied() => {
                node.named(error)
            }
            _ => error,
        })
    }

    /// Returns the address of the primary that the sentinels named last. `None` if the URL names no sentinels, or if no
    /// sentinel has named a primary yet.
    #[must_use]
    pub fn primary(&self) -> Option<String> {
        match &self.inner.topology {
            Topology::Single { node, .. } => node.primary_address(),
            Topology::Cluster(_) => None,
        }
    }

    /// Returns the health of the store now. This allocates, so call it for metrics and readiness, not for each request.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        let nodes = self.nodes();
        let mut health = StoreHealth::new(self.circuit());
        health.is_down = self.is_down();
        health.error = self.last_error().map(StoreError::from);
        health.nodes = nodes.len();
        health.nodes_connected = nodes.iter().filter(|node| node.is_connected).count();
        health.in_flight = self.in_flight();
        health.failures = StoreErrorKind::ALL.iter().map(|&kind| (kind, self.failures(kind))).collect();
        health.refunds_lost = self.refunds_lost();
        health.given_back = self.given_back();
        health.calls = self.inner.calls.read();
        health.deny_cache_entries = self.inner.deny_cache.is_on().then(|| self.inner.deny_cache.entries());
        health.deny_cache_hits = self.denied_by_cache();
        health
    }

    /// Returns how often units may have stayed taken for a request that was not admitted. This happens if a connection
    /// ends before the reply, or if a refund is not confirmed in time. Refused requests without
    /// [scripts](Settings::scripts) are not counted, although they charge.
    #[must_use]
    pub fn refunds_lost(&self) -> u64 {
        self.inner.give_back.lost.load(Ordering::Relaxed)
    }

    /// Returns how often units were given back: after a deadline, after the caller had gone, or because another slot
    /// refused the request.
    #[must_use]
    pub fn given_back(&self) -> u64 {
        self.inner.give_back.given_back.load(Ordering::Relaxed)
    }
}

impl Topology {
    /// Sends the command and returns the reply. The reply to a script comes through `slot`.
    pub(crate) async fn send(
        &self,
        call: &Command<'_, '_, '_>,
        slot: &Arc<ReplySlot>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        match self {
            Topology::Cluster(cluster) => cluster.send(call, slot, deadline).await,
            Topology::Single { node, redirected_at } => match node.send(call, slot, false, deadline).await? {
                NodeReply::Bytes(reply) => Ok(reply),
                NodeReply::Elsewhere(_) => {
                    redirected_at.store(Some(Arc::new(Instant::now())));
                    Err(cluster_node_error())
                }
            },
        }
    }

    /// Returns a connection to the node that has this slot of a cluster, if one is ready.
    pub(crate) fn connection(&self, slot: u16) -> Option<Connection> {
        match self {
            Topology::Cluster(cluster) => cluster.connection(slot),
            Topology::Single { node, .. } => node.connection(),
        }
    }
}

fn cluster_node_error() -> Error {
    Error::new(StoreErrorKind::Moved, "the server is a node of a cluster, so the URL must begin with redis-cluster://")
}

/// Counts a request as in flight until this value is dropped.
pub(crate) struct InFlight(Arc<Inner>);

impl InFlight {
    fn enter(inner: &Arc<Inner>) -> Result<InFlight, Error> {
        let in_flight = InFlight(Arc::clone(inner));
        let before = inner.in_flight.fetch_add(1, Ordering::Relaxed);
        let is_full = || Error::new(StoreErrorKind::Overloaded, "too many requests in flight");
        (before < inner.max_in_flight).then_some(in_flight).ok_or_else(is_full)
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
        let mut unclaimed = None;
        let timeout = timing.timeout.unwrap_or(self.timeout);
        let decided = self.decide_or_repeat((timeout, false), timing.now, hits, decisions, &mut unclaimed).await;
        decided.map_err(|error| self.failed(error, unclaimed))
    }

    async fn decide_known_keys(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let mut unclaimed = None;
        let timeout = timing.timeout.unwrap_or(self.timeout) / 2;
        let decided = self.decide_or_repeat((timeout, true), timing.now, hits, decisions, &mut unclaimed).await;
        decided.map_err(|error| self.failed(error, unclaimed))
    }
}
