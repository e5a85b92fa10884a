//! Closed- and open-loop load generator for rate-limit servers.
//!
//! Each thread drives its share of the connections from one epoll loop and speaks the wire
//! protocol directly, so that one client core can saturate one server core. Prints one JSON line.
//!
//!     loadgen rls  --target 127.0.0.1:8081 --connections 4 --concurrency 64 --seconds 5
//!     loadgen http --target 127.0.0.1:8080 --path /check --body '{"key":"{key}"}'
//!     loadgen check --target 127.0.0.1:8080 --connections 64 --concurrency 64
//!     loadgen resp --target 127.0.0.1:6379 --command 'THROTTLE {key} 100 100 60 1'
//!
//! `--concurrency` is the total number of requests in flight; connections share it evenly
//! (HTTP/2 streams for rls, pipelining for http and resp). With `--rate` requests are sent on a
//! fixed schedule and latency counts from the scheduled time, so queueing is not hidden.

mod engine;
mod http;
mod keys;
mod proto;
mod resp;
mod rls;

use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Subcommand)]
enum Protocol {
    /// gRPC envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit over plaintext HTTP/2
    Rls {
        #[command(flatten)]
        load: Load,
        /// Rate limit domain (Limitador's namespace)
        #[arg(long, default_value = "bench")]
        domain: String,
        /// Descriptor entry key; the entry's value is the generated key
        #[arg(long, default_value = "user_id")]
        entry: String,
        /// Request path, to call another unary method that takes the same message
        #[arg(long, default_value = rls::DEFAULT_PATH)]
        path: String,
        /// Send throttlecrab.ThrottleRequest with these "max_burst count period" instead
        #[arg(long, num_args = 3, value_names = ["BURST", "COUNT", "PERIOD"])]
        throttlecrab: Option<Vec<u64>>,
    },
    /// HTTP/1.1 keep-alive; 200 is allowed, 429 denied, anything else an error
    Http {
        #[command(flatten)]
        load: Load,
        #[arg(long, default_value = "POST")]
        method: String,
        /// Request path; {key} is replaced
        #[arg(long, default_value = "/")]
        path: String,
        /// JSON body; {key} is replaced
        #[arg(long, default_value = "")]
        body: String,
    },
    /// spillgate's `POST /v1/check` of one descriptor with one entry, whose value is the generated key
    Check {
        #[command(flatten)]
        load: Load,
        #[arg(long, default_value = "bench")]
        domain: String,
        /// Descriptor entry key
        #[arg(long, default_value = "user_id")]
        entry: String,
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// RESP2 command, as to Redis
    Resp {
        #[command(flatten)]
        load: Load,
        /// Command words; {key} is replaced, and ; separates commands sent as one request
        #[arg(long, default_value = "PING")]
        command: String,
        /// The integer (alone or first in the reply array) that means denied
        #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
        denied: i64,
    },
}

#[derive(Args, Clone)]
pub(crate) struct Load {
    /// Server address
    #[arg(long)]
    target: SocketAddr,
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Requests in flight, over all connections
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
    /// Measured seconds, after the warm-up
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Client threads; connections are dealt round-robin
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Requests a second in total (open loop); 0 sends as fast as replies come (closed loop)
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Distinct keys
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Zipf exponent; 0 is uniform
    #[arg(long, default_value_t = 1.0)]
    zipf: f64,
    #[arg(long, default_value = "user:")]
    key_prefix: String,
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Report the CPU time that this process spent
    #[arg(long)]
    server_pid: Vec<u32>,
    /// Copied into the output line
    #[arg(long, default_value = "")]
    label: String,
}

/// The load, and how to speak to the server.
struct Plan {
    name: &'static str,
    load: Load,
    make: Box<engine::MakeProtocol>,
}

impl Plan {
    fn http(load: Load, method: &str, path: &str, body: &str) -> Plan {
        let http = http::Http::new(method, path, &load.target.to_string(), body);
        Plan { name: "http", load, make: Box::new(move || Box::new(http.clone())) }
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
                Plan { name: "rls", load, make: Box::new(make) }
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
                Plan { name: "resp", load, make: Box::new(make) }
            }
        }
    }
}

fn main() -> ExitCode {
    let plan = Plan::from(Cli::parse().protocol);
    match engine::run(&plan.load, &*plan.make) {
        Ok(outcome) => {
            println!("{}", report(plan.name, &plan.load, &outcome));
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
