//! `spillgate doctor`: what is wrong with a shared store, and what helps.

use std::time::Duration;

use serde_json::json;
use spillgate::{Clock as _, SystemClock};
use spillgate_redis::Failure;
use spillgate_redis::doctor::{CLUSTER_COMMANDS, ClusterReport, Info, Report, SentinelReport, ServerReport, examine};

use super::load::{self, Problems, Trouble};
use super::show::{count, duration};
use super::store;
use super::table::Table;
use super::terminal::{Terminal, Tone};
use super::{NO, OK, UNSERVED, WRONG};
use crate::cli::Doctor;
use crate::settings::{Settings, masked};

/// More of a difference between clocks is worth a word: people and the stand-in for the store go by ours.
const SKEW: Duration = Duration::from_millis(500);
/// Letters of a line of help.
const HELP_WIDTH: usize = 90;
/// What helps where a replica is asked.
const OF_REPLICA: &str = "a replica takes no writes: name the primary, or redis-sentinel:// so that it is always found";
/// All slots of a cluster.
const SLOTS: usize = 16384;

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Good,
    /// Worth knowing, and no fault.
    Note,
    /// To be mended.
    Mend,
}

impl Grade {
    const fn as_str(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Mend => "mend",
        }
    }

    const fn tone(self) -> Tone {
        match self {
            Grade::Good => Tone::Good,
            Grade::Note => Tone::Warn,
            Grade::Mend => Tone::Bad,
        }
    }
}

/// One thing that was looked at.
#[derive(Debug)]
struct Finding {
    /// Of a cluster, which server it is about.
    server: Option<String>,
    what: &'static str,
    grade: Grade,
    found: String,
    /// What helps; empty where nothing has to.
    help: String,
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
}

pub(super) fn run(doctor: &Doctor, terminal: &mut Terminal) -> u8 {
    match examined(doctor) {
        Ok((settings, report)) => tell(doctor, &settings, &report, terminal),
        Err((problems, code)) => {
            problems.tell(doctor.json, terminal);
            code
        }
    }
}

fn examined(doctor: &Doctor) -> Result<(Settings, Report), (Problems, u8)> {
    let wrong = |problems| (problems, WRONG);
    let settings = load::settings(doctor.config.as_deref(), &[], &doctor.flags).map_err(wrong)?.settings;
    let mut reached = store::reached(&settings, 1).map_err(|trouble| wrong(trouble.into()))?;
    // What is wrong with the settings is no fault of the store's.
    store::open(&settings, &reached).map_err(|trouble| wrong(trouble.into()))?;
    reached.timeout = store::PATIENCE;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let no_runtime = |error| wrong(Trouble::new(format!("no runtime: {error}"), "free some memory").into());
    let clock = SystemClock::start();
    let report = runtime.map_err(no_runtime)?.block_on(examine(&reached, &|| clock.now()));
    match report {
        Ok(report) => Ok((settings, report)),
        Err(failed) => Err((store::unreachable(&settings, &failed).into(), UNSERVED)),
    }
}

fn tell(doctor: &Doctor, settings: &Settings, report: &Report, terminal: &mut Terminal) -> u8 {
    let findings = findings(settings, report);
    let to_mend = findings.iter().filter(|finding| finding.grade == Grade::Mend).count();
    if doctor.json {
        let all: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "server": finding.server,
                    "what": finding.what,
                    "grade": finding.grade.as_str(),
                    "found": finding.found,
                    "help": Some(&finding.help).filter(|help| !help.is_empty()),
                })
            })
            .collect();
        let store = settings.store.url.to_string();
        terminal.json(&json!({ "ok": to_mend == 0, "store": store, "findings": all }));
    } else {
        let text = text(settings, &findings, to_mend, terminal);
        terminal.print(&text);
    }
    if to_mend == 0 { OK } else { NO }
}

fn text(settings: &Settings, findings: &[Finding], to_mend: usize, terminal: &Terminal) -> String {
    let mut text = format!("store {}\n", terminal.paint(Tone::Title, &settings.store.url.to_string()));
    let mut table = Table::new(2);
    for finding in findings {
        let server = finding.server.clone().unwrap_or_default();
        table.row([
            (finding.grade.tone(), finding.grade.as_str().to_owned()),
            (Tone::Faint, server),
            (Tone::Plain, finding.what.to_owned()),
            (Tone::Plain, finding.found.clone()),
        ]);
        for line in wrapped(&finding.help) {
            let blank = || (Tone::Plain, String::new());
            table.row([blank(), blank(), blank(), (Tone::Faint, line)]);
        }
    }
    text.push_str(&table.text(false, terminal));
    let summary = match to_mend {
        0 => terminal.paint(Tone::Good, "all is well"),
        to_mend => terminal.paint(Tone::Bad, &format!("{} to mend", count(to_mend, "thing"))),
    };
    text + &format!("\n{summary}\n")
}

