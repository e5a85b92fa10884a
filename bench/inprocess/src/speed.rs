//! Measures nanoseconds per decision of several limiters.
//!
//! All limiters exist at the same time and take turns. So a slow phase of the machine affects all of them.

use std::fmt::Write;

use clap::Args;
use kit::{Spread, spread};

use crate::cases::{Case, Subject, Width};
use crate::keys::Keys;
use kit::{Cost, together};

#[derive(Args)]
pub(crate) struct Options {
    /// Number of threads that share each limiter
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Number of different keys. All of them exist before the measurement starts
    #[arg(long, default_value_t = 1_000_000)]
    keys: u32,
    /// Decisions of each thread in each repetition
    #[arg(long, default_value_t = 2_000_000)]
    decisions: usize,
    #[arg(long, default_value_t = 9)]
    repetitions: usize,
    /// Exponents of the Zipf distribution of the keys. 0 means that all keys are equally likely
    #[arg(long, num_args = 1.., default_values_t = [0.0, 1.0])]
    zipf: Vec<f64>,
    /// Allow only one request per key and hour, so that nearly all measured requests are refused
    #[arg(long)]
    deny: bool,
    /// The limiters to measure. Ratios are relative to the first limiter
    #[arg(long, value_enum, num_args = 1.., default_values_t = Case::with_keys())]
    cases: Vec<Case>,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    let mut report = kit::machine();
    report.push_str(
        "\nThe wall time of a decision is the wall time of the run multiplied by the threads and \
         divided by the decisions.\n",
    );
    for &exponent in &options.zipf {
        let measured = measure(options, exponent)?;
        let draw =
            if exponent == 0.0 { String::from("drawn uniformly") } else { format!("drawn by Zipf({exponent:.1})") };
        let answer = if options.deny { "nearly all requests refused" } else { "all requests allowed" };
        let _ = writeln!(
            report,
            "\n### {} threads, {} keys {draw}, {answer}; {} repetitions of {} decisions\n",
            options.threads,
            options.keys,
            options.repetitions,
            options.threads * options.decisions
        );
        report.push_str(&table(&options.cases, &measured));
    }
    Ok(report)
}

/// Returns the cost of each case in each repetition.
fn measure(options: &Options, exponent: f64) -> Result<Vec<Vec<Cost>>, String> {
    let width = if options.deny { Width::Narrow } else { Width::Wide };
    // A store has space for twice as many keys as there are, so that it is never full.
    let max_keys = options.keys as usize * 2;
    let started = options.cases.iter().map(|case| case.start(max_keys, width));
    let subjects = started.collect::<Result<Vec<Box<dyn Subject>>, String>>()?;
    let sequences = (1..).take(options.threads).map(|seed| kit::draw(options.keys, exponent, seed, options.decisions));
    let keys: Vec<Keys> = sequences.map(|sequence| Keys::new(&sequence)).collect();
    let all = Keys::new(&(0..options.keys).collect::<Vec<u32>>());
    for subject in &subjects {
        subject.count_allowed(&all);
    }
    let mut costs = vec![Vec::new(); subjects.len()];
    // The first round is a warm-up and is not recorded.
    for repetition in 0..=options.repetitions {
        for turn in 0..subjects.len() {
            let which = (turn + repetition) % subjects.len();
            let cost = together(options.threads, |thread| decide(subjects[which].as_ref(), &keys[thread], options));
            if repetition > 0 {
                costs[which].push(cost);
            }
        }
        eprint!("\rrepetition {repetition} of {}", options.repetitions);
    }
    eprintln!();
    Ok(costs)
}

/// Decides for all keys, and checks the number of allowed requests.
fn decide(subject: &dyn Subject, keys: &Keys, options: &Options) -> usize {
    let allowed = subject.count_allowed(keys);
    assert!(options.deny || allowed == options.decisions, "{allowed} of {} requests were allowed", options.decisions);
    options.decisions
}

fn table(cases: &[Case], measured: &[Vec<Cost>]) -> String {
    let mut out =
        String::from("| limiter | wall ns per decision, median (min to max) | CPU ns per decision, median | ");
    let _ = writeln!(
        out,
        "wall time / wall time of {first} | CPU time / CPU time of {first} |\n|---|---|---|---|---|",
        first = cases[0].name()
    );
    for (case, costs) in cases.iter().zip(measured) {
        let of = |figure: fn(&Cost) -> f64| -> Spread { spread(costs.iter().map(figure)) };
        let ratio = |figure: fn(&Cost) -> f64| -> Spread {
            spread(costs.iter().zip(&measured[0]).map(|(cost, first)| figure(cost) / figure(first)))
        };
        let (by_wall, by_cpu) = (ratio(|cost| cost.wall_ns), ratio(|cost| cost.cpu_ns));
        let (wall, cpu) = (of(|cost| cost.wall_ns), of(|cost| cost.cpu_ns));
        let _ = writeln!(out, "| {} | {wall:.1} | {:.1} | {by_wall:.2} | {by_cpu:.2} |", case.name(), cpu.median);
    }
    out
}
