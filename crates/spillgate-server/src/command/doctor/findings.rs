//! What the doctor finds in a report: good, worth knowing, or to fix, each with its help.
//!
//! It only judges: the report is made by `spillgate-redis`, and the output by `render`.

use std::time::Duration;

use spillgate_redis::ErrorKind;
use spillgate_redis::doctor::{CLUSTER_COMMANDS, ClusterReport, Info, Report, SentinelReport, ServerReport};

use crate::command::open::store;
use crate::command::terminal::{Tone, count, duration};
use crate::settings::{Settings, masked};

/// More of a difference between clocks is worth a word: people and the stand-in for the store go by ours.
const SKEW: Duration = Duration::from_millis(500);
/// What helps where a replica is asked.
const OF_REPLICA: &str = "a replica takes no writes: name the primary, or redis-sentinel:// so that it is always found";
/// All slots of a cluster.
const SLOTS: usize = 16384;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grade {
    Good,
    /// Worth knowing, but not a fault.
    Note,
    /// A fault that should be fixed.
    Fix,
}

impl Grade {
    /// As text for people.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Fix => "fix",
        }
    }

    /// The value in JSON, which programs rely on.
    pub(super) const fn in_json(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Fix => "mend",
        }
    }

    pub(super) const fn tone(self) -> Tone {
        match self {
            Grade::Good => Tone::Good,
            Grade::Note => Tone::Warn,
            Grade::Fix => Tone::Bad,
        }
    }
}

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    /// The server that it is about, if the store is a cluster.
    pub(super) server: Option<String>,
    pub(super) what: &'static str,
    pub(super) grade: Grade,
    pub(super) found: String,
    /// How to fix it. Empty if there is nothing to do.
    pub(super) help: String,
}

impl Finding {
    fn new(what: &'static str, grade: Grade, found: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding { server: None, what, grade, found: found.into(), help: help.into() }
    }

    fn good(what: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(what, Grade::Good, found, "")
    }

    fn unknown(what: &'static str) -> Finding {
        let help =
            "log in as somebody who may ask (INFO, CLUSTER INFO) to have it looked at; limits need no such right";
        Finding::new(what, Grade::Note, "this user may not ask", help)
    }

    pub(super) fn is_to_fix(&self) -> bool {
        self.grade == Grade::Fix
    }
}

/// All findings about the store: first the cluster or the sentinels, then each server.
pub(super) fn of(settings: &Settings, report: &Report) -> Vec<Finding> {
    let of_cluster = |it| cluster(it, &report.servers, &store::login_user(settings));
    let mut all: Vec<Finding> = report.cluster.iter().flat_map(of_cluster).collect();
    if !report.sentinels.is_empty() {
        let info = report.servers.first().and_then(|server| server.info.as_ref());
        all.extend([sentinels(&report.sentinels, &report.servers), failover(info)]);
    }
    for server in &report.servers {
        let place = report.cluster.as_ref().map(|_| server.address.clone());
        let found = of_server(settings, server, report.cluster.is_some());
        all.extend(found.into_iter().map(|finding| Finding { server: place.clone(), ..finding }));
    }
    all
}

fn cluster(cluster: &ClusterReport, servers: &[ServerReport], user: &str) -> Vec<Finding> {
    let state = match cluster.state.as_deref() {
        None => Finding::unknown("cluster"),
        Some("ok") => Finding::good("cluster", "ok"),
        Some(state) => {
            let help = "look for nodes that are down: CLUSTER NODES; until then the cluster serves nobody";
            Finding::new("cluster", Grade::Fix, format!("cluster_state is {state}"), help)
        }
    };
    let slots = match cluster.slots {
        SLOTS => Finding::good("slots", format!("all {SLOTS} have a node")),
        slots => {
            let help = match slots {
                0 => "nobody made a cluster of the nodes yet: redis-cli --cluster create HOST:PORT HOST:PORT ...",
                _ => "give the others to a node: redis-cli --cluster fix HOST:PORT",
            };
            Finding::new("slots", Grade::Fix, format!("{slots} of {SLOTS} have a node"), help)
        }
    };
    if cluster.slots == 0 {
        return vec![state, slots];
    }
    // A primary knows its own replicas before the cluster does.
    let has_one = |address: &&String| servers.iter().any(|it| it.address == **address && has_replicas(it));
    let (unlisted, alone): (Vec<_>, Vec<_>) = cluster.alone.iter().partition(has_one);
    let mut found = vec![state, slots, replicas(&alone, user)];
    if !unlisted.is_empty() {
        let unlisted: Vec<_> = unlisted.into_iter().map(String::as_str).collect();
        let help = "a replica is listed when it has its data and the nodes have heard of it: look again in a few seconds. \
                    What stays away is no node of the cluster, and does not take over";
        let text = format!("the cluster does not list that of {} yet", unlisted.join(", "));
        found.push(Finding::new("replicas", Grade::Note, text, help));
    }
    found
}

fn has_replicas(server: &ServerReport) -> bool {
    server.info.as_ref().is_some_and(|info| info.replicas > 0)
}

