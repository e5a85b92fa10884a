//! What faults change: each has the bound of the table in the guarantees, and no answer comes later than its deadline.

#![allow(clippy::print_stdout, reason = "`make show-regions-...` shows what the runs print")]

use std::collections::HashMap;
use std::time::Duration;

use spillgate_core::{Quota, Regions};
use spillgate_redis::StoreErrorKind;
use tokio::time::{Instant, sleep, sleep_until};

use crate::regions::fleet::{Answer, Fleet, Load, Pace, Plan, REGIONS, SECRET, Stream, name, shared};
use crate::regions::line::{Fault, Weather};
use crate::regions::requests::{
    Asked, admitted, admitted_alone, each_keeps_its_own_bound, excess, most_within, of_region, rest, units,
};
use crate::regions::{now_ns, run_time, runs_all};
use crate::support::cluster::{begin_move, finish_move, role, slot};
use crate::support::common::{PATIENCE, until};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const ALL: [usize; REGIONS] = [0, 1, 2];

fn plan() -> Plan {
    let weather = Weather { round_trip: 20 * MS, is_rough: false };
    Plan { weather, sync: 50 * MS, deadline: SECOND, ..Plan::default() }
}

/// The limits of the runs: a bucket and a window, for the keys 1 and 2.
fn quotas() -> [Quota; 2] {
    [shared(Quota::token_bucket(50, SECOND).burst(40)), shared(Quota::fixed_window(100, 10 * SECOND))]
}

fn streams() -> [Stream; 2] {
    let [bucket, window] = quotas();
    let every = Pace::Even(25 * MS);
    [Stream::new(1, &bucket, (1, 1), every), Stream::new(2, &window, (1, 1), every)]
}

fn of_key(asked: &[Asked], key: u128) -> Vec<Asked> {
    asked.iter().filter(|one| one.key == key).copied().collect()
}

/// Breaks something while all regions ask for more. Returns all requests.
async fn during(fleet: &mut Fleet, fault: impl AsyncFn(&mut Fleet, &Load)) -> Vec<Asked> {
    fleet.until_compared().await;
    let load = fleet.load(&streams());
    load.until_more(&ALL, 30).await;
    fault(fleet, &load).await;
    load.until_more(&ALL, 50).await;
    load.end_after(run_time() / 4).await
}

/// Asserts the bounds of both keys while something is broken, which may cost `more` capacities. Clocks differ by up to
/// `clocks`. Without messages, the same fault breaks the bounds.
async fn keeps_its_bounds(
    case: &str,
    plan: Plan,
    (more, clocks): (u64, Duration),
    fault: impl AsyncFn(&mut Fleet, &Load),
) -> Fleet {
    let mut fleet = Fleet::start(plan).await;
    let all = admitted(&during(&mut fleet, &fault).await);
    let mut mutant = Fleet::start(plan).await;
    mutant.tell_nothing();
    let without = during(&mut mutant, &fault).await;
    for (key, quota) in (1..).zip(quotas()) {
        let (all, without) = (of_key(&all, key), of_key(&without, key));
        let delay = fleet.delay_of(&all, &quota).await;
        let share = quota.guaranteed(1).map_or(0, |share| share.capacity());
        let kept = excess(&all, &quota, delay + clocks, more * (quota.capacity() + share));
        let found = excess(&admitted(&without), &quota, Duration::ZERO, 0).found;
        let least = excess(&admitted_alone(&without, &quota), &quota, Duration::ZERO, 0).found;
        let counts = kept.counts() && least > kept.bound;
        println!(
            "{case}, {}: D {} ms; {} over the rate, bound {}; without messages {found}{}",
            quota.algorithm().as_str(),
            delay.as_millis(),
            kept.found,
            kept.bound,
            if counts { "" } else { " (does not count)" }
        );
        assert!(kept.found <= kept.bound, "{case}: delay {delay:?}, {kept:?}");
        assert!(!counts || found > kept.bound, "{case}: without messages only {found}, {kept:?}");
    }
    fleet
}

