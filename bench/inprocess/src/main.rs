//! Measures limiters in process, beside each other: what a decision costs, what a key costs, and how even both stay.
//!
//! Every command prints markdown for `RESULTS.md`. Ratios, not speeds, carry over to other machines.

mod allocator;
mod batch;
mod cases;
mod growth;
mod keys;
mod memory;
mod speed;
mod timing;

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
    /// Nanoseconds a decision on keys that are all known, interleaved, against governor and bare tables
    Speed(speed::Options),
    /// The batch call against the single one
    Batch(batch::Options),
    /// Bytes a key, all in
    Memory(memory::Options),
    /// The slowest batch of decisions while a store grows and while all its keys expire
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
