//! Examines the stores of the other regions, as a server of this region uses them.
//!
//! A server starts without its peers, and tells a region that differs nothing. The doctor shows that before it matters.

use std::time::Duration;

use spillgate::regions::{About, region_tag};
use spillgate::{
    AcrossRegions, Charge, Charged, ChargedStore as _, Clock as _, Quota, Regions, StoreError, SystemClock,
};
use spillgate_redis::doctor::{CLUSTER_COMMANDS, Report, ServerReport, examine as report_on};
use spillgate_redis::{CHARGE_COMMANDS, Error, RedisStore};
use tokio::time::Instant;

use super::finding::{Finding, Grade};
use super::redis::{SKEW, allowing, eviction, not_allowed, role, unknown};
use crate::command::differences::words;
use crate::command::open::{redis, store};
use crate::command::terminal::{Problem, count, duration};
use crate::settings::{PeerSettings, Settings};

/// The key that is charged. Keys of requests are hashes, so none of them is this number.
const KEY: u128 = 0x7370_696c_6c67_6174_6520_7265_6769_6f6e;

/// Examines the stores of all other regions. `own_ahead_ns` says how far the clock of the own store is ahead of that of
/// this machine, and how exact this is.
pub(super) async fn examine(settings: &Settings, own_ahead_ns: Option<(i64, u64)>) -> Result<Vec<Finding>, Problem> {
    let (Some(name), Some(regions)) = (&settings.regions.name, settings.regions.count()) else { return Ok(Vec::new()) };
    let about = About::new(name, regions, store::check_value(settings)?);
    let mut all = Vec::new();
    for peer in &settings.regions.peers {
        let place = format!("region {}", peer.name);
        let found = of_region(settings, peer, &about, own_ahead_ns).await?;
        all.extend(found.into_iter().map(|finding| {
            let server = finding.server.map_or_else(|| place.clone(), |node| format!("{place}, {node}"));
            Finding { server: Some(server), ..finding }
        }));
    }
    Ok(all)
}

async fn of_region(
    settings: &Settings,
    peer: &PeerSettings,
    about: &About,
    own_ahead_ns: Option<(i64, u64)>,
) -> Result<Vec<Finding>, Problem> {
    let (reached, read) = redis::region_settings(settings, peer)?;
    let peer_store = redis::region_store(settings, peer)?;
    let clock = SystemClock::start();
    let report = match report_on(&read, &|| clock.now()).await {
        Ok(report) => report,
        Err(error) => return Ok(vec![unreached(&reached, &peer.name, error)]),
    };
    let mut found = Vec::new();
    for server in &report.servers {
        let node = report.cluster.as_ref().map(|_| server.address.clone());
        let of_node = of_server(&reached, server, &report, own_ahead_ns);
        found.extend(of_node.into_iter().map(|finding| Finding { server: node.clone(), ..finding }));
    }
    match agreement(&peer_store, &peer.name, about).await {
        Ok((of_about, may_charge)) => {
            found.extend(of_about);
            // A region that would be told nothing is not charged here either.
            if may_charge {
                found.push(round(&peer_store, about).await);
            }
        }
        Err(error) => found.push(failed("agreement", &error)),
    }
    Ok(found)
}

/// Returns the finding for a store that cannot be reached. It never keeps a server from starting.
fn unreached(reached: &Settings, name: &str, error: Error) -> Finding {
    let error = redis::explained(error, reached.store.url.speaks_tls());
    let help = match error.forbidden_command() {
        Some(command) => format!("ACL SETUSER {} +{command}", redis::login_user(reached)),
        // A region can have each of these settings for itself.
        None => error.help().replace("`store.", &format!("`regions.peers.{name}.")),
    };
    Finding::new("reach", Grade::Fix, format!("{} cannot be reached: {error}", reached.store.url), help)
}

fn of_server(
    reached: &Settings,
    server: &ServerReport,
    report: &Report,
    own_ahead_ns: Option<(i64, u64)>,
) -> Vec<Finding> {
    if let Some(error) = &server.error {
        let help = "check that the server runs, and that this machine reaches its address: a cluster and sentinels must announce \
                    addresses that are valid here";
        return vec![Finding::new("reach", Grade::Fix, error.to_string(), help)];
    }
    let reach = Finding::good("reach", format!("{} answers", reached.store.url));
    let in_cluster = report.cluster.is_some();
    let mut found = vec![reach];
    match &server.info {
        Some(info) => found.extend([role(info, in_cluster), eviction(info)]),
        None => found.push(unknown("eviction")),
    }
    found.extend([rights(reached, server, in_cluster), clock(server, own_ahead_ns)]);
    found
}

