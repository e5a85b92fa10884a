//! A load generator for rate-limit servers, with a closed loop or an open loop.
//!
//! Each thread serves its part of the connections in one epoll loop, and it writes and reads the protocol itself. So
//! this program on one core can keep a server on another core fully busy. The result is one line of JSON.
//!
//!     loadgen rls  --target 127.0.0.1:8081 --connections 4 --concurrency 64 --seconds 5
//!     loadgen http --target 127.0.0.1:8080 --path /check --body '{"key":"{key}"}'
//!     loadgen check --target 127.0.0.1:8080 --connections 64 --concurrency 64
//!     loadgen resp --target 127.0.0.1:6379 --command 'THROTTLE {key} 100 100 60 1'
//!     loadgen handshakes --target 127.0.0.1:8081 --tls --concurrency 16
//!     loadgen flood --target 127.0.0.1:8081 --connections 8000 --hello
//!     loadgen newcomers --target 127.0.0.1:8081 --tls
//!
//! `--concurrency` is the number of requests in flight on all connections together. Each connection gets an equal part.
//! With rls, these requests are HTTP/2 streams. With http and resp, they are pipelined.
//!
//! With `--rate`, requests are sent on a fixed schedule (an open loop). Then the latency of a request is measured from
//! its scheduled time. So the time that a request waits before it is sent is a part of its latency.

mod engine;
mod flood;
mod handshakes;
mod http;
mod keys;
mod newcomers;
mod proto;
mod resp;
mod rls;
mod socket;
mod tls;

use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Load(Protocol),
    /// Clients that connect, and go as soon as the server has served them
    Handshakes(handshakes::Handshakes),
    /// Clients that connect, and never end a handshake
    Flood(flood::Flood),
    /// Clients that connect, and try again until they have an answer
    Newcomers(newcomers::Newcomers),
}

