//! Runs the load generator against all servers, round by round.
//!
//! In each round, every server has one run. If the machine is slow for some minutes, all servers therefore have slow
//! runs, and not only one of them.

use serde_json::Value;

use crate::admin::AdminClients;
use crate::scenario::Scenario;
use crate::server::Server;
use crate::{Cli, regression};
use kit::{Counted, pinned};

/// A run with fewer decisions than this is not used, because the cost of a decision would be too inexact.
const DECISIONS_MIN: f64 = 100.0;
/// If this many runs of a server in one round all have fewer than [`DECISIONS_MIN`] decisions, the measurement fails.
const TRIES: u32 = 20;

/// One run of the load generator, with the figures that it reported.
pub(crate) struct Run {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) server_cpu_us: f64,
    /// The share of its core that the client used. If this share is close to 1, the client itself may have limited the
    /// speed.
    pub(crate) client_share: f64,
    decisions: f64,
}

/// What Redis counted for the decisions of a server. Each figure is an average for one decision.
pub(crate) struct Asked {
    pub(crate) scripts: f64,
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
}

/// All runs of all servers. `runs[server][i]` is the run of a server in round `i`.
pub(crate) struct Comparison {
    pub(crate) names: Vec<String>,
    pub(crate) runs: Vec<Vec<Run>>,
    /// What the Redis of each server counted. `None` for a server without a Redis.
    pub(crate) asked: Vec<Option<Asked>>,
}

impl Comparison {
    pub(crate) fn run(cli: &Cli, scenario: Scenario) -> Result<Comparison, String> {
        let mut servers = scenario.servers(cli)?;
        let mut runs: Vec<Vec<Run>> = servers.iter().map(|_| Vec::new()).collect();
        // Each server gets some load first. So its keys, its caches and its connections to Redis exist before the first
        // round.
        for server in &servers {
            load(cli, scenario, server, cli.warmup)?;
        }
        for repetition in 0.. {
            if regression::enough(cli, repetition, &runs) {
                break;
            }
            // The order is reversed after each round, so that no server always comes first.
            let mut order: Vec<usize> = (0..servers.len()).collect();
            if repetition % 2 == 1 {
                order.reverse();
            }
            for which in order {
                runs[which].push(load_again(cli, scenario, &servers[which])?);
            }
            let last = runs.iter().filter_map(|runs| runs.last()).map(|run| format!("{:.0}", run.per_second));
            eprintln!("{scenario:?}, round {}: {} decisions/s", repetition + 1, last.collect::<Vec<_>>().join(" / "));
        }
        let asked = servers.iter_mut().map(|server| asked(cli, scenario, server)).collect::<Result<_, _>>()?;
        Ok(Comparison { asked, names: servers.iter().map(|server| server.process.name.clone()).collect(), runs })
    }

    /// Returns the runs of the first server, each with the run of the server `other` in the same round.
    pub(crate) fn pairs(&self, other: usize) -> impl Iterator<Item = (&Run, &Run)> {
        self.runs[0].iter().zip(&self.runs[other])
    }
}

/// Returns what the Redis of a server counts for each decision. Redis counts all calls, but a run counts only the
/// decisions after its warm-up. So this function makes one more run, without a warm-up.
fn asked(cli: &Cli, scenario: Scenario, server: &mut Server) -> Result<Option<Asked>, String> {
    let Some(redis) = &mut server.redis else { return Ok(None) };
    redis.reset_counts()?;
    let run = load(cli, scenario, server, 0.0)?;
    let Some(redis) = &mut server.redis else { return Ok(None) };
    let Counted { scripts, bytes_in, bytes_out, .. } = redis.counted()?;
    let each = |count: u64| count as f64 / run.decisions;
    Ok(Some(Asked { scripts: each(scripts), bytes_in: each(bytes_in), bytes_out: each(bytes_out) }))
}

/// Runs the load generator again until a run has enough decisions. If other programs use the core, a run can have too
/// few decisions.
fn load_again(cli: &Cli, scenario: Scenario, server: &Server) -> Result<Run, String> {
    for _ in 0..TRIES {
        let run = load(cli, scenario, server, cli.warmup)?;
        if run.decisions >= DECISIONS_MIN {
            return Ok(run);
        }
    }
    Err(format!("{} made too few decisions in each of {TRIES} runs: this machine is too busy", server.process.name))
}

fn load(cli: &Cli, scenario: Scenario, server: &Server, warmup: f64) -> Result<Run, String> {
    server.admin_clients.as_ref().map_or(Ok(()), AdminClients::check)?;
    let mut command = pinned(&scenario.client_cores(cli));
    command.arg(cli.tools.join("loadgen")).args(server.request);
    let (connections, in_flight) = scenario.load(cli);
    command.arg("--connections").arg(connections.to_string());
    command.arg("--concurrency").arg(in_flight.to_string());
    command.arg("--seconds").arg(cli.seconds.to_string()).arg("--warmup").arg(warmup.to_string());
    command
        .arg("--target")
        .arg(server.process.address.to_string())
        .arg("--server-pid")
        .arg(server.process.id().to_string());
    let output = command.output().map_err(|e| format!("loadgen: {e}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", server.process.name, String::from_utf8_lossy(&output.stderr).trim()));
    }
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("loadgen's report: {e}"))?;
    let figure = |name: &str| report[name].as_f64().ok_or_else(|| format!("loadgen reported no {name}"));
    // Only the limit of the scenario `InsightRefused` refuses requests. In every other scenario, a run with a refusal
    // did not measure what it should. The same is true of an error, in all scenarios.
    let refuses = scenario == Scenario::InsightRefused;
    if figure("errors")? > 0.0 || figure("denied")? > 0.0 && !refuses {
        return Err(format!("{} did not allow every request: {report}", server.process.name));
    }
    let per_second = figure("ops_per_s")?;
    Ok(Run {
        per_second,
        p50_us: figure("p50_us")?,
        p99_us: figure("p99_us")?,
        server_cpu_us: figure("server_cpu_us_per_op")?,
        decisions: figure("allowed")? + figure("denied")?,
        client_share: figure("client_cpu_us_per_op")? * per_second / 1e6,
    })
}
