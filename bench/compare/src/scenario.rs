//! The scenarios: which servers are compared, on which cores they run, and which requests they get.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use kit::{Redis, free_address, pinned};

use crate::Cli;
use crate::admin::{AdminClients, CLIENTS};
use crate::server::Server;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// gRPC ShouldRateLimit on one connection, against a tonic server that answers without deciding, and against
    /// throttlecrab-server if its binary is given
    Grpc,
    /// HTTP POST /v1/check, one request at a time on each connection, against an axum server that answers without
    /// deciding
    Http,
    /// gRPC on one connection with a shared store, against servers that make one script call for each request
    Shared,
    /// gRPC on many connections with two cores: spillgate with two workers against spillgate with one worker
    Scaling,
    /// gRPC on many connections with two workers: spillgate that watches its callers against spillgate that does not. A
    /// million callers are allowed
    Insight,
    /// Like the scenario insight, but with 1,000 callers, and nearly all requests are refused
    InsightRefused,
    /// gRPC on many connections with two workers, a million callers: spillgate with ten clients of its admin listener
    /// against spillgate without them. Both watch their callers
    Admin,
    /// gRPC on one connection with a shared store: spillgate with a limit that three regions share, against spillgate with the
    /// same limit for each region
    Regions,
    /// gRPC on one connection: spillgate with sketches against spillgate with exact states
    Sketch,
    /// gRPC on one connection: spillgate without TLS against spillgate with TLS
    Tls,
    /// HTTP POST /v1/check, one request at a time on each connection: spillgate without TLS against spillgate with TLS
    TlsHttp,
}

/// The number of connections to Redis in a pool. Each connection has one call at a time.
const POOL: u32 = 8;

/// The arguments of loadgen for gRPC `ShouldRateLimit`.
const RLS: &[&str] = &["rls"];
/// The arguments of loadgen for HTTP `POST /v1/check`.
const CHECK: &[&str] = &["check"];
/// The arguments of loadgen for throttlecrab-server. The limit is as large as that of spillgate's rule: 10^9 in an
/// hour.
const THROTTLECRAB: &[&str] =
    &["rls", "--path", "/throttlecrab.RateLimiter/Throttle", "--throttlecrab", "1000000000", "1000000000", "3600"];

impl Scenario {
    /// Starts the servers. Each ratio compares the first server with another server.
    pub(crate) fn servers(self, cli: &Cli) -> Result<Vec<Server>, String> {
        if let Some(base) = &cli.base {
            return Ok(vec![self.release(cli, "now", &cli.spillgate)?, self.release(cli, "base", base)?]);
        }
        match self {
            Scenario::Grpc => {
                let mut servers = vec![self.contender(cli, RLS)?, self.limit(cli, "tonic", RLS)?];
                if let Some(program) = &cli.throttlecrab {
                    let address = free_address()?;
                    let mut command = pinned(&self.server_cores(cli));
                    command.arg(program).args(["--grpc", "--grpc-host", "127.0.0.1", "--log-level", "warn"]);
                    command.arg("--grpc-port").arg(address.port().to_string());
                    servers.push(Server::start("throttlecrab-server", command, address, THROTTLECRAB)?);
                }
                Ok(servers)
            }
            Scenario::Shared => {
                let mut servers = vec![self.shared(cli, "spillgate", &cli.spillgate, &[])?];
                for connections in [1, POOL] {
                    servers.push(self.script(cli, connections)?);
                }
                Ok(servers)
            }
            Scenario::Http => Ok(vec![self.contender(cli, CHECK)?, self.limit(cli, "axum", CHECK)?]),
            Scenario::Scaling => Ok(vec![self.workers(cli, 2)?, self.workers(cli, 1)?]),
            Scenario::Insight => {
                let million = &["rls", "--keys", "1000000"];
                Ok(vec![self.insight(cli, "off", million)?, self.insight(cli, "65536", million)?])
            }
            Scenario::InsightRefused => {
                let thousand = &["rls", "--keys", "1000"];
                Ok(vec![self.insight(cli, "off", thousand)?, self.insight(cli, "65536", thousand)?])
            }
            Scenario::Admin => {
                let million = &["rls", "--keys", "1000000"];
                let settings = ["--workers", "2", "--insight-max-callers", "65536"];
                let start = |name: &str| self.spillgate(cli, name, &cli.spillgate, &settings, million);
                let watched = start(&format!("{CLIENTS} clients of the admin listener"))?;
                let admin_clients = watched.admin.map(AdminClients::start);
                Ok(vec![start("no client of the admin listener")?, Server { admin_clients, ..watched }])
            }
            Scenario::Regions => Ok(vec![
                self.region(cli, "one limit for all regions", "shared")?,
                self.region(cli, "each region its own", "each")?,
            ]),
            Scenario::Sketch => {
                let rules = |name: &str, rules: &Path| self.serve(cli, name, &cli.spillgate, rules, &[], RLS);
                Ok(vec![rules("with sketches", &cli.sketch_rules)?, rules("with exact states", &cli.rules)?])
            }
            Scenario::Tls => self.plain_and_tls(cli, RLS, &["rls", "--tls"]),
            Scenario::TlsHttp => self.plain_and_tls(cli, CHECK, &["check", "--tls"]),
        }
    }

