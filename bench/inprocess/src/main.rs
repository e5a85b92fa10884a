//! Measures limiters in process, beside each other: what a decision costs, what a key costs, and how even both stay.
//!
//! Every command prints markdown for `RESULTS.md`. Ratios, not speeds, carry over to other machines.

mod cases;
mod keys;
mod speed;
mod timing;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Speed(options) => speed::run(&options),
    };
    match outcome {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("inprocess: {error}");
            ExitCode::FAILURE
        }
    }
}