fn rights(reached: &Settings, server: &ServerReport, in_cluster: bool) -> Finding {
    let needed: Vec<&str> =
        CHARGE_COMMANDS.into_iter().chain(CLUSTER_COMMANDS.into_iter().filter(|_| in_cluster)).collect();
    let forbidden: Vec<&str> = needed.iter().copied().filter(|command| server.forbidden.contains(command)).collect();
    if !forbidden.is_empty() {
        return Finding::new("rights", Grade::Fix, not_allowed(&forbidden), allowing(reached, &needed));
    }
    Finding::good("rights", format!("{} on sg:*", count(needed.len(), "command")))
}

fn clock(server: &ServerReport, own_ahead_ns: Option<(i64, u64)>) -> Finding {
    let Some(((theirs_ns, give_ns), (ours_ns, own_give_ns))) = server.ahead_ns.zip(own_ahead_ns) else {
        return Finding::new(
            "clock",
            Grade::Note,
            "not known: a user lacks the right +time",
            "grant it at both stores",
        );
    };
    let ahead_ns = theirs_ns.saturating_sub(ours_ns);
    let (off, give) = (Duration::from_nanos(ahead_ns.unsigned_abs()), Duration::from_nanos(give_ns + own_give_ns));
    let direction = if ahead_ns < 0 { "behind" } else { "ahead of" };
    let found =
        format!("{} {direction} the clock of the own store, measured to within {}", duration(off), duration(give));
    if off > SKEW + give {
        let help = "synchronize both machines (NTP). For windows and counters, the regions admit more by what each of them admits in \
                    this time";
        return Finding::new("clock", Grade::Fix, found, help);
    }
    Finding::good("clock", found)
}

/// Compares what the servers of the region say about themselves with this region. Also returns whether the region may be
/// charged.
async fn agreement(peer_store: &RedisStore, name: &str, about: &About) -> Result<(Vec<Finding>, bool), StoreError> {
    let text = peer_store.about(store::ANSWER_TIMEOUT).await?;
    let differs = about.compared(name, text.as_deref());
    let fix = |(what, _)| {
        let (found, help) = words(what);
        // The first region starts before the others.
        let grade = if what == "nobody" { Grade::Note } else { Grade::Fix };
        Finding::new("agreement", grade, format!("it {found}"), help)
    };
    let mut found: Vec<Finding> = differs.all().into_iter().filter(|(_, differs)| *differs).map(fix).collect();
    if found.is_empty() {
        let same = format!("same key secret, same format, {} regions in both", about.regions);
        found.push(Finding::good("agreement", same));
    }
    Ok((found, !differs.stops()))
}

/// Charges one unit of a key that no request uses, and then tells the same total again, which has to be known by then. Both
/// keys end by themselves within a minute, because servers have no right to remove keys of another region.
async fn round(peer_store: &RedisStore, about: &About) -> Finding {
    let begun = Instant::now();
    match charge_twice(peer_store, about).await {
        Ok([Charged::New, Charged::Known]) => {
            let found = format!("a unit was charged and is known there, in {}", duration(begun.elapsed()));
            Finding::good("round", found)
        }
        Ok(results) => {
            let found = format!("charging a unit gave {} and {}", results[0].as_str(), results[1].as_str());
            let help = "another program has written at the key of the doctor, or the store loses keys: see its eviction policy";
            Finding::new("round", Grade::Fix, found, help)
        }
        Err(error) => failed("round", &error),
    }
}

async fn charge_twice(peer_store: &RedisStore, about: &About) -> Result<[Charged; 2], StoreError> {
    let now = SystemClock::start().now();
    let two = Regions::new(2).map_or(AcrossRegions::Each, AcrossRegions::Shared);
    let quota = Quota::token_bucket(1000, Duration::from_secs(10)).build().and_then(|quota| quota.across(two));
    let quota = quota.map_err(|_| StoreError::malformed("the quota of the doctor is invalid"))?;
    let id = u64::from(region_tag(&about.region)) << 48 | now.as_nanos() & ((1 << 48) - 1);
    let charge = Charge { key: KEY, quota: &quota, span: quota.span(now), id, total: 1 };
    let mut results = [Charged::Failed; 2];
    for result in results.chunks_mut(1) {
        peer_store.charge(store::ANSWER_TIMEOUT, &[charge], result).await?;
    }
    Ok(results)
}

fn failed(what: &'static str, error: &StoreError) -> Finding {
    let help = "correct the findings above first; a server of this region logs the same error";
    Finding::new(what, Grade::Fix, error.to_string(), help)
}
