//! A redis-server that belongs to one test, and a Redis Cluster of three such servers.
//!
//! Tests stop, kill and reconfigure their Redis servers, so two tests cannot share a server.

use std::ops::{Deref, DerefMut};

use spillgate_testkit::{RedisServer, start_cluster};

#[derive(Debug)]
pub(crate) struct Redis(RedisServer);

impl Redis {
    pub(crate) fn start() -> Redis {
        Redis(RedisServer::start())
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Redis {
        Redis(RedisServer::start_with(arguments))
    }

    pub(crate) fn start_at(port: u16, arguments: &[&str]) -> Redis {
        Redis(RedisServer::start_at(port, arguments))
    }

    /// Starts a node that does not belong to a cluster yet. Returns the node, and the port on which it talks to other nodes.
    pub(crate) fn start_node() -> (Redis, String) {
        let (node, bus) = RedisServer::start_node(&[]);
        (Redis(node), bus)
    }

    /// Runs a command with redis-cli and returns its output.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        self.cli(words)
    }

    /// Makes scripts and commands that write wait until [`release_writes`](Redis::release_writes). Redis still answers
    /// PING, so its clients keep their connections.
    pub(crate) fn hold_writes(&self) {
        assert_eq!(self.run(&["client", "pause", "600000", "write"]), "OK");
    }

    pub(crate) fn release_writes(&self) {
        assert_eq!(self.run(&["client", "unpause"]), "OK");
    }

    /// Returns the sorted keys that requests have written. The keys of health checks are left out, because spillgate
    /// writes and removes them all the time.
    pub(crate) fn keys(&self, login: &[&str]) -> Vec<String> {
        let all = self.run(&[login, &["keys", "sg:*"]].concat());
        let mut keys: Vec<_> = all.lines().filter(|key| !key.starts_with("sg:{AAA")).map(str::to_owned).collect();
        keys.sort();
        keys
    }
}

impl Deref for Redis {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0
    }
}

impl DerefMut for Redis {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.0
    }
}

/// A Redis Cluster of three primaries. Each primary has a third of the slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: [Redis; 3],
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        let nodes: Vec<_> = start_cluster(false, &[]).into_iter().map(Redis).collect();
        Cluster { nodes: nodes.try_into().expect("the cluster has three nodes") }
    }

    pub(crate) fn url(&self) -> String {
        let addresses = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        format!("redis-cluster://{}", addresses.collect::<Vec<_>>().join(","))
    }
}