/// The text in lines that a terminal has room for.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < HELP_WIDTH => line.extend([" ", word]),
            Some(_) => lines.push(format!("   {word}")),
            None => lines.push(format!("-> {word}")),
        }
    }
    lines
}

fn findings(settings: &Settings, report: &Report) -> Vec<Finding> {
    let of_cluster = |it| cluster(it, &report.servers, &store::user(settings));
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
            Finding::new("cluster", Grade::Mend, format!("cluster_state is {state}"), help)
        }
    };
    let slots = match cluster.slots {
        SLOTS => Finding::good("slots", format!("all {SLOTS} have a node")),
        slots => {
            let help = match slots {
                0 => "nobody made a cluster of the nodes yet: redis-cli --cluster create HOST:PORT HOST:PORT ...",
                _ => "give the others to a node: redis-cli --cluster fix HOST:PORT",
            };
            Finding::new("slots", Grade::Mend, format!("{slots} of {SLOTS} have a node"), help)
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
        return Finding::new("sentinels", Grade::Mend, masked(&found), help);
    }
    let is_other = |told: &&SentinelReport| !servers.iter().any(|it| told.primary.as_ref() == Ok(&it.address));
    if let Some(SentinelReport { address, primary: Ok(primary) }) = sentinels.iter().find(is_other) {
        let help = "it has missed a failover: see that it runs and reaches the others, or take it out of `store.url`";
        return Finding::new("sentinels", Grade::Mend, format!("{address} says that the primary is {primary}"), help);
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
            Finding::new("failover", Grade::Mend, "min-replicas-to-write is 0", help)
        }
    }
}

fn of_server(settings: &Settings, server: &ServerReport, in_cluster: bool) -> Vec<Finding> {
    if server.info.as_ref().is_some_and(|info| info.is_sentinel) {
        let help = format!("it keeps no keys, and tells who does: write redis-sentinel://{}/NAME", server.address);
        return vec![Finding::new("role", Grade::Mend, "this is a sentinel", help)];
    }
    let told = server.info.as_ref().map(|info| vec![version(info), role(info, in_cluster), eviction(info)]);
    if let Some(failed) = &server.failed {
        let help = "is it running, and can its address be reached from here? If so, its own log says more";
        let answers = Finding::new("answers", Grade::Mend, masked(&failed.to_string()), help);
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
            Finding::new("version", Grade::Mend, found, help)
        }
        _ => Finding::good("version", found),
    }
}

fn role(info: &Info, in_cluster: bool) -> Finding {
    if info.role != "master" {
        return Finding::new("role", Grade::Mend, format!("a replica ({})", info.role), OF_REPLICA);
    }
    if info.in_cluster && !in_cluster {
        let help = "write redis-cluster:// (rediss-cluster:// with TLS) in the URL";
        return Finding::new("role", Grade::Mend, "a node of a cluster, asked as if it were alone", help);
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
            Finding::new("eviction", Grade::Mend, found, help)
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
            let grade = if info.maxmemory_bytes == 0 { Grade::Note } else { Grade::Mend };
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
    let help = format!("ACL SETUSER {} ~sg:* {}", store::user(settings), rules.join(" "));
    Finding::new("rights", Grade::Mend, format!("not allowed: {}", server.forbidden.join(", ")), help)
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
            Finding::new("scripts", Grade::Mend, found, script_help(why.class))
        }
    }
}

/// What helps a script that fails so.
fn script_help(class: Failure) -> &'static str {
    match class {
        Failure::Oom => {
            "memory is full, and limits are left to on_store_failure: CONFIG SET maxmemory to more, or CONFIG SET \
             maxmemory-policy volatile-ttl, which forgets what is nearly over"
        }
        Failure::Readonly => {
            "it refuses writes, and limits are left to on_store_failure: name the primary in place of a replica \
             (redis-sentinel:// always finds it), bring back the replicas that it waits for, or mend its disk"
        }
        Failure::Moved => "other nodes have these keys: write redis-cluster:// (rediss-cluster:// with TLS) in the URL",
        Failure::Clusterdown => "the cluster serves nobody until all slots have a node: CLUSTER INFO, CLUSTER NODES",
        Failure::Noperm => {
            "the user may not do all that scripts do: docs/src/operating/least-rights.md has the least rights"
        }
        Failure::Loading => "it reads its data, or waits for its primary's: it serves when that is done",
        Failure::Busy => "somebody's script runs there and does not end: SCRIPT KILL ends it",
        Failure::Timeout | Failure::Disconnected => "it stopped answering: look whether it runs, and into its own log",
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
        return Finding::new("clock", Grade::Mend, found, help);
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
        return Some(Finding::new("latency", Grade::Mend, found, help));
    }
    Some(Finding::good("latency", found))
}
