//! Measures bytes per key: how much the memory of a process grows while it makes a limiter and decides once for each
//! key.
//!
//! The fewer bytes a key needs, the more keys fit in the memory of a machine. Each case runs in a process of its own,
//! so that it cannot use memory that an earlier case has freed.

use std::fmt::Write;
use std::process::Command;
use std::{env, fs};

use clap::{Args, ValueEnum};

use crate::allocator::{live_bytes, peak_bytes};
use crate::cases::{Case, Width};
use crate::keys::Keys;

/// The number of keys that are made at a time.
const CHUNK: u32 = 10_000;

#[derive(Args)]
pub(crate) struct Options {
    /// Different keys
    #[arg(long, num_args = 1.., default_values_t = [1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000])]
    keys: Vec<u32>,
    /// The highest number of keys in spillgate's store
    #[arg(long, default_value_t = 20_000_000)]
    max_keys: usize,
    #[arg(long, value_enum, num_args = 1.., default_values_t = [Case::TokenBucket, Case::FixedWindow, Case::Governor])]
    cases: Vec<Case>,
}

#[derive(Args)]
pub(crate) struct CaseOptions {
    #[arg(long, value_enum)]
    case: Case,
    #[arg(long)]
    keys: u32,
    #[arg(long)]
    max_keys: usize,
}

/// The bytes that a limiter added to its process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Footprint {
    /// Bytes that are allocated at the end.
    live: usize,
    /// The highest number of allocated bytes at one time, for example while a table grew.
    peak: usize,
    /// The resident memory of the process. It includes the memory that the allocator itself needs.
    resident: usize,
}

impl Footprint {
    fn of_process() -> Result<Footprint, String> {
        Ok(Footprint { live: live_bytes(), peak: peak_bytes(), resident: resident_bytes()? })
    }

    /// Returns how much the memory has grown since `before`. The growth of `peak` is the peak minus the bytes that were
    /// live at `before`.
    fn since(self, before: Footprint) -> Footprint {
        Footprint {
            live: self.live.saturating_sub(before.live),
            peak: self.peak.saturating_sub(before.live),
            resident: self.resident.saturating_sub(before.resident),
        }
    }

    fn to_line(self) -> String {
        format!("{} {} {}\n", self.live, self.peak, self.resident)
    }

    fn from_line(line: &str) -> Option<Footprint> {
        let mut numbers = line.split_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Footprint { live: next()?, peak: next()?, resident: next()? })
    }

    /// Returns the bytes per key, by allocated or by resident memory, whichever is larger.
    fn bytes_per_key(self, keys: u32) -> f64 {
        self.live.max(self.resident) as f64 / f64::from(keys)
    }
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    let mut report = kit::machine();
    let _ = writeln!(
        report,
        "\n### Bytes per key in memory\n\nEach line was measured in a new process. Its figures are bytes per \
        key: the bytes that are allocated \
         at the end, the maximum number of bytes that were allocated at one time, and the growth of the \
         resident memory of the process. The store of spillgate can have at most {} keys.\n",
        options.max_keys
    );
    report.push_str(
        "| limiter | keys | allocated | maximum allocated | resident | the larger of allocated and resident |\n",
    );
    report.push_str("|---|---|---|---|---|---|\n");
    for &case in &options.cases {
        let mut figures = Vec::new();
        for &keys in &options.keys {
            eprintln!("{}, {keys} keys", case.name());
            let footprint = in_child(case, keys, options.max_keys)?;
            let per_key = |bytes: usize| bytes as f64 / f64::from(keys);
            let larger = footprint.bytes_per_key(keys);
            figures.push(larger);
            let (live, peak) = (per_key(footprint.live), per_key(footprint.peak));
            let resident = per_key(footprint.resident);
            let _ =
                writeln!(report, "| {} | {keys} | {live:.1} | {peak:.1} | {resident:.1} | {larger:.1} |", case.name());
        }
        let average = figures.iter().sum::<f64>() / figures.len() as f64;
        let most = kit::spread(figures).max;
        let _ = writeln!(report, "| **{}** | | | | | **average {average:.1}, most {most:.1}** |", case.name());
    }
    Ok(report)
}

/// Measures in a new process. In a process that has measured before, freed memory could be used again and would be
/// missing in the result.
fn in_child(case: Case, keys: u32, max_keys: usize) -> Result<Footprint, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    let name = case.to_possible_value().ok_or("a case without a name")?;
    command.args(["memory-case", "--case", name.get_name()]);
    command.arg("--keys").arg(keys.to_string()).arg("--max-keys").arg(max_keys.to_string());
    let output = command.output().map_err(|error| error.to_string())?;
    let line = String::from_utf8_lossy(&output.stdout);
    Footprint::from_line(&line).ok_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

pub(crate) fn run_case(options: &CaseOptions) -> Result<String, String> {
    let mut chunk = Keys::with_capacity(CHUNK as usize);
    chunk.fill(0..CHUNK);
    let before = Footprint::of_process()?;
    let subject = options.case.start(options.max_keys, Width::Narrow)?;
    let mut allowed = 0;
    for first in (0..options.keys).step_by(CHUNK as usize) {
        chunk.fill(first..options.keys.min(first.saturating_add(CHUNK)));
        allowed += subject.count_allowed(&chunk);
    }
    let footprint = Footprint::of_process()?.since(before);
    drop(subject);
    if allowed != options.keys as usize {
        return Err(format!(
            "{} allowed {allowed} of {} requests, so the measured memory does not have the states of all keys",
            options.case.name(),
            options.keys
        ));
    }
    Ok(footprint.to_line())
}

fn resident_bytes() -> Result<usize, String> {
    let statm = fs::read_to_string("/proc/self/statm").map_err(|error| format!("/proc/self/statm: {error}"))?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    Ok(pages.ok_or("/proc/self/statm has no resident pages")? * rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footprint_is_a_difference_and_can_be_printed_and_read() {
        let before = Footprint { live: 10, peak: 90, resident: 1000 };
        let after = Footprint { live: 50, peak: 120, resident: 900 };
        let grown = after.since(before);
        assert_eq!(grown, Footprint { live: 40, peak: 110, resident: 0 });
        assert_eq!(Footprint::from_line(&grown.to_line()), Some(grown));
        assert_eq!(Footprint::from_line("1 2"), None);
        assert_eq!(grown.bytes_per_key(4), 10.0);
    }
}
