//! A Redis Cluster for one test.

use std::time::Duration;

use redis::Value;
use spillgate_core::{Binding, Hit, Op, Quota};
use spillgate_redis::{RedisKey, RedisStore};
use spillgate_testkit::start_cluster;

use crate::support::common::{until, with_long_timeouts};
use crate::support::server::{Server, run};

/// The nodes: three primaries, and three replicas if the test wants them.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

const PRIMARIES: usize = 3;

/// With these arguments, nodes soon notice that another node is down. But a node that only stands still for a moment,
/// on a busy machine, is not taken for dead. Replicas begin to follow their primary without a delay.
const QUICK: [&str; 4] = ["--cluster-node-timeout", "5000", "--repl-diskless-sync-delay", "0"];

impl Cluster {
    /// Starts the cluster, and returns as soon as all nodes know each other and serve. The replica of node `i` is node
    /// `i + 3`.
    pub(crate) fn start(with_replicas: bool, arguments: &[&str]) -> Cluster {
        let nodes = start_cluster(with_replicas, &[&QUICK, arguments].concat());
        Cluster { nodes: nodes.into_iter().map(Server::from).collect() }
    }

    /// Adds a primary without slots, and returns as soon as it serves.
    pub(crate) async fn join(&mut self) {
        let (new, bus) = Server::start_node(&QUICK);
        self.nodes[0].run(&["CLUSTER", "MEET", "127.0.0.1", &new.port().to_string(), &bus]);
        let id = text(new.run(&["CLUSTER", "MYID"]));
        until("the first node knows the new node", || text(self.nodes[0].run(&["CLUSTER", "NODES"])).contains(&id))
            .await;
        until("the new node serves", || text(new.run(&["CLUSTER", "INFO"])).contains("cluster_state:ok")).await;
        self.nodes.push(new);
    }

    /// Returns a URL with the address of the first node. The store finds the other nodes by itself.
    pub(crate) fn url(&self) -> String {
        format!("redis-cluster://127.0.0.1:{}", self.nodes[0].port())
    }

    /// Returns a connected store, with timeouts so long that even a busy machine does not reach them.
    pub(crate) async fn store(&self) -> RedisStore {
        let store = RedisStore::new(&with_long_timeouts(&self.url())).expect("the URL is valid");
        store.wait_connected().await.expect("the cluster serves");
        store
    }
}

pub(crate) fn text(value: Value) -> String {
    redis::from_redis_value(value).expect("the reply is text")
}

/// Returns the role of the node: `master` or `slave`. The text is empty if the node replies with an error or not at
/// all.
pub(crate) fn role(node: &Server) -> String {
    match run(node.port(), &["ROLE"]) {
        Ok(Value::Array(role)) => text(role[0].clone()),
        Ok(other) => panic!("no role: {other:?}"),
        // This error is possible, because a primary can close all its connections when it is demoted.
        Err(_) => String::new(),
    }
}

/// Returns the slot of a key, as a node computes it.
pub(crate) fn slot(node: &Server, key: u128, quota: &Quota) -> u16 {
    let name = RedisKey::of(&Hit::new(key, quota, Op::Peek, Binding::Enforce)).to_string();
    redis::from_redis_value(node.run(&["CLUSTER", "KEYSLOT", &name])).expect("the reply is a slot")
}

/// Returns how the nodes call this node.
pub(crate) fn id(node: &Server) -> String {
    text(node.run(&["CLUSTER", "MYID"]))
}

/// Begins to move a slot. From then on, the slot's states are on both nodes, some here and some there.
pub(crate) fn begin_move(slot: &str, from: &Server, to: &Server) {
    to.run(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &id(from)]);
    from.run(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &id(to)]);
}

/// Ends the move. Before, all states have to be on the new node.
pub(crate) fn finish_move(slot: &str, from: &Server, to: &Server) {
    for node in [to, from] {
        node.run(&["CLUSTER", "SETSLOT", slot, "NODE", &id(to)]);
    }
}

/// Returns a key in a slot that the `nth` primary owns before any slot moves. Different seeds give different keys.
pub(crate) fn key_on(node: &Server, nth: usize, quota: &Quota, seed: u128) -> u128 {
    let keys = (1..).map(|i| (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    let of = |key: &u128| usize::from(slot(node, *key, quota)) * PRIMARIES / 16384 == nth;
    keys.take(1000).find(of).expect("each primary owns a third of all keys")
}

pub(crate) const WITHIN: Duration = Duration::from_millis(100);
