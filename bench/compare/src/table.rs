//! Writes the results as markdown for `bench/results`.

use std::fmt::Write;

use kit::{median_interval, met, spread};

use crate::Cli;
use crate::measure::{Comparison, Run};
use crate::regression::{Verdict, ratios};
use crate::scenario::Scenario;

/// If the client uses more of its core than this share, the client itself may have limited the speed.
const CLIENT_SHARE_MAX: f64 = 0.95;

pub(crate) const REGRESSION_HEAD: &str = "\
| server CPU time per decision, us | base | now | rounds | base / now, median | 95 % interval of the median, must be above 0.97 | verdict |
|---|---|---|---|---|---|---|";

/// Returns a row of the table that begins with [`REGRESSION_HEAD`].
pub(crate) fn regression(title: String, comparison: &Comparison, verdict: Verdict) -> String {
    let cpu = |server: usize| spread(comparison.runs[server].iter().map(|run| run.server_cpu_us)).median;
    let ratios = ratios(&comparison.runs);
    let (low, high) = median_interval(ratios.iter().copied()).unwrap_or((f64::NAN, f64::NAN));
    let word = match verdict {
        Verdict::Held => "no regression",
        Verdict::Regressed => "**REGRESSION**",
        Verdict::Unclear => "**unclear**: more rounds or a less busy machine are needed",
    };
    let (rounds, ratio) = (ratios.len(), spread(ratios).median);
    format!("| {title} | {:.2} | {:.2} | {rounds} | {ratio:.3} | {low:.3} to {high:.3} | {word} |", cpu(1), cpu(0))
}

pub(crate) fn comparison(cli: &Cli, scenario: Scenario, comparison: &Comparison) -> String {
    let mut out = format!("### {}\n\n", scenario.title(cli));
    out.push_str(
        "| server | decisions/s, median (min to max) | p50, us | p99, us | server CPU time per decision, us |\n",
    );
    out.push_str("|---|---|---|---|---|\n");
    for (name, runs) in comparison.names.iter().zip(&comparison.runs) {
        let of = |figure: fn(&Run) -> f64| spread(runs.iter().map(figure));
        let (speed, p50, p99) = (of(|run| run.per_second), of(|run| run.p50_us).median, of(|run| run.p99_us).median);
        let cpu = of(|run| run.server_cpu_us).median;
        let _ = writeln!(out, "| {name} | {speed} | {p50:.0} | {p99:.0} | {cpu:.2} |");
    }
    for (other, name) in comparison.names.iter().enumerate().skip(1) {
        let ratio =
            |figure: fn(&Run, &Run) -> f64| spread(comparison.pairs(other).map(|(ours, its)| figure(ours, its)));
        let speed = ratio(|ours, its| ours.per_second / its.per_second);
        let p99 = ratio(|ours, its| ours.p99_us / its.p99_us);
        let cpu = ratio(|ours, its| its.server_cpu_us / ours.server_cpu_us);
        let target = scenario.target(other).map(|least| format!(", at least {least}: {}", met(speed.median >= least)));
        let cpu_target = scenario.cpu_target(other);
        let cpu_target = cpu_target.map(|most| format!(", at most {most}: {}", met(cpu.median <= most)));
        let _ = writeln!(
            out,
            "| **ratio to {name}**, {} pairs of runs of {} s{} | **{speed:.3}** | | {p99:.2} | {cpu:.3}{} |",
            cli.repetitions,
            cli.seconds,
            target.unwrap_or_default(),
            cpu_target.unwrap_or_default()
        );
    }
    if comparison.asked.iter().any(Option::is_some) {
        out.push_str(
            "\n| server | script calls per decision | bytes to Redis per decision | bytes from Redis \
             per decision |\n|---|---|---|---|\n",
        );
    }
    for (name, asked) in comparison.names.iter().zip(&comparison.asked) {
        let Some(asked) = asked else { continue };
        let _ = writeln!(out, "| {name} | {:.4} | {:.1} | {:.1} |", asked.scripts, asked.bytes_in, asked.bytes_out);
    }
    let client = spread(comparison.runs.iter().flatten().map(|run| run.client_share));
    let _ = writeln!(out, "\nIn the busiest run, the client used {:.0} % of its core.", client.max * 100.0);
    if client.max > CLIENT_SHARE_MAX {
        out.push_str(
            "This is nearly the whole core, so the client itself may have limited the speed, and the \
             true ratios may differ.\n",
        );
    }
    out
}