async fn is_cut(case: &str, fault: Fault, is_chosen: fn(usize, usize, usize) -> bool) {
    let mut fleet = Fleet::start(plan()).await;
    let asked = during(&mut fleet, async |fleet, load| {
        fleet.set(fault, is_chosen);
        fleet.until_cut_off(true, is_chosen).await;
        load.until_more(&ALL, 50).await;
        fleet.set(Fault::None, |_, _, _| true);
        fleet.until_cut_off(false, is_chosen).await;
    })
    .await;
    let all = admitted(&asked);
    fleet.until_told().await;
    for (key, quota) in (1..).zip(quotas()) {
        let all = of_key(&all, key);
        each_keeps_its_own_bound(&all, &quota, 0);
        println!("{case}, {}: {} units", quota.algorithm().as_str(), units(&all));
    }
    // Every unit of the bucket was told in the end.
    for (region, at) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let told = fleet.charged(at, region);
        let all = units(&of_region(&of_key(&all, 1), region));
        assert!(told >= all, "{case}: region {region} admitted {all} units, and {at} was told {told}");
    }
}

/// A region that is cut off goes on alone, within its own bound. When it is heard again, everything is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_is_cut_off_keeps_its_own_bound_and_tells_everything_later() {
    is_cut("cut both ways", Fault::Refused, |from, _, to| from == 0 || to == 0).await;
    if runs_all() {
        is_cut("cut one way", Fault::Refused, |from, _, _| from == 0).await;
        is_cut("only the answers are lost", Fault::Mute, |from, _, _| from == 0).await;
        is_cut("one server is cut off", Fault::Refused, |from, node, _| (from, node) == (0, 0)).await;
        is_cut("a black hole", Fault::Silent, |from, _, to| from == 0 || to == 0).await;
    }
}

/// After a cut, if the others ask for nothing, the shared bucket admits again within R/(R-1) of its greatest debt. Until
/// then there is the share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cut_a_bucket_pays_back_in_time() {
    if !runs_all() {
        return;
    }
    let fleet = Fleet::start(plan()).await;
    fleet.until_compared().await;
    let (quota, chosen) = (quotas()[0].clone(), |from, _, to| from == 0 || to == 0);
    fleet.set(Fault::Refused, chosen);
    let load = fleet.load(&streams());
    load.until_more(&ALL, 500).await;
    load.end().await;
    fleet.set(Fault::None, chosen);
    fleet.until_told().await;
    let (begun, greatest) = (now_ns(), quota.max_debt_ns());
    let ends = begun + greatest * REGIONS as u64 / (REGIONS as u64 - 1);
    let running = fleet.nodes[0][0].running().expect("it runs");
    let mut by_share = 0;
    let admits_at = loop {
        let before = running.store.guaranteed();
        let Answer::Decided(is_admitted, _, at) = fleet.nodes[0][0].take(1, &quota, 1).await else { continue };
        let share = running.store.guaranteed() - before;
        by_share += share;
        if is_admitted && share == 0 {
            break at;
        }
        assert!(at <= ends, "the bucket does not admit after R/(R-1) of its greatest debt");
        tokio::time::sleep(5 * MS).await;
    };
    let took = Duration::from_nanos(admits_at.saturating_sub(begun));
    println!(
        "the bucket admitted again after {took:.1?}, {by_share} units by the share before; bound {:.1?}",
        Duration::from_nanos(ends - begun)
    );
}

