//! A cluster: which of its nodes is asked, and what becomes of that.

pub(crate) mod cross_slot;
mod nodes;
pub(crate) mod slot_map;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::try_join_all;
use redis::ConnectionAddr;
use spillgate_core::Circuit;
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
use crate::deadline;
use crate::error::{self, Error, ErrorKind};
use crate::node::Node;
use crate::node::jitter::Jitter;
use crate::node::redirection::Redirection;
use crate::node::send::NodeReply;
use crate::node::status::NodeStatus;
use crate::settings::Settings;

/// How often in a row a request may be sent on.
const REDIRECTIONS_MAX: usize = 5;
/// The first pause before a request is repeated whose states are on their way; each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Decides requests whose states are all in one slot, by the node that has it.
pub(crate) struct Cluster {
    connector: Arc<Connector>,
    settings: Settings,
    /// Whom to ask for the map when nobody else answers.
    seeds: Vec<ConnectionAddr>,
    nodes: ArcSwap<Nodes>,
    /// When the map may be read next; held while it is being read.
    next_read: Arc<Mutex<Instant>>,
    /// Wakes those who wait for a map, or for the news that there is none.
    was_read: Notify,
    /// Why the map could not be read the last time.
    trouble: ArcSwapOption<Error>,
    jitter: Jitter,
    /// Slots that may have kept what they took for a request that was not admitted.
    pub(crate) refunds_lost: AtomicU64,
}

impl Cluster {
    pub(crate) fn new(connector: Connector, seeds: Vec<ConnectionAddr>, settings: &Settings) -> Cluster {
        Cluster {
            connector: Arc::new(connector),
            settings: settings.clone(),
            seeds,
            nodes: ArcSwap::from_pointee(Nodes::unknown()),
            next_read: Arc::new(Mutex::new(Instant::now())),
            was_read: Notify::new(),
            trouble: ArcSwapOption::empty(),
            jitter: Jitter::new(),
            refunds_lost: AtomicU64::new(0),
        }
    }