/// `alone` are the primaries that have none.
fn replicas(alone: &[&String], user: &str) -> Finding {
    match alone {
        [] if user == "default" => Finding::good("replicas", "each primary has one"),
        [] => {
            let help = format!(
                "make sure that each has the user {user} too, or limits are left to on_store_failure when it takes over: \
                 Redis does not replicate users, and replicas were not asked"
            );
            Finding::new("replicas", Grade::Note, "each primary has one", help)
        }
        alone => {
            let help =
                "when such a node is gone, its limits are left to on_store_failure until it is back: add replicas";
            let alone: Vec<_> = alone.iter().map(|address| address.as_str()).collect();
            Finding::new("replicas", Grade::Note, format!("none of {}", alone.join(", ")), help)
        }
    }
}

/// Whether all sentinels of the URL say where the primary is.
fn sentinels(sentinels: &[SentinelReport], servers: &[ServerReport]) -> Finding {
    let count = |of: usize| format!("{of} of {}", sentinels.len());
    let silent: Vec<_> = sentinels.iter().filter_map(|it| Some((&it.address, it.primary.as_ref().err()?))).collect();
    if let Some((address, why)) = silent.first() {
        let found = format!("{} say where the primary is; {address}: {why}", count(sentinels.len() - silent.len()));
        let help =
            "start it again, or name those that run in `store.url`: while most of them are gone no replica takes over";
        return Finding::new("sentinels", Grade::Fix, masked(&found), help);
    }
    let is_other = |told: &&SentinelReport| !servers.iter().any(|it| told.primary.as_ref() == Ok(&it.address));
    if let Some(SentinelReport { address, primary: Ok(primary) }) = sentinels.iter().find(is_other) {
        let help = "it has missed a failover: see that it runs and reaches the others, or take it out of `store.url`";
        return Finding::new("sentinels", Grade::Fix, format!("{address} says that the primary is {primary}"), help);
    }
    Finding::good("sentinels", format!("{} say where the primary is", count(sentinels.len())))
}

/// What becomes of counts when a primary that sentinels watch is cut off.
fn failover(info: Option<&Info>) -> Finding {
    match info {
        None => Finding::unknown("failover"),
        Some(info) if info.replicas == 0 => {
            let help = "when the primary is gone, limits are left to on_store_failure until it is back: add a replica";
            Finding::new("failover", Grade::Note, "the primary has no replica that could take over", help)
        }
        Some(info) if info.waits_for_replicas => Finding::good("failover", "min-replicas-to-write is set"),
        Some(_) => {
            let help = "a primary that is cut off, and that servers still reach, counts beside the one that took over for \
                        as long as the cut lasts: CONFIG SET min-replicas-to-write 1, on the replicas too, and it does \
                        for min-replicas-max-lag at most (without a replica limits are then left to on_store_failure)";
            Finding::new("failover", Grade::Fix, "min-replicas-to-write is 0", help)
        }
    }
}

fn of_server(settings: &Settings, server: &ServerReport, in_cluster: bool) -> Vec<Finding> {
    if server.info.as_ref().is_some_and(|info| info.is_sentinel) {
        let help = format!("it keeps no keys, and tells who does: write redis-sentinel://{}/NAME", server.address);
        return vec![Finding::new("role", Grade::Fix, "this is a sentinel", help)];
    }
    let told = server.info.as_ref().map(|info| vec![version(info), role(info, in_cluster), eviction(info)]);
    if let Some(failed) = &server.failed {
        let help = "is it running, and can its address be reached from here? If so, its own log says more";
        let answers = Finding::new("answers", Grade::Fix, masked(&failed.to_string()), help);
        return told.into_iter().flatten().chain([answers]).collect();
    }
    let mut found = told.unwrap_or_else(|| vec![Finding::unknown("version"), Finding::unknown("eviction")]);
    found.push(rights(settings, server, in_cluster));
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
            let help = "7.0 is the oldest that is tested; upgrade, to Redis 7.0 or later or to Valkey";
            Finding::new("version", Grade::Fix, found, help)
        }
        _ => Finding::good("version", found),
    }
}

fn role(info: &Info, in_cluster: bool) -> Finding {
    if info.role != "master" {
        return Finding::new("role", Grade::Fix, format!("a replica ({})", info.role), OF_REPLICA);
    }
    if info.in_cluster && !in_cluster {
        let help = "write redis-cluster:// (rediss-cluster:// with TLS) in the URL";
        return Finding::new("role", Grade::Fix, "a node of a cluster, asked as if it were alone", help);
    }
    Finding::good(
        "role",
        format!("primary, {}", count(usize::try_from(info.replicas).unwrap_or(usize::MAX), "replica")),
    )
}