#[derive(Subcommand)]
enum Protocol {
    /// gRPC envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit over HTTP/2
    Rls {
        #[command(flatten)]
        load: Load,
        /// Domain of the request (Limitador calls it a namespace)
        #[arg(long, default_value = "bench")]
        domain: String,
        /// Key of the descriptor's entry. The value of the entry is the generated key
        #[arg(long, default_value = "user_id")]
        entry: String,
        /// Path of the request. Another path calls another unary method that takes the same message
        #[arg(long, default_value = rls::DEFAULT_PATH)]
        path: String,
        /// Send a throttlecrab.ThrottleRequest with this max_burst, count and period, and not a request of Envoy's
        /// protocol
        #[arg(long, num_args = 3, value_names = ["BURST", "COUNT", "PERIOD"])]
        throttlecrab: Option<Vec<u64>>,
    },
    /// HTTP/1.1 on connections that are kept open. 200 means allowed, 429 means denied, and any other status is an
    /// error
    Http {
        #[command(flatten)]
        load: Load,
        #[arg(long, default_value = "POST")]
        method: String,
        /// Path of the request. {key} is replaced by the generated key
        #[arg(long, default_value = "/")]
        path: String,
        /// JSON body. {key} is replaced by the generated key
        #[arg(long, default_value = "")]
        body: String,
    },
    /// spillgate's `POST /v1/check` with one descriptor. The descriptor has one entry, and the entry's value is the
    /// generated key
    Check {
        #[command(flatten)]
        load: Load,
        #[arg(long, default_value = "bench")]
        domain: String,
        /// Key of the descriptor's entry
        #[arg(long, default_value = "user_id")]
        entry: String,
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// A RESP2 command, as for Redis
    Resp {
        #[command(flatten)]
        load: Load,
        /// Words of the command. {key} is replaced by the generated key. A semicolon separates commands that are sent
        /// as one request
        #[arg(long, default_value = "PING")]
        command: String,
        /// The integer that means denied. It is the reply, or the first number in the reply
        #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
        denied: i64,
    },
}

#[derive(Args, Clone)]
pub(crate) struct Load {
    /// Address of the server
    #[arg(long)]
    target: SocketAddr,
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Requests in flight, on all connections together
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
    /// Measured seconds, after the warm-up
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Threads of the client. Connections are given to the threads in turns
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Requests per second of all threads (open loop). With 0, a request is sent as soon as a reply has come (closed
    /// loop)
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Number of different keys
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Exponent of the Zipf distribution. 0 means uniform
    #[arg(long, default_value_t = 1.0)]
    zipf: f64,
    #[arg(long, default_value = "user:")]
    key_prefix: String,
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// The id of a server process. Its CPU time is reported too
    #[arg(long)]
    server_pid: Vec<u32>,
    #[command(flatten)]
    tls: tls::Tls,
    /// A text that is copied into the output line
    #[arg(long, default_value = "")]
    label: String,
}

/// The load, and the protocol to use with the server.
struct Plan {
    name: &'static str,
    /// The name of the protocol in TLS.
    alpn: &'static str,
    load: Load,
    make: Box<engine::MakeProtocol>,
}

impl Plan {
    fn http(load: Load, method: &str, path: &str, body: &str) -> Plan {
        let http = http::Http::new(method, path, &load.target.to_string(), body);
        Plan { name: "http", alpn: "http/1.1", load, make: Box::new(move || Box::new(http.clone())) }
    }
}

impl From<Protocol> for Plan {
    fn from(protocol: Protocol) -> Plan {
        match protocol {
            Protocol::Rls { load, domain, entry, path, throttlecrab } => {
                let message = match throttlecrab {
                    Some(limits) => rls::Message::throttlecrab(&limits),
                    None => rls::Message::should_rate_limit(&domain, &entry),
                };
                let headers = rls::request_headers(&load.target.to_string(), &path);
                let make = move || Box::new(rls::Rls::new(message.clone(), headers.clone())) as _;
                Plan { name: "rls", alpn: "h2", load, make: Box::new(make) }
            }
            Protocol::Http { load, method, path, body } => Plan::http(load, &method, &path, &body),
            Protocol::Check { load, domain, entry, cost } => {
                let quoted = |text: &str| serde_json::Value::from(text).to_string();
                let (domain, entry) = (quoted(&domain), quoted(&entry));
                let body = format!(r#"{{"domain":{domain},"descriptors":[{{{entry}:"{{key}}"}}],"cost":{cost}}}"#);
                Plan::http(load, "POST", "/v1/check", &body)
            }
            Protocol::Resp { load, command, denied } => {
                let make = move || Box::new(resp::Resp::new(&command, denied)) as _;
                Plan { name: "resp", alpn: "redis", load, make: Box::new(make) }
            }
        }
    }
}

impl Command {
    fn run(self) -> Result<serde_json::Value, String> {
        match self {
            Command::Load(protocol) => {
                let plan = Plan::from(protocol);
                let tls = plan.load.tls.config(plan.alpn)?;
                let outcome = engine::run(&plan.load, tls.as_ref(), &*plan.make)?;
                Ok(report(plan.name, &plan.load, &outcome))
            }
            Command::Handshakes(handshakes) => handshakes.run(),
            Command::Flood(flood) => flood.run(),
            Command::Newcomers(newcomers) => newcomers.run(),
        }
    }
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report(protocol: &str, load: &Load, r: &engine::Outcome) -> serde_json::Value {
    let us = |q: f64| r.latency.value_at_quantile(q) as f64 / 1e3;
    let ops = r.allowed + r.denied + r.errors;
    let per_op = |cpu: Duration| cpu.as_secs_f64() * 1e6 / ops.max(1) as f64;
    serde_json::json!({
        "label": load.label, "protocol": protocol, "target": load.target.to_string(),
        "connections": load.connections, "concurrency": load.concurrency, "threads": load.threads,
        "seconds": r.elapsed.as_secs_f64(), "rate": load.rate, "keys": load.keys, "zipf": load.zipf,
        "ops": ops, "ops_per_s": (ops as f64 / r.elapsed.as_secs_f64()).round(),
        "allowed": r.allowed, "denied": r.denied, "errors": r.errors,
        "mean_us": r.latency.mean() / 1e3,
        "p50_us": us(0.5), "p90_us": us(0.9), "p99_us": us(0.99), "p999_us": us(0.999), "max_us": r.latency.max() as f64 / 1e3,
        "client_cpu_us_per_op": per_op(r.client_cpu), "server_cpu_us_per_op": r.server_cpu.map(per_op),
    })
}