    /// Starts spillgate from the binary of one commit, without insight. Older commits have no insight, and the
    /// scenarios `Insight` and `InsightRefused` measure its cost.
    fn release(self, cli: &Cli, name: &str, program: &Path) -> Result<Server, String> {
        let settings: &[&str] = if knows_insight(program)? { &["--insight-max-callers", "off"] } else { &[] };
        match self {
            Scenario::Grpc
            | Scenario::Scaling
            | Scenario::Sketch
            | Scenario::Insight
            | Scenario::InsightRefused
            | Scenario::Admin
            | Scenario::Tls => self.spillgate(cli, name, program, settings, RLS),
            Scenario::Http | Scenario::TlsHttp => self.spillgate(cli, name, program, settings, CHECK),
            Scenario::Shared | Scenario::Regions => self.shared(cli, name, program, settings),
        }
    }

    /// Starts spillgate with a Redis of its own.
    fn shared(self, cli: &Cli, name: &str, program: &Path, settings: &[&str]) -> Result<Server, String> {
        let redis = Redis::start(cli.client_core, free_address()?, &[])?;
        let url = redis.url();
        // The deadline is long, so that an answer that comes late on a busy machine is not an error.
        let store = ["--store", &url, "--store-expected-nodes", "1", "--store-deadline", "1s"];
        Ok(self.spillgate(cli, name, program, &[&store, settings].concat(), RLS)?.with(redis))
    }

    /// Starts spillgate as one of three regions, with a Redis for each. `default` is what a limit means for all of them.
    fn region(self, cli: &Cli, name: &str, default: &str) -> Result<Server, String> {
        let start = || Redis::start(cli.client_core, free_address()?, &[]);
        let (own, others) = (start()?, [start()?, start()?]);
        let secret = std::env::temp_dir().join(format!("spillgate-bench-secret-{}", std::process::id()));
        private_file(&secret, "a secret of this benchmark only").map_err(|e| format!("{}: {e}", secret.display()))?;
        let (url, secret) = (own.url(), secret.display().to_string());
        let peers = format!("us={},ap={}", others[0].url(), others[1].url());
        let settings = [
            ["--store", &url],
            ["--store-expected-nodes", "2"],
            ["--store-deadline", "1s"],
            ["--store-key-secret-file", &secret],
            ["--regions-name", "eu"],
            ["--regions-peers", &peers],
            ["--regions-default", default],
            ["--allow-grpc", "[]"],
        ];
        let server = self.spillgate(cli, name, &cli.spillgate, &settings.concat(), RLS)?;
        Ok(Server { redis: Some(own), _regions: others.into(), ..server })
    }

