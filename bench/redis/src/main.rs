//! Measures the store on Redis: how many decisions it makes in a second, how many bytes a key needs, and what a fault
//! costs.
//!
//! redis-server runs on one core. This program and redis-benchmark run on another core. Every command prints markdown
//! for `bench/results`. The ratios are valid on other machines too, but the speeds are not.

mod bytes;
mod cached;
mod faults;
mod fleet;
mod quotas;
mod speed;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use rustix::thread::{CpuSet, sched_setaffinity};

#[derive(Parser)]
#[command(name = "on-redis", about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Decisions per second by the library, compared with redis-benchmark that runs the same script
    Speed(speed::Options),
    /// A hot key that the deny cache refuses, compared with a hot key that is allowed. The program fails if Redis runs
    /// a script for a refusal
    Cached(cached::Options),
    /// Redis's time for a request on a bucket that another quota has charged
    Quotas(quotas::Options),
    /// Bytes per key with 10,000 keys. The program fails if a key needs more than its bound
    Bytes(bytes::Options),
    /// The latency of requests while a server fails, and the time until the store decides again
    Faults(faults::Options),
}

/// The cores on which the programs run.
#[derive(Args, Clone, Copy)]
struct Cores {
    /// Core of redis-server
    #[arg(long, default_value_t = 0)]
    server_core: u32,
    /// Core of this program and of redis-benchmark
    #[arg(long, default_value_t = 1)]
    client_core: u32,
}

impl Cores {
    /// Moves this program to the client's core. Programs that it starts also run on this core, unless they get another
    /// core.
    fn pin_client(self) -> Result<(), String> {
        let mut cores = CpuSet::new();
        cores.set(self.client_core as usize);
        sched_setaffinity(None, &cores).map_err(|e| format!("core {}: {e}", self.client_core))
    }
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Speed(options) => speed::run(&options),
        Command::Cached(options) => cached::run(&options),
        Command::Quotas(options) => quotas::run(&options),
        Command::Bytes(options) => bytes::run(&options),
        Command::Faults(options) => faults::run(&options),
    };
    kit::print("on-redis", outcome.map(|report| format!("{}\n{report}\n", kit::machine())))
}
