//! Several tasks take units from one key. Each request uses one of two or three quotas, chosen at random. The tasks use
//! one memory store, or one or two Redis stores on the same Redis. `Node` is one of these stores.
//!
//! All tasks together never get more units than the bound of the largest quota, and this quota refuses no take before
//! its units are used up. The bound is checked for the interval between any two admissions, by the times of the
//! decisions.
#![allow(clippy::disallowed_methods, reason = "the memory store is asked with the current time")]

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spillgate::{MemoryOptions, MemoryStore};
use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Denied, Hit, Op, Quota, QuotaBuilder, Store as _, Time, Timing, Verdict,
};
use spillgate_redis::{RedisStore, Settings};
use tokio::task::JoinSet;

use crate::support::server::Server;

const WINDOW: Duration = Duration::from_millis(400);
const TASKS: u64 = 4;

/// Returns how many requests each task sends. `make show-quota-changes` sets a larger number.
fn requests() -> u64 {
    std::env::var("SEVERAL_QUOTAS_ASKED").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

/// A function that returns the builder of a quota with the given limit.
type Of = fn(u64) -> QuotaBuilder;

#[derive(Clone)]
enum Node {
    Redis(RedisStore),
    Memory(Arc<MemoryStore>),
}

impl Node {
    async fn decide(&self, hit: Hit<'_>, decision: &mut Decision) -> Verdict {
        let (hits, decisions) = ([hit], std::slice::from_mut(decision));
        match self {
            Node::Redis(store) => store.decide(Timing::BY_STORE, &hits, decisions).await.expect("the server answers"),
            Node::Memory(store) => store.decide_now(now(), &hits, decisions).expect("the request is well formed"),
        }
    }
}

fn now() -> Time {
    Time::from_nanos(SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_nanos() as u64)
}

const LARGEST: usize = 0;

/// Returns quotas on one state: a large one, a small one, and with `three` also a middle one that charges refusals.
fn quotas(of: impl Fn(u64) -> QuotaBuilder, three: bool) -> Vec<Quota> {
    let mut all = vec![of(400), of(20)];
    if three {
        all.push(of(90).denied(Denied::Charged));
    }
    all.into_iter().map(|builder| builder.build().expect("the quota is valid")).collect()
}

/// A charge. A charged refusal charges units, but admits none.
#[derive(Clone, Copy)]
struct Event {
    /// The time of the decision, in nanoseconds.
    at: u64,
    charged: u64,
    admitted: u64,
    /// The position of the quota in the list of quotas.
    quota: usize,
}

/// The outcomes of requests.
#[derive(Default)]
struct Report {
    events: Vec<Event>,
    /// The time and the cost of the first take that the largest quota refused.
    first_refused: Option<(u64, u64)>,
    /// The longest time from a decision, by the time in its verdict, until the task had the verdict.
    late_ns: u64,
}

/// Sends the requests of one task.
async fn ask(node: Node, key: u128, quotas: Arc<[Quota]>, seed: u64) -> Report {
    let (mut random, mut reported) = (seed, Report::default());
    for _ in 0..requests() {
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let quota = below(quotas.len() as u64) as usize;
        let cost = 1 + below(3);
        let op = match below(12) {
            0 => Op::Peek,
            1 => Op::Force { cost },
            _ => Op::Take { cost, max_wait_ns: u64::MAX },
        };
        let hit = Hit::new(key, &quotas[quota], op, Binding::Enforce);
        let mut decision = Decision::default();
        let verdict = node.decide(hit, &mut decision).await;
        let at = verdict.now.as_nanos();
        reported.late_ns = reported.late_ns.max(now().as_nanos().saturating_sub(at));
        let charged = matches!(op, Op::Force { .. }) || quotas[quota].denied() == Denied::Charged;
        if decision.receipt.is_some() {
            reported.events.push(Event { at, charged: cost, admitted: cost, quota });
        } else if charged && op != Op::Peek {
            reported.events.push(Event { at, charged: cost, admitted: 0, quota });
        } else if quota == LARGEST && op != Op::Peek {
            reported.first_refused = reported.first_refused.or(Some((at, cost)));
        }
        if below(40) == 0 {
            tokio::time::sleep(Duration::from_millis(below(60))).await;
        }
    }
    reported
}

/// Returns the maximum number of units that the quota admits in `s` nanoseconds. `l` is the capacity, and `w` is the
/// window. `t` is the time for one unit of a bucket, or for one segment of a counter.
fn bound(quota: &Quota, s: u64) -> u64 {
    let (l, w, t) = (quota.hard_capacity(), quota.window_ns(), quota.interval_ns());
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => l + s / t,
        Algorithm::FixedWindow(Anchor::Epoch) => l * (s.div_ceil(w) + 1),
        Algorithm::FixedWindow(Anchor::FirstHit) => l * (s / w + 1) + if s.is_multiple_of(w) { 0 } else { l - 1 },
        Algorithm::SlidingWindowLog => l * (s / w + 1),
        Algorithm::SlidingWindowCounter { .. } => l * (1 + s / w) + l * (s % w + t).saturating_sub(w) / t,
        Algorithm::Concurrency => l,
    }
}

