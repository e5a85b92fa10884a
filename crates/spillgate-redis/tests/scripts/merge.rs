//! Charges of other regions: the script `merge` against the kernel's own force on a copy of the state.
//!
//! `MERGE_CHARGES` sets how many charges are compared (default 5,000).

use std::collections::HashMap;
use std::time::Duration;

use spillgate_core::{
    AcrossRegions, Algorithm, Binding, Charge, Charged, ChargedStore, Decision, Hit, MAX_CHARGES, MAX_UNITS, Op, Quota,
    QuotaBuilder, Regions, Span, State, Store, StoreErrorKind, Time, Timing, decide,
};
use spillgate_redis::{RedisStore, Script};
use spillgate_testkit::Random;

use crate::support::cluster::Cluster;
use crate::support::common::{PATIENCE, a_day, with_long_timeouts};
use crate::support::server::Server;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const NOW: u64 = 1_790_000_000_000_000_000;

fn shared(builder: QuotaBuilder, regions: u8) -> Quota {
    let regions = Regions::new(regions).expect("2 to 8");
    let quota = builder.build().expect("the quota is valid");
    quota.across(AcrossRegions::Shared(regions)).expect("it can be shared")
}

/// Groups of quotas that count in one state: the limit, the burst or the number of regions was changed. Each group has a
/// state of its own.
fn groups() -> Vec<Vec<Quota>> {
    let bucket = |limit, burst, regions| shared(Quota::token_bucket(limit, SECOND).burst(burst), regions);
    let huge = |limit| shared(Quota::token_bucket(limit, SECOND / 2).burst(1 << 45), 2);
    let window = |limit, length| shared(Quota::fixed_window(limit, length), 3);
    let counter = |limit, length| shared(Quota::sliding_window_counter(limit, length), 3);
    vec![
        vec![bucket(10, 10, 3), bucket(7, 20, 3), bucket(10, 10, 8)],
        vec![huge(500_000_000), huge(125_000_000)],
        vec![shared(Quota::token_bucket(150, DAY), 3), shared(Quota::token_bucket(30, DAY).burst(1), 3)],
        vec![shared(Quota::token_bucket(1, DAY * 365).burst(5), 8)],
        vec![window(10, SECOND), window(15, SECOND)],
        vec![window(MAX_UNITS, Duration::from_micros(1_234_567))],
        vec![counter(10, SECOND), counter(20, SECOND)],
        vec![counter(1 << 39, DAY), counter(MAX_UNITS, DAY)],
    ]
}

/// What the store has to have.
#[derive(Default)]
struct Model {
    states: HashMap<(u128, usize), State>,
    /// The units that are charged already.
    seen: HashMap<(u128, usize, Span, u64), u64>,
}

impl Model {
    fn charge(&mut self, group: usize, charge: &Charge<'_>, now: Time) -> Charged {
        let state = self.states.entry((charge.key, group)).or_default();
        if charge.quota.algorithm() != Algorithm::TokenBucket {
            let current = span_of_a_unit(charge.quota, state, now);
            let later = u64::from(!matches!(charge.quota.algorithm(), Algorithm::FixedWindow(_)));
            if charge.span.start_ns > current.start_ns {
                return Charged::NotBegun;
            }
            if charge.span.start_ns + later * charge.span.length_ns < current.start_ns {
                return Charged::Ended;
            }
        }
        let seen = self.seen.entry((charge.key, group, charge.span, charge.id)).or_default();
        if charge.total <= *seen {
            return Charged::Known;
        }
        let force = Hit::new(charge.key, charge.quota, Op::Force { cost: charge.total - *seen }, Binding::Enforce);
        let _ = decide(std::slice::from_mut(state), &[0], &[force], now, &mut [Decision::default()]);
        *seen = charge.total;
        Charged::New
    }
}

