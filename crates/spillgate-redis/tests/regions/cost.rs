//! What shared limits cost the Redis of a region.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use spillgate_core::{
    Algorithm, Binding, Charge, Charged, ChargedStore as _, Decision, Hit, MAX_CHARGES, Op, Quota, Store as _, Time,
    Timing,
};
use spillgate_redis::{RedisStore, Settings};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::regions::fleet::{Answer, Fleet, Pace, Plan, Stream, shared};
use crate::regions::line::Weather;
use crate::regions::{run_time, runs_all};
use crate::support::common::{PATIENCE, take, with_long_timeouts};
use crate::support::server::Server;

const SECOND: Duration = Duration::from_secs(1);

/// Returns how many scripts a Redis has run, and the microseconds that they took.
fn scripts(server: &Server) -> (u64, u64) {
    let text: String = redis::from_redis_value(server.run(&["INFO", "COMMANDSTATS"])).expect("INFO is text");
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or("calls=0,usec=0");
    let number = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.parse().ok()).expect("a number");
    (number("calls="), number("usec="))
}

/// Returns the microseconds of processor time that a Redis has used.
fn processor(server: &Server) -> f64 {
    let text: String = redis::from_redis_value(server.run(&["INFO", "CPU"])).expect("INFO is text");
    let seconds = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    let used = ["used_cpu_sys:", "used_cpu_user:"].map(|name| seconds(name).expect("a number"));
    used.iter().sum::<f64>() * 1e6
}

/// What some work costs a Redis: scripts, the microseconds in them, and those of the processor.
struct Cost {
    calls: u64,
    in_scripts: f64,
    processor: f64,
}

async fn cost(server: &Server, work: impl Future<Output = ()>) -> Cost {
    let (before, used) = (scripts(server), processor(server));
    work.await;
    let (used_after, after) = (processor(server), scripts(server));
    Cost { calls: after.0 - before.0, in_scripts: (after.1 - before.1) as f64, processor: used_after - used }
}

/// Has `number` keys take a unit at the same time.
async fn takes(store: &RedisStore, quota: &Quota, number: usize) {
    let one = async |key: u128| take(store, key << 64 | 9, quota, PATIENCE).await.expect("Redis decides");
    join_all((0..number as u128).map(one)).await;
}

/// Tells a total of so many keys.
async fn charges(store: &RedisStore, quota: &Quota, number: usize, total: u64, now: Time) {
    let span = quota.span(now);
    let one = |key: u128| Charge { key: key << 64 | 9, quota, span, id: number as u64, total };
    let all: Vec<Charge<'_>> = (0..number as u128).map(one).collect();
    let mut results = vec![Charged::Failed; number];
    store.charge(PATIENCE, &all, &mut results).await.expect("Redis charges");
    assert!(results.iter().all(|result| *result == Charged::New), "{results:?}");
}

/// The processor time of Redis for an entry, divided by that for a take, in commands of the same size.
#[tokio::test]
async fn an_entry_costs_at_most_twice_what_a_take_costs() {
    if !runs_all() {
        return;
    }
    let server = Server::start();
    let settings = Settings { connections: 1, ..with_long_timeouts(&server.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    let day = Duration::from_secs(86_400);
    let quotas = [
        shared(Quota::token_bucket(1_000_000, day)),
        shared(Quota::fixed_window(1_000_000, day)),
        shared(Quota::sliding_window_counter(1_000_000, day)),
    ];
    for quota in &quotas {
        let (verdict, _) = take(&store, 1, quota, PATIENCE).await.expect("Redis decides");
        for size in [MAX_CHARGES, 1] {
            let (mut in_scripts, mut processor, mut total) = (Vec::new(), Vec::new(), 0);
            let rounds = 6400 / size / 4;
            for _ in 0..21 {
                let of_takes = cost(&server, async {
                    for _ in 0..rounds {
                        takes(&store, quota, size).await;
                    }
                })
                .await;
                assert!(of_takes.calls <= rounds as u64 * 2, "takes share commands: {} calls", of_takes.calls);
                let of_entries = cost(&server, async {
                    for _ in 0..rounds {
                        total += 1;
                        charges(&store, quota, size, total, verdict.now).await;
                    }
                })
                .await;
                in_scripts.push((of_takes.in_scripts, of_entries.in_scripts));
                processor.push((of_takes.processor, of_entries.processor));
            }
            let name = quota.algorithm().as_str();
            let number = (rounds * size) as f64;
            println!(
                "{name}, {size} a command: {}; in scripts {}",
                summary(&processor, number).0,
                summary(&in_scripts, number).0
            );
            // Counters are charged by the general script, so an entry of them costs more.
            let ratio = summary(&processor, number).1;
            let is_short = quota.algorithm() != Algorithm::SlidingWindowCounter { segments: 1 };
            assert!(!is_short || ratio <= 2.2, "an entry costs {ratio} times a take");
        }
    }
}

/// Returns a text about pairs of costs, and the median of the ratios.
fn summary(pairs: &[(f64, f64)], number: f64) -> (String, f64) {
    let mut ratios: Vec<f64> = pairs.iter().map(|(take, entry)| entry / take.max(1.0)).collect();
    ratios.sort_by(f64::total_cmp);
    let mean = |cost: fn(&(f64, f64)) -> f64| pairs.iter().map(cost).sum::<f64>() / pairs.len() as f64 / number;
    let (middle, least, most) = (ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1]);
    let (take, entry) = (mean(|pair| pair.0), mean(|pair| pair.1));
    (format!("{take:.2} us a take, {entry:.2} us an entry, ratio {middle:.2} ({least:.2} to {most:.2})"), middle)
}

/// A flood on a key that is used up costs the same number of calls, at 10 and at 100 times the limit: refusals are
/// remembered, also those of the share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_larger_flood_costs_no_more_calls() {
    if !runs_all() {
        return;
    }
    let quota = shared(Quota::token_bucket(50, SECOND).burst(40));
    let mut all = Vec::new();
    for times in [10, 100] {
        let fleet = Fleet::start(Plan::default()).await;
        fleet.until_compared().await;
        let server = &fleet.places[0].servers()[0];
        let (before, _) = scripts(server);
        let (mut callers, ends) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        // Each of two servers asks five times as often as the limit allows, and then ten times as many each time.
        for node in &fleet.nodes[0] {
            let (node, quota, ends) = (Arc::clone(node), quota.clone(), Arc::clone(&ends));
            callers.spawn(async move {
                let (mut asked, mut ticks) = ([0, 0], interval(SECOND / 250));
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
                while !ends.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    for _ in 0..times / 10 {
                        let Answer::Decided(is_admitted, ..) = node.take(1, &quota, 1).await else { continue };
                        asked[usize::from(is_admitted)] += 1;
                    }
                }
                asked
            });
        }
        sleep(run_time()).await;
        ends.store(true, Ordering::Relaxed);
        let asked = callers.join_all().await.into_iter().fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        let calls = scripts(server).0 - before;
        println!(
            "{times} times the limit: {} requests, {} admitted, {calls} calls of the store",
            asked[0] + asked[1],
            asked[1]
        );
        all.push(calls as f64 / run_time().as_secs_f64());
    }
    let ratio = all[1] / all[0];
    println!("ratio of the calls: {ratio:.3}");
    assert!((0.8..=1.2).contains(&ratio), "a larger flood costs {ratio} times the calls");
}