/// What a server did not send before it was killed is lost: at most what it admitted within the delay, and less than a
/// step of each key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_what_it_had_not_sent() {
    if !runs_all() {
        return;
    }
    let fleet = Fleet::start(plan()).await;
    fleet.until_compared().await;
    let quotas = [quotas()[0].clone(), shared(Quota::token_bucket(100, SECOND).burst(400))];
    let streams: Vec<Stream> =
        (1..).zip(&quotas).map(|(key, quota)| Stream::new(key, quota, (1, 3), Pace::Even(20 * MS))).collect();
    let load = fleet.load(&streams);
    load.until_more(&ALL, 300).await;
    fleet.nodes[0][0].kill();
    load.until_more(&ALL, 100).await;
    let all = admitted(&load.end().await);
    let mut most = 0;
    for (key, quota) in (1..).zip(&quotas) {
        let own = of_key(&all, key);
        let delay = fleet.delay_of(&own, quota).await;
        let killed: Vec<Asked> = own.iter().filter(|one| (one.region, one.node) == (0, 0)).copied().collect();
        // The rests of the server that goes on wait, too.
        most += most_within(&killed, delay) + 2 * rest(quota);
        let kept = excess(&own, quota, delay, most_within(&killed, delay) + rest(quota));
        assert!(kept.found <= kept.bound, "delay {delay:?}: {kept:?}");
    }
    for peer in [1, 2] {
        let (of_region, told) = (units(&of_region(&all, 0)), fleet.charged(peer, 0));
        println!(
            "killed server: {of_region} units admitted, region {peer} charged {told}, at most {most} may be missing"
        );
        assert!(
            (of_region.saturating_sub(most)..=of_region).contains(&told),
            "{told} of {of_region}, {most} may be missing"
        );
    }
}

/// A Redis that is killed and comes back empty costs one capacity, and one burst of the share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_back_empty_costs_one_capacity() {
    for region in if runs_all() { ALL.to_vec() } else { vec![] } {
        let case = format!("Redis {region} killed and back empty");
        keeps_its_bounds(&case, plan(), (1, Duration::ZERO), async |fleet, load| {
            fleet.server(region).kill();
            let failed = load.failed();
            until("requests fail within their deadline", || load.failed() > failed + 4).await;
            let others: Vec<usize> = ALL.into_iter().filter(|other| *other != region).collect();
            load.until_more(&others, 30).await;
            fleet.server(region).start_again();
        })
        .await;
    }
}

/// FLUSHALL costs one capacity. Lost hashes cost nothing: what they knew is charged once more, so too much is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_keys_cost_one_capacity_and_lost_hashes_nothing() {
    const DELETE: &str = "for _, key in ipairs(redis.call('KEYS', 'sg:*@*')) do redis.call('DEL', key) end";
    let cases = [("FLUSHALL", vec!["FLUSHALL"], 1), ("hashes are evicted", vec!["EVAL", DELETE, "0"], 0)];
    for (case, command, more) in if runs_all() { cases.to_vec() } else { vec![] } {
        keeps_its_bounds(case, plan(), (more, Duration::ZERO), async |fleet, load| {
            fleet.server(1).run(&command);
            load.until_more(&ALL, 30).await;
        })
        .await;
    }
}

/// Clocks of stores change nothing for buckets, except that a step ahead lets time pass in that region. Windows know the
/// units of others later by the difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_differ_or_step_keep_the_bounds() {
    if !runs_all() {
        return;
    }
    let apart = Duration::from_millis(200);
    // "Not begun" is told once more: a round and a round trip later.
    let clocks = apart + plan().sync + plan().weather.round_trip;
    let plan_apart = Plan { ahead: 200_000_000, ..plan() };
    let more = async |_: &mut Fleet, load: &Load| load.until_more(&ALL, 100).await;
    keeps_its_bounds("clocks are 200 ms apart", plan_apart, (0, clocks), more).await;

    let step = 5 * SECOND;
    let fleet = Fleet::start(plan()).await;
    fleet.until_compared().await;
    let mut all = Vec::new();
    for shift in [0, 5_000_000_000, 0] {
        fleet.shift(0, shift);
        let load = fleet.load(&streams());
        load.until_more(&ALL, 60).await;
        all.extend(admitted(&load.end().await));
    }
    all.sort_by_key(|one| one.at);
    let [bucket, window] = quotas();
    let own = of_key(&all, 1);
    let delay = fleet.delay_of(&own, &bucket).await;
    let stepped = u64::try_from(step.as_nanos()).expect("short") / bucket.interval_ns();
    let kept = excess(&own, &bucket, delay, stepped);
    println!("a clock steps by 5 s and back, token_bucket: {kept:?}");
    assert!(kept.found <= kept.bound, "{kept:?}");
    let own = of_key(&all, 2);
    let kept = excess(&own, &window, fleet.delay_of(&own, &window).await + step, 0);
    println!("a clock steps by 5 s and back, fixed_window: {kept:?}");
    assert!(kept.found <= kept.bound, "{kept:?}");
}

