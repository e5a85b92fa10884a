//! The Redis servers that are made to fail: a single server, a cluster, or a primary with sentinels.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use kit::{Process, Redis, free_address, pinned};
use tempfile::TempDir;

/// If a server has not answered for this many milliseconds, it is regarded as failed. In a cluster, the other servers
/// decide this. With sentinels, the sentinels decide it.
pub(crate) const DOWN_AFTER_MS: u64 = 500;

/// The name that the sentinels use for their primary.
pub(crate) const NAME: &str = "main";

const PRIMARIES: usize = 3;
const SLOTS: usize = 16384;
/// The first hash slot that does not belong to the first primary of a cluster.
pub(crate) const FIRST_END: u16 = (SLOTS / PRIMARIES) as u16;

/// The longest time that the program waits until the servers are ready.
const START: Duration = Duration::from_secs(60);

/// A group of servers. They end when this value is dropped.
pub(crate) struct Fleet {
    /// All servers. The first server is made to fail.
    pub(crate) servers: Vec<Redis>,
    /// The index of the server that replaces the first server. A single server replaces itself.
    pub(crate) heir: usize,
    pub(crate) url: String,
    pub(crate) sentinels: Vec<Redis>,
    /// This is the last field, so that the folder is removed after all servers have ended.
    _folder: TempDir,
}

impl Fleet {
    pub(crate) fn alone(core: u32) -> Result<Fleet, String> {
        let folder = folder()?;
        let server = start(core, &folder, &[])?;
        let url = server.url();
        Ok(Fleet { servers: vec![server], heir: 0, url, sentinels: Vec::new(), _folder: folder })
    }

    /// Starts three primaries with a replica each. The first primary has the first third of the hash slots.
    pub(crate) fn cluster(core: u32) -> Result<Fleet, String> {
        let folder = folder()?;
        let (mut servers, mut buses) = (Vec::new(), Vec::new());
        for node in 0..2 * PRIMARIES {
            let (bus, timeout) = (free_address()?.port().to_string(), DOWN_AFTER_MS.to_string());
            let file = format!("nodes-{node}.conf");
            let more = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-config-file", &file];
            servers.push(start(core, &folder, &[&more[..], &["--cluster-node-timeout", &timeout]].concat())?);
            buses.push(bus);
        }
        for (i, primary) in servers[..PRIMARIES].iter_mut().enumerate() {
            let (first, end) = (i * SLOTS / PRIMARIES, (i + 1) * SLOTS / PRIMARIES);
            primary.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()])?;
            primary.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
        }
        let (first, others) = servers.split_at_mut(1);
        for (other, bus) in others.iter().zip(&buses[1..]) {
            let address = other.process.address;
            first[0].run::<()>(&["CLUSTER", "MEET", &address.ip().to_string(), &address.port().to_string(), bus])?;
        }
        for i in 0..PRIMARIES {
            let id: String = servers[i].run(&["CLUSTER", "MYID"])?;
            let replica = &mut servers[PRIMARIES + i];
            until("the replica knows its primary", || Ok(replica.run::<()>(&["CLUSTER", "REPLICATE", &id]).is_ok()))?;
        }
        for (i, node) in servers.iter_mut().enumerate() {
            until("the cluster accepts requests", || {
                let info: String = node.run(&["CLUSTER", "INFO"])?;
                let known = format!("cluster_known_nodes:{}\r", 2 * PRIMARIES);
                Ok(info.contains("cluster_state:ok") && info.contains(&known) && has_its_pair(node, i >= PRIMARIES)?)
            })?;
        }
        let url = format!("redis-cluster://{}", servers[1].process.address);
        Ok(Fleet { servers, heir: PRIMARIES, url, sentinels: Vec::new(), _folder: folder })
    }

    /// Starts a primary, its replica, and three sentinels.
    pub(crate) fn watched(core: u32) -> Result<Fleet, String> {
        let folder = folder()?;
        let primary = start(core, &folder, &[])?;
        let (ip, port) = (primary.process.address.ip().to_string(), primary.process.address.port().to_string());
        let replica = start(core, &folder, &["--replicaof", &ip, &port])?;
        let mut servers = vec![primary, replica];
        for (i, server) in servers.iter_mut().enumerate() {
            until("the replica is connected to its primary", || has_its_pair(server, i > 0))?;
        }
        let settings = format!(
            "bind 127.0.0.1\nsentinel monitor {NAME} {ip} {port} 2\n\
             sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\nsentinel failover-timeout {NAME} 5000\n"
        );
        let mut sentinels: Vec<Redis> = (0..3).map(|_| sentinel(core, &folder, &settings)).collect::<Result<_, _>>()?;
        for sentinel in &mut sentinels {
            until("the sentinels know all servers", || knows_all(sentinel))?;
        }
        let hosts: Vec<String> = sentinels.iter().map(|sentinel| sentinel.process.address.to_string()).collect();
        let url = format!("redis-sentinel://{}/{NAME}", hosts.join(","));
        Ok(Fleet { servers, heir: 1, url, sentinels, _folder: folder })
    }
}

fn folder() -> Result<TempDir, String> {
    TempDir::new().map_err(|e| format!("cannot create a folder: {e}"))
}

fn start(core: u32, folder: &TempDir, more: &[&str]) -> Result<Redis, String> {
    let path = folder.path().display().to_string();
    let usual = ["--dir", &path, "--repl-diskless-sync-delay", "0"];
    Redis::start(core, free_address()?, &[&usual[..], more].concat())
}

/// Returns whether a replica is connected to its primary, or whether a primary has a replica.
fn has_its_pair(server: &mut Redis, is_replica: bool) -> Result<bool, String> {
    let info: String = server.run(&["INFO", "REPLICATION"])?;
    Ok(info.contains(if is_replica { "master_link_status:up" } else { "connected_slaves:1\r" }))
}

fn sentinel(core: u32, folder: &TempDir, settings: &str) -> Result<Redis, String> {
    let address = free_address()?;
    let path = folder.path().join(format!("sentinel-{}.conf", address.port()));
    fs::write(&path, format!("port {}\n{settings}", address.port())).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut command = pinned(&core.to_string());
    command.arg("redis-server").arg(&path).args(["--sentinel", "--loglevel", "warning"]);
    Redis::of(Process::start("sentinel", command, address)?)
}

/// Returns whether a sentinel knows the other sentinels, and a replica that can be promoted.
fn knows_all(sentinel: &mut Redis) -> Result<bool, String> {
    let quorum = sentinel.run::<String>(&["SENTINEL", "CKQUORUM", NAME]);
    let replicas: Vec<HashMap<String, String>> = sentinel.run(&["SENTINEL", "REPLICAS", NAME])?;
    let is_good =
        |replica: &HashMap<String, String>| replica["flags"] == "slave" && replica["master-link-status"] == "ok";
    Ok(quorum.is_ok_and(|reply| reply.starts_with("OK 3")) && replicas.len() == 1 && replicas.iter().all(is_good))
}

/// Waits until `is_so` returns true. An error ends the wait at once.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let deadline = Instant::now() + START;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(format!("this did not become true in time: {what}"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