/// A Lua loop of some milliseconds.
const BUSY: &str = "local n = 0 for i = 1, 200000 do n = n + i end return n";

/// A region whose Redis is busy is not pushed under: its own takes cost little more, and the delay shows that it is slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_region_pays_little_and_the_delay_shows_it() {
    if !runs_all() {
        return;
    }
    let weather = Weather { round_trip: Duration::ZERO, is_rough: false };
    let fleet = Fleet::start(Plan { weather, ..Plan::default() }).await;
    fleet.until_compared().await;
    // The first region admits two thousand units in a second, of as many keys, and tells them.
    let quota = shared(Quota::token_bucket(100, SECOND).burst(100));
    let streams: Vec<Stream> =
        (1..=200).map(|key| Stream::new(key << 64 | 3, &quota, (1, 1), Pace::Even(SECOND / 5)).only(&[0])).collect();
    let load = fleet.load(&streams);
    sleep(run_time() / 2).await;
    let status = || fleet.nodes[0][0].running().expect("it runs").peers.status().swap_remove(0);
    let idle = (status().delay_p50.expect("it was told"), status().entries_per_second);
    // Now the Redis of the second region is busy, and that region's own callers ask it as well.
    let (ends, server) = (Arc::new(AtomicBool::new(false)), &fleet.places[1].servers()[0]);
    let mut busy = JoinSet::new();
    let (url, stop) = (server.url(), Arc::clone(&ends));
    busy.spawn_blocking(move || {
        let mut connection = redis::Client::open(url).and_then(|client| client.get_connection()).expect("Redis runs");
        while !stop.load(Ordering::Relaxed) {
            redis::cmd("EVAL").arg(BUSY).arg(0).query::<u64>(&mut connection).expect("Redis computes");
        }
    });
    let decided = Arc::new(AtomicU64::new(0));
    let store =
        RedisStore::new(&Settings { deny_cache_entries: 0, ..with_long_timeouts(&server.url()) }).expect("valid");
    store.wait_connected().await.expect("Redis runs");
    let plain = Quota::per_day(1_000_000_000).build().expect("valid");
    for caller in 0..64_u128 {
        let (store, plain, ends, decided) = (store.clone(), plain.clone(), Arc::clone(&ends), Arc::clone(&decided));
        busy.spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let hits = [Hit::new(caller << 64 | 5, &plain, Op::take(1), Binding::Enforce)];
                let mut decisions = [Decision::default()];
                store.decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut decisions).await.expect("Redis decides");
                decided.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    // Returns the microseconds of the scripts of a run, for each take of the region's own callers.
    let measure = async || {
        let (before, (_, used)) = (decided.load(Ordering::Relaxed), scripts(server));
        sleep(run_time()).await;
        let (after, (_, used_after)) = (decided.load(Ordering::Relaxed), scripts(server));
        (used_after - used) as f64 / (after - before).max(1) as f64
    };
    sleep(run_time()).await;
    let used = status();
    let (with, slow) = (measure().await, status());
    for node in &fleet.nodes[0] {
        node.running().expect("it runs").peers.pause("r1");
    }
    sleep(SECOND).await;
    let without = measure().await;
    ends.store(true, Ordering::Relaxed);
    busy.join_all().await;
    load.end().await;
    let ratio = with / without;
    let entries = slow.results.iter().sum::<u64>() - used.results.iter().sum::<u64>();
    println!(
        "idle: {:.0?} delay, {:.0} entries a second; busy: {:.0?} delay, {:.0} entries a second; {without:.2} us a decision without entries, {with:.2} us with them",
        idle.0,
        idle.1,
        slow.delay_p50.unwrap_or_default(),
        entries as f64 / run_time().as_secs_f64()
    );
    assert!(slow.delay_p50 > Some(idle.0), "the delay does not show that the region is slow");
    assert!(ratio <= 1.25, "a decision of the busy region costs {ratio} times as much");
}
