//! Pairs of runs, interleaved.

use serde_json::Value;

use crate::server::{Server, pinned};
use crate::{Cli, Protocol};

/// One run of the load generator, as it reported it.
pub(crate) struct Run {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) server_cpu_us: f64,
    /// The share of its core that the client used: near 1, it was the limit itself.
    pub(crate) client_share: f64,
}

/// All runs of two servers; `contender[i]` and `limit[i]` are one pair.
pub(crate) struct Comparison {
    pub(crate) names: [String; 2],
    pub(crate) contender: Vec<Run>,
    pub(crate) limit: Vec<Run>,
}

impl Comparison {
    pub(crate) fn run(cli: &Cli, protocol: Protocol) -> Result<Comparison, String> {
        let servers = [Server::contender(cli, protocol)?, Server::limit(cli, protocol)?];
        let mut runs = [Vec::new(), Vec::new()];
        // Both have their keys, connections and caches warm before anything counts.
        for server in &servers {
            load(cli, protocol, server)?;
        }
        for repetition in 0..cli.repetitions {
            let order = if repetition % 2 == 0 { [0, 1] } else { [1, 0] };
            for which in order {
                runs[which].push(load(cli, protocol, &servers[which])?);
            }
            let last = |which: usize| runs[which].last().map_or(0.0, |run: &Run| run.per_second);
            eprintln!("{protocol:?} {}: {:.0} / {:.0} = {:.3}", repetition + 1, last(0), last(1), last(0) / last(1));
        }
        let names = servers.each_ref().map(|server| server.name.clone());
        let [contender, limit] = runs;
        Ok(Comparison { names, contender, limit })
    }

    /// Decisions a second against the limit's, pair by pair.
    pub(crate) fn ratios(&self) -> Vec<f64> {
        self.pairs().map(|(ours, limit)| ours.per_second / limit.per_second).collect()
    }

    /// The same by the server's CPU time a decision, which other work on the machine disturbs less.
    pub(crate) fn cpu_ratios(&self) -> Vec<f64> {
        self.pairs().map(|(ours, limit)| limit.server_cpu_us / ours.server_cpu_us).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Run, &Run)> {
        self.contender.iter().zip(&self.limit)
    }
}

fn load(cli: &Cli, protocol: Protocol, server: &Server) -> Result<Run, String> {
    let mut command = pinned(cli.client_core);
    command.arg(cli.tools.join("loadgen"));
    let connections = match protocol {
        Protocol::Grpc => {
            command.arg("rls");
            1
        }
        Protocol::Http => {
            command.arg("check");
            cli.concurrency
        }
    };
    command.arg("--connections").arg(connections.to_string());
    command.arg("--concurrency").arg(cli.concurrency.to_string());
    command.arg("--seconds").arg(cli.seconds.to_string()).arg("--warmup").arg(cli.warmup.to_string());
    command.arg("--target").arg(server.address.to_string()).arg("--server-pid").arg(server.process_id().to_string());
    let output = command.output().map_err(|e| format!("loadgen: {e}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", server.name, String::from_utf8_lossy(&output.stderr).trim()));
    }
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("loadgen's report: {e}"))?;
    let figure = |name: &str| report[name].as_f64().ok_or_else(|| format!("loadgen reported no {name}"));
    // The rule is too wide to refuse: anything but allowed means that something else was measured.
    if figure("errors")? > 0.0 || figure("denied")? > 0.0 || figure("allowed")? == 0.0 {
        return Err(format!("{} did not allow everything: {report}", server.name));
    }
    let per_second = figure("ops_per_s")?;
    Ok(Run {
        per_second,
        p50_us: figure("p50_us")?,
        p99_us: figure("p99_us")?,
        server_cpu_us: figure("server_cpu_us_per_op")?,
        client_share: figure("client_cpu_us_per_op")? * per_second / 1e6,
    })
}
