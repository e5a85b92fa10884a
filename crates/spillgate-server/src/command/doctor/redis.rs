//! Examines a store on Redis or Valkey.
//!
//! `spillgate-redis` makes a report, which contains only facts. This file judges the facts. Other programs can use the
//! report too, and judge in their own way.

use std::time::Duration;

use spillgate::rules::Diagnostic;
use spillgate::{Clock as _, SystemClock};
use spillgate_redis::doctor::{
    CLUSTER_COMMANDS, ClusterReport, Info, Report, SentinelReport, ServerReport, examine as report_on,
};
use spillgate_redis::{Error, LIST_COMMANDS, StoreErrorKind};

use super::finding::{Finding, Grade};
use super::regions;
use crate::command::open::{redis, store};
use crate::command::terminal::{EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, count, duration};
use crate::runtime::block_on;
use crate::settings::Settings;

/// The largest difference between the clock of the store and the clock of this machine that is not a fault. Limits use
/// the clock of the store, but log lines and the fallback store use the clock of this machine.
pub(super) const SKEW: Duration = Duration::from_millis(500);
/// How to fix a URL that names a replica.
const REPLICA_HELP: &str =
    "a replica takes no writes: name the primary in the URL, or use redis-sentinel://, which finds it";
/// The number of hash slots of a cluster.
const SLOTS: usize = 16384;

/// Examines the store of the settings. If that is not possible, returns why, with the exit code of the command.
pub(super) fn examine(settings: &Settings) -> Result<Vec<Finding>, (Problems, u8)> {
    let wrong = |problem: Problem| (problem.into(), EXIT_USAGE);
    let mut reached = redis::settings_of(settings, 1).map_err(wrong)?;
    // Errors of the settings are reported before the store is asked.
    redis::store_with(settings, &reached).map_err(wrong)?;
    reached.timeout = store::ANSWER_TIMEOUT;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let no_runtime = |error| wrong(Problem::new(format!("the runtime cannot start: {error}"), "free some memory"));
    let clock = SystemClock::start();
    block_on(runtime.map_err(no_runtime)?, async {
        let report = report_on(&reached, &|| clock.now()).await.map_err(|failed| unreachable(settings, failed));
        let (mut all, ahead_ns) = match report {
            Ok(report) => (findings(settings, &report), report.servers.first().and_then(|server| server.ahead_ns)),
            // A missing right is a finding like all others, even if it is missing so early that nothing else can be examined.
            Err(Ok(finding)) => (vec![finding], None),
            Err(Err(failed)) => return Err(failed),
        };
        all.extend(regions::examine(settings, ahead_ns).await.map_err(wrong)?);
        Ok(all)
    })
}

/// Returns why the store cannot be examined: a missing right, or the error of the command with its exit code.
fn unreachable(settings: &Settings, failed: Error) -> Result<Finding, (Problems, u8)> {
    let failed = redis::explained(failed, settings.store.url.speaks_tls());
    let problem: Diagnostic = store::unreachable(settings, &failed).into();
    match failed.forbidden_command() {
        Some(_) => Ok(Finding::new("rights", Grade::Fix, problem.message(), problem.help().to_owned())),
        None => Err((Problems(vec![problem]), EXIT_UNAVAILABLE)),
    }
}

/// Returns all findings about the store: first those of the cluster or the sentinels, then those of each node.
fn findings(settings: &Settings, report: &Report) -> Vec<Finding> {
    let of_cluster = |it| cluster(it, &report.servers, &redis::login_user(settings));
    let mut all: Vec<Finding> = report.cluster.iter().flat_map(of_cluster).collect();
    if !report.sentinels.is_empty() {
        all.push(sentinels(&report.sentinels, &report.servers));
        // Of a primary that does not answer, nothing else is known.
        let examined = report.servers.first().filter(|server| server.error.is_none() || server.info.is_some());
        all.extend(examined.map(|server| failover(server.info.as_ref())));
    }
    for server in &report.servers {
        let place = report.cluster.as_ref().map(|_| server.address.clone());
        let found = of_server(settings, server, report.cluster.is_some());
        all.extend(found.into_iter().map(|finding| Finding { server: place.clone(), ..finding }));
    }
    all
}

pub(super) fn unknown(what: &'static str) -> Finding {
    let help = "this needs the rights to run INFO and CLUSTER INFO: log in as a user that has them. Limits work without these rights";
    Finding::new(what, Grade::Note, "not known: the user lacks the right", help)
}

