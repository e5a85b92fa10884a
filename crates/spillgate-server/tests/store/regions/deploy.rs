//! Servers of three regions that end under load: what the other regions know of what they admitted.
//!
//! `REGIONS=all` runs these tests, as `make show-regions-deploy` does: eight servers need their time to start.

#![allow(
    clippy::disallowed_methods,
    reason = "a server that is killed may lose what it admitted in a time that is measured"
)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spillgate::regions::region_tag;

use super::{SECRET, region};
use crate::cli_support::Folder;
use crate::store::fleet::{check, until_store};
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

const NAMES: [&str; 3] = ["eu", "us", "ap"];
/// Each limit has so many users.
const USERS: u64 = 20;
/// A server keeps up to 11 units of `large` untold: a step is 960 / (20 * 2 * 2).
const STEP: u64 = 12;
/// Of the small limit, only the guaranteed share is left soon. All units of an hour are added up in one place.
const RULES: &str = "domain: api\ndescriptors:
  - key: large
    rate_limit: {unit: hour, limit: 960, algorithm: token_bucket, across_regions: shared}
  - key: small
    rate_limit: {unit: hour, limit: 30, algorithm: token_bucket, across_regions: shared}
";

/// Adds up what the hashes of a region's store have seen of another region's servers, of one limit or of all.
const SUM: &str = "local sum = 0
for _, key in ipairs(redis.call('KEYS', 'sg:*@*')) do
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local high, low = string.byte(all[i], 1, 2)
    if high * 256 + low == tonumber(ARGV[1]) then sum = sum + tonumber(all[i + 1]) end
  end
end
return sum";

fn charged(redis: &Redis, of: usize) -> u64 {
    let sum = redis.run(&["EVAL", SUM, "0", &region_tag(NAMES[of]).to_string()]);
    sum.parse().unwrap_or_else(|error| panic!("{sum}: {error}"))
}

struct Regions {
    stores: Vec<Redis>,
    /// The servers of each region.
    servers: Vec<Vec<Spillgate>>,
    _folder: Folder,
}

impl Regions {
    fn start() -> Regions {
        let folder = Folder::new(&[("rules.yaml", RULES), ("secret", SECRET)]);
        let stores: Vec<Redis> = NAMES.iter().map(|_| Redis::start()).collect();
        let server = |number: usize| {
            let peers = (0..3).filter(|peer| *peer != number);
            let peers: Vec<String> = peers.map(|peer| format!("{}={}", NAMES[peer], stores[peer].url())).collect();
            region(&folder, (NAMES[number], &stores[number].url()), &peers.join(","))
        };
        let servers: Vec<Vec<Spillgate>> = (0..3).map(|number| vec![server(number), server(number)]).collect();
        for server in servers.iter().flatten() {
            until_store(server.http(), "large", "first");
        }
        let regions = Regions { stores, servers, _folder: folder };
        // Each server tells what it admits, as soon as it has compared the other regions.
        let units: Vec<u64> = (0..3).map(|number| regions.fill(number)).collect();
        for (region, at) in PAIRS {
            eventually("the first units are told", || {
                (charged(&regions.stores[at], region) >= units[region]).then_some(())
            });
        }
        regions
    }

    /// Takes whole steps at each server of a region. Returns the units.
    fn fill(&self, region: usize) -> u64 {
        let mut units = 0;
        for (number, server) in self.servers[region].iter().enumerate() {
            for _ in 0..STEP {
                assert_eq!(check(server.http(), "large", &format!("fill {number}")).0, 200);
                units += 1;
            }
        }
        units
    }
}

/// A region, and another one that is told.
const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];

/// What the clients of one server saw.
#[derive(Default)]
struct Seen {
    /// When each unit was admitted.
    admitted: Mutex<Vec<Instant>>,
    /// Requests without an answer: the server may have admitted them.
    unanswered: AtomicU64,
}