/// Returns the window in which a unit would count now.
fn span_of_a_unit(quota: &Quota, state: &State, now: Time) -> Span {
    let (mut with_unit, force) = (state.clone(), Hit::new(1, quota, Op::Force { cost: 1 }, Binding::Enforce));
    let _ = decide(std::slice::from_mut(&mut with_unit), &[0], &[force], now, &mut [Decision::default()]);
    let windows = if matches!(quota.algorithm(), Algorithm::FixedWindow(_)) { 1 } else { 2 };
    quota.span(Time::from_nanos(with_unit.expires_at(quota) - windows * quota.window_ns()))
}

async fn ask(store: &RedisStore, hit: Hit<'_>, now: Time) -> Decision {
    let mut decisions = [Decision::default()];
    store.decide(Timing::at(now).within(PATIENCE), &[hit], &mut decisions).await.expect("Redis decides");
    decisions[0]
}

fn charges() -> usize {
    std::env::var("MERGE_CHARGES").map_or(5_000, |text| text.parse().expect("MERGE_CHARGES is a number"))
}

#[tokio::test]
async fn charges_are_those_of_the_kernel() {
    let server = Server::start();
    let store = RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid");
    let (groups, mut random, mut model) = (groups(), Random(7), Model::default());
    let (mut now, mut counts, mut compared) = (NOW, HashMap::<Charged, usize>::new(), 0);
    while compared < charges() {
        now = match random.below(40) {
            0 => now - random.below(3_000_000_000) - 1,
            1 => now + random.below(200_000_000_000_000),
            2..10 => now,
            _ => now + random.below(400_000_000),
        };
        let at = Time::from_nanos(now);
        let (mut calls, number) = (Vec::new(), 1 + random.index(MAX_CHARGES));
        for _ in 0..number {
            let group = random.index(groups.len());
            let quota = random.pick(&groups[group]);
            let key = u128::from(random.below(3)) << 98 | 5;
            let about = quota.span(Time::from_nanos(now)).length_ns;
            let span_at = now + random.below(3) * about - random.below(4).min(2) * about;
            let (span, id) = (quota.span(Time::from_nanos(span_at)), random.below(3));
            let seen = model.seen.get(&(key, group, span, id)).copied().unwrap_or(0);
            let more = *random.pick(&[0, 1, 1, 2, 5, 20, (1 << 23) + 1, 1 << 40, MAX_UNITS]);
            let total = match random.below(5) {
                0 => seen.saturating_sub(more),
                _ => (seen + more).min(MAX_UNITS),
            };
            calls.push((group, Charge { key, quota, span, id, total }));
        }
        let told: Vec<Charge<'_>> = calls.iter().map(|(_, charge)| *charge).collect();
        let mut results = vec![Charged::Failed; told.len()];
        store.charge_at(Some(at), PATIENCE, &told, &mut results).await.expect("Redis charges");
        for ((group, charge), result) in calls.iter().zip(&results) {
            let expected = model.charge(*group, charge, at);
            assert_eq!(*result, expected, "{charge:?} at {now}");
            *counts.entry(expected).or_default() += 1;
            compared += 1;
        }
        // A take or a peek sees the same state as in the kernel.
        let (group, charge) = random.pick(&calls);
        let quota = random.pick(&groups[*group]);
        for op in [Op::Peek, Op::take(1 + random.below(3)), Op::Peek] {
            let hit = Hit::new(charge.key, quota, op, Binding::Enforce);
            let state = model.states.entry((charge.key, *group)).or_default();
            let mut expected = [Decision::default()];
            let _ = decide(std::slice::from_mut(state), &[0], &[hit], at, &mut expected);
            assert_eq!(ask(&store, hit, at).await, expected[0], "{hit:?} at {now}");
        }
    }
    println!("{compared} charges were compared: {counts:?}");
    assert!([Charged::New, Charged::Known, Charged::NotBegun, Charged::Ended].iter().all(|kind| counts[kind] > 50));
}