/// While regions change to another limit, the largest depth and the largest rate count. No unit is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_in_the_middle_of_a_span_keeps_the_larger_limit() {
    if !runs_all() {
        return;
    }
    let fleet = Fleet::start(plan()).await;
    fleet.until_compared().await;
    let (old, new) =
        (shared(Quota::token_bucket(50, SECOND).burst(40)), shared(Quota::token_bucket(30, SECOND).burst(80)));
    let mut stream = Stream::new(1, &old, (1, 1), Pace::Even(20 * MS));
    let mut all = Vec::new();
    for reloaded in 0..=REGIONS {
        for region in 0..reloaded {
            stream.quotas[region] = Some(new.clone());
        }
        let load = fleet.load(std::slice::from_ref(&stream));
        load.until_more(&ALL, 50).await;
        all.extend(admitted(&load.end().await));
    }
    all.sort_by_key(|one| one.at);
    let largest = shared(Quota::token_bucket(50, SECOND).burst(80));
    let kept = excess(&all, &largest, fleet.delay_of(&all, &largest).await, 0);
    println!("a reload in each region: {kept:?}, counts {}", kept.counts());
    assert!(kept.found <= kept.bound, "{kept:?}");
    fleet.until_told().await;
    for peer in [1, 2] {
        assert_eq!(fleet.charged(peer, 0), units(&of_region(&all, 0)), "no unit is forgotten");
    }
}

/// A foreign value in place of a state or of its hash concerns this key alone. It is told when the value is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_values_stop_one_key_only() {
    for (what, pattern) in if runs_all() { vec![("hash", "sg:*@*"), ("state", "sg:*")] } else { vec![] } {
        let fleet = Fleet::start(plan()).await;
        fleet.until_compared().await;
        let bucket = quotas()[0].clone();
        let stream = |key| Stream::new(key, &bucket, (1, 1), Pace::Even(20 * MS)).only(&[0]);
        let load = fleet.load(&[stream(1)]);
        load.until_more(&[0], 20).await;
        let before = load.end().await;
        fleet.until_told().await;
        let server = &fleet.places[1].servers()[0];
        let names: Vec<String> = redis::from_redis_value(server.run(&["KEYS", pattern])).expect("a list of keys");
        let found = names.iter().filter(|name| name.contains('@') == (what == "hash") && !name.contains("regions"));
        for name in found {
            server.run(&["DEL", name]);
            server.run(&["LPUSH", name, "foreign"]);
        }
        let load = fleet.load(&[stream(1), stream(2)]);
        load.until_more(&[0], 60).await;
        let failed = || fleet.results(0, 1)[spillgate_core::Charged::Failed as usize];
        until("the entry fails", || failed() > 0).await;
        let mut all = admitted(&before);
        all.extend(admitted(&load.end().await));
        let other = of_key(&all, 2);
        fleet.delay_of(&other, &bucket).await;
        for name in names {
            server.run(&["DEL", &name]);
        }
        fleet.until_told().await;
        fleet.delay_of(&of_key(&all, 1), &bucket).await;
        println!("foreign {what}: {} units, {} entries failed", units(&all), failed());
        each_keeps_its_own_bound(&of_key(&all, 1), &bucket, 0);
    }
}