/// Asks a server until it is gone, or until the end.
fn ask(server: std::net::SocketAddr, seed: u64, seen: &Seen, ends: &AtomicBool) {
    let mut number = seed;
    while !ends.load(Ordering::Relaxed) {
        number += 1;
        let (key, user) = (if number.is_multiple_of(3) { "small" } else { "large" }, number % USERS);
        let body = format!(r#"{{"domain":"api","descriptors":[{{"{key}":"{user}"}}]}}"#);
        match http::request(server, "POST", "/v1/check", &[], &body) {
            Ok(answer) if answer.status == 200 => seen.admitted.lock().expect("no test panics").push(Instant::now()),
            Ok(answer) => assert_eq!(answer.status, 429, "{answer:?}"),
            Err(error) => {
                let was_sent = error.kind() != std::io::ErrorKind::ConnectionRefused;
                seen.unanswered.fetch_add(u64::from(was_sent), Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Asks all servers, does something to them, and returns what the clients of each saw.
fn under_load(regions: &mut Regions, change: impl FnOnce(&mut Regions, &[Vec<Seen>])) -> Vec<Vec<Seen>> {
    let seen: Vec<Vec<Seen>> = (0..3).map(|_| vec![Seen::default(), Seen::default()]).collect();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for (region, servers) in regions.servers.iter().enumerate() {
            for (server, own) in servers.iter().enumerate() {
                let (address, seen, ends) = (own.http(), &seen[region][server], &ends);
                scope.spawn(move || ask(address, (region * 2 + server) as u64 * 5, seen, ends));
            }
        }
        let seen_by_all = |units| {
            eventually("every server admits units", || {
                let units_of = |seen: &Seen| seen.admitted.lock().expect("no test panics").len();
                seen.iter().flatten().all(|seen| units_of(seen) >= units).then_some(())
            });
        };
        seen_by_all(100);
        change(regions, &seen);
        ends.store(true, Ordering::Relaxed);
    });
    seen
}

fn units(seen: &[Seen]) -> (u64, u64) {
    let admitted = seen.iter().map(|seen| seen.admitted.lock().expect("no test panics").len() as u64).sum();
    (admitted, seen.iter().map(|seen| seen.unanswered.load(Ordering::Relaxed)).sum())
}

fn end(server: &mut Spillgate) {
    server.process.terminate();
    assert!(server.process.wait().success());
}

/// All servers end one after another while they are asked. Each other region has charged every unit that they admitted.
#[test]
fn a_deploy_loses_no_unit() {
    if !runs_all() {
        return;
    }
    let mut regions = Regions::start();
    let filled = [0, 1, 2].map(|_| 2 * STEP + 2);
    let seen = under_load(&mut regions, |regions, _| regions.servers.iter_mut().flatten().for_each(end));
    for (region, at) in PAIRS {
        let (admitted, unanswered) = units(&seen[region]);
        let (admitted, told) = (admitted + filled[region], charged(&regions.stores[at], region));
        println!("{} admitted {admitted} units, {} charged {told}; {unanswered} unanswered", NAMES[region], NAMES[at]);
        assert!(
            (admitted..=admitted + unanswered).contains(&told),
            "{told} of {admitted} units, {unanswered} unanswered"
        );
    }
}

/// A server that is killed loses at most what it admitted within the delay, and less than a step of each key.
#[test]
fn a_server_that_is_killed_loses_a_delay_and_less_than_a_step_of_each_key() {
    if !runs_all() {
        return;
    }
    let mut regions = Regions::start();
    let filled = 2 * STEP + 2;
    let mut delay = Duration::ZERO;
    let seen = under_load(&mut regions, |regions, _| {
        for at in [1, 2] {
            let all = 2 * USERS as usize + 2;
            eventually("every key is told", || (keys(&regions.stores[at]) >= all).then_some(()));
        }
        for round in 0..5 {
            delay = delay.max(longest_delay(regions, round));
        }
        regions.servers[0][0].process.kill();
        regions.servers.iter_mut().flatten().skip(1).for_each(end);
    });
    let probes = 5 * STEP;
    let (admitted, unanswered) = units(&seen[0]);
    let admitted = admitted + filled + probes;
    let of_killed = seen[0][0].admitted.lock().expect("no test panics").clone();
    let within = |from: &Instant| of_killed.iter().filter(|at| *at >= from && **at <= *from + delay).count() as u64;
    let most = of_killed.iter().map(within).max().unwrap_or(0) + (STEP - 1) * USERS;
    for at in [1, 2] {
        let told = charged(&regions.stores[at], 0);
        println!(
            "eu admitted {admitted} units, {} charged {told}; at most {most} may be missing (D {delay:.0?}), {unanswered} unanswered",
            NAMES[at]
        );
        assert!(told <= admitted + unanswered && told + most >= admitted, "{told} of {admitted} units");
    }
}

/// Takes a step of a new key at the server that is killed later. Returns how long it took until all know it.
fn longest_delay(regions: &Regions, round: u64) -> Duration {
    let begun = Instant::now();
    let before = [1, 2].map(|at| keys(&regions.stores[at]));
    for _ in 0..STEP {
        assert_eq!(check(regions.servers[0][0].http(), "large", &format!("probe {round}")).0, 200);
    }
    for (at, before) in [1, 2].into_iter().zip(before) {
        eventually("a region knows the new key", || (keys(&regions.stores[at]) > before).then_some(()));
    }
    begun.elapsed()
}

/// Returns how many keys other regions have told a store.
fn keys(redis: &Redis) -> usize {
    redis.run(&["KEYS", "sg:*@*"]).lines().count()
}

fn runs_all() -> bool {
    std::env::var("REGIONS").is_ok_and(|text| text == "all")
}