fn cluster(cluster: &ClusterReport, servers: &[ServerReport], user: &str) -> Vec<Finding> {
    let state = match cluster.state.as_deref() {
        None => unknown("cluster"),
        Some("ok") => Finding::good("cluster", "ok"),
        Some(state) => {
            let help = "CLUSTER NODES shows the nodes that are down. The cluster serves no requests until these nodes are back";
            Finding::new("cluster", Grade::Fix, format!("cluster_state is {state}"), help)
        }
    };
    let slots = match cluster.slots {
        SLOTS => Finding::good("slots", format!("all {SLOTS} have a node")),
        slots => {
            let help = match slots {
                0 => "the nodes are not a cluster yet: redis-cli --cluster create HOST:PORT HOST:PORT ...",
                _ => "assign the other slots to a node: redis-cli --cluster fix HOST:PORT",
            };
            Finding::new("slots", Grade::Fix, format!("{slots} of {SLOTS} have a node"), help)
        }
    };
    if cluster.slots == 0 {
        return vec![state, slots];
    }
    // A primary knows its new replica before the cluster lists that replica.
    let has_one = |address: &&String| servers.iter().any(|it| it.address == **address && has_replicas(it));
    let (unlisted, alone): (Vec<_>, Vec<_>) = cluster.alone.iter().partition(has_one);
    let mut found = vec![state, slots, replicas(&alone, user)];
    if !unlisted.is_empty() {
        let unlisted: Vec<_> = unlisted.into_iter().map(String::as_str).collect();
        let help = "the cluster lists a replica as soon as the replica has its data and the nodes know it: run the doctor again in a few seconds. \
                    A replica that stays missing is not a node of the cluster and cannot take over";
        let text = format!("the cluster does not list the replica of {} yet", unlisted.join(", "));
        found.push(Finding::new("replicas", Grade::Note, text, help));
    }
    found
}

fn has_replicas(server: &ServerReport) -> bool {
    server.info.as_ref().is_some_and(|info| info.replicas > 0)
}

/// Checks that each primary has a replica. `alone` are the primaries without a replica.
fn replicas(alone: &[&String], user: &str) -> Finding {
    match alone {
        [] if user == "default" => Finding::good("replicas", "each primary has one"),
        [] => {
            let help = format!(
                "make sure that each replica has the user {user} too: Redis does not replicate users, and the doctor does not \
                 ask replicas. After a failover to a replica without this user, limits are answered by on_store_failure"
            );
            Finding::new("replicas", Grade::Note, "each primary has one", help)
        }
        alone => {
            let help = "add a replica to each of these nodes. While such a node is down, its limits are answered by on_store_failure";
            let alone: Vec<_> = alone.iter().map(|address| address.as_str()).collect();
            Finding::new("replicas", Grade::Note, format!("no replica of {}", alone.join(", ")), help)
        }
    }
}

/// Checks that all sentinels of the URL answer, and name the same primary.
fn sentinels(sentinels: &[SentinelReport], servers: &[ServerReport]) -> Finding {
    let count = |of: usize| format!("{of} of {}", sentinels.len());
    let silent: Vec<_> = sentinels.iter().filter_map(|it| Some((&it.address, it.primary.as_ref().err()?))).collect();
    if let Some((address, why)) = silent.first() {
        let found = format!("{} say where the primary is; {address}: {why}", count(sentinels.len() - silent.len()));
        let help = "start this sentinel again, or change `store.url` to the sentinels that run. While most of them are down, no replica can take over";
        return Finding::new("sentinels", Grade::Fix, found, help);
    }
    let is_other = |sentinel: &&SentinelReport| !servers.iter().any(|it| sentinel.primary.as_ref() == Ok(&it.address));
    if let Some(SentinelReport { address, primary: Ok(primary), .. }) = sentinels.iter().find(is_other) {
        let help = "this sentinel has missed a failover: check that it runs and reaches the other sentinels, or remove it from `store.url`";
        return Finding::new("sentinels", Grade::Fix, format!("{address} says that the primary is {primary}"), help);
    }
    Finding::good("sentinels", format!("{} say where the primary is", count(sentinels.len())))
}

/// Checks whether an old primary could go on counting after a failover.
fn failover(info: Option<&Info>) -> Finding {
    match info {
        None => unknown("failover"),
        Some(info) if info.replicas == 0 => {
            let help = "add a replica. While the primary is down, limits are answered by on_store_failure";
            Finding::new("failover", Grade::Note, "the primary has no replica", help)
        }
        Some(info) if info.waits_for_replicas => Finding::good("failover", "min-replicas-to-write is set"),
        Some(_) => {
            let help = "after a failover, an old primary that is cut off from the sentinels and the replicas, but not from \
                        spillgate, goes on counting. Then both primaries count. Run CONFIG SET min-replicas-to-write 1 on the \
                        primary and on its replicas: an old primary then stops after min-replicas-max-lag. While there is no \
                        replica, limits are then answered by on_store_failure";
            Finding::new("failover", Grade::Fix, "min-replicas-to-write is 0", help)
        }
    }
}

