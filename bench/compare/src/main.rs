//! Measures spillgate against the limit of its protocol stack and against peers, and prints markdown for `RESULTS.md`.
//!
//! All servers of a comparison are up at the same time on one core and are loaded in turn from another, so that
//! whatever the machine does in the meantime hits all. One run of each is one repetition, in alternating order;
//! ratios are taken within a repetition. Ratios, not speeds, carry over to other machines.

mod measure;
mod regression;
mod scenario;
mod server;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use measure::Comparison;
use regression::Verdict;
use scenario::Scenario;

#[derive(Parser)]
#[command(name = "bench", about, args_override_self = true)]
struct Cli {
    /// What to compare; grpc and http unless said
    #[arg(value_enum)]
    only: Vec<Scenario>,
    /// The spillgate binary
    #[arg(long, default_value = "../target/release/spillgate")]
    spillgate: PathBuf,
    /// The spillgate binary of an earlier commit, to compare CPU time with; no other server then, and at least 31 rounds
    #[arg(long)]
    base: Option<PathBuf>,
    /// A server to measure in spillgate's place, as a command in which {address} is replaced
    #[arg(long)]
    contender: Option<String>,
    /// The binary of throttlecrab-server, to measure its gRPC too
    #[arg(long)]
    throttlecrab: Option<PathBuf>,
    /// The folder of the binaries `limits` and `loadgen`
    #[arg(long, default_value = "target/release")]
    tools: PathBuf,
    /// The rules that spillgate serves
    #[arg(long, default_value = "rules.yaml")]
    rules: PathBuf,
    /// The rules that spillgate serves with a shared store
    #[arg(long, default_value = "rules-shared.yaml")]
    shared_rules: PathBuf,
    /// Measured rounds
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

fn main() -> ExitCode {
    let cli = Cli::parse();
    let scenarios = if cli.only.is_empty() { vec![Scenario::Grpc, Scenario::Http] } else { cli.only.clone() };
    println!("{}", kit::machine());
    if cli.base.is_some() {
        println!("\n{}", table::REGRESSION_HEAD);
    }
    let mut code = ExitCode::SUCCESS;
    for scenario in scenarios {
        match Comparison::run(&cli, scenario) {
            Ok(comparison) if cli.base.is_some() => {
                let verdict = Verdict::of(&comparison);
                println!("{}", table::regression(scenario.title(&cli), &comparison, verdict));
                if verdict != Verdict::Held {
                    code = ExitCode::FAILURE;
                }
            }
            Ok(comparison) => println!("{}", table::comparison(&cli, scenario, &comparison)),
            Err(error) => {
                eprintln!("bench: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    code
}
