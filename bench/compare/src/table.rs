//! Markdown, ready for `RESULTS.md`.

use std::fmt::Write;

use kit::spread;

use crate::measure::{Comparison, Run};
use crate::{Cli, Protocol};

/// A client that uses more of its core than this may have been the limit itself.
const CLIENT_SHARE_MAX: f64 = 0.95;

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
        let of = |figure: fn(&Run) -> f64| spread(runs.iter().map(figure));
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
    let client = spread(comparison.limit.iter().chain(&comparison.contender).map(|run| run.client_share));
    let _ = writeln!(out, "\nThe client used {:.0} % of its core at most.", client.max * 100.0);
    if client.max > CLIENT_SHARE_MAX {
        out.push_str("That is nearly all of it: the true ratio may be lower.\n");
    }
    out
}
