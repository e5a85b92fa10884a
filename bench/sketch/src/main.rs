//! Measures sketches: limits that share a fixed number of cells among all keys.
//!
//! Every command prints markdown for `bench/results`, and fails if a promise of the sketch is broken. All times are virtual,
//! so the results do not depend on the speed of the machine.

mod edge;
mod exact;
mod keys;
mod refusals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "sketch", about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Wrong refusals, compared with the formula
    Refusals(refusals::Options),
    /// Very many different keys through one sketch: its memory, and the bounds of some keys
    Keys(keys::Options),
    /// What is admitted at the edge of two windows
    Edge,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Refusals(options) => refusals::run(&options),
        Command::Keys(options) => keys::run(&options),
        Command::Edge => edge::run(),
    };
    kit::print("sketch", outcome)
}
