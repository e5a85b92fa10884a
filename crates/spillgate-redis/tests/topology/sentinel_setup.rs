//! A primary with one replica, and three sentinels, for one test.

use std::fs;
use std::process::{Child, Command};

use redis::Value;
use spillgate_testkit::{folder_in_memory, redis_program, start_on_free_port};
use tempfile::TempDir;

use crate::support::cluster::text;
use crate::support::common::until;
use crate::support::server::{Server, run};

pub(crate) struct SentinelSetup {
    /// The two Redis servers. The first one is the primary at the start.
    pub(crate) servers: [Server; 2],
    pub(crate) sentinels: Vec<Sentinel>,
}

pub(crate) struct Sentinel {
    process: Child,
    pub(crate) port: u16,
    _folder: TempDir,
}

impl SentinelSetup {
    /// Starts the Redis servers and the sentinels, and returns as soon as the sentinels know all Redis servers.
    pub(crate) async fn start() -> SentinelSetup {
        let primary = Server::start();
        let port = primary.port().to_string();
        let replicaof = format!("127.0.0.1 {port}");
        let replica = Server::start_with(&["--replicaof", &replicaof, "--repl-diskless-sync-delay", "0"]);
        let sentinels = (0..3).map(|_| Sentinel::start(primary.port(), "")).collect();
        let sentinel_setup = SentinelSetup { servers: [primary, replica], sentinels };
        sentinel_setup.until_all_is_known().await;
        sentinel_setup
    }

    /// Waits until the sentinels know each other and a replica that can take over.
    pub(crate) async fn until_all_is_known(&self) {
        for sentinel in &self.sentinels {
            until("the sentinel knows the other sentinels and the replica", || sentinel.knows_all()).await;
        }
    }

    pub(crate) fn url(&self) -> String {
        let sentinels: Vec<String> = self.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port)).collect();
        format!("redis-sentinel://{}/main", sentinels.join(","))
    }
}

impl Sentinel {
    pub(crate) fn start(primary: u16, more: &str) -> Sentinel {
        let folder = folder_in_memory();
        let (process, port) = start_on_free_port("+monitor master main", |port| {
            let settings = format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary} 2\n\
                 sentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 2000\n{more}"
            );
            fs::write(folder.path().join("sentinel.conf"), settings).expect("the file can be written");
            let mut command = Command::new(redis_program());
            command.args(["sentinel.conf", "--sentinel"]).current_dir(folder.path());
            command
        });
        Sentinel { process, port, _folder: folder }
    }

    fn knows_all(&self) -> bool {
        let has_quorum =
            run(self.port, &["SENTINEL", "CKQUORUM", "main"]).is_ok_and(|reported| text(reported).contains("OK 3"));
        let replicas = match run(self.port, &["SENTINEL", "REPLICAS", "main"]) {
            Ok(Value::Array(replicas)) => replicas,
            other => panic!("no replicas: {other:?}"),
        };
        let fields = replicas
            .into_iter()
            .map(|replica| redis::from_redis_value::<Vec<String>>(replica).expect("the reply is text"));
        let is_linked = |fields: Vec<String>| {
            let field = |name: &str| fields.iter().position(|it| it == name).map(|i| fields[i + 1].as_str());
            field("flags") == Some("slave") && field("master-link-status") == Some("ok")
        };
        has_quorum && fields.map(is_linked).eq([true])
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