fn of_server(settings: &Settings, server: &ServerReport, in_cluster: bool) -> Vec<Finding> {
    if server.info.as_ref().is_some_and(|info| info.is_sentinel) {
        let help = format!("a sentinel keeps no keys: write redis-sentinel://{}/NAME in the URL", server.address);
        return vec![Finding::new("role", Grade::Fix, "this is a sentinel", help)];
    }
    let from_info = server.info.as_ref().map(|info| vec![version(info), role(info, in_cluster), eviction(info)]);
    if let Some(failed) = &server.error {
        let help = "check that the server runs and that this machine reaches its address; then see its log";
        let answers = Finding::new("answers", Grade::Fix, failed.to_string(), help);
        return from_info.into_iter().flatten().chain([answers]).collect();
    }
    let mut found = from_info.unwrap_or_else(|| vec![unknown("version"), unknown("eviction")]);
    found.push(rights(settings, server, in_cluster));
    found.push(rights_of_lists(settings, server));
    if settings.store.scripts && server.forbidden.is_empty() {
        found.push(scripts(server));
    }
    found.push(clock(server));
    found.extend(latency(settings, server));
    found
}

fn version(info: &Info) -> Finding {
    let found = format!("{} {}", info.product, info.version);
    let major = info.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match (&*info.product, major) {
        ("redis", Some(0..7) | None) => {
            let help = "upgrade to Redis 7.0 or later, or to Valkey: older versions are not tested";
            Finding::new("version", Grade::Fix, found, help)
        }
        _ => Finding::good("version", found),
    }
}

pub(super) fn role(info: &Info, in_cluster: bool) -> Finding {
    if info.role != "master" {
        return Finding::new("role", Grade::Fix, format!("a replica ({})", info.role), REPLICA_HELP);
    }
    if info.in_cluster && !in_cluster {
        let help = "write redis-cluster:// (rediss-cluster:// with TLS) in the URL";
        return Finding::new("role", Grade::Fix, "a node of a cluster, but the URL names a single server", help);
    }
    Finding::good(
        "role",
        format!("primary, {}", count(usize::try_from(info.replicas).unwrap_or(usize::MAX), "replica")),
    )
}

pub(super) fn eviction(info: &Info) -> Finding {
    let policy = &info.maxmemory_policy;
    let (used, most) = (info.used_memory_bytes, info.maxmemory_bytes);
    let found = match most {
        0 => format!("{policy}, no memory limit"),
        _ => format!("{policy}, {} of {} MiB used", mib(used), mib(most)),
    };
    match policy.as_str() {
        "noeviction" if most > 0 && used >= most / 10 * 9 => {
            let help = "memory is nearly full. When it is full, limits are answered by on_store_failure. Raise the memory limit \
                        with CONFIG SET maxmemory, and see which limit has the most keys";
            Finding::new("eviction", Grade::Fix, found, help)
        }
        "noeviction" => Finding::good("eviction", found),
        _ => {
            let help = "when memory is full, this policy evicts counts that still matter: a client that makes many keys switches \
                        off limits, also those of other callers, and no error shows it. CONFIG SET maxmemory-policy noeviction \
                        evicts nothing: while memory is full, limits are answered by on_store_failure";
            // Without a memory limit, nothing is evicted yet.
            let grade = if info.maxmemory_bytes == 0 { Grade::Note } else { Grade::Fix };
            Finding::new("eviction", grade, found, help)
        }
    }
}

/// Returns mebibytes with one digit after the point.
fn mib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10) >> 20;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn rights(settings: &Settings, server: &ServerReport, in_cluster: bool) -> Finding {
    if server.forbidden.is_empty() {
        let commands = redis::modes(settings).commands().len();
        let more = if in_cluster { format!(", {}", CLUSTER_COMMANDS.join(", ")) } else { String::new() };
        return Finding::good("rights", format!("{} on sg:*{more}", count(commands, "command")));
    }
    Finding::new("rights", Grade::Fix, not_allowed(&server.forbidden), allowing(settings, &server.forbidden))
}

/// Without these rights, all requests are still decided. So a missing right is no fault.
fn rights_of_lists(settings: &Settings, server: &ServerReport) -> Finding {
    let forbidden = &server.forbidden_of_lists;
    if forbidden.is_empty() {
        return Finding::good("blocks", format!("{} on sg:*", count(LIST_COMMANDS.len(), "command")));
    }
    let help = format!("for blocks and shadow switches of the fleet: {}", allowing(settings, forbidden));
    Finding::new("blocks", Grade::Note, not_allowed(forbidden), help)
}

