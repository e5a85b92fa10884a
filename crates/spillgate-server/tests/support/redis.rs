//! A redis-server of the test's own, which can be killed, stopped and started again.

use std::process::Command;

use tempfile::TempDir;

use super::eventually;
use super::process::Process;

pub(crate) use super::port::free_port;

#[derive(Debug)]
pub(crate) struct Redis {
    process: Process,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

impl Redis {
    /// On a free port, once it answers.
    pub(crate) fn start() -> Redis {
        Redis::start_at(free_port(), &[])
    }

    pub(crate) fn start_at(port: u16, arguments: &[&str]) -> Redis {
        let folder = TempDir::new().expect("a folder");
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = spawn(port, &arguments, &folder);
        let mut redis = Redis { process, port, arguments, folder };
        redis.answers();
        redis
    }

    /// A node that belongs to no cluster yet, and the port of the nodes' own talk. That one is named: the usual one, ten
    /// thousand ports higher, may be some connection's.
    pub(crate) fn start_node() -> (Redis, String) {
        let bus = free_port().to_string();
        (Redis::start_at(free_port(), &["--cluster-enabled", "yes", "--cluster-port", &bus]), bus)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// After [`kill`](Redis::kill): the same server again, which has forgotten everything.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(self.port, &self.arguments, &self.folder);
        self.answers();
    }

    /// What redis-cli prints of its answer.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        String::from_utf8_lossy(&output.expect("redis-cli is installed").stdout).trim_end().to_owned()
    }

    /// The names of what requests have counted, in order. What servers probe with is not among them: it is called by the
    /// number of the probe, and soon gone.
    pub(crate) fn keys(&self, login: &[&str]) -> Vec<String> {
        let all = self.run(&[login, &["keys", "sg:*"]].concat());
        let mut keys: Vec<_> = all.lines().filter(|key| !key.starts_with("sg:{AAA")).map(str::to_owned).collect();
        keys.sort();
        keys
    }

    fn answers(&mut self) {
        eventually("redis-server", || {
            let said = |process: &Process| std::iter::from_fn(|| process.line()).collect::<Vec<_>>().join("\n");
            assert!(self.process.is_running(), "redis-server ended: {}", said(&self.process));
            ["PONG", "NOAUTH"].iter().any(|word| self.run(&["ping"]).starts_with(word)).then_some(())
        });
    }
}

/// Three primaries that share the slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: [Redis; 3],
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        let nodes = [(0, 5460), (5461, 10922), (10923, 16383)].map(|(first, last)| {
            let (node, bus) = Redis::start_node();
            assert_eq!(node.run(&["cluster", "addslotsrange", &first.to_string(), &last.to_string()]), "OK");
            (node, bus)
        });
        for (other, bus) in &nodes[1..] {
            assert_eq!(nodes[0].0.run(&["cluster", "meet", "127.0.0.1", &other.port.to_string(), bus]), "OK");
        }
        let nodes = nodes.map(|(node, _)| node);
        for node in &nodes {
            eventually("the cluster", || {
                let told = node.run(&["cluster", "info"]);
                (told.contains("cluster_state:ok") && told.contains("cluster_known_nodes:3")).then_some(())
            });
        }
        Cluster { nodes }
    }

    pub(crate) fn url(&self) -> String {
        let addresses = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        format!("redis-cluster://{}", addresses.collect::<Vec<_>>().join(","))
    }
}

fn spawn(port: u16, arguments: &[String], folder: &TempDir) -> Process {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    Process::start("redis-server", command.args(arguments).current_dir(folder.path()))
}