/// Without a right, or with another secret, a region is as cut off, until they agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_and_another_secret_are_as_a_cut() {
    if !runs_all() {
        return;
    }
    let plan = Plan { user: Some("peer:secret"), ..plan() };
    let rights = "reset on >secret ~sg:* +evalsha +script|load +get +set +hget +hset +pexpire +time";
    let user: Vec<&str> = ["ACL", "SETUSER", "peer"].into_iter().chain(rights.split(' ')).collect();
    let mut fleet = Fleet::start_after(plan, |places| {
        for place in places {
            place.servers()[0].run(&user);
        }
        place_about(&places[1].servers()[0], SECRET);
        places[1].servers()[0].run(&["ACL", "SETUSER", "peer", "-hset"]);
    })
    .await;
    let to_1 = |from: usize, _: usize, to: usize| from != 1 && to == 1;
    let asked = during(&mut fleet, async |fleet, load| {
        fleet.until_cut_off(true, to_1).await;
        load.until_more(&ALL, 50).await;
        let failure = fleet.nodes[0][0].running().expect("it runs").peers.status()[0].last_failure.clone();
        let kind = failure.map(|(error, _)| error.kind());
        assert_eq!(kind, Some(StoreErrorKind::NoPermission));
        assert_eq!(fleet.charged(1, 0), 0, "nothing is charged");
        fleet.places[1].servers()[0].run(&["ACL", "SETUSER", "peer", "+hset"]);
        fleet.until_cut_off(false, to_1).await;
    })
    .await;
    let all = admitted(&asked);
    fleet.until_told().await;
    for (key, quota) in (1..).zip(quotas()) {
        each_keeps_its_own_bound(&of_key(&all, key), &quota, 0);
    }
    println!("a missing right: {} units, all told in the end", units(&all));
    drop(fleet);

    let mut fleet = Fleet::start_after(self::plan(), |places| place_about(&places[1].servers()[0], 0xff)).await;
    let asked = during(&mut fleet, async |fleet, load| {
        load.until_more(&ALL, 50).await;
        assert_eq!(
            (fleet.charged(1, 0), fleet.charged(1, 2)),
            (0, 0),
            "the region with another secret is told nothing"
        );
        let status = fleet.nodes[0][0].running().expect("it runs").peers.status();
        assert_eq!((status[0].differs.secret, status[1].differs.secret), (true, false));
        place_about(&fleet.places[1].servers()[0], SECRET);
        // A region is compared once a minute, and after a pause.
        for node in fleet.nodes.iter().flatten().filter_map(|node| node.running()) {
            node.peers.pause(&name(1));
            node.peers.resume(&name(1));
        }
    })
    .await;
    let all = admitted(&asked);
    fleet.until_told().await;
    for (key, quota) in (1..).zip(quotas()) {
        each_keeps_its_own_bound(&of_key(&all, key), &quota, 0);
    }
    assert!(fleet.charged(1, 0) >= units(&of_region(&of_key(&all, 1), 0)));
    println!("another secret: {} units, all told in the end", units(&all));
}

/// Writes what the servers of region 1 say about themselves.
fn place_about(server: &crate::support::server::Server, secret: u64) {
    let regions = u8::try_from(REGIONS).ok().and_then(Regions::new).expect("2 to 8");
    let about = spillgate::regions::About::new(&name(1), regions, secret);
    server.run(&["SET", "sg:{regions}", &about.to_string()]);
}

/// A slot that moves delays its keys, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_keeps_the_bounds() {
    if !runs_all() {
        return;
    }
    let plan = Plan { cluster: Some(false), ..plan() };
    let fleet = keeps_its_bounds("a slot moves", plan, (0, Duration::ZERO), async |fleet, load| {
        let nodes = &fleet.places[2].servers();
        let mut slots: Vec<u16> = (1..).zip(quotas()).map(|(key, quota)| slot(&nodes[0], key, &quota)).collect();
        slots.dedup();
        for slot in slots {
            let owner = usize::from(slot) * 3 / 16384;
            let (from, to) = (&nodes[owner], &nodes[(owner + 1) % 3]);
            let (slot, port) = (slot.to_string(), to.port().to_string());
            begin_move(&slot, from, to);
            let names = || -> Vec<String> {
                let names = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
                redis::from_redis_value(names).expect("a list of keys")
            };
            for name in names() {
                from.run(&["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"]);
                load.until_more(&[0, 1], 5).await;
            }
            assert_eq!(names(), Vec::<String>::new(), "the old node stores no new states");
            finish_move(&slot, from, to);
        }
    })
    .await;
    fleet.until_told().await;
    assert!(fleet.charged(2, 0) > 0, "the cluster was told");
}

