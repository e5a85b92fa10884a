//! Measures spillgate against other servers, and prints markdown for `bench/results`.
//!
//! Some of the other servers answer without a decision, so they show the highest speed of their protocol stack. The
//! rest are rate limiters.
//!
//! All servers of a comparison are started first, and share one core. The load generator runs on another core, and
//! sends requests to one server after the other. (In the scenario `scaling`, the servers and the load generator share
//! both cores.) In each round, every server has one run, and the order is reversed after each round. So all servers
//! suffer equally from other programs on the machine. A ratio is computed from two runs of the same round. On another
//! machine the speeds differ, but the ratios are similar.

mod admin;
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
    /// What to compare. The default is grpc and http
    #[arg(value_enum)]
    only: Vec<Scenario>,
    /// The spillgate binary
    #[arg(long, default_value = "../target/release/spillgate")]
    spillgate: PathBuf,
    /// The spillgate binary of an earlier commit. Only the CPU times of the two binaries are compared, in at least 31
    /// rounds
    #[arg(long)]
    base: Option<PathBuf>,
    /// The command of a server to measure instead of spillgate. {address} is replaced by the address on which it must
    /// listen
    #[arg(long)]
    contender: Option<String>,
    /// The binary of throttlecrab-server. If it is given, the scenario grpc measures it too
    #[arg(long)]
    throttlecrab: Option<PathBuf>,
    /// The folder that has the binaries `limits` and `loadgen`
    #[arg(long, default_value = "target/release")]
    tools: PathBuf,
    /// The rules that spillgate serves
    #[arg(long, default_value = "rules.yaml")]
    rules: PathBuf,
    /// The rules that spillgate serves in the scenario shared
    #[arg(long, default_value = "rules-shared.yaml")]
    shared_rules: PathBuf,
    /// The rules that refuse nearly all requests, for the scenario insight-refused
    #[arg(long, default_value = "rules-refusing.yaml")]
    refusing_rules: PathBuf,
    /// The rules with sketches for the scenario sketch, which compares them with the rules of the option --rules
    #[arg(long, default_value = "rules-sketch.yaml")]
    sketch_rules: PathBuf,
    /// The number of rounds that are measured
    #[arg(long, default_value_t = 7)]
    repetitions: usize,
    /// The measured seconds of each run
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// The seconds of load before the measurement of each run
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// The number of requests in flight
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
