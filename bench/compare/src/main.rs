//! Measures spillgate against the limit of its protocol stack, and prints markdown for `RESULTS.md`.
//!
//! Both servers of a comparison run at the same time on one core and are loaded in turn from another, so that
//! whatever the machine does in the meantime hits both. One pair of runs is one repetition, in alternating order;
//! the ratio is taken within a pair. Ratios, not speeds, carry over to other machines.

mod measure;
mod server;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use measure::Comparison;

#[derive(Parser)]
#[command(name = "bench", about)]
struct Cli {
    /// What to compare; everything unless said
    #[arg(value_enum)]
    only: Vec<Protocol>,
    /// The spillgate binary
    #[arg(long, default_value = "../target/release/spillgate")]
    spillgate: PathBuf,
    /// A server to measure in spillgate's place, as a command in which {address} is replaced
    #[arg(long)]
    contender: Option<String>,
    /// The folder of the binaries `limits` and `loadgen`
    #[arg(long, default_value = "target/release")]
    tools: PathBuf,
    /// The rules that spillgate serves
    #[arg(long, default_value = "rules.yaml")]
    rules: PathBuf,
    /// Measured pairs
    #[arg(long, default_value_t = 7)]
    repetitions: usize,
    /// Measured seconds of each run
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Seconds of load before each run is measured
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Requests in flight
    #[arg(long, default_value_t = 64)]
    concurrency: u32,
    /// The core that the servers share
    #[arg(long, default_value_t = 0)]
    server_core: u32,
    /// The core of the load generator
    #[arg(long, default_value_t = 1)]
    client_core: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    /// gRPC ShouldRateLimit on one connection, against tonic
    Grpc,
    /// HTTP POST /v1/check, one request on each connection, against axum
    Http,
}

impl Protocol {
    /// The server of `limits` that answers the same without deciding.
    const fn limit(self) -> &'static str {
        match self {
            Protocol::Grpc => "tonic",
            Protocol::Http => "axum",
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let protocols = if cli.only.is_empty() { vec![Protocol::Grpc, Protocol::Http] } else { cli.only.clone() };
    println!("{}", kit::machine());
    for protocol in protocols {
        match Comparison::run(&cli, protocol) {
            Ok(comparison) => println!("{}", table::comparison(&cli, protocol, &comparison)),
            Err(error) => {
                eprintln!("bench: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