/// A primary dies, and its replica takes over: one capacity more, as after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_costs_one_capacity() {
    if !runs_all() {
        return;
    }
    let plan = Plan { cluster: Some(true), ..plan() };
    keeps_its_bounds("a failover", plan, (1, Duration::ZERO), async |fleet, load| {
        let owner = usize::from(slot(&fleet.places[2].servers()[0], 1, &quotas()[0])) * 3 / 16384;
        let cluster = fleet.places[2].cluster();
        cluster.nodes[owner].kill();
        until("the replica takes over", || role(&cluster.nodes[owner + 3]) == "master").await;
        load.until_more(&[0, 1], 20).await;
    })
    .await;
}

/// A node of a cluster stands still, while 1,500 keys are used of which each server tells a unit in each second. The keys of
/// the other nodes are told as soon as in a region without a fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_that_stands_still_delays_its_own_keys_only() {
    const KEYS: u128 = 1500;
    if !runs_all() {
        return;
    }
    let fleet = Fleet::start(Plan { cluster: Some(false), deadline: PATIENCE, ..plan() }).await;
    fleet.until_compared().await;
    // All units of a day are in one span.
    let quota = shared(Quota::token_bucket(8_640_000, 86_400 * SECOND).burst(100));
    let nodes = fleet.places[2].servers();
    let key = |number: u128| (number + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let is_of_frozen: HashMap<u128, bool> =
        (0..KEYS).map(key).map(|key| (key, slot(&nodes[0], key, &quota) <= 5460)).collect();
    nodes[0].freeze();
    // Each total of the frozen node has to be late once.
    let mut units = Vec::new();
    for round in 0..12 {
        let begun = Instant::now();
        for part in 0..10 {
            let some = (0..KEYS).filter(|number| number % 10 == part).map(key);
            let takes = some.map(async |key| (key, fleet.nodes[0][0].take(key, &quota, 1).await));
            for (key, answer) in futures_util::future::join_all(takes).await {
                if let Answer::Decided(true, _, at) = answer {
                    units.push((key, at, round));
                }
            }
            sleep_until(begun + SECOND / 10 * (u32::try_from(part).expect("small") + 1)).await;
        }
    }
    sleep(SECOND).await;
    let told = |peer, is_frozen: bool| {
        let own: Vec<(u128, u64)> = units.iter().map(|(key, at, _)| (*key, *at)).collect();
        let chosen = own.into_iter().filter(|(key, _)| is_of_frozen[key] == is_frozen).collect::<Vec<_>>();
        let later = units.iter().find(|(.., round)| *round == 7).map_or(0, |(_, at, _)| *at);
        fleet.nodes[0][0].delays(peer, &chosen, later)
    };
    let (mut healthy, unknown) = told(2, false);
    let (mut other, _) = told(1, false);
    let (frozen, not_told) = told(2, true);
    nodes[0].thaw();
    healthy.sort_unstable();
    other.sort_unstable();
    let middle = |delays: &[Duration]| delays[delays.len() / 2];
    println!(
        "a frozen node, from the seventh second on: D of healthy nodes {:.0?} at most {:.0?}, {unknown} unknown; of another region {:.0?} \
         at most {:.0?}; of the frozen node {} told, {not_told} not",
        middle(&healthy),
        healthy[healthy.len() - 1],
        middle(&other),
        other[other.len() - 1],
        frozen.len()
    );
    assert!(middle(&healthy) < 3 * middle(&other), "the keys of healthy nodes wait for those of the frozen one");
    fleet.until_told().await;
}