    /// The reply to the request by the deadline, or a failure. Whoever sends us on has done nothing, so nothing is done
    /// twice.
    pub(crate) async fn send(
        self: &Arc<Cluster>,
        call: &Command<'_, '_, '_>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Error> {
        let slot = call.key().map_or(0, |key| key.slot());
        let mut pause = FIRST_PAUSE;
        let asked = loop {
            match self.send_to_owner(slot, call, deadline).await {
                Ok(Some(reply)) => break Ok(reply),
                Ok(None) if Instant::now() + pause < deadline => {}
                Ok(None) => break Err(Error::new(ErrorKind::Moved, "the slot is on its way to another node")),
                Err(failed) => break Err(failed),
            }
            let _ = deadline::wait_until(deadline, sleep(self.jitter.of(pause))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        if asked.as_ref().is_err_and(|failed| error::another_node_may_serve(failed.kind)) {
            self.read_anew();
        }
        asked
    }

    /// Whether the slot has an owner, which serves as far as is known.
    pub(crate) fn serves(&self, slot: u16) -> bool {
        self.nodes.load().owner(slot).is_some_and(|node| node.server.circuit() == Circuit::Closed)
    }

    /// The reply of the slot's owner, or of whom that one sends us to; `None` if the states are on their way, or nobody
    /// says where they are.
    async fn send_to_owner(
        self: &Arc<Cluster>,
        slot: u16,
        call: &Command<'_, '_, '_>,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, Error> {
        let nodes = self.known_nodes(deadline).await?;
        let nobody = || Error::new(ErrorKind::ClusterDown, "no node has the slot");
        let (mut server, mut asking) = (Arc::clone(&nodes.owner(slot).ok_or_else(nobody)?.server), false);
        for _ in 0..=REDIRECTIONS_MAX {
            let redirection = match server.send(call, asking, deadline).await? {
                NodeReply::Bytes(reply) => return Ok(Some(reply)),
                NodeReply::Elsewhere(redirection) => redirection,
            };
            (server, asking) = match redirection {
                Redirection::Moved(address) => {
                    self.read_anew();
                    let Some(address) = address else { return Ok(None) };
                    (self.server(&address), false)
                }
                Redirection::Ask(address) => (self.server(&address), true),
                Redirection::TryAgain => return Ok(None),
            };
        }
        Err(Error::new(ErrorKind::Moved, "sent on too often"))
    }

    /// A map that says something; waits for the first one until the deadline, unless it was looked for in vain.
    async fn known_nodes(self: &Arc<Cluster>, deadline: Instant) -> Result<Arc<Nodes>, Error> {
        loop {
            // Who is woken was here before the map was.
            let was_read = self.was_read.notified();
            let nodes = self.nodes.load_full();
            if !nodes.is_unknown() {
                return Ok(nodes);
            }
            self.read_anew();
            if self.trouble.load().is_some() {
                return Err(Error::new(ErrorKind::CircuitOpen, "no node tells who has which slots"));
            }
            if deadline::wait_until(deadline, was_read).await.is_none() {
                return Err(Error::new(ErrorKind::NotSent, "no map of the cluster before the deadline"));
            }
        }
    }

    /// The node at that address, which may be a new one.
    fn server(&self, address: &ConnectionAddr) -> Arc<Node> {
        if let Some(node) = self.nodes.load().at(address) {
            return Arc::clone(&node.server);
        }
        let new = self.new_member(address);
        self.nodes.rcu(|nodes| match nodes.at(address) {
            Some(_) => Arc::clone(nodes),
            None => Arc::new(nodes.with(&new)),
        });
        self.nodes.load().at(address).map_or(new.server, |node| Arc::clone(&node.server))
    }

    fn new_member(&self, address: &ConnectionAddr) -> Member {
        let endpoint =
            Endpoint { connector: Arc::clone(&self.connector), location: Location::Address(address.clone()) };
        Member { address: address.clone(), server: Arc::new(Node::new(endpoint, &self.settings)) }
    }

    /// Has the map read by a task of its own, unless that goes on already or was done just now.
    fn read_anew(self: &Arc<Cluster>) {
        let Ok(mut next_read) = Arc::clone(&self.next_read).try_lock_owned() else { return };
        if Instant::now() < *next_read {
            return;
        }
        let cluster = Arc::clone(self);
        Handle::current().spawn(async move {
            let read = timeout(cluster.settings.connect_timeout, cluster.read()).await;
            let late = || Error::new(ErrorKind::Timeout, "no node told in time who has which slots");
            match read.unwrap_or_else(|_| Err(late())) {
                Ok(nodes) => {
                    cluster.nodes.store(Arc::new(nodes));
                    cluster.trouble.store(None);
                }
                Err(failed) => cluster.trouble.store(Some(Arc::new(failed))),
            }
            *next_read = Instant::now() + cluster.jitter.of(cluster.settings.probe_every);
            drop(next_read);
            cluster.was_read.notify_waiters();
        });
    }

    /// The map, from the first node that tells it: those that serve come first.
    async fn read(&self) -> Result<Nodes, Error> {
        let old = self.nodes.load_full();
        let mut known: Vec<&Member> = old.all().iter().collect();
        known.sort_by_key(|node| node.server.circuit() != Circuit::Closed);
        let unknown = self.seeds.iter().filter(|seed| old.at(seed).is_none());
        let addresses = known.into_iter().map(|node| &node.address).chain(unknown);
        let attempts = addresses.map(|address| self.read_at(address, &old));
        first_success(attempts.collect(), self.settings.connect_timeout).await
    }

    /// The map that this node tells. Nodes that are in the old one keep their connections.
    async fn read_at(&self, address: &ConnectionAddr, old: &Nodes) -> Result<Nodes, Error> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let told = self.connector.query_once(address, &command).await?;
        let none = || Error::new(ErrorKind::ClusterDown, format!("{} knows of no slots", address_text(address)));
        let slot_map = SlotMap::read(&told, address).ok_or_else(none)?;
        Ok(Nodes::new(slot_map, |address| old.at(address).cloned().unwrap_or_else(|| self.new_member(address))))
    }

    /// Waits until the deadline for a connection to each node that has slots.
    pub(crate) async fn wait_connected(self: &Arc<Cluster>, deadline: Instant) -> Result<(), Error> {
        let nodes = loop {
            match self.known_nodes(deadline).await {
                Ok(nodes) => break nodes,
                Err(failed) if Instant::now() + LONGEST_PAUSE >= deadline => {
                    return Err(self.last_error().unwrap_or(failed));
                }
                Err(_) => sleep(LONGEST_PAUSE).await,
            }
        };
        let connected = try_join_all(nodes.owners().iter().map(|node| node.server.wait_connected(deadline))).await;
        connected.map(drop).map_err(|failed| self.last_error().unwrap_or(failed))
    }

    /// Closed or open if it is so at all nodes that have slots, else half open: some requests pass.
    pub(crate) fn circuit(&self) -> Circuit {
        let nodes = self.nodes.load();
        if nodes.is_unknown() && self.trouble.load().is_some() {
            return Circuit::Open;
        }
        let owners = nodes.owners();
        match owners.iter().filter(|node| node.server.circuit() == Circuit::Closed).count() {
            closed if closed == owners.len() => Circuit::Closed,
            0 => Circuit::Open,
            _ => Circuit::HalfOpen,
        }
    }

    /// Why one of the nodes does not serve, and which; or why there is no map.
    pub(crate) fn last_error(&self) -> Option<Error> {
        let nodes = self.nodes.load();
        if nodes.is_unknown() {
            return self.trouble.load().as_deref().cloned();
        }
        nodes.all().iter().find_map(|node| {
            let failed = node.server.last_error()?;
            Some(Error::new(failed.kind, format!("{}: {}", address_text(&node.address), failed.detail)))
        })
    }

    pub(crate) fn nodes(&self) -> Vec<NodeStatus> {
        self.nodes.load().all().iter().map(|node| node.server.node()).collect()
    }
}