/// Divides the units that were admitted in each interval by the bound of the interval, and returns the largest
/// quotient, in thousandths. The bound of an interval is that of the largest quota that charged in this interval. For
/// buckets, the bound is computed from the largest capacity and the largest rate of the quotas that charged in it.
fn largest_share(quotas: &[Quota], events: &[Event], late_ns: u64) -> u64 {
    let mut share = 0;
    for (i, first) in events.iter().enumerate() {
        let (mut sum, mut depth, mut interval_ns, mut largest) = (0, 0, NonZeroU64::MAX.get(), first.quota);
        for event in &events[i..] {
            let quota = &quotas[event.quota];
            sum += event.admitted;
            depth = depth.max(quota.hard_capacity());
            interval_ns = interval_ns.min(quota.interval_ns());
            largest = if quota.limit() > quotas[largest].limit() { event.quota } else { largest };
            let s = event.at - first.at + 2 * late_ns;
            let is_bucket = matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
            let most = if is_bucket { depth + s / interval_ns } else { bound(&quotas[largest], s) };
            share = share.max(sum * 1000 / most);
        }
    }
    share
}

/// Runs the tasks, half of them on each store if there are two. A task on the memory store reads the clock before the
/// store decides. So the store can decide up to `late_ns` after the time in the verdict.
async fn asked_together(nodes: &[Node], key: u128, quotas: &Arc<[Quota]>) -> Report {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let node = nodes[task as usize % nodes.len()].clone();
        tasks.spawn(ask(node, key, quotas.clone(), task + 1));
    }
    let reported = tasks.join_all().await;
    let is_memory = matches!(nodes[0], Node::Memory(_));
    let late_ns = reported.iter().map(|reported| reported.late_ns).max().filter(|_| is_memory).unwrap_or(0);
    let first_refused = reported.iter().filter_map(|reported| reported.first_refused).min();
    let mut events: Vec<Event> = reported.into_iter().flat_map(|reported| reported.events).collect();
    events.sort_by_key(|event| event.at);
    Report { events, first_refused, late_ns }
}

/// Returns how many units, beyond the cost of the take, the largest quota still had when it first refused a take. The
/// result is a lower bound: the capacity minus the cost and minus all charges since the start, although some of the
/// charged units may have become free again. Returns 0 if the quota refused no take.
fn left_at_first_refusal(quotas: &[Quota], reported: &Report) -> u64 {
    let Some((at, cost)) = reported.first_refused else { return 0 };
    let before = reported.events.iter().take_while(|event| event.at <= at + 2 * reported.late_ns);
    let charged: u64 = before.map(|event| event.charged).sum();
    quotas[LARGEST].hard_capacity().saturating_sub(charged + cost)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_under_several_quotas_keep_the_bound_of_the_largest() {
    let server = Server::start();
    let node = |deny_cache_entries| {
        let patience = Duration::from_secs(30);
        let settings = Settings {
            timeout: patience,
            connect_timeout: patience,
            deny_cache_entries,
            ..Settings::new(server.url())
        };
        Node::Redis(RedisStore::new(&settings).expect("the URL is valid"))
    };
    let memory = || Node::Memory(Arc::new(MemoryStore::new(MemoryOptions::default())));
    let stores = [
        ("memory", vec![memory()]),
        ("redis, one node", vec![node(1000)]),
        ("redis, two nodes", vec![node(1000), node(1000)]),
        ("redis, two nodes, no deny cache", vec![node(0), node(0)]),
    ];
    let of: [(&str, Of); 7] = [
        ("token_bucket", |limit| Quota::token_bucket(limit, WINDOW).burst(limit / 2)),
        ("fixed_window", |limit| Quota::fixed_window(limit, WINDOW)),
        ("fixed_window, first hit", |limit| Quota::fixed_window(limit, WINDOW).anchor(Anchor::FirstHit)),
        ("sliding_window_log", |limit| Quota::sliding_window_log(limit, WINDOW)),
        ("sliding_window_counter", |limit| Quota::sliding_window_counter(limit, WINDOW)),
        ("sliding_window_counter, 8 segments", |limit| Quota::sliding_window_counter(limit, WINDOW).segments(8)),
        ("leaky_bucket", |limit| Quota::leaky_bucket(400, WINDOW).queue(limit)),
    ];
    let mut key = 0;
    for (algorithm, of) in of {
        for three in [false, true] {
            let quotas: Arc<[Quota]> = quotas(of, three).into();
            for (store, nodes) in &stores {
                key += 1;
                let reported = asked_together(nodes, key, &quotas).await;
                let units: u64 = reported.events.iter().map(|event| event.admitted).sum();
                let share = largest_share(&quotas, &reported.events, reported.late_ns);
                println!(
                    "{algorithm}, {} quotas, {store}: {units} units; fullest interval: {share}/1000 of its bound",
                    quotas.len()
                );
                assert!(share <= 1000, "{algorithm}, {store}: fullest interval: {share}/1000 of its bound");
                let left = left_at_first_refusal(&quotas, &reported);
                assert_eq!(left, 0, "{algorithm}, {store}: units that the largest quota had left when it refused");
            }
        }
    }
}