pub(super) fn not_allowed(commands: &[&str]) -> String {
    format!("not allowed: {}", commands.join(", "))
}

/// Returns the command that gives the user these rights.
pub(super) fn allowing(settings: &Settings, commands: &[&str]) -> String {
    let rules: Vec<String> = commands.iter().map(|command| acl_rule(command)).collect();
    format!("ACL SETUSER {} ~sg:* {}", redis::login_user(settings), rules.join(" "))
}

/// Returns the ACL rule that gives a user the right to run a command.
fn acl_rule(command: &str) -> String {
    format!("+{}", command.to_ascii_lowercase().replace(' ', "|"))
}

fn scripts(server: &ServerReport) -> Finding {
    let failed: Vec<_> = server.scripts.iter().filter_map(|(name, failed)| Some((name, failed.as_ref()?))).collect();
    match failed.first() {
        None => Finding::good("scripts", format!("{} run", server.scripts.len())),
        Some((name, why)) => {
            let found = format!("{} of {} fail; {name}: {why}", failed.len(), server.scripts.len());
            // The error of a script ends with another name of the script and a line number. This end is cut off here.
            let found = found.split(" script: ").next().unwrap_or_default();
            Finding::new("scripts", Grade::Fix, found, script_help(why.kind()))
        }
    }
}

/// Returns how to fix a script that fails with this kind of error.
fn script_help(class: StoreErrorKind) -> &'static str {
    match class {
        StoreErrorKind::OutOfMemory => {
            "memory is full, and limits are answered by on_store_failure. Raise the memory limit with CONFIG SET maxmemory"
        }
        StoreErrorKind::ReadOnly => {
            "the server refuses writes, and limits are answered by on_store_failure. If it is a replica, name the primary (or use \
             redis-sentinel://, which finds it). Otherwise bring back the replicas that it waits for, or repair its disk"
        }
        StoreErrorKind::Moved => {
            "other nodes have these keys: write redis-cluster:// (rediss-cluster:// with TLS) in the URL"
        }
        StoreErrorKind::ClusterDown => {
            "the cluster serves no requests until all slots have a node: see CLUSTER INFO and CLUSTER NODES"
        }
        StoreErrorKind::NoPermission => {
            "the user may not do all that scripts do: docs/src/operating/least-rights.md has the least rights"
        }
        StoreErrorKind::Loading => "the server loads its data, or waits for the data of its primary. Try again later",
        StoreErrorKind::Busy => "a script runs there and does not end: SCRIPT KILL ends it",
        StoreErrorKind::Timeout | StoreErrorKind::Disconnected => {
            "the server does not answer any more: check that it runs, and see its log"
        }
        _ => {
            "until scripts run, limits are answered by on_store_failure. `store.scripts: off` serves plain fixed windows \
             without scripts"
        }
    }
}

fn clock(server: &ServerReport) -> Finding {
    let Some((ahead_ns, give_ns)) = server.ahead_ns else {
        let help = "limits use the store's clock, so the user needs the right +time too";
        return Finding::new("clock", Grade::Note, "not known: the user lacks the right", help);
    };
    let (off, give) = (Duration::from_nanos(ahead_ns.unsigned_abs()), Duration::from_nanos(give_ns));
    let direction = if ahead_ns < 0 { "behind" } else { "ahead of" };
    let found = format!("{} {direction} this machine's clock, measured to within {}", duration(off), duration(give));
    if off > SKEW + give {
        let help = "limits use the store's clock. Synchronize both machines (NTP). Otherwise reset times and logs do not agree";
        return Finding::new("clock", Grade::Fix, found, help);
    }
    Finding::good("clock", found)
}

fn latency(settings: &Settings, server: &ServerReport) -> Option<Finding> {
    let at = |percent: usize| server.calls.get(server.calls.len() * percent / 100).copied();
    let (middle, slow, deadline) = (at(50)?, at(99)?, settings.store.deadline);
    let (p50, p99, calls) = (duration(middle), duration(slow), server.calls.len());
    let found = format!("p50 {p50}, p99 {p99} of {calls} calls one by one; store.deadline is {}", duration(deadline));
    if slow > deadline {
        let help = "more than 1 in 100 answers come after the deadline: move the store nearer, or raise store.deadline (and the \
                    timeout of your proxy)";
        return Some(Finding::new("latency", Grade::Fix, found, help));
    }
    Some(Finding::good("latency", found))
}
