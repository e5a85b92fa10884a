//! Compares the call for a batch of keys with the call for a single key, on the same keys of the same store.
//!
//! A batch call fetches the memory of several keys at the same time, so it should be faster than single calls.

use std::fmt::Write;

use clap::Args;
use kit::{Spread, spread};
use spillgate::{Decision, Limiter, MemoryOptions, MemoryStore};

use crate::cases::{Case, Spillgate, Subject, Width};
use crate::keys::Keys;
use kit::{Cost, together};

#[derive(Args)]
pub(crate) struct Options {
    /// Threads that share the limiter
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Number of different keys. They are drawn uniformly, and all of them exist before the measurement starts
    #[arg(long, default_value_t = 10_000_000)]
    keys: u32,
    /// Keys in one batch
    #[arg(long, num_args = 1.., default_values_t = [16, 64, 256])]
    sizes: Vec<usize>,
    /// Decisions of each thread in each repetition
    #[arg(long, default_value_t = 1_000_000)]
    decisions: usize,
    #[arg(long, default_value_t = 9)]
    repetitions: usize,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    // The store has space for twice as many keys as there are, so that it is never full.
    let max_keys = options.keys as usize * 2;
    let store = MemoryStore::new(MemoryOptions { max_keys, ..MemoryOptions::default() });
    let quota = Case::TokenBucket.quota(Width::Wide)?;
    let subject = Spillgate { limiter: Limiter::new(store), quota };
    decide_once_each(&subject, options.keys);
    let sequences = (1..).take(options.threads).map(|seed| kit::draw(options.keys, 0.0, seed, options.decisions));
    let keys: Vec<Keys> = sequences.map(|sequence| Keys::new(&sequence)).collect();
    // A size of 0 means the single call.
    let sizes: Vec<usize> = [0].into_iter().chain(options.sizes.iter().copied()).collect();
    let mut costs = vec![Vec::new(); sizes.len()];
    // The first round is a warm-up and is not recorded.
    for repetition in 0..=options.repetitions {
        for turn in 0..sizes.len() {
            let which = (turn + repetition) % sizes.len();
            let cost = together(options.threads, |thread| {
                let allowed = match sizes[which] {
                    0 => subject.count_allowed(&keys[thread]),
                    size => count_allowed_in_batches(&subject, &keys[thread], size),
                };
                assert_eq!(allowed, options.decisions, "in batches of {}", sizes[which]);
                allowed
            });
            if repetition > 0 {
                costs[which].push(cost);
            }
        }
        eprint!("\rrepetition {repetition} of {}", options.repetitions);
    }
    eprintln!();
    Ok(report(options, &sizes, &costs))
}

/// Decides once for each key, so that the store has all keys before the measurement.
fn decide_once_each(subject: &Spillgate, count: u32) {
    const CHUNK: u32 = 10_000;
    let mut chunk = Keys::with_capacity(CHUNK as usize);
    for first in (0..count).step_by(CHUNK as usize) {
        chunk.fill(first..count.min(first.saturating_add(CHUNK)));
        subject.count_allowed(&chunk);
    }
}

/// Decides in batches. The measured cost of a batch includes the copy of its keys into a slice.
fn count_allowed_in_batches(subject: &Spillgate, keys: &Keys, size: usize) -> usize {
    let mut keys = keys.iter();
    let mut batch: Vec<(&str, &str)> = Vec::with_capacity(size);
    let mut decisions = vec![Decision::default(); size];
    let mut allowed = 0;
    loop {
        batch.clear();
        batch.extend(keys.by_ref().take(size).map(|key| ("api", key)));
        if batch.is_empty() {
            return allowed;
        }
        let decisions = &mut decisions[..batch.len()];
        if subject.limiter.take_batch_now(&subject.quota, &batch, 1, decisions).is_ok() {
            allowed += decisions.iter().filter(|decision| decision.allowed).count();
        }
    }
}

fn report(options: &Options, sizes: &[usize], costs: &[Vec<Cost>]) -> String {
    let mut out = kit::machine();
    let _ = writeln!(
        out,
        "\n### Token bucket, {} threads, {} keys drawn uniformly, all requests allowed; {} repetitions of {} decisions\n",
        options.threads,
        options.keys,
        options.repetitions,
        options.threads * options.decisions
    );
    out.push_str(
        "| call | wall ns per decision, median (min to max) | CPU ns per decision, median | wall time \
         of `hit_now` / wall time ",
    );
    out.push_str("| CPU time of `hit_now` / CPU time |\n|---|---|---|---|---|\n");
    for (&size, costs_here) in sizes.iter().zip(costs) {
        let ratio = |figure: fn(&Cost) -> f64| -> Spread {
            spread(costs[0].iter().zip(costs_here).map(|(single, batch)| figure(single) / figure(batch)))
        };
        let wall = spread(costs_here.iter().map(|cost| cost.wall_ns));
        let cpu = spread(costs_here.iter().map(|cost| cost.cpu_ns)).median;
        let (by_wall, by_cpu) = (ratio(|cost| cost.wall_ns), ratio(|cost| cost.cpu_ns));
        let name = if size == 0 { String::from("`hit_now`") } else { format!("`hit_batch_now`, {size} keys") };
        let _ = writeln!(out, "| {name} | {wall:.1} | {cpu:.1} | {by_wall:.2} | {by_cpu:.2} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_decide_once_for_every_key() {
        let options = Options { threads: 2, keys: 1000, sizes: vec![7, 64], decisions: 100, repetitions: 1 };
        assert!(run(&options).unwrap().contains("`hit_batch_now`, 64 keys"));
    }
}
