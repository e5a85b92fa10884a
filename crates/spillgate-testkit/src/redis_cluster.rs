//! A Redis Cluster that belongs to one test: three primaries, and a replica of each primary if the test wants replicas.
//!
//! A new cluster is usable only after several steps, and some of these steps need time.

use crate::{RedisServer, eventually};

/// The first and the last slot of each primary.
const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

/// Starts a cluster, and returns its nodes as soon as all nodes know each other and serve requests. Each primary has a
/// third of the slots. The first three nodes are the primaries. With replicas, node `i + 3` is the replica of node `i`.
/// `arguments` are added to the command line of each node.
///
/// # Panics
/// Panics if the cluster does not serve within [`DEADLINE`](crate::DEADLINE).
#[must_use]
pub fn start_cluster(with_replicas: bool, arguments: &[&str]) -> Vec<RedisServer> {
    let count = if with_replicas { 2 * SLOTS.len() } else { SLOTS.len() };
    let (nodes, buses): (Vec<_>, Vec<_>) = (0..count).map(|_| RedisServer::start_node(arguments)).unzip();
    let (primaries, replicas) = nodes.split_at(SLOTS.len());
    for ((primary, (first, last)), epoch) in primaries.iter().zip(SLOTS).zip(1..) {
        succeeds(primary, &["cluster", "addslotsrange", &first.to_string(), &last.to_string()]);
        // Each primary gets its own epoch. If two primaries had the same epoch, the cluster would first have to resolve
        // this conflict.
        succeeds(primary, &["cluster", "set-config-epoch", &u16::to_string(&epoch)]);
    }
    for (node, bus) in nodes.iter().zip(&buses).skip(1) {
        succeeds(&nodes[0], &["cluster", "meet", "127.0.0.1", &node.port().to_string(), bus]);
    }
    for (replica, primary) in replicas.iter().zip(primaries) {
        let id = primary.cli(&["cluster", "myid"]);
        eventually("the replica knows its primary", || {
            (replica.cli(&["cluster", "replicate", &id]) == "OK").then_some(())
        });
    }
    for node in &nodes {
        eventually("the cluster serves", || serves(node, count, with_replicas).then_some(()));
    }
    nodes
}

fn succeeds(node: &RedisServer, words: &[&str]) {
    assert_eq!(node.cli(words), "OK", "{words:?}");
}

/// Returns whether the node knows all nodes and serves requests. If there are replicas, replication must work too.
fn serves(node: &RedisServer, count: usize, with_replicas: bool) -> bool {
    let has_line = |text: &str, line: &str| text.lines().any(|it| it.trim_end() == line);
    let info = node.cli(&["cluster", "info"]);
    let replication = node.cli(&["info", "replication"]);
    let is_linked = has_line(&replication, "connected_slaves:1") || has_line(&replication, "master_link_status:up");
    has_line(&info, "cluster_state:ok")
        && has_line(&info, &format!("cluster_known_nodes:{count}"))
        && (is_linked || !with_replicas)
}
