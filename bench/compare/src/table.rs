//! Markdown, ready for `RESULTS.md`.

use std::fmt::Write;
use std::fs;

use crate::measure::{Comparison, Run};
use crate::{Cli, Protocol};

/// A client that uses more of its core than this may have been the limit itself.
const CLIENT_SHARE_MAX: f64 = 0.95;

/// What ran, and how busy it was before.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu_info = read("/proc/cpuinfo");
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = cpu_info.lines().filter(|line| line.starts_with("processor")).count();
    let (kernel, load) = (read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"));
    let load = load.split(' ').next().unwrap_or("?");
    format!(
        "Machine: {cores} cores, {}, Linux {}; load average at the start {load}.\n",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim()
    )
}

pub(crate) fn comparison(cli: &Cli, protocol: Protocol, comparison: &Comparison) -> String {
    let mut out = String::new();
    let what = match protocol {
        Protocol::Grpc => format!("gRPC `ShouldRateLimit`, {} in flight on one connection", cli.concurrency),
        Protocol::Http => format!("HTTP `POST /v1/check`, {} connections", cli.concurrency),
    };
    let _ = writeln!(out, "### {what}, server on one core\n");
    out.push_str("| server | decisions/s, median (min to max) | p50 us | p99 us | server CPU us a decision |\n");
    out.push_str("|---|---|---|---|---|\n");
    for (name, runs) in comparison.names.iter().zip([&comparison.contender, &comparison.limit]) {
        let of = |figure: fn(&Run) -> f64| spread(runs.iter().map(figure).collect());
        let speed = of(|run| run.per_second);
        let _ = writeln!(
            out,
            "| {name} | {:.0} ({:.0} to {:.0}) | {:.0} | {:.0} | {:.2} |",
            speed.median,
            speed.min,
            speed.max,
            of(|run| run.p50_us).median,
            of(|run| run.p99_us).median,
            of(|run| run.server_cpu_us).median
        );
    }
    let (ratio, cpu) = (spread(comparison.ratios()), spread(comparison.cpu_ratios()));
    let _ = writeln!(
        out,
        "| **ratio**, {} pairs of {} s | **{:.3}** ({:.3} to {:.3}) | | | {:.3} ({:.3} to {:.3}) |",
        cli.repetitions, cli.seconds, ratio.median, ratio.min, ratio.max, cpu.median, cpu.min, cpu.max
    );
    let client = spread(comparison.limit.iter().chain(&comparison.contender).map(|run| run.client_share).collect());
    let _ = writeln!(out, "\nThe client used {:.0} % of its core at most.", client.max * 100.0);
    if client.max > CLIENT_SHARE_MAX {
        out.push_str("That is nearly all of it: the true ratio may be lower.\n");
    }
    out
}

struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

/// The median of an even count is the mean of the two in the middle.
fn spread(mut figures: Vec<f64>) -> Spread {
    figures.sort_by(f64::total_cmp);
    let (Some(&min), Some(&max)) = (figures.first(), figures.last()) else {
        return Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN };
    };
    let middle = figures.len() / 2;
    let lower = if figures.len().is_multiple_of(2) { middle - 1 } else { middle };
    Spread { median: f64::midpoint(figures[lower], figures[middle]), min, max }
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn medians_of_odd_and_even_counts() {
        let odd = spread(vec![3.0, 1.0, 2.0]);
        assert_eq!((odd.min, odd.median, odd.max), (1.0, 2.0, 3.0));
        assert_eq!(spread(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
    }
}