fn eviction(info: &Info) -> Finding {
    let policy = &info.maxmemory_policy;
    let (used, most) = (info.used_memory_bytes, info.maxmemory_bytes);
    let found = match most {
        0 => format!("{policy}, and no bound on memory"),
        _ => format!("{policy}, {} of {} MiB used", mib(used), mib(most)),
    };
    match policy.as_str() {
        "noeviction" if most > 0 && used >= most / 10 * 9 => {
            let help = "nearly full, and nothing is forgotten: when it is full, limits are left to on_store_failure. CONFIG SET \
                        maxmemory to more, or CONFIG SET maxmemory-policy volatile-ttl, which forgets what is nearly over";
            Finding::new("eviction", Grade::Fix, found, help)
        }
        "volatile-ttl" if most > 0 && used >= most / 10 * 9 => {
            let help =
                "nearly full: when it is full, counts that are nearly over are forgotten. CONFIG SET maxmemory to more";
            Finding::new("eviction", Grade::Note, found, help)
        }
        "noeviction" | "volatile-ttl" => Finding::good("eviction", found),
        _ => {
            let help = "when memory is full this forgets counts that still matter, so that who makes many keys is \
                        admitted anew: CONFIG SET maxmemory-policy volatile-ttl forgets what is nearly over first; \
                        noeviction forgets nothing, and while memory is full leaves all limits to on_store_failure";
            // Without a bound it cannot happen yet.
            let grade = if info.maxmemory_bytes == 0 { Grade::Note } else { Grade::Fix };
            Finding::new("eviction", grade, found, help)
        }
    }
}

/// With one digit after the point.
fn mib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10) >> 20;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn rights(settings: &Settings, server: &ServerReport, in_cluster: bool) -> Finding {
    if server.forbidden.is_empty() {
        let commands = store::modes(settings).commands().len();
        let more = if in_cluster { format!(", {}", CLUSTER_COMMANDS.join(", ")) } else { String::new() };
        return Finding::good("rights", format!("{} on sg:*{more}", count(commands, "command")));
    }
    let rules: Vec<String> = server.forbidden.iter().map(|command| right(command)).collect();
    let help = format!("ACL SETUSER {} ~sg:* {}", store::login_user(settings), rules.join(" "));
    Finding::new("rights", Grade::Fix, format!("not allowed: {}", server.forbidden.join(", ")), help)
}

/// As an ACL writes it.
fn right(command: &str) -> String {
    format!("+{}", command.to_ascii_lowercase().replace(' ', "|"))
}

fn scripts(server: &ServerReport) -> Finding {
    let failed: Vec<_> = server.scripts.iter().filter_map(|(name, failed)| Some((name, failed.as_ref()?))).collect();
    match failed.first() {
        None => Finding::good("scripts", format!("{} run", server.scripts.len())),
        Some((name, why)) => {
            let found = format!("{} of {} fail; {name}: {why}", failed.len(), server.scripts.len());
            // Which script it was is said already.
            let found = found.split(" script: ").next().unwrap_or_default();
            Finding::new("scripts", Grade::Fix, found, script_help(why.kind))
        }
    }
}

/// What helps a script that fails so.
fn script_help(class: ErrorKind) -> &'static str {
    match class {
        ErrorKind::OutOfMemory => {
            "memory is full, and limits are left to on_store_failure: CONFIG SET maxmemory to more, or CONFIG SET \
             maxmemory-policy volatile-ttl, which forgets what is nearly over"
        }
        ErrorKind::ReadOnly => {
            "it refuses writes, and limits are left to on_store_failure: name the primary in place of a replica \
             (redis-sentinel:// always finds it), bring back the replicas that it waits for, or mend its disk"
        }
        ErrorKind::Moved => {
            "other nodes have these keys: write redis-cluster:// (rediss-cluster:// with TLS) in the URL"
        }
        ErrorKind::ClusterDown => "the cluster serves nobody until all slots have a node: CLUSTER INFO, CLUSTER NODES",
        ErrorKind::NoPermission => {
            "the user may not do all that scripts do: docs/src/operating/least-rights.md has the least rights"
        }
        ErrorKind::Loading => "it reads its data, or waits for its primary's: it serves when that is done",
        ErrorKind::Busy => "somebody's script runs there and does not end: SCRIPT KILL ends it",
        ErrorKind::Timeout | ErrorKind::Disconnected => {
            "it stopped answering: look whether it runs, and into its own log"
        }
        _ => {
            "until scripts run, limits are left to on_store_failure; `store.scripts: off` serves plain fixed windows \
             without them"
        }
    }
}

fn clock(server: &ServerReport) -> Finding {
    let Some((ahead_ns, give_ns)) = server.ahead_ns else {
        let help = "limits go by the store's clock: the user needs +time too";
        return Finding::new("clock", Grade::Note, "this user may not ask", help);
    };
    let (off, give) = (Duration::from_nanos(ahead_ns.unsigned_abs()), Duration::from_nanos(give_ns));
    let direction = if ahead_ns < 0 { "behind" } else { "ahead of" };
    let found = format!("{} {direction} this machine's, give or take {}", duration(off), duration(give));
    if off > SKEW + give {
        let help = "the store's clock decides; let both machines keep time (NTP), or resets and logs do not agree";
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
        let help = "more than one in a hundred comes too late: bring the store nearer, or raise store.deadline (and what \
                    your proxy waits for us)";
        return Some(Finding::new("latency", Grade::Fix, found, help));
    }
    Some(Finding::good("latency", found))
}