/// Two servers, each with connections of its own, tell their totals at the same time, again and again, in any order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_unit_of_two_servers_is_charged_once() {
    let server = Server::start();
    let quota = shared(Quota::fixed_window(1_000_000, DAY), 3);
    let span = quota.span(Time::from_nanos(ask_now(&server).await));
    let tasks: Vec<_> = (0..4_u64)
        .map(|task| {
            let (url, quota) = (server.url(), quota.clone());
            tokio::spawn(async move {
                let store = RedisStore::new(&with_long_timeouts(&url)).expect("the URL is valid");
                let mut random = Random(task);
                for round in 1..=300_u64 {
                    let total = if round == 300 { 900 } else { random.below(3 * round) };
                    let charge = Charge { key: 7, quota: &quota, span, id: task % 2, total };
                    store.charge(PATIENCE, &[charge], &mut [Charged::Failed]).await.expect("Redis charges");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the task ends");
    }
    let store = RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid");
    let mut decisions = [Decision::default()];
    let peek = [Hit::new(7, &quota, Op::Peek, Binding::Enforce)];
    store.decide(Timing::BY_STORE.within(PATIENCE), &peek, &mut decisions).await.expect("Redis decides");
    assert_eq!(decisions[0].remaining, 1_000_000 - 2 * 900);
}

async fn ask_now(server: &Server) -> u64 {
    let store = RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid");
    let (quota, mut decisions) = (a_day(1), [Decision::default()]);
    let peek = [Hit::new(1, &quota, Op::Peek, Binding::Enforce)];
    store.decide(Timing::BY_STORE.within(PATIENCE), &peek, &mut decisions).await.expect("Redis decides").now.as_nanos()
}

/// Foreign values fail alone, and a right that is missing charges nothing.
#[tokio::test]
async fn foreign_values_fail_alone_and_missing_rights_charge_nothing() {
    let server = Server::start();
    let store = RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid");
    let quota = shared(Quota::token_bucket(100, DAY), 3);
    let span = quota.span(Time::from_nanos(ask_now(&server).await));
    let charge = |key: u128, total| Charge { key, quota: &quota, span, id: 1, total };
    let (all, mut results) = ([1, 2, 3, 4].map(|key| charge(key, 5)), [Charged::Failed; 4]);
    store.charge(PATIENCE, &all, &mut results).await.expect("Redis charges");
    assert_eq!(results, [Charged::New; 4]);
    let names = |key| {
        let found: Vec<String> = redis::from_redis_value(server.run(&["KEYS", "sg:*"])).expect("a list of keys");
        let state = spillgate_redis::RedisKey::of(&Hit::new(key, &quota, Op::Peek, Binding::Enforce)).to_string();
        // All these keys have the same tag, and each hash differs from its state in its form and suffix.
        (state, found)
    };
    let hashes: Vec<String> = names(1).1.into_iter().filter(|name| name.contains('@')).collect();
    assert_eq!(hashes.len(), 4);
    for name in &hashes {
        let life: i64 = redis::from_redis_value(server.run(&["PTTL", name])).expect("a number");
        assert!((2 * 86_400_000..=2 * 86_400_000 + 10_000).contains(&life), "{life}");
    }
    server.run(&["SET", &names(1).0, "hello"]);
    server.run(&["DEL", &names(2).0]);
    server.run(&["LPUSH", &names(2).0, "hello"]);
    let before = server.run(&["DEBUG", "DIGEST"]);
    let all = [1, 2].map(|key| charge(key, 6));
    store.charge(PATIENCE, &all, &mut results[..2]).await.expect("Redis answers");
    assert_eq!(results[..2], [Charged::Failed; 2]);
    assert_eq!(server.run(&["DEBUG", "DIGEST"]), before, "a charge that fails changes nothing");
    let all = [1, 3].map(|key| charge(key, 6));
    store.charge(PATIENCE, &all, &mut results[..2]).await.expect("Redis answers");
    assert_eq!(results[..2], [Charged::Failed, Charged::New], "it fails alone");
    // What is no whole number of units is no total: it would charge all units again, or none any more.
    for total in ["nan", "-nan", "inf", "1e3", "0x5", "-5", " 5", "5.5", "", "12345678901234567"] {
        for name in &hashes {
            server.run(&["HSET", name, "\0\0\0\0\0\0\0\u{1}", total]);
        }
        let before = server.run(&["DEBUG", "DIGEST"]);
        store.charge(PATIENCE, &[charge(4, 9)], &mut results[..1]).await.expect("Redis answers");
        assert_eq!(results[0], Charged::Failed, "{total:?}");
        assert_eq!(server.run(&["DEBUG", "DIGEST"]), before, "{total:?}");
    }
    for name in &hashes {
        server.run(&["SET", name, "hello"]);
    }
    let all = [3, 4].map(|key| charge(key, 7));
    store.charge(PATIENCE, &all, &mut results[..2]).await.expect("Redis answers");
    assert_eq!(results[..2], [Charged::Failed; 2], "foreign values in place of the hashes");
    server.run(&["FLUSHALL"]);
    // Everything that a peer's user needs, and then without each of these rights.
    let needed = ["get", "set", "hget", "hset", "pexpire", "time"];
    for missing in [None, Some("get"), Some("set"), Some("hget"), Some("hset"), Some("pexpire")] {
        let rights: Vec<String> =
            needed.iter().filter(|right| Some(**right) != missing).map(|right| format!("+{right}")).collect();
        let mut user = vec!["ACL", "SETUSER", "peer", "reset", "on", ">secret", "~sg:*", "+evalsha", "+script|load"];
        user.extend(rights.iter().map(String::as_str));
        server.run(&user);
        let url = format!("redis://peer:secret@127.0.0.1:{}/", server.port());
        let peer = RedisStore::new(&with_long_timeouts(&url)).expect("the URL is valid");
        let told = peer.charge(PATIENCE, &[charge(9, 5)], &mut results[..1]).await;
        match missing {
            None => assert_eq!((told.is_ok(), results[0]), (true, Charged::New)),
            Some(right) => {
                let error = told.expect_err("a right is missing");
                assert_eq!(error.kind(), StoreErrorKind::NoPermission, "{right}: {error}");
            }
        }
        let keys: i64 = redis::from_redis_value(server.run(&["DBSIZE"])).expect("a number");
        assert_eq!(keys, if missing.is_none() { 2 } else { 0 }, "{missing:?}");
        server.run(&["FLUSHALL"]);
    }
}

/// In a cluster, a call has one total. The script is loaded when it is first needed.
#[tokio::test]
async fn a_cluster_charges_one_total_in_each_call() {
    let cluster = Cluster::start(false, &[]);
    let store = RedisStore::new(&with_long_timeouts(&cluster.url())).expect("the URL is valid");
    let quota = shared(Quota::token_bucket(100, DAY), 3);
    let span = quota.span(Time::from_nanos(NOW));
    assert_eq!(store.charges_per_call(), 1);
    for key in (0..12_u128).map(|key| key << 98 | 3) {
        let charge = Charge { key, quota: &quota, span, id: 1, total: 5 };
        for expected in [Charged::New, Charged::Known] {
            let mut results = [Charged::Failed];
            store.charge(PATIENCE, &[charge], &mut results).await.expect("the cluster charges");
            assert_eq!(results, [expected]);
        }
        let two = store.charge(PATIENCE, &[charge; 2], &mut [Charged::Failed; 2]).await;
        assert_eq!(two.expect_err("the keys can be in two slots").kind(), StoreErrorKind::Malformed);
    }
    for node in &cluster.nodes {
        node.run(&["SCRIPT", "FLUSH"]);
    }
    let charge = Charge { key: 3, quota: &quota, span, id: 1, total: 6 };
    let mut results = [Charged::Failed];
    store.charge(PATIENCE, &[charge], &mut results).await.expect("the script is loaded again");
    assert_eq!(results, [Charged::New]);
    assert!(!Script::ALL.contains(&Script::MERGE), "stores without regions do not load it");
}
