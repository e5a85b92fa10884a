//! Compares limiters in one process: the time of a decision, the bytes of a key, and the slowest batch of decisions.
//!
//! Every command prints markdown for `bench/results`. The ratios are valid on other machines too, but the speeds are not.

mod allocator;
mod batch;
mod cases;
mod growth;
mod keys;
mod memory;
mod speed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

#[derive(Parser)]
#[command(name = "inprocess", about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Nanoseconds per decision on known keys, compared with governor and with plain tables
    Speed(speed::Options),
    /// The batch call compared with the single call
    Batch(batch::Options),
    /// Bytes per key, everything included
    Memory(memory::Options),
    /// The slowest batch of decisions, while a store grows and while all its keys expire
    Growth(growth::Options),
    /// One case of `memory`, in a process of its own
    #[command(hide = true)]
    MemoryCase(memory::CaseOptions),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Speed(options) => speed::run(&options),
        Command::Batch(options) => batch::run(&options),
        Command::Memory(options) => memory::run(&options),
        Command::Growth(options) => growth::run(&options),
        Command::MemoryCase(options) => memory::run_case(&options),
    };
    kit::print("inprocess", outcome)
}
