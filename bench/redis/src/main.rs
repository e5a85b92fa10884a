//! Measures the store on Redis: how many decisions a second it makes, what a key costs, what a fault costs.
//!
//! redis-server has one core, this program and redis-benchmark another. Every command prints markdown for `RESULTS.md`.
//! Ratios, not speeds, carry over to other machines.

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
    /// Decisions a second by the library, beside redis-benchmark that runs the same script
    Speed(speed::Options),
    /// A refused hot key, which the deny cache answers, beside an allowed one; fails if Redis is asked
    Cached(cached::Options),
    /// Microseconds of Redis that a question costs on a state that another quota charged
    Quotas(quotas::Options),
    /// Bytes a key at 10,000 keys; fails above the bounds
    Bytes(bytes::Options),
    /// Latency while a server is killed or frozen, or its replica takes over, and how soon the store decides again
    Faults(faults::Options),
}

/// Where everything runs.
#[derive(Args, Clone, Copy)]
struct Cores {
    /// The core of redis-server
    #[arg(long, default_value_t = 0)]
    server_core: u32,
    /// The core of this program and of redis-benchmark
    #[arg(long, default_value_t = 1)]
    client_core: u32,
}

impl Cores {
    /// Takes this program, and what it starts unpinned, to the client's core.
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
