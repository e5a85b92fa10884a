//! Tests `Settings::new_keys_per_second`: a client that makes many keys can neither fill Redis nor change the counts of
//! other callers.
//!
//! `NEW_KEYS_REQUESTS` sets how many keys an attacker asks for under each policy of eviction (default 20,000), and
//! `NEW_KEYS_TAKES` how many takes of existing keys are timed in each of 15 pairs of rounds (default 50).

#![allow(clippy::print_stdout, reason = "the tests under attack print what they have counted")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use spillgate::{FallbackStore, MemoryOptions, MemoryStore};
use spillgate_core::{
    Anchor, Binding, Circuit, Decision, Denied, Hit, Op, Quota, Reason, Receipt, Source, Store, Time, Timing, Verdict,
};
use spillgate_redis::{LogForm, RedisStore, Settings, StoreErrorKind};
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;

use crate::support::cluster::{Cluster, key_on};
use crate::support::common::{a_day, sent_within, until, with_long_timeouts};
use crate::support::server::Server;

const DAY: Duration = Duration::from_secs(86_400);
const NOW: Time = Time::from_nanos(1_790_000_000_000_000_000);
/// So many takes in flight make a bucket owe tokens for minutes, so a slow machine cannot get one back during a test.
const TAKES: u128 = 300;
const ONE: Op = Op::Take { cost: 1, max_wait_ns: u64::MAX };

fn bounded(url: &str) -> Settings {
    Settings { new_keys_per_second: NonZeroU32::new(1), ..with_long_timeouts(url) }
}

async fn connected(settings: &Settings) -> RedisStore {
    let store = RedisStore::new(settings).expect("the URL is valid");
    store.wait_connected().await.expect("Redis runs");
    store
}

fn quotas() -> Vec<Quota> {
    let builders = [
        Quota::token_bucket(10, DAY).burst(10),
        Quota::leaky_bucket(10, DAY).queue(9),
        Quota::fixed_window(10, DAY).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(10, DAY),
        Quota::sliding_window_counter(10, DAY).segments(4),
        Quota::sliding_window_log(10, DAY),
        Quota::concurrency(10).lease(DAY),
        Quota::token_bucket(11, DAY).burst(11).denied(Denied::Charged),
        Quota::fixed_window(12, DAY).anchor(Anchor::FirstHit).penalty(DAY),
    ];
    builders.map(|builder| builder.build().expect("the quota is valid")).into()
}

fn take(key: u128, quota: &Quota) -> Hit<'_> {
    Hit::new(key, quota, ONE, Binding::Enforce)
}

