//! Tests replies that come after the deadline, or after the caller has gone: the units that they show as taken are given
//! back, unless a policy has let the request pass.
//!
//! `LATE_SECONDS` sets how long Redis is slow in the tests under load (default 0.3).

#![allow(clippy::print_stdout, reason = "the tests under load print what they have counted")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use spillgate::{FallbackStore, MemoryOptions, MemoryStore};
use spillgate_core::{Binding, Circuit, Decision, Hit, MAX_HITS, OnStoreFailure, Op, Quota, Store, Time, Timing};
use spillgate_redis::{RedisStore, Settings, StoreErrorKind};
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::cluster::{Cluster, key_on};
use crate::support::common::{PATIENCE, a_day, sent_within, until, with_long_timeouts};
use crate::support::server::Server;
use crate::topology::sentinel_setup::SentinelSetup;
use crate::transport::proxy::{Delay, delayed};

const WITHIN: Duration = Duration::from_millis(20);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns a store with one connection, so that replies come in the order of the requests. It never opens its circuit.
async fn store(server: &Server) -> RedisStore {
    let settings = Settings { connections: 1, max_failures: u32::MAX, ..with_long_timeouts(&server.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("Redis runs");
    store
}

fn quotas() -> Vec<Quota> {
    let builders = [
        Quota::token_bucket(10, DAY).burst(10),
        Quota::leaky_bucket(10, DAY).queue(10),
        Quota::fixed_window(10, DAY),
        Quota::sliding_window_counter(10, DAY),
        Quota::sliding_window_counter(10, DAY).segments(4),
        Quota::sliding_window_log(10, DAY),
        Quota::concurrency(10).lease(DAY),
    ];
    builders.map(|builder| builder.build().expect("the quota is valid")).into()
}

async fn left(store: &RedisStore, key: u128, quota: &Quota) -> u64 {
    let look = [Hit::new(key, quota, Op::Peek, Binding::Enforce)];
    let mut decisions = [Decision::default()];
    let deadline = Instant::now() + PATIENCE;
    // The circuit can still be open.
    while let Err(error) = store.decide(Timing::BY_STORE.within(PATIENCE), &look, &mut decisions).await {
        assert!(Instant::now() < deadline, "Redis runs: {error}");
        sleep(Duration::from_millis(1)).await;
    }
    decisions[0].remaining
}

fn take(key: u128, quota: &Quota) -> Hit<'_> {
    let op = Op::Take { cost: 1, max_wait_ns: u64::MAX };
    Hit::new(key, quota, op, Binding::Enforce)
}

/// A take of several units, of one unit of each of two limits, and one of a state that another quota has charged.
#[tokio::test]
async fn units_of_a_late_reply_come_back() {
    let server = Server::start();
    let store = store(&server).await;
    let quotas = quotas();
    for (i, quota) in quotas.iter().enumerate() {
        let (one, all) = (i as u128, 100);
        let beside = a_day(10);
        let requests = [
            vec![take(one, quota).with_op(Op::Take { cost: 3, max_wait_ns: u64::MAX })],
            vec![take(one, quota), take(all, &beside)],
            vec![take(one, quota), take(one, quota), take(all, &beside).with_binding(Binding::Shadow)],
        ];
        for hits in requests {
            let before = store.given_back();
            let full = left(&store, one, quota).await;
            server.freeze();
            let mut decisions = vec![Decision::default(); hits.len()];
            let late = sent_within(&store, WITHIN, &hits, &mut decisions).await;
            assert_eq!(late, Err(StoreErrorKind::Timeout), "Redis is frozen");
            server.thaw();
            until("the units are given back", || store.given_back() > before).await;
            assert_eq!(left(&store, one, quota).await, full, "{quota:?}");
            assert_eq!(left(&store, all, &beside).await, 10, "{quota:?}");
        }
    }
    assert_eq!(store.refunds_lost(), 0);
}

/// A bucket with another rate, and the general script that decides in a second call.
#[tokio::test]
async fn units_of_a_late_second_call_come_back() {
    let server = Server::start();
    let store = store(&server).await;
    let [slow, fast] = [10, 20].map(|rate| Quota::token_bucket(rate, DAY).burst(10).build().expect("it is valid"));
    let taken = store.decide(Timing::BY_STORE, &[take(1, &slow)], &mut [Decision::default()]).await;
    assert!(taken.expect("Redis runs").allowed);
    let before = left(&store, 1, &fast).await;
    server.freeze();
    let late = sent_within(&store, WITHIN, &[take(1, &fast)], &mut [Decision::default()]).await;
    late.expect_err("Redis is frozen");
    server.thaw();
    // The first script changed nothing, or the general script gave its unit back.
    assert_eq!(left(&store, 1, &fast).await, before);
    assert_eq!((left(&store, 1, &fast).await, store.refunds_lost()), (before, 0));
}

#[tokio::test]
async fn units_of_a_caller_that_has_gone_come_back() {
    let server = Server::start();
    let store = store(&server).await;
    let permits = Quota::concurrency(10).lease(DAY).build().expect("it is valid");
    server.freeze();
    let task = tokio::spawn({
        let (store, permits) = (store.clone(), permits.clone());
        async move { store.decide(Timing::BY_STORE, &[take(1, &permits)], &mut [Decision::default()]).await.map(drop) }
    });
    until("the request is sent", || store.health().calls.requests == 1).await;
    task.abort();
    assert!(task.await.expect_err("the task was aborted").is_cancelled());
    server.thaw();
    until("the permit is given back", || store.given_back() == 1).await;
    assert_eq!((left(&store, 1, &permits).await, store.refunds_lost()), (10, 0));
}

/// What the caller was told decides what happens to a late charge.
#[tokio::test]
async fn a_late_charge_stays_only_if_a_policy_let_the_request_pass() {
    use OnStoreFailure::{Allow, Deny, Error, Local};
    let server = Server::start();
    let shared = store(&server).await;
    let local = MemoryStore::new(MemoryOptions::default());
    let store = FallbackStore::new(shared.clone(), local, NonZeroU32::MIN);
    let permits = |policy| Quota::concurrency(10).lease(DAY).on_store_failure(policy).build().expect("it is valid");
    // The policies of two limits, and the permits of each that are left afterwards.
    let cases = [
        ([Allow, Allow], [9, 9]),
        ([Local, Local], [10, 10]),
        ([Deny, Deny], [10, 10]),
        ([Error, Error], [10, 10]),
        ([Allow, Local], [9, 10]),
        ([Allow, Deny], [10, 10]),
        ([Allow, Error], [10, 10]),
        ([Deny, Local], [10, 10]),
    ];
    for (key, (policies, expected)) in (10_u128..).step_by(2).zip(cases) {
        let quotas = policies.map(permits);
        let hits = [take(key, &quotas[0]), take(key + 1, &quotas[1])];
        server.freeze();
        let timing = Timing::at(Time::from_nanos(1_790_000_000_000_000_000)).within(WITHIN);
        let told = loop {
            let unsent = shared.failures(StoreErrorKind::NotSent);
            let told = store.decide(timing, &hits, &mut [Decision::default(); 2]).await;
            if shared.failures(StoreErrorKind::NotSent) == unsent {
                break told;
            }
        };
        let passes = told.is_ok_and(|verdict| verdict.allowed);
        assert_eq!(passes, !policies.contains(&Deny) && !policies.contains(&Error), "{policies:?}");
        server.thaw();
        // Replies come in order. After the first look, refunds are sent. After the second look, they are done.
        let _ = left(&shared, key, &quotas[0]).await;
        let stayed = [left(&shared, key, &quotas[0]).await, left(&shared, key + 1, &quotas[1]).await];
        assert_eq!(stayed, expected, "{policies:?}");
    }
    assert_eq!(shared.refunds_lost(), 0);
}

/// A local store that refuses makes the request refused, so that also the units of its other limits come back.
#[tokio::test]
async fn a_late_charge_comes_back_if_the_local_store_refused() {
    let server = Server::start();
    let shared = store(&server).await;
    let store = FallbackStore::new(shared.clone(), MemoryStore::new(MemoryOptions::default()), NonZeroU32::MIN);
    let permits = |policy| Quota::concurrency(1).lease(DAY).on_store_failure(policy).build().expect("it is valid");
    let (passing, local) = (permits(OnStoreFailure::Allow), permits(OnStoreFailure::Local));
    // So long that the request is sent also on a busy machine.
    let timing = Timing::at(Time::from_nanos(1_790_000_000_000_000_000)).within(Duration::from_secs(1));
    let mut allowed = Vec::new();
    server.freeze();
    for key in [1, 2] {
        let hits = [take(key, &passing), take(9, &local)];
        allowed.push(store.decide(timing, &hits, &mut [Decision::default(); 2]).await.expect("local answers").allowed);
    }
    assert_eq!(allowed, [true, false]);
    server.thaw();
    let _ = left(&shared, 1, &passing).await;
    let left = [left(&shared, 1, &passing).await, left(&shared, 2, &passing).await, left(&shared, 9, &local).await];
    assert_eq!(left, [0, 1, 1]);
}

/// A queue takes back only its last turn. The first turn passes unused, and is counted.
#[tokio::test]
async fn a_late_turn_before_another_turn_is_counted_as_lost() {
    let server = Server::start();
    let store = store(&server).await;
    let queue = Quota::leaky_bucket(10, DAY).queue(10).build().expect("it is valid");
    server.freeze();
    for _ in 0..2 {
        let late = sent_within(&store, WITHIN, &[take(1, &queue)], &mut [Decision::default()]).await;
        late.expect_err("Redis is frozen");
    }
    server.thaw();
    until("both turns are accounted for", || store.given_back() + store.refunds_lost() == 2).await;
    let back = left(&store, 1, &queue).await - 9;
    assert_eq!(store.given_back(), back, "as many turns are free as are counted");
}

/// The refund comes to a server that has lost its scripts.
#[tokio::test]
async fn a_refund_whose_script_is_missing_is_sent_again() {
    let server = Server::start();
    let store = store(&server).await;
    let permits = Quota::concurrency(10).lease(DAY).build().expect("it is valid");
    server.freeze();
    let late = sent_within(&store, WITHIN, &[take(1, &permits)], &mut [Decision::default()]).await;
    late.expect_err("Redis is frozen");
    // Redis reads this after the take and before the refund.
    let mut flush = tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.expect("the socket listens");
    flush.write_all(b"*2\r\n$6\r\nSCRIPT\r\n$5\r\nFLUSH\r\n").await.expect("the socket accepts it");
    server.thaw();
    until("the permit is given back", || store.given_back() == 1).await;
    assert_eq!((left(&store, 1, &permits).await, store.refunds_lost()), (10, 0));
}

/// Without scripts there are no receipts.
#[tokio::test]
async fn without_scripts_a_late_charge_is_counted() {
    let server = Server::start();
    let settings =
        Settings { connections: 1, scripts: false, max_failures: u32::MAX, ..with_long_timeouts(&server.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("Redis runs");
    let quota = a_day(10);
    server.freeze();
    let late = sent_within(&store, WITHIN, &[take(1, &quota)], &mut [Decision::default()]).await;
    late.expect_err("Redis is frozen");
    assert_eq!(store.refunds_lost(), 1);
    let task = tokio::spawn({
        let (store, quota) = (store.clone(), quota.clone());
        async move { store.decide(Timing::BY_STORE, &[take(1, &quota)], &mut [Decision::default()]).await.map(drop) }
    });
    until("the request is in flight", || store.in_flight() == 1).await;
    task.abort();
    assert!(task.await.expect_err("the task was aborted").is_cancelled());
    server.thaw();
    assert_eq!((store.refunds_lost(), store.given_back()), (2, 0));
}

/// Requests beyond the bound are counted at once, and those within it are given back. Afterwards there is room again.
#[tokio::test]
async fn late_requests_have_a_bound() {
    const WITHIN_THE_BOUND: u64 = (1 << 16) / MAX_HITS as u64;
    /// A request that is not sent within its time is not late, so a busy machine has fewer late requests.
    const MORE: u64 = 30;
    let server = Server::start();
    let store = store(&server).await;
    let quota = a_day(10);
    let late = async |first: u128, within: Duration| {
        let hits: Vec<Hit<'_>> = (0..MAX_HITS as u128).map(|key| take(first + key, &quota)).collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        let late = store.decide(Timing::BY_STORE.within(within), &hits, &mut decisions).await;
        u64::from(late.expect_err("Redis is frozen").kind().may_have_been_applied())
    };
    server.freeze();
    let requests = 0..WITHIN_THE_BOUND + MORE;
    let late_ones = requests.map(|request| late(u128::from(request) * MAX_HITS as u128, Duration::from_secs(1)));
    let more = join_all(late_ones).await.iter().sum::<u64>().saturating_sub(WITHIN_THE_BOUND);
    assert!(more > 0, "nearly all requests are sent within a second");
    assert_eq!((store.given_back(), store.refunds_lost()), (0, more));
    server.thaw();
    until("all others are given back", || store.given_back() == WITHIN_THE_BOUND).await;
    server.freeze();
    while late(0, WITHIN).await == 0 {}
    server.thaw();
    until("there is room again", || store.given_back() == WITHIN_THE_BOUND + 1).await;
    assert_eq!(store.refunds_lost(), more);
}

#[tokio::test]
async fn units_without_a_reply_are_counted() {
    let mut server = Server::start();
    let store = store(&server).await;
    let quota = a_day(10);
    server.freeze();
    for _ in 0..3 {
        let late = sent_within(&store, WITHIN, &[take(1, &quota)], &mut [Decision::default()]).await;
        late.expect_err("Redis is frozen");
    }
    let looked = [take(1, &quota).with_op(Op::Peek)];
    sent_within(&store, WITHIN, &looked, &mut [Decision::default()]).await.expect_err("it is frozen");
    server.kill();
    until("each take is counted once, and the peek is not", || store.refunds_lost() == 3).await;
    assert_eq!(store.given_back(), 0);
}

/// An open circuit is tried with a probe that takes nothing from the request. So a server that is still too slow keeps
/// no units of the requests that tried it.
#[tokio::test]
async fn a_server_that_is_down_is_tried_without_a_take() {
    let server = Server::start();
    let (timeout, probe_every) = (WITHIN, Duration::from_millis(1));
    let settings =
        Settings { connections: 1, timeout, max_failures: 1, probe_every, ..with_long_timeouts(&server.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("Redis runs");
    let quota = a_day(10);
    let failed = async |key| {
        let told = store.decide(Timing::BY_STORE, &[take(key, &quota)], &mut [Decision::default()]).await;
        told.expect_err("Redis is frozen");
    };
    server.freeze();
    while store.circuit() == Circuit::Closed {
        failed(0).await;
    }
    let (late, sent) = (store.failures(StoreErrorKind::Timeout), store.health().calls.requests);
    let mut turns = 0;
    while store.failures(StoreErrorKind::Timeout) < late + 5 {
        turns += 1;
        failed(turns).await;
    }
    assert!(store.health().calls.requests > sent, "probes were sent");
    server.thaw();
    until("the first takes are given back", || store.given_back() == late).await;
    for key in 1..=turns {
        let name = spillgate_redis::RedisKey::of(&take(key, &quota)).to_string();
        assert_eq!(server.run(&["EXISTS", &name]), redis::Value::Int(0), "the request of turn {key} took nothing");
    }
    assert_eq!(store.refunds_lost(), 0);
}

/// The number of permits, and the lease that returns a permit without an owner.
const PERMITS: u64 = 20;
/// The estimate of a request, and the units that it uses in the end.
const ESTIMATE: u64 = 100;
const USED: u64 = 70;

/// Requests that take a permit and an estimate, and give both back when they are done, while Redis is slow.
struct Load {
    store: RedisStore,
    keys: [u128; 2],
    permits: Quota,
    budget: Quota,
    ending: Arc<AtomicBool>,
    /// The units that were used by requests that were admitted.
    used: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Load {
    fn start(store: &RedisStore, keys: [u128; 2]) -> Load {
        let mut load = Load {
            store: store.clone(),
            keys,
            permits: Quota::concurrency(PERMITS).lease(DAY).build().expect("it is valid"),
            budget: a_day(1 << 40),
            ending: Arc::default(),
            used: Arc::default(),
            tasks: JoinSet::new(),
        };
        for _ in 0..16 {
            let (store, permits, budget) = (load.store.clone(), load.permits.clone(), load.budget.clone());
            let (ending, used) = (Arc::clone(&load.ending), Arc::clone(&load.used));
            load.tasks.spawn(async move {
                while !ending.load(Ordering::Relaxed) {
                    let estimate = Hit::new(keys[1], &budget, Op::take(ESTIMATE), Binding::Enforce);
                    let hits = [take(keys[0], &permits), estimate];
                    let mut decisions = [Decision::default(); 2];
                    let decided = store.decide(Timing::BY_STORE, &hits, &mut decisions).await;
                    if !decided.is_ok_and(|verdict| verdict.allowed) {
                        // While the circuit is open, a request fails without a pause. Without this one, the tasks would
                        // keep both threads busy, and nothing could read the reply that closes the circuit.
                        sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    // The caller waits for as long as it takes: what it was granted is its own to give back.
                    let receipts = decisions.map(|decision| decision.receipt.expect("a take has a receipt"));
                    let ends = [
                        hits[0].with_op(Op::settle(1, 0, receipts[0])),
                        hits[1].with_op(Op::settle(ESTIMATE, USED, receipts[1])),
                    ];
                    // The lease makes sure that the settlement counts once, however often it is tried.
                    while store.decide(Timing::BY_STORE.within(PATIENCE), &ends, &mut decisions).await.is_err() {
                        sleep(Duration::from_millis(1)).await;
                    }
                    used.fetch_add(USED, Ordering::Relaxed);
                }
            });
        }
        load
    }

    async fn until_more_were_used(&self) {
        let before = self.used.load(Ordering::Relaxed);
        until("requests are admitted", || self.used.load(Ordering::Relaxed) >= before + 5 * USED).await;
    }

    /// Ends the load, and checks that nothing is left without an owner, except what was counted.
    async fn end(mut self, what: &str) {
        self.ending.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no task panics");
        }
        let (store, used) = (&self.store, self.used.load(Ordering::Relaxed));
        let mut kept = (0, 0);
        let mut turns = 0;
        loop {
            kept.0 = PERMITS - left(store, self.keys[0], &self.permits).await;
            kept.1 = (1 << 40) - left(store, self.keys[1], &self.budget).await - used;
            let lost = store.refunds_lost();
            if kept.0 <= lost && kept.1 <= lost * ESTIMATE {
                break;
            }
            turns += 1;
            assert!(turns < 60_000, "{what}: {kept:?} have no owner, and {lost} were counted");
            sleep(Duration::from_millis(1)).await;
        }
        println!(
            "{what}: admitted {}, failed {}, given back {}, permits and units without an owner {kept:?}, counted as lost {}",
            used / USED,
            store.failures(StoreErrorKind::Timeout),
            store.given_back(),
            store.refunds_lost()
        );
    }
}

fn seconds() -> Duration {
    let set = std::env::var("LATE_SECONDS");
    Duration::from_secs_f64(set.map_or(0.3, |text| text.parse().expect("a number of seconds")))
}

/// The proxy never closes a connection, so nothing can be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_and_estimates_have_an_owner_after_slow_replies() {
    for (wait_ms, of) in [(12, 1), (20, 1), (50, 1), (12, 2), (50, 2)] {
        let server = Server::start();
        let delay = Delay::default();
        let port = delayed(server.port(), delay.clone(), of).await;
        let settings = Settings {
            connections: 4,
            connect_timeout: PATIENCE,
            ..Settings::new(format!("redis://127.0.0.1:{port}/"))
        };
        let store = RedisStore::new(&settings).expect("the URL is valid");
        store.wait_connected().await.expect("Redis runs");
        let load = Load::start(&store, [1, 2]);
        load.until_more_were_used().await;
        delay.set(Duration::from_millis(wait_ms));
        sleep(seconds()).await;
        until("late takes were given back", || store.given_back() > 0).await;
        delay.set(Duration::ZERO);
        load.until_more_were_used().await;
        let what = if of == 1 { "all connections" } else { "half of the connections" };
        load.end(&format!("{wait_ms} ms on {what}")).await;
        assert_eq!(store.refunds_lost(), 0);
    }
}

/// Freezes a server again and again, for longer than the timeout, until takes were late and given back.
async fn stutter(server: &Server, store: &RedisStore) {
    let end = Instant::now() + seconds();
    while Instant::now() < end || store.given_back() == 0 {
        assert!(Instant::now() < end + PATIENCE, "takes are late");
        server.freeze();
        sleep(Duration::from_millis(30)).await;
        server.thaw();
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_and_estimates_have_an_owner_after_slow_nodes_of_a_cluster() {
    let cluster = Cluster::start(false, &["--cluster-node-timeout", "60000"]);
    let settings = Settings { connections: 2, connect_timeout: PATIENCE, ..Settings::new(cluster.url()) };
    for (what, nodes) in [("one slot of a cluster", [0, 0]), ("two slots of a cluster", [0, 1])] {
        let store = RedisStore::new(&settings).expect("the URL is valid");
        store.wait_connected().await.expect("the cluster serves");
        let keys = nodes.map(|node| key_on(&cluster.nodes[0], node, &a_day(1), 5 + nodes[1] as u128));
        let load = Load::start(&store, keys);
        load.until_more_were_used().await;
        stutter(&cluster.nodes[0], &store).await;
        load.until_more_were_used().await;
        load.end(what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_and_estimates_have_an_owner_after_a_slow_primary_of_sentinels() {
    let setup = SentinelSetup::start().await;
    let settings = Settings { connections: 2, connect_timeout: PATIENCE, ..Settings::new(setup.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("the primary serves");
    let load = Load::start(&store, [1, 2]);
    load.until_more_were_used().await;
    stutter(&setup.servers[0], &store).await;
    load.until_more_were_used().await;
    load.end("the primary of sentinels").await;
}
