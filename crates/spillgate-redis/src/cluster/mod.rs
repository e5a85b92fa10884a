//! Sends each request to the node of a cluster that owns its slot, and follows redirections.
//!
//! The slot map says which node owns which slot. It can be out of date, because nodes fail, and because slots move to
//! other nodes. If a slot has moved, its old owner redirects the request. A node that redirects has executed nothing.
//! So a redirected request is never executed twice.
//!
//! | reply of a node | what happens next |
//! |---|---|
//! | the script's reply | the request is decided |
//! | MOVED to a node | the request is sent there, and the slot map is read again |
//! | ASK for a node | this request is sent there after ASKING; the slot map does not change |
//! | TRYAGAIN, or a redirection without an address | the request is sent to the owner again after a pause of 1 ms; the next pauses are 2 ms, 4 ms and so on, up to 50 ms |
//! | no reply in time, no connection, or an error such as READONLY or CLUSTERDOWN | the request fails, and the slot map is read again, because another node may serve the slot |
//! | any other error | the request fails |
//!
//! A request follows at most five redirections in a row. So the request ends even if two nodes redirect to each other.

pub(crate) mod cross_slot;
mod nodes;
pub(crate) mod slot_map;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::try_join_all;
use redis::ConnectionAddr;
use spillgate_core::{Circuit, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::nodes::{Member, Nodes};
use crate::cluster::slot_map::SlotMap;
use crate::command::Command;
use crate::connect::connector::Connector;
use crate::connect::endpoint::{Endpoint, Location};
use crate::connect::race::first_success;
use crate::connect::url::address_text;
use crate::connection::Connection;
use crate::connection::reply::ReplySlot;
use crate::deadline;
use crate::error::{self, Error};
use crate::node::Node;
use crate::node::jitter::Jitter;
use crate::node::redirection::Redirection;
use crate::node::send::NodeReply;
use crate::node::status::NodeStatus;
use crate::settings::Settings;

/// A request may be redirected this many times in a row. At the next redirection, the request fails with
/// [`Moved`](StoreErrorKind::Moved).
const REDIRECTIONS_MAX: usize = 5;
/// If the states of a request are moving to another node, the store sends the request again after this pause. Each
/// further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Sends each request to the node that owns its slot. A request in several slots is split by [`cross_slot`] first.
pub(crate) struct Cluster {
    connector: Arc<Connector>,
    settings: Settings,
    /// The nodes in the URL. They are asked for the slot map after all known nodes.
    seeds: Vec<ConnectionAddr>,
    /// The known nodes. A request reads them without a lock.
    nodes: ArcSwap<Nodes>,
    /// The slot map is not read again before this time. The lock is held during a read.
    next_read: Arc<Mutex<Instant>>,
    /// Wakes the requests that wait for the first slot map. They are woken after each attempt to read it, even if the
    /// attempt failed.
    slot_map_read: Notify,
    /// The error of the last attempt to read the slot map. Empty if the last attempt succeeded.
    read_error: ArcSwapOption<Error>,
    /// Shortens pauses by up to a half.
    jitter: Jitter,
}

impl Cluster {
    /// Returns a cluster without a slot map. The first request reads the slot map.
    pub(crate) fn new(connector: Connector, seeds: Vec<ConnectionAddr>, settings: &Settings) -> Cluster {
        Cluster {
            connector: Arc::new(connector),
            settings: settings.clone(),
            seeds,
            nodes: ArcSwap::from_pointee(Nodes::unknown()),
            next_read: Arc::new(Mutex::new(Instant::now())),
            slot_map_read: Notify::new(),
            read_error: ArcSwapOption::empty(),
            jitter: Jitter::new(),
        }
    }

    /// Sends the command and returns the reply, or an error if no reply comes before the deadline.
    ///
    /// # Errors
    /// [`ClusterDown`](StoreErrorKind::ClusterDown) if no node owns the slot, [`Moved`](StoreErrorKind::Moved) if the
    /// slot was still moving at the deadline, or if nodes redirected the command too often. The errors of
    /// [`known_nodes`](Cluster::known_nodes) if there is no slot map. In all other cases, the error of the node.
    pub(crate) async fn send(
        self: &Arc<Cluster>,
        call: &Command<'_, '_, '_>,
        reply: &Arc<ReplySlot>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        let slot = call.slot();
        let mut pause = FIRST_PAUSE;
        let result = loop {
            match self.send_to_owner(slot, call, reply, deadline).await {
                Ok(Some(reply)) => break Ok(reply),
                Ok(None) if Instant::now() + pause < deadline => {}
                Ok(None) => break Err(Error::new(StoreErrorKind::Moved, "the slot is moving to another node")),
                Err(error) => break Err(error),
            }
            let _ = deadline::wait_until(deadline, pin!(sleep(self.jitter.of(pause)))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        if result.as_ref().is_err_and(|error| error::another_node_may_serve(error.kind)) {
            self.refresh_slot_map();
        }
        result
    }

    /// Returns a connection to the owner of the slot, if one is ready.
    pub(crate) fn connection(&self, slot: u16) -> Option<Connection> {
        self.nodes.load().owner(slot)?.node.connection()
    }

    /// Returns a connection to each owner of slots that has one, with the address of the owner.
    pub(crate) fn connections(&self) -> Vec<(String, Connection)> {
        self.nodes.load().owners().iter().filter_map(|member| member.node.with_address()).collect()
    }

    /// Returns whether the slot has an owner whose circuit is closed.
    pub(crate) fn serves(&self, slot: u16) -> bool {
        self.nodes.load().owner(slot).is_some_and(|member| member.node.circuit() == Circuit::Closed)
    }

    /// Sends the command to the owner of the slot, follows redirections, and returns the reply. `None` if the states
    /// are moving, or if a redirection contains no address.
    async fn send_to_owner(
        self: &Arc<Cluster>,
        slot: u16,
        call: &Command<'_, '_, '_>,
        reply: &Arc<ReplySlot>,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, Error> {
        let nodes = self.known_nodes(deadline).await?;
        let no_owner = || Error::new(StoreErrorKind::ClusterDown, "no node owns the slot");
        let (mut node, mut asking) = (Arc::clone(&nodes.owner(slot).ok_or_else(no_owner)?.node), false);
        for _ in 0..=REDIRECTIONS_MAX {
            let redirection = match node.send(call, reply, asking, deadline).await? {
                NodeReply::Bytes(reply) => return Ok(Some(reply)),
                NodeReply::Elsewhere(redirection) => redirection,
            };
            (node, asking) = match redirection {
                Redirection::Moved(address) => {
                    self.refresh_slot_map();
                    let Some(address) = address else { return Ok(None) };
                    (self.node(&address), false)
                }
                Redirection::Ask(address) => (self.node(&address), true),
                Redirection::TryAgain => return Ok(None),
            };
        }
        Err(Error::new(StoreErrorKind::Moved, "redirected too often"))
    }

    /// Returns the nodes. If no slot map is known yet, this method waits until the deadline for the first slot map. The
    /// method does not wait if the last attempt to read the slot map failed.
    ///
    /// # Errors
    /// Nothing was sent. [`CircuitOpen`](StoreErrorKind::CircuitOpen) if the last attempt to read the slot map failed,
    /// [`NotSent`](StoreErrorKind::NotSent) if the slot map was not read before the deadline.
    async fn known_nodes(self: &Arc<Cluster>, deadline: Instant) -> Result<Arc<Nodes>, Error> {
        loop {
            // Register for the notification before checking, so that a slot map that is read in between cannot be
            // missed.
            let slot_map_read = self.slot_map_read.notified();
            let nodes = self.nodes.load_full();
            if !nodes.is_unknown() {
                return Ok(nodes);
            }
            self.refresh_slot_map();
            if self.read_error.load().is_some() {
                return Err(Error::new(StoreErrorKind::CircuitOpen, "no node reports the slot map"));
            }
            if deadline::wait_until(deadline, pin!(slot_map_read)).await.is_none() {
                return Err(Error::new(StoreErrorKind::NotSent, "no slot map before the deadline"));
            }
        }
    }

    /// Returns the node at this address, and adds it to the known nodes. If there are too many known nodes already, a
    /// new node is used for this request only.
    fn node(&self, address: &ConnectionAddr) -> Arc<Node> {
        if let Some(member) = self.nodes.load().at(address) {
            return Arc::clone(&member.node);
        }
        let new = self.new_member(address);
        self.nodes.rcu(|nodes| match nodes.at(address) {
            Some(_) => Arc::clone(nodes),
            None => Arc::new(nodes.with(&new)),
        });
        self.nodes.load().at(address).map_or(new.node, |member| Arc::clone(&member.node))
    }

    /// Returns a node for this address, without connections.
    fn new_member(&self, address: &ConnectionAddr) -> Member {
        let endpoint =
            Endpoint { connector: Arc::clone(&self.connector), location: Location::Address(address.clone()) };
        Member { address: address.clone(), node: Arc::new(Node::new(endpoint, &self.settings)) }
    }

    /// Starts a task that reads the slot map, unless such a task is running or has just ended. So requests that fail at
    /// the same time cause one read. The next read begins at the earliest half of [`Settings::probe_every`] after this
    /// one has ended.
    fn refresh_slot_map(self: &Arc<Cluster>) {
        let Ok(mut next_read) = Arc::clone(&self.next_read).try_lock_owned() else { return };
        if Instant::now() < *next_read {
            return;
        }
        let cluster = Arc::clone(self);
        Handle::current().spawn(async move {
            let read = timeout(cluster.settings.connect_timeout, cluster.read()).await;
            let late = || Error::new(StoreErrorKind::Timeout, "no node reported the slot map in time");
            match read.unwrap_or_else(|_| Err(late())) {
                Ok(nodes) => {
                    cluster.nodes.store(Arc::new(nodes));
                    cluster.read_error.store(None);
                }
                Err(error) => cluster.read_error.store(Some(Arc::new(error))),
            }
            *next_read = Instant::now() + cluster.jitter.of(cluster.settings.probe_every);
            drop(next_read);
            cluster.slot_map_read.notify_waiters();
        });
    }

    /// Asks the nodes for the slot map and uses the first valid reply. Nodes whose circuit is closed are asked first.
    async fn read(&self) -> Result<Nodes, Error> {
        let old = self.nodes.load_full();
        let mut known: Vec<&Member> = old.all().iter().collect();
        known.sort_by_key(|member| member.node.circuit() != Circuit::Closed);
        let unknown = self.seeds.iter().filter(|seed| old.at(seed).is_none());
        let addresses = known.into_iter().map(|node| &node.address).chain(unknown);
        let attempts = addresses.map(|address| self.read_at(address, &old));
        first_success(attempts.collect(), self.settings.connect_timeout).await
    }

    /// Asks this node for the slot map. If a node of the new slot map was known before, it keeps its connections.
    async fn read_at(&self, address: &ConnectionAddr, old: &Nodes) -> Result<Nodes, Error> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let reply = self.connector.query_once(address, &command).await?;
        let none = || Error::new(StoreErrorKind::ClusterDown, format!("{} reports no slots", address_text(address)));
        let slot_map = SlotMap::read(&reply, address).ok_or_else(none)?;
        Ok(Nodes::new(slot_map, |address| old.at(address).cloned().unwrap_or_else(|| self.new_member(address))))
    }

    /// Waits until the deadline for a connection to each node that owns slots.
    ///
    /// # Errors
    /// The reason why one of these nodes has no connection, or why there is no slot map.
    pub(crate) async fn wait_connected(self: &Arc<Cluster>, deadline: Instant) -> Result<(), Error> {
        let nodes = loop {
            match self.known_nodes(deadline).await {
                Ok(nodes) => break nodes,
                Err(error) if Instant::now() + LONGEST_PAUSE >= deadline => {
                    return Err(self.last_error().unwrap_or(error));
                }
                Err(_) => sleep(LONGEST_PAUSE).await,
            }
        };
        let connected = nodes.owners().iter().map(async |member| {
            let connected = member.node.wait_connected(deadline).await;
            connected.map_err(|error| error.at(&address_text(&member.address)))
        });
        try_join_all(connected).await.map(drop)
    }

    /// Returns one circuit for the whole cluster. It is closed if all nodes that own slots have closed circuits. It is
    /// open if none of these nodes has a closed circuit, or if no slot map could be read. In all other cases the
    /// circuit is half open, because only some requests pass.
    pub(crate) fn circuit(&self) -> Circuit {
        let nodes = self.nodes.load();
        if nodes.is_unknown() && self.read_error.load().is_some() {
            return Circuit::Open;
        }
        let owners = nodes.owners();
        match owners.iter().filter(|member| member.node.circuit() == Circuit::Closed).count() {
            closed if closed == owners.len() => Circuit::Closed,
            0 => Circuit::Open,
            _ => Circuit::HalfOpen,
        }
    }

    /// Returns the last error of the first node that has one, with the address of the node. If there is no slot map,
    /// this is the error of the last attempt to read the slot map.
    pub(crate) fn last_error(&self) -> Option<Error> {
        let nodes = self.nodes.load();
        if nodes.is_unknown() {
            return self.read_error.load().as_deref().cloned();
        }
        nodes.all().iter().find_map(|member| {
            let error = member.node.last_error()?;
            Some(error.at(&address_text(&member.address)))
        })
    }

    /// Returns the state of each known node, in the order of the slot map.
    pub(crate) fn nodes(&self) -> Vec<NodeStatus> {
        self.nodes.load().all().iter().map(|member| member.node.node()).collect()
    }
}