    /// Starts spillgate without TLS, and spillgate with TLS and a certificate of its own.
    fn plain_and_tls(
        self,
        cli: &Cli,
        plain: &'static [&'static str],
        tls: &'static [&'static str],
    ) -> Result<Vec<Server>, String> {
        let [cert, key] = certificate(&cli.tools)?;
        let settings = ["--tls-cert", &cert, "--tls-key", &key];
        Ok(vec![
            self.spillgate(cli, "without TLS", &cli.spillgate, &[], plain)?,
            self.spillgate(cli, "with TLS", &cli.spillgate, &settings, tls)?,
        ])
    }

    fn workers(self, cli: &Cli, workers: u32) -> Result<Server, String> {
        let count = workers.to_string();
        self.spillgate(cli, &format!("spillgate --workers {count}"), &cli.spillgate, &["--workers", &count], RLS)
    }

    /// Starts spillgate with two workers and this many watched callers.
    fn insight(self, cli: &Cli, callers: &str, request: &'static [&'static str]) -> Result<Server, String> {
        let settings = ["--workers", "2", "--insight-max-callers", callers];
        self.spillgate(cli, &format!("insight.max_callers {callers}"), &cli.spillgate, &settings, request)
    }

    /// Starts one server of the folder `limits`, which sends the same answer as spillgate without a decision.
    fn limit(self, cli: &Cli, stack: &str, request: &'static [&'static str]) -> Result<Server, String> {
        let address = free_address()?;
        let mut command = pinned(&self.server_cores(cli));
        command.arg(cli.tools.join("limits")).arg(stack).arg(address.to_string()).env("RT", "current");
        Server::start(&format!("{stack} (answers at once)"), command, address, request)
    }

    /// Starts the server of the folder `limits` that makes one script call for each request. This server has
    /// `connections` connections to a Redis of its own.
    fn script(self, cli: &Cli, connections: u32) -> Result<Server, String> {
        let redis = Redis::start(cli.client_core, free_address()?, &[])?;
        let address = free_address()?;
        let mut command = pinned(&self.server_cores(cli));
        command.arg(cli.tools.join("limits")).arg("script").arg(address.to_string()).env("RT", "current");
        command.env("REDIS", redis.process.address.to_string()).env("CONNECTIONS", connections.to_string());
        let name = match connections {
            1 => "tonic, one script call a request over one connection".to_owned(),
            more => format!("tonic, one script call a request over a pool of {more} connections"),
        };
        Ok(Server::start(&name, command, address, RLS)?.with(redis))
    }

    /// Returns the target: the smallest ratio of decisions a second, of the first server to the server `other`. `None`
    /// if there is no target.
    pub(crate) const fn target(self, other: usize) -> Option<f64> {
        match (self, other) {
            (Scenario::Shared, 1) => Some(4.0),
            (Scenario::Sketch, 1) => Some(0.95),
            _ => None,
        }
    }

    /// Returns the largest ratio of CPU times of a decision, of the server `other` to the first server. `None` if there is no
    /// target.
    pub(crate) const fn cpu_target(self, other: usize) -> Option<f64> {
        match (self, other) {
            (Scenario::Tls, 1) => Some(1.25),
            _ => None,
        }
    }

    /// Returns the file of rules that spillgate serves.
    fn rules(self, cli: &Cli) -> &Path {
        match self {
            Scenario::Shared | Scenario::Regions => &cli.shared_rules,
            Scenario::InsightRefused => &cli.refusing_rules,
            _ => &cli.rules,
        }
    }

    fn contender(self, cli: &Cli, request: &'static [&'static str]) -> Result<Server, String> {
        let Some(contender) = &cli.contender else {
            return self.spillgate(cli, "spillgate", &cli.spillgate, &[], request);
        };
        let address = free_address()?;
        let mut command = pinned(&self.server_cores(cli));
        command.args(contender.replace("{address}", &address.to_string()).split_whitespace()).env("RT", "current");
        Server::start(contender, command, address, request)
    }

    fn spillgate(
        self,
        cli: &Cli,
        name: &str,
        program: &Path,
        settings: &[&str],
        request: &'static [&'static str],
    ) -> Result<Server, String> {
        self.serve(cli, name, program, self.rules(cli), settings, request)
    }

    /// Starts spillgate with one worker, unless `settings` has another number of workers.
    fn serve(
        self,
        cli: &Cli,
        name: &str,
        program: &Path,
        rules: &Path,
        settings: &[&str],
        request: &'static [&'static str],
    ) -> Result<Server, String> {
        let (address, other) = (free_address()?, free_address()?);
        let (grpc, http) =
            if matches!(self, Scenario::Http | Scenario::TlsHttp) { (other, address) } else { (address, other) };
        let mut command = pinned(&self.server_cores(cli));
        command.arg(program).arg("serve").arg(rules);
        command.arg("--grpc").arg(grpc.to_string()).arg("--http").arg(http.to_string());
        let admin = free_address()?;
        command.arg("--admin").arg(admin.to_string()).args(settings);
        if !settings.contains(&"--workers") {
            command.args(["--workers", "1"]);
        }
        Ok(Server { admin: Some(admin), ..Server::start(name, command, address, request)? })
    }

    pub(crate) fn server_cores(self, cli: &Cli) -> String {
        match self {
            Scenario::Scaling | Scenario::Insight | Scenario::InsightRefused | Scenario::Admin => {
                format!("{},{}", cli.server_core, cli.client_core)
            }
            _ => cli.server_core.to_string(),
        }
    }

    pub(crate) fn client_cores(self, cli: &Cli) -> String {
        match self {
            Scenario::Scaling | Scenario::Insight | Scenario::InsightRefused | Scenario::Admin => {
                self.server_cores(cli)
            }
            _ => cli.client_core.to_string(),
        }
    }

    /// Returns the number of connections of the client, and the number of requests in flight on all of them.
    pub(crate) const fn load(self, cli: &Cli) -> (u32, u32) {
        match self {
            Scenario::Grpc | Scenario::Shared | Scenario::Regions | Scenario::Sketch | Scenario::Tls => {
                (1, cli.concurrency)
            }
            Scenario::Http | Scenario::TlsHttp => (cli.concurrency, cli.concurrency),
            // Four requests are in flight on each connection, as if many proxies were connected.
            Scenario::Scaling | Scenario::Insight | Scenario::InsightRefused | Scenario::Admin => {
                (cli.concurrency, cli.concurrency * 4)
            }
        }
    }

    pub(crate) fn title(self, cli: &Cli) -> String {
        let (connections, in_flight) = self.load(cli);
        match self {
            Scenario::Grpc | Scenario::Sketch | Scenario::Tls => {
                format!("gRPC, {in_flight} requests in flight on one connection, server on one core")
            }
            Scenario::Shared => format!(
                "gRPC, {in_flight} requests in flight on one connection, server on one core; each server has a \
                Redis on the client's core; token buckets"
            ),
            Scenario::Regions => format!(
                "gRPC, {in_flight} requests in flight on one connection, server on one core; each server has three Redis \
                servers on the client's core; token buckets"
            ),
            Scenario::Http | Scenario::TlsHttp => {
                format!("HTTP `POST /v1/check`, {connections} connections, server on one core")
            }
            Scenario::Scaling | Scenario::Insight | Scenario::InsightRefused | Scenario::Admin => format!(
                "gRPC, {in_flight} requests in flight on {connections} connections; the server and the client share two cores"
            ),
        }
    }
}

/// Makes a certificate with a key of ECDSA P-256, in this folder. Returns the path of the certificate, and of the key.
fn certificate(folder: &Path) -> Result<[String; 2], String> {
    let [cert, key] = ["bench.pem", "bench.key"].map(|name| folder.join(name).display().to_string());
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
    command.args(["-subj", "/CN=spillgate", "-addext", "subjectAltName=IP:127.0.0.1"]);
    let output = command.args(["-keyout", &key, "-out", &cert]).output().map_err(|e| format!("openssl: {e}"))?;
    if !output.status.success() {
        return Err(format!("openssl: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok([cert, key])
}

/// Returns whether the binary `program` has the settings of insight.
fn knows_insight(program: &Path) -> Result<bool, String> {
    let help = Command::new(program).args(["serve", "--help"]).output();
    let help = help.map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(String::from_utf8_lossy(&help.stdout).contains("--insight-max-callers"))
}

/// Writes a file that only its owner can read.
fn private_file(path: &Path, text: &str) -> std::io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}