/// Asks the store, which decides by its own clock.
async fn ask(store: &impl Store, hits: &[Hit<'_>]) -> (Result<Verdict, StoreErrorKind>, Vec<Decision>) {
    let mut decisions = vec![Decision::default(); hits.len()];
    let timing = if store.has_clock() { Timing::BY_STORE } else { Timing::at(NOW) };
    let verdict = store.decide(timing, hits, &mut decisions).await;
    (verdict.map_err(|error| error.kind()), decisions)
}

/// Makes the keys 0 to `TAKES` while all of these takes are in flight, so that the limit owes tokens.
async fn spend(nodes: &[&Server], store: &RedisStore, op: Op, quota: &Quota) {
    nodes.iter().for_each(|node| node.freeze());
    let mut takes = JoinSet::new();
    for key in 0..TAKES {
        let (store, quota) = (store.clone(), quota.clone());
        takes.spawn(async move { ask(&store, &[take(key, &quota).with_op(op)]).await.0 });
    }
    until("all takes are in flight", || store.in_flight() as u128 == TAKES).await;
    nodes.iter().for_each(|node| node.thaw());
    let made = takes.join_all().await;
    assert!(made.iter().all(Result::is_ok), "takes in flight are decided: {quota:?} {:?}", made[0]);
}

fn keys(server: &Server) -> i64 {
    redis::from_redis_value(server.run(&["DBSIZE"])).expect("the reply is a number")
}

/// Every algorithm, logs in both forms, and a store without scripts.
#[tokio::test]
async fn without_tokens_no_key_is_made_and_existing_keys_are_exact() {
    for (log, scripts) in [(LogForm::Packed, true), (LogForm::Zset, true), (LogForm::Packed, false)] {
        let server = Server::start();
        let store = connected(&Settings { log, scripts, ..bounded(&server.url()) }).await;
        let mut made = TAKES;
        let quotas = quotas();
        for quota in quotas.iter().filter(|quota| store.supports(quota, Op::take(1).kind())) {
            server.run(&["FLUSHALL"]);
            spend(&[&server], &store, ONE, quota).await;
            assert_eq!(i128::from(keys(&server)), TAKES.cast_signed(), "{quota:?}");
            let full = quota.hard_capacity();
            for used in 2..=full {
                let (verdict, decisions) = ask(&store, &[take(1, quota)]).await;
                assert!(verdict.is_ok_and(|verdict| verdict.allowed && verdict.source == Source::Store), "{quota:?}");
                assert_eq!(decisions[0].remaining, full - used, "{quota:?}");
            }
            assert!(ask(&store, &[take(1, quota)]).await.0.is_ok_and(|verdict| !verdict.allowed), "{quota:?}");
            made += 1;
            let (verdict, decisions) = ask(&store, &[take(made, quota)]).await;
            assert_eq!((verdict, decisions[0].reason), (Err(StoreErrorKind::NewKeys), Reason::NotAsked), "{quota:?}");
            assert_eq!(i128::from(keys(&server)), TAKES.cast_signed(), "{quota:?}");
            // The existing key of the request is not charged.
            let hits = [take(2, quota), take(made, quota), take(3, quota)];
            let (verdict, decisions) = ask(&store, &hits).await;
            let not_asked = decisions.iter().map(|decision| decision.reason == Reason::NotAsked).collect::<Vec<_>>();
            assert_eq!((verdict, not_asked), (Err(StoreErrorKind::NewKeys), vec![false, true, false]), "{quota:?}");
            let (verdict, decisions) = ask(&store, &[take(2, quota), take(3, quota)]).await;
            assert!(verdict.is_ok_and(|verdict| verdict.allowed), "{quota:?}");
            assert_eq!([0, 1].map(|i| decisions[i].remaining), [full - 2; 2], "{quota:?}");
            // Requests that make no key are decided as always.
            let peek = take(made, quota).with_op(Op::Peek);
            assert!(ask(&store, &[peek]).await.0.is_ok_and(|verdict| verdict.allowed), "{quota:?}");
            // Another limit has tokens.
            let other = a_day(1_000_000 + u64::try_from(made).expect("few keys"));
            assert!(ask(&store, &[take(made, &other)]).await.0.is_ok(), "{quota:?}");
        }
        let failures = StoreErrorKind::ALL.iter().map(|kind| store.failures(*kind)).sum::<u64>();
        assert_eq!((store.circuit(), store.in_flight()), (Circuit::Closed, 0));
        assert!(failures >= 2 && failures == store.failures(StoreErrorKind::NewKeys));
    }
}

#[tokio::test]
async fn a_refusal_that_is_charged_uses_a_token() {
    let server = Server::start();
    let store = connected(&bounded(&server.url())).await;
    let punishing = Quota::fixed_window(5, DAY).anchor(Anchor::FirstHit).penalty(DAY).build();
    let punishing = punishing.expect("the quota is valid");
    spend(&[&server], &store, Op::take(6), &punishing).await;
    let made = keys(&server);
    let (held, _) = ask(&store, &[take(TAKES, &punishing).with_op(Op::take(6))]).await;
    assert_eq!((held, keys(&server)), (Err(StoreErrorKind::NewKeys), made));
    // The penalty is a state, so this caller is refused by Redis.
    assert!(ask(&store, &[take(1, &punishing)]).await.0.is_ok_and(|verdict| !verdict.allowed));
}

/// Without scripts, a refused request makes the counters of its other limits too.
#[tokio::test]
async fn without_scripts_the_keys_of_refused_requests_use_tokens() {
    let server = Server::start();
    // The deny cache would refuse without a call of Redis.
    let settings = Settings { scripts: false, deny_cache_entries: 0, ..bounded(&server.url()) };
    let store = connected(&settings).await;
    let (team, user) = (a_day(5), a_day(100));
    let of_five = |key, quota| take(key, quota).with_op(Op::take(5));
    assert!(ask(&store, &[of_five(1, &team)]).await.0.is_ok_and(|verdict| verdict.allowed));
    for key in 2..TAKES {
        // The counter of the team exists, but the cost of the request is above what is left of it.
        match ask(&store, &[of_five(1, &team), of_five(key, &user)]).await.0 {
            Ok(verdict) => assert!(!verdict.allowed),
            Err(kind) => return assert_eq!(kind, StoreErrorKind::NewKeys),
        }
    }
    panic!("refused requests made {} keys", keys(&server));
}

#[tokio::test]
async fn two_hits_on_one_new_state_use_one_token() {
    let server = Server::start();
    let new_keys_per_second = NonZeroU32::new(2);
    let store = connected(&Settings { new_keys_per_second, ..bounded(&server.url()) }).await;
    // A new store has all tokens, and one of two comes back after half a second.
    let quota = a_day(100);
    assert!(ask(&store, &[take(1, &quota), take(1, &quota)]).await.0.is_ok());
    assert_eq!(keys(&server), 1);
    assert!(ask(&store, &[take(2, &quota)]).await.0.is_ok());
}

/// Nobody knows whether a take without a reply made a key, so its token is used.
#[tokio::test]
async fn takes_without_a_reply_use_tokens() {
    for (scripts, op) in [(false, ONE), (true, Op::Force { cost: 1 })] {
        let server = Server::start();
        let store = connected(&Settings { scripts, max_failures: u32::MAX, ..bounded(&server.url()) }).await;
        let quota = a_day(100);
        server.freeze();
        let late = async |key| {
            let hits = [take(key, &quota).with_op(op)];
            sent_within(&store, Duration::from_millis(1), &hits, &mut [Decision::default()]).await
        };
        for answer in join_all((0..TAKES).map(late)).await {
            assert_eq!(answer, Err(StoreErrorKind::Timeout), "scripts {scripts}");
        }
        server.thaw();
        let (held, _) = ask(&store, &[take(TAKES, &quota)]).await;
        assert_eq!(held, Err(StoreErrorKind::NewKeys), "scripts {scripts}");
    }
}

/// Returns a store whose newcomers are decided locally, with half of a limit.
fn with_local(store: &RedisStore) -> FallbackStore<RedisStore> {
    let nodes = NonZeroU32::new(2).expect("not 0");
    FallbackStore::new(store.clone(), MemoryStore::new(MemoryOptions::default()), nodes)
}

async fn decide<S: Store>(store: &FallbackStore<S>, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
    let mut decisions = vec![Decision::default(); hits.len()];
    let verdict = store.decide(Timing::at(NOW), hits, &mut decisions).await.expect("the request is decided");
    (verdict, decisions)
}

async fn left(store: &RedisStore, key: u128, quota: &Quota) -> u64 {
    let (verdict, decisions) = ask(store, &[take(key, quota).with_op(Op::Peek)]).await;
    verdict.expect("Redis answers");
    decisions[0].remaining
}

/// All keys of the request are on one Redis server, or they are in two slots of a cluster.
#[tokio::test]
async fn requests_with_a_new_key_take_all_their_units_or_none() {
    let server = Server::start();
    let cluster = Cluster::start(false, &[]);
    for (url, nodes) in [(server.url(), vec![&server]), (cluster.url(), cluster.nodes.iter().collect())] {
        let (shared, unbounded) = (connected(&bounded(&url)).await, connected(&with_long_timeouts(&url)).await);
        for quota in &quotas()[..7] {
            let share = quota.share(NonZeroU32::new(2).expect("not 0")).capacity();
            let [old, full, new, other] = match url == cluster.url() {
                true => [(0, 1), (1, 2), (2, 3), (0, 4)].map(|(nth, seed)| key_on(&cluster.nodes[0], nth, quota, seed)),
                false => [1, 2, TAKES + 1, TAKES + 2],
            };
            spend(&nodes, &shared, ONE, quota).await;
            assert!(ask(&unbounded, &[take(old, quota)]).await.0.is_ok_and(|verdict| verdict.allowed), "{quota:?}");
            while ask(&unbounded, &[take(full, quota)]).await.0.is_ok_and(|verdict| verdict.allowed) {}
            let before = left(&shared, old, quota).await;
            let store = with_local(&shared);
            // The local store refuses, so Redis takes nothing.
            for round in 1..share + 3 {
                let (verdict, decisions) = decide(&store, &[take(old, quota), take(new, quota)]).await;
                assert_eq!((verdict.allowed, verdict.source), (round <= share, Source::Local), "{quota:?}");
                let used = round.min(share);
                // The deny cache can repeat the refusal. It knows nothing of the other limit.
                let is_known = decisions[0].reason != Reason::NotAsked;
                assert!(decisions[0].allowed && (is_known || !verdict.allowed), "{quota:?}");
                assert!(!is_known || decisions[0].remaining == before - used, "{quota:?}");
                assert_eq!(left(&shared, old, quota).await, before - used, "{quota:?}");
            }
            // Redis refuses, so the local store takes nothing. One unit of the same request is in shadow mode.
            let left = share - 1;
            for _ in 0..3 {
                let shadow = take(old, quota).with_binding(Binding::Shadow);
                let (verdict, decisions) = decide(&store, &[take(other, quota), take(full, quota), shadow]).await;
                assert!(!verdict.allowed && decisions[1].receipt.is_none(), "{quota:?}: {decisions:?}");
            }
            for used in 0..=share {
                let (verdict, _) = decide(&store, &[take(other, quota)]).await;
                assert_eq!((verdict.allowed, verdict.source), (used <= left, Source::Local), "{quota:?} {used}");
            }
            assert_eq!(self::left(&shared, new, quota).await, quota.capacity(), "Redis counts nothing: {quota:?}");
        }
    }
}

#[tokio::test]
async fn permits_of_newcomers_are_released_where_they_were_taken() {
    let server = Server::start();
    let shared = connected(&bounded(&server.url())).await;
    let permits = Quota::concurrency(10).lease(DAY).build().expect("the quota is valid");
    spend(&[&server], &shared, ONE, &permits).await;
    let (store, newcomer) = (with_local(&shared), take(TAKES, &permits));
    let mut receipts: Vec<Receipt> = Vec::new();
    for _ in 0..5 {
        let (verdict, decisions) = decide(&store, &[newcomer]).await;
        assert!(verdict.allowed);
        receipts.extend(decisions[0].receipt);
    }
    assert!(!decide(&store, &[newcomer]).await.0.allowed, "half of the limit is the share of this program");
    for receipt in receipts.drain(..) {
        assert!(decide(&store, &[newcomer.with_op(Op::Renew { receipt })]).await.0.allowed);
        let release = newcomer.with_op(Op::Refund { cost: 1, receipt: Some(receipt) });
        assert!(decide(&store, &[release]).await.0.allowed);
        let (verdict, decisions) = decide(&store, &[newcomer]).await;
        assert!(verdict.allowed && decisions[0].remaining == 0);
    }
    assert_eq!(i128::from(keys(&server)), TAKES.cast_signed());
}

/// How many callers there are beside the attacker, each with a key before the attack begins.
const CALLERS: u128 = 50;
const LIMIT: u64 = 20;
const BOUND: u32 = 20;
const ATTACKERS: u64 = 64;

/// What an attack did.
struct Attack {
    /// The most units that a caller beside the attacker got.
    most: u64,
    /// The units that all these callers got.
    admitted: u64,
    keys: i64,
    used_bytes: u64,
    evicted: u64,
    out_of_memory: u64,
    held: u64,
    seconds: f64,
    /// The CPU time that Redis used.
    redis_seconds: f64,
}

fn cpu_seconds(server: &Server) -> f64 {
    let text: String = redis::from_redis_value(server.run(&["INFO", "CPU"])).expect("INFO is text");
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let used = fields.filter(|(name, _)| ["used_cpu_user", "used_cpu_sys"].contains(name));
    used.filter_map(|(_, seconds)| seconds.trim().parse::<f64>().ok()).sum()
}

/// Runs a client that makes keys as fast as it can, beside callers who have keys. Half of these callers are under the
/// attacked limit, and half are under a limit whose states end sooner than the keys of the attacker.
async fn attack(policy: &str, bound: Option<NonZeroU32>, requests: u64) -> Attack {
    let server = Server::start_with(&["--maxmemory-policy", policy]);
    let window = |length| Quota::fixed_window(LIMIT, length).anchor(Anchor::FirstHit).build();
    let attacked = window(DAY * 2).expect("the quota is valid");
    let quotas = [attacked.clone(), window(DAY / 24).expect("the quota is valid")];
    let unbounded = connected(&with_long_timeouts(&server.url())).await;
    let counts: Arc<Vec<AtomicU64>> = Arc::new((0..CALLERS).map(|_| AtomicU64::new(1)).collect());
    for key in 0..CALLERS {
        let quota = &quotas[usize::from(key % 2 == 0)];
        assert!(ask(&unbounded, &[take(key, quota)]).await.0.is_ok_and(|verdict| verdict.allowed));
    }
    let most_bytes = server.info("used_memory:") + (3 << 19);
    server.run(&["CONFIG", "SET", "maxmemory", &most_bytes.to_string()]);
    let settings = Settings { new_keys_per_second: bound, ..with_long_timeouts(&server.url()) };
    let store = Arc::new(with_local(&connected(&settings).await));
    let cpu_before = cpu_seconds(&server);
    let (began, asked) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..ATTACKERS {
        let (store, quota, asked) = (Arc::clone(&store), attacked.clone(), Arc::clone(&asked));
        tasks.spawn(async move {
            loop {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    break;
                }
                // A limit of many keys beside one that exists, in one of four requests.
                let hits = [take(CALLERS + u128::from(number), &quota), take(0, &quota).with_op(Op::Peek)];
                decide(&store, &hits[..1 + usize::from(number % 4 == 0)]).await;
            }
        });
    }
    for first in 0..4 {
        let (store, quotas, asked) = (Arc::clone(&store), quotas.clone(), Arc::clone(&asked));
        let counts = Arc::clone(&counts);
        tasks.spawn(async move {
            let mut rounds = 0;
            while asked.load(Ordering::Relaxed) < requests || rounds < 2 * LIMIT {
                for key in (first..CALLERS).step_by(4) {
                    // The deny cache answers without waiting, and the attacker has to get his turns.
                    yield_now().await;
                    let (verdict, _) = decide(&store, &[take(key, &quotas[usize::from(key % 2 == 0)])]).await;
                    counts[usize::try_from(key).expect("few callers")]
                        .fetch_add(verdict.allowed.into(), Ordering::Relaxed);
                }
                rounds += 1;
            }
        });
    }
    tasks.join_all().await;
    let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    Attack {
        most: counts.iter().copied().max().unwrap_or_default(),
        admitted: counts.iter().sum(),
        keys: keys(&server),
        used_bytes: server.info("used_memory:"),
        evicted: server.info("evicted_keys:"),
        out_of_memory: store.shared().failures(StoreErrorKind::OutOfMemory),
        held: store.shared().failures(StoreErrorKind::NewKeys),
        seconds: began.elapsed().as_secs_f64(),
        redis_seconds: cpu_seconds(&server) - cpu_before,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_makes_many_keys_changes_no_count_of_others() {
    let requests = std::env::var("NEW_KEYS_REQUESTS").map_or(20_000, |number| number.parse().expect("a number"));
    let limit_of_all = LIMIT * u64::try_from(CALLERS).expect("few callers");
    println!("{CALLERS} callers have keys and a limit of {LIMIT}, so all of them may get {limit_of_all} units.");
    println!("A client asks for {requests} new keys; Redis has room for about 10,000. The bound is {BOUND}/s.");
    for policy in ["noeviction", "volatile-ttl", "allkeys-lru"] {
        for bound in [None, NonZeroU32::new(BOUND)] {
            let done = attack(policy, bound, requests).await;
            println!(
                "{policy:>12}, bound {:>3}: {:>4} units (most of one caller: {}), {:>6} keys, {:>4} KiB used, {:>6} evicted, \
                 {:>6} out of memory, {:>6} held, {:.1} s, {:.2} s CPU of Redis",
                bound.map_or("off".to_owned(), |bound| bound.to_string()),
                done.admitted,
                done.most,
                done.keys,
                done.used_bytes >> 10,
                done.evicted,
                done.out_of_memory,
                done.held,
                done.seconds,
                done.redis_seconds
            );
            if bound.is_none() {
                assert!(done.evicted + done.out_of_memory > 0, "the attack is large enough to fill Redis");
                assert_eq!(done.held, 0);
                continue;
            }
            assert_eq!((done.most, done.admitted), (LIMIT, limit_of_all));
            assert_eq!((done.evicted, done.out_of_memory), (0, 0));
            let most_keys = f64::from(BOUND) * (done.seconds + 1.0) + (ATTACKERS as f64) + (CALLERS as f64);
            assert!((done.keys as f64) <= most_keys, "{} keys, at most {most_keys}", done.keys);
            assert!(done.held > 0);
        }
    }
}

/// Prints what the bound costs callers with keys, and what it costs them while their limit has no new keys left. The two
/// stores of a pair take turns, so that both see the same load of the machine.
#[tokio::test]
async fn callers_with_keys_pay_for_a_look_only_while_their_limit_is_at_its_bound() {
    let takes = std::env::var("NEW_KEYS_TAKES").map_or(50, |number| number.parse().expect("a number"));
    let server = Server::start();
    let quota = Quota::per_second(1_000_000_000).burst(1_000_000).build().expect("the quota is valid");
    let slow = a_day(1 << 40);
    let unbounded = connected(&with_long_timeouts(&server.url())).await;
    let many = Settings { new_keys_per_second: NonZeroU32::new(1_000_000), ..with_long_timeouts(&server.url()) };
    let (many, at_bound) = (connected(&many).await, connected(&bounded(&server.url())).await);
    spend(&[&server], &at_bound, ONE, &slow).await;
    let pairs = [
        ("a new key for each take, bound far away", &many, &quota),
        ("existing keys, bound far away", &many, &slow),
        ("existing keys, at the bound", &at_bound, &slow),
    ];
    for (what, store, quota) in pairs {
        let mut ratios = Vec::new();
        for round in 0..15_u32 {
            let mut seconds = [0.0, 0.0];
            for turn in 0..2 {
                let bounded = (turn + round) % 2 == 1;
                let store = if bounded { store } else { &unbounded };
                let began = Instant::now();
                for take_number in 0..takes {
                    let taken = ask(store, &[take(u128::from(take_number % 100_u64), quota)]).await.0;
                    assert!(taken.is_ok_and(|verdict| verdict.allowed && verdict.source == Source::Store));
                }
                seconds[usize::from(bounded)] = began.elapsed().as_secs_f64();
            }
            ratios.push((seconds[1] / seconds[0], seconds[1] / f64::from(u32::try_from(takes).expect("few takes"))));
        }
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, seconds) = ratios[ratios.len() / 2];
        println!("{what}: {:.1} us for each take, {ratio:.3} times as long as without a bound (median)", seconds * 1e6);
    }
}
